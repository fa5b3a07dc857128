//! What a model computes, told by a program of the built tree: `llama-kvforge-probe` runs
//! a text through a model and writes queries, keys and values of every layer as a stream
//! of [`Record`]s, with what RoPE does to them.

mod stream;

use std::fs::File;
use std::io::{self, BufReader, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::Tree;
use crate::gguf::{GgufError, Header};
use crate::smoke::FOLDERS;
pub use stream::{Record, Stream};

/// The program.
const PROGRAM: &str = "llama-kvforge-probe";
/// Bytes of its log that are repeated when it fails: what it said last.
const LOG_BYTES: u64 = 1 << 11;

/// Why a model could not be looked at.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProbeError {
    /// The tree has no such program.
    #[error("{}: expected {PROGRAM} of a built tree, found none; run `kvforge build` first", build_dir.display())]
    NotBuilt {
        /// The build folder.
        build_dir: PathBuf,
    },
    /// A file cannot be read, or the program not be started.
    #[error("{}: {cause}", path.display())]
    Io {
        /// File or program.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// The model is no GGUF file.
    #[error("{}: {cause}", path.display())]
    Model {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        cause: GgufError,
    },
    /// The program says that it failed.
    #[error("{}: ended with {status}; it said last:\n{log}", program.display())]
    Failed {
        /// The program.
        program: PathBuf,
        /// How it ended.
        status: String,
        /// The end of what it said.
        log: String,
    },
    /// The stream stops before it says that it is complete.
    #[error(
        "the probe ended early: its stream stops before the end was told; look at its model and its memory"
    )]
    EndedEarly,
    /// The stream does not begin as one.
    #[error("expected a stream of the probe, `KVFPROB1`, found `{found}`; ship and build again")]
    NotAStream {
        /// Its first bytes.
        found: String,
    },
    /// A record says what cannot be.
    #[error("expected {expected} from the probe, found {found}; ship and build again")]
    Malformed {
        /// What it should say.
        expected: String,
        /// What it says.
        found: String,
    },
    /// The stream cannot be read.
    #[error("the stream of the probe cannot be read: {0}")]
    Read(io::Error),
}

/// What to run through which model.
#[derive(Clone, Copy, Debug)]
pub struct ProbeOptions<'a> {
    /// Where the tree was built, if not in [`BUILD_DIR`](crate::BUILD_DIR).
    pub build_dir: Option<&'a Path>,
    /// A GGUF file.
    pub model: &'a Path,
    /// A file of plain text.
    pub text: &'a Path,
    /// Most tokens of it to run.
    pub tokens: u32,
    /// Tokens of a sequence, at least 8.
    pub chunk: u32,
}

/// Runs the probe of a built tree, and hands over each record as it comes.
///
/// # Errors
/// [`ProbeError`], or what `each` returns.
pub fn probe<E: From<ProbeError>>(
    tree: &Tree,
    options: &ProbeOptions<'_>,
    each: &mut dyn FnMut(Record) -> Result<(), E>,
) -> Result<(), E> {
    let io_error = |path: &Path| {
        let path = path.to_path_buf();
        move |cause| ProbeError::Io { path, cause }
    };
    let build_dir = options
        .build_dir
        .map_or_else(|| tree.build_dir(), Path::to_path_buf);
    let file = format!("{PROGRAM}{}", std::env::consts::EXE_SUFFIX);
    let mut programs = FOLDERS
        .iter()
        .map(|folder| build_dir.join(folder).join(&file));
    let Some(program) = programs.find(|program| program.is_file()) else {
        return Err(ProbeError::NotBuilt { build_dir }.into());
    };
    kvforge_files::open(options.text).map_err(io_error(options.text))?;
    Header::open(options.model).map_err(|cause| ProbeError::Model {
        path: options.model.into(),
        cause,
    })?;
    // A pipe would fill up while the other one is read.
    let mut log = tempfile::tempfile().map_err(io_error(&std::env::temp_dir()))?;
    let to_log = log.try_clone().map_err(io_error(&std::env::temp_dir()))?;
    let mut child = Command::new(&program)
        .arg("-m")
        .arg(options.model)
        .arg("-f")
        .arg(options.text)
        .args([
            "-n",
            &options.tokens.to_string(),
            "-c",
            &options.chunk.to_string(),
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(to_log)
        .spawn()
        .map_err(io_error(&program))?;
    let told = match child.stdout.take() {
        Some(out) => read_all(BufReader::new(out), each),
        None => Err(ProbeError::EndedEarly.into()),
    };
    if !matches!(told, Ok(()) | Err(Stop::Stream(ProbeError::EndedEarly))) {
        // What it has yet to tell is of no use. If it cannot be ended, it ends by itself.
        let _ = child.kill();
    }
    let status = child.wait().map_err(io_error(&program))?;
    match told {
        // Why it ended says more than that it did.
        Err(Stop::Stream(ProbeError::EndedEarly)) | Ok(()) if !status.success() => {
            let log = last_words(&mut log).map_err(io_error(&program))?;
            let status = status.to_string();
            Err(ProbeError::Failed {
                program,
                status,
                log,
            }
            .into())
        }
        Err(Stop::Stream(e)) => Err(e.into()),
        Err(Stop::Caller(e)) => Err(e),
        Ok(()) => Ok(()),
    }
}

/// Who ended the reading.
enum Stop<E> {
    Stream(ProbeError),
    Caller(E),
}

impl<E> From<ProbeError> for Stop<E> {
    fn from(e: ProbeError) -> Stop<E> {
        Stop::Stream(e)
    }
}

fn read_all<E>(
    out: impl io::Read,
    each: &mut dyn FnMut(Record) -> Result<(), E>,
) -> Result<(), Stop<E>> {
    let mut stream = Stream::new(out)?;
    while let Some(record) = stream.record()? {
        each(record).map_err(Stop::Caller)?;
    }
    Ok(())
}

/// The end of a log.
fn last_words(log: &mut File) -> io::Result<String> {
    let length = log.seek(SeekFrom::End(0))?;
    log.seek(SeekFrom::Start(length.saturating_sub(LOG_BYTES)))?;
    let mut bytes = vec![];
    log.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).trim_end().to_string())
}
