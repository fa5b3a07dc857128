use std::io;
use std::path::{Path, PathBuf};

use kvforge_formats::CodecError;

/// Why something could not be read, computed or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused something.
    #[error("{}: cannot {doing}: {cause}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was being done.
        doing: &'static str,
        /// What the system said.
        cause: io::Error,
    },
    /// A file does not hold what it should.
    #[error("{}: expected {expected}, found {found}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What it should hold, and where that is not plain, what to do.
        expected: String,
        /// What it holds.
        found: String,
    },
    /// A file is no calibration that can be used.
    #[error("{}: {cause}", path.display())]
    Calibration {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, and what to do.
        cause: kvforge_calibration::Error,
    },
    /// No format or peer has this name.
    #[error("unknown format `{name}`; there are {known}")]
    UnknownFormat {
        /// The name that was asked for.
        name: String,
        /// Every name that there is.
        known: String,
    },
    /// A row cannot be encoded or decoded.
    #[error("row {row}: {cause}")]
    Row {
        /// Index of the row.
        row: usize,
        /// What is wrong with it.
        cause: CodecError,
    },
    /// A key or value that was to be appended to a cache cannot be stored; none of
    /// its batch has been.
    #[error("{what} of appended token {token}, kv head {head}: {cause}")]
    Token {
        /// `key` or `value`.
        what: &'static str,
        /// Index of the token among those that were appended together.
        token: usize,
        /// Its kv head.
        head: usize,
        /// What is wrong with it.
        cause: CodecError,
    },
    /// A kernel refused its work.
    #[error("no kernel for this: {0}")]
    Kernel(#[from] kvforge_cpu::Error),
    /// What was asked for does not fit together.
    #[error("expected {expected}, found {found}")]
    Mismatch {
        /// What would fit.
        expected: String,
        /// What there is.
        found: String,
    },
}

impl Error {
    pub(crate) fn io(path: &Path, doing: &'static str) -> impl FnOnce(io::Error) -> Error {
        move |cause| Error::Io {
            path: path.into(),
            doing,
            cause,
        }
    }

    pub(crate) fn malformed(
        path: &Path,
        expected: impl Into<String>,
        found: impl Into<String>,
    ) -> Error {
        Error::Malformed {
            path: path.into(),
            expected: expected.into(),
            found: kvforge_files::excerpt(&found.into()),
        }
    }

    pub(crate) fn mismatch(expected: impl Into<String>, found: impl Into<String>) -> Error {
        Error::Mismatch {
            expected: expected.into(),
            found: found.into(),
        }
    }
}
