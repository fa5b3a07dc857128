//! The tree's own `llama-perplexity`: which one it is, and running it.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::thread::sleep;
use std::time::{Duration, Instant};

use kvforge_evidence::digest;

use super::EvalError;
use super::parse;
use crate::Tree;

const NAME: &str = "llama-perplexity";

/// How often a running program is looked at.
const POLL: Duration = Duration::from_millis(50);

/// Variables that choose among our kernels and encoders: they stay, and count.
const OURS: [&str; 2] = ["KVFORGE_ISA", "KVFORGE_ENCODER"];

/// Beginnings of variables that would change options or graphs behind our back.
const THEIRS: [&str; 2] = ["LLAMA_", "GGML_"];

/// A built `llama-perplexity`.
#[derive(Debug)]
pub(crate) struct Program {
    path: PathBuf,
    /// BLAKE3 of the program and of the libraries beside it, by name.
    pub digests: BTreeMap<String, String>,
    /// Variables of [`OURS`] that are set.
    pub settings: BTreeMap<String, String>,
}

/// How a program ended.
pub(crate) struct Ended {
    pub status: ExitStatus,
    /// All that it printed.
    pub log: String,
    pub seconds: f64,
}

impl Program {
    /// Finds the program in the tree's build folder and hashes it.
    pub fn find(tree: &Tree) -> Result<Program, EvalError> {
        let folder = tree.build_dir().join("bin");
        let name = format!("{NAME}{}", env::consts::EXE_SUFFIX);
        let path = folder.join(&name);
        if !path.is_file() {
            return Err(EvalError::NotBuilt {
                folder,
                missing: name,
            });
        }
        let read = |e| EvalError::io(&folder, "list the folder")(e);
        let mut digests = BTreeMap::new();
        for entry in fs::read_dir(&folder).map_err(read)? {
            let entry = entry.map_err(read)?;
            let file = entry.file_name().to_string_lossy().into_owned();
            let is_library = ["libggml", "libllama", "ggml", "llama"]
                .iter()
                .any(|start| file.starts_with(start))
                && file.contains(env::consts::DLL_SUFFIX);
            // Links lead to a file that is there under its own name.
            let is_file = entry.file_type().map_err(read)?.is_file();
            if file == name || is_file && is_library {
                let path = entry.path();
                let hash = digest::file(&path).map_err(EvalError::io(&path, "read the file"))?;
                digests.insert(file, hash);
            }
        }
        let set = |name: &str| Some((name.to_string(), env::var(name).ok()?));
        Ok(Program {
            path,
            digests,
            settings: OURS.into_iter().filter_map(set).collect(),
        })
    }

    /// All that results depend on here, for a key.
    pub fn identity(&self) -> String {
        serde_json::to_string(&(&self.digests, &self.settings)).expect("it is JSON")
    }

    /// The command line, for people.
    pub fn in_words(&self, args: &[OsString]) -> String {
        let words = [self.path.as_os_str()]
            .into_iter()
            .chain(args.iter().map(OsString::as_os_str));
        let quoted = words.map(|w| {
            let word = w.to_string_lossy();
            let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+".contains(c);
            match word.chars().all(plain) && !word.is_empty() {
                true => word.into_owned(),
                false => format!("'{}'", word.replace('\'', r"'\''")),
            }
        });
        quoted.collect::<Vec<_>>().join(" ")
    }

    /// Runs the program and keeps all that it prints in `log`. It reads nothing and gets
    /// `lock` to hold as its input. As soon as it has estimated how many seconds it will
    /// take, `expected` is told.
    pub fn run(
        &self,
        args: &[OsString],
        log: &Path,
        lock: &File,
        expected: &mut dyn FnMut(f64),
    ) -> Result<Ended, EvalError> {
        let create = |e| EvalError::io(log, "create the file")(e);
        let out = File::create(log).map_err(create)?;
        let err = out.try_clone().map_err(create)?;
        let mut command = Command::new(&self.path);
        command
            .args(args)
            .stdin(lock.try_clone().map_err(create)?)
            .stdout(out)
            .stderr(err);
        for (name, _) in env::vars_os() {
            let name = name.to_string_lossy();
            if THEIRS.iter().any(|start| name.starts_with(start)) {
                command.env_remove(name.as_ref());
            }
        }
        // Threads that wait for each other would take the cores from whoever else runs.
        command.env("OMP_WAIT_POLICY", "passive");
        let start = Instant::now();
        let cannot_run = |e| EvalError::io(&self.path, "run the program")(e);
        let mut child = command.spawn().map_err(cannot_run)?;
        let mut told = false;
        let status = loop {
            if let Some(status) = child.try_wait().map_err(cannot_run)? {
                break status;
            }
            if !told && let Some(minutes) = text(log).ok().as_deref().and_then(parse::minutes) {
                expected(60.0 * minutes);
                told = true;
            }
            sleep(POLL);
        };
        Ok(Ended {
            status,
            log: text(log).map_err(EvalError::io(log, "read the file"))?,
            seconds: start.elapsed().as_secs_f64(),
        })
    }
}

fn text(log: &Path) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&kvforge_files::read(log)?).into_owned())
}
