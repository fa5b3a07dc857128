use std::io;
use std::path::{Path, PathBuf};

/// Why an evaluation could not be made. A single run that failed is no error but an
/// [`Outcome`](super::Outcome): the others go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EvalError {
    /// The tree, or what it was built into, lacks a program.
    #[error("{}: expected {missing} of a built tree, found none; run `kvforge build` first", folder.display())]
    NotBuilt {
        /// Where it should be.
        folder: PathBuf,
        /// The file that is missing.
        missing: String,
    },
    /// Another evaluation, or a program that one has left behind, works in the folder.
    #[error("{}: another evaluation is going on in this folder, or a llama-perplexity that one began; wait for its end, or name another folder", folder.display())]
    Busy {
        /// The folder.
        folder: PathBuf,
    },
    /// The operating system refused something.
    #[error("{}: cannot {doing}: {cause}", path.display())]
    Io {
        /// File or folder.
        path: PathBuf,
        /// What was being done.
        doing: &'static str,
        /// What the system said.
        cause: io::Error,
    },
    /// An option has a value that nothing can be measured with.
    #[error("expected {expected}, found {found}")]
    Option {
        /// What would do.
        expected: String,
        /// What was asked for.
        found: String,
    },
    /// The state file cannot be understood.
    #[error(
        "{}: expected the state of an evaluation that kvforge wrote, found {found}; delete it to begin anew",
        path.display()
    )]
    State {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        found: String,
    },
    /// The text has too few tokens.
    #[error("{}: expected a text of at least {needed} tokens ({why}), found {found}; give a longer text, or less --ctx or --chunks", text.display())]
    TextShort {
        /// The text.
        text: PathBuf,
        /// Tokens that it should have.
        needed: usize,
        /// Why so many.
        why: String,
        /// What it has, in words.
        found: String,
    },
    /// The run that all others are compared with did not work.
    #[error("{}: expected {expected} of the f16 cache, which everything is compared with, found: {found}", log.display())]
    Base {
        /// Its log.
        log: PathBuf,
        /// What it should have given.
        expected: &'static str,
        /// What it gave.
        found: String,
    },
    /// The capture cannot be measured.
    #[error("{0}")]
    Capture(#[from] kvforge::Error),
}

impl EvalError {
    pub(crate) fn io(path: &Path, doing: &'static str) -> impl FnOnce(io::Error) -> EvalError {
        move |cause| EvalError::Io {
            path: path.into(),
            doing,
            cause,
        }
    }
}
