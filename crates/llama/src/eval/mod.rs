//! How far a compressed KV cache moves a real model.
//!
//! The built tree's own `llama-perplexity` saves the predictions of the model with an
//! f16 cache, and then compares with them those with every other cache: the divergence
//! of a text, and a copy task that needs the cache alone. Peers run beside in
//! the same evaluation; nothing is compared across machines, texts or trees.
//!
//! The folder of an evaluation holds logs, the saved predictions and a state. Whatever
//! is finished is not run again as long as all that it depends on is the same.

mod copy;
mod error;
mod html;
mod markdown;
mod parse;
mod plan;
mod plot;
mod program;
mod report;
mod sections;
mod session;
mod state;

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use kvforge::calibration::Calibration;
use kvforge::capture::Capture;
use kvforge::quality::{self, Center, Window};
use kvforge::rows::Encoder;
use kvforge_evidence::{Hashed, Host, digest, utc};

pub use error::EvalError;
pub use html::html;
pub use markdown::markdown;
pub use parse::{Estimate, Figures};
pub use plan::Pair;
pub use report::{Copy, Layers, Outcome, Ratios, Report, Row, SCHEMA, Task};

use crate::Tree;
use program::Program;
use session::Session;

/// Fewer scored tokens, and llama-perplexity makes no statistics.
const LEAST_SCORED: usize = 100;

/// More tokens than anyone keeps exact.
const MOST_EXACT: u32 = 1_000_000;

/// Larger than any context or text there is; products of two fit.
const MOST: usize = 1 << 24;

/// What to evaluate.
#[derive(Clone, Debug)]
pub struct EvalOptions {
    /// GGUF model.
    pub model: PathBuf,
    /// The text.
    pub text: PathBuf,
    /// Pairs to run beside the floor and the peers.
    pub types: Vec<Pair>,
    /// Tokens of a chunk.
    pub ctx: usize,
    /// Chunks of the text.
    pub chunks: usize,
    /// Newest tokens that are read exact, for types of kvforge: each of these.
    pub windows: Vec<u32>,
    /// First tokens that are read exact, too: each of these with each of `windows`.
    pub firsts: Vec<u32>,
    /// Key means; with them every pair runs a second time, centred, and with a window only so.
    pub calibration: Option<PathBuf>,
    /// Tokens of the copy task; 0 for none.
    pub copy: usize,
    /// Captured attention, for the error by layer.
    pub capture: Option<PathBuf>,
    /// Folder for everything that is written.
    pub out: PathBuf,
    /// Threads of every run.
    pub threads: usize,
    /// The command line, for the report.
    pub command: String,
}

/// What is going on.
#[derive(Clone, Copy, Debug)]
pub enum Progress<'a> {
    /// A run begins.
    Started {
        /// Its number, from 1.
        number: usize,
        /// How many there are.
        of: usize,
        /// What it is.
        name: &'a str,
        /// Seconds that all that is left will take, once runs before have shown it.
        rest: Option<f64>,
    },
    /// The run itself has estimated how long it will take.
    Expected {
        /// In seconds.
        seconds: f64,
    },
    /// It ended.
    Ended {
        /// How, in a few words.
        how: &'a str,
        /// How long it took, or nothing if it had been done before.
        seconds: Option<f64>,
    },
}

/// Runs an evaluation, or goes on with one, and writes the report.
///
/// # Errors
/// [`EvalError`]; what a single run came to is in the [`Report`].
pub fn eval(
    tree: &Tree,
    options: &EvalOptions,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Report, EvalError> {
    options.check()?;
    let program = Program::find(tree)?;
    // What no run could use is told before hours of work.
    if let Some(path) = &options.calibration {
        Calibration::read(path)?;
    }
    let model = hashed(&options.model)?;
    let text = hashed(&options.text)?;
    let calibration = options.calibration.as_deref().map(hashed).transpose()?;
    let capture = options.capture.as_deref().map(|path| {
        let capture = Capture::read(path)?;
        Ok::<_, EvalError>((capture, hashed(path)?))
    });
    let capture = capture.transpose()?;
    let logs = options.out.join(session::LOGS);
    fs::create_dir_all(&logs).map_err(EvalError::io(&logs, "create the folder"))?;

    let lock = lock(&options.out)?;
    let runs = plan::runs(
        &options.types,
        calibration.is_some(),
        &options.windows,
        &options.firsts,
    );
    let mut session = Session::new(options, &program, &lock, &runs, progress)?;
    session.model = model.blake3.clone();
    session.calibration = calibration.as_ref().map(|c| c.blake3.clone());
    let divergence = session.divergence(&text.blake3)?;
    let copy = session.copy()?;
    let layers = capture.map(|(capture, file)| layers(&capture, file, &runs));
    let report = Report {
        schema: SCHEMA,
        kvforge: env!("CARGO_PKG_VERSION"),
        date: utc(SystemTime::now()),
        command: options.command.clone(),
        host: host(),
        threads: options.threads,
        tree: format!("ggml {}", tree.ggml_version()),
        program: program.digests.clone(),
        settings: program.settings.clone(),
        model,
        text,
        calibration,
        ctx: options.ctx,
        chunks: options.chunks,
        divergence,
        copy,
        layers: layers.transpose()?,
    };
    write(&report, &options.out)?;
    Ok(report)
}

/// Nobody else works in the folder as long as this file is open, here or in a program that
/// got it from here and outlives us.
fn lock(folder: &Path) -> Result<File, EvalError> {
    let path = folder.join("lock");
    let mut options = File::options();
    let file = options.write(true).create(true).truncate(false).open(&path);
    let file = file.map_err(EvalError::io(&path, "open the file"))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(EvalError::Busy {
            folder: folder.into(),
        }),
        Err(TryLockError::Error(cause)) => Err(EvalError::io(&path, "lock the file")(cause)),
    }
}

