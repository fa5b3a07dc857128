use std::io;
use std::path::PathBuf;

use crate::Status;

/// Why evidence could not be written, read or checked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused something.
    #[error("{}: expected to {doing}, found: {cause}", path.display())]
    Io {
        /// File or folder.
        path: PathBuf,
        /// What was being done.
        doing: &'static str,
        /// What the system said.
        cause: io::Error,
    },
    /// The file is not evidence, or not all of it.
    #[error("{}: expected evidence of a smoke run, found {what}; run `kvforge smoke` again", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// Someone changed the file after it was written.
    #[error(
        "{}: expected the content that was written, with digest {expected}, found {found}: it was edited by hand; run `kvforge smoke` again",
        path.display()
    )]
    Edited {
        /// The file.
        path: PathBuf,
        /// Digest that stands in it.
        expected: String,
        /// Digest of what else stands in it.
        found: String,
    },
    /// A record claims another status than its own numbers support.
    #[error(
        "{}: the record of {operation} on {format} claims `{claimed}`, its numbers support `{supported}`; run `kvforge smoke` again",
        path.display()
    )]
    Overclaimed {
        /// The file.
        path: PathBuf,
        /// The record's format.
        format: String,
        /// The record's operation.
        operation: String,
        /// What it says.
        claimed: Status,
        /// What follows from its numbers.
        supported: Status,
    },
}