/// `eval.json`, `eval.md`, `eval.html`.
fn write(report: &Report, folder: &Path) -> Result<(), EvalError> {
    let mut json = serde_json::to_string_pretty(report).expect("it is JSON");
    json.push('\n');
    let files = [
        ("eval.json", json),
        ("eval.md", markdown(report)),
        ("eval.html", html(report)),
    ];
    for (name, text) in files {
        let path = folder.join(name);
        kvforge_files::write(&path, text.as_bytes())
            .map_err(EvalError::io(&path, "write the file"))?;
    }
    Ok(())
}

impl EvalOptions {
    fn check(&self) -> Result<(), EvalError> {
        let refuse = |expected: String, found: String| Err(EvalError::Option { expected, found });
        let sizes = [
            ("--ctx", self.ctx),
            ("--chunks", self.chunks),
            ("--copy", self.copy),
        ];
        if let Some((name, size)) = sizes.into_iter().find(|(_, size)| *size > MOST) {
            return refuse(format!("{name} of at most {MOST}"), size.to_string());
        }
        for (name, numbers) in [("--window", &self.windows), ("--first", &self.firsts)] {
            if numbers.is_empty() {
                return refuse(
                    format!("{name} with at least one number of tokens"),
                    "none".into(),
                );
            }
            if let Some(n) = numbers.iter().find(|n| **n > MOST_EXACT) {
                return refuse(format!("{name} of at most {MOST_EXACT}"), n.to_string());
            }
        }
        let scored = |window: usize| window.saturating_sub(1 + window / 2);
        if scored(self.ctx).saturating_mul(self.chunks) < LEAST_SCORED {
            return refuse(
                format!("at least {LEAST_SCORED} scored tokens, half of --ctx in each of --chunks"),
                format!("--ctx {} --chunks {}", self.ctx, self.chunks),
            );
        }
        if self.copy != 0 && scored(self.copy) < LEAST_SCORED {
            return refuse(
                format!(
                    "--copy 0 or a window with {LEAST_SCORED} scored tokens in its second half"
                ),
                format!("--copy {}", self.copy),
            );
        }
        if self.threads == 0 {
            return refuse("at least one thread".into(), "--threads 0".into());
        }
        Ok(())
    }
}

/// A file by its name, without the folder: reports travel.
fn hashed(path: &Path) -> Result<Hashed, EvalError> {
    let blake3 = digest::file(path).map_err(EvalError::io(path, "read the file"))?;
    let name = path.file_name().unwrap_or(path.as_os_str());
    Ok(Hashed {
        path: name.to_string_lossy().into_owned(),
        blake3,
    })
}

fn host() -> Host {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    Host {
        cpu: name.map_or("unknown", |(_, name)| name.trim()).into(),
        os: std::env::consts::OS.into(),
        arch: std::env::consts::ARCH.into(),
    }
}

/// The key types of the runs, measured on a capture.
fn layers(capture: &Capture, file: Hashed, runs: &[plan::Run]) -> Result<Layers, EvalError> {
    let mut names: Vec<&str> = vec![];
    for run in runs {
        // The host rotates q4_0; of iq4_nl there is no rotated peer to measure.
        let name = match run.pair.k.as_str() {
            plan::Q4_0 => "q4_0_rot",
            name => name,
        };
        if !names.contains(&name) && quality::names().any(|known| known == name) {
            names.push(name);
        }
    }
    let has_means = capture.layers.iter().all(|l| l.k_mean_other_text.is_some());
    let centers: &[Center] = match has_means {
        true => &[Center::None, Center::File],
        false => &[Center::None],
    };
    let measure =
        |center: &Center| quality::measure(capture, &names, *center, Window::NONE, Encoder::Best);
    let reports = centers.iter().map(measure).collect::<Result<_, _>>()?;
    Ok(Layers {
        capture: file,
        reports,
    })
}
