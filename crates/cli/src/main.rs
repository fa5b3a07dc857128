//! `kvforge`: parses and prints; the work is in the libraries.

mod build;
mod calibrate;
mod capture;
mod contract;
mod doctor;
mod eval;
mod formats;
mod probe;
mod quality;
mod rows;
mod say;
mod ship;
mod smoke;
mod status;
mod unship;
mod verify;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use kvforge_llama::{Error, Tree};

/// Compressed KV-cache types for llama.cpp.
#[derive(Parser)]
#[command(name = "kvforge", version, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Ship(ship::Args),
    Unship(unship::Args),
    Status(status::Args),
    Build(build::Args),
    Smoke(smoke::Args),
    #[command(subcommand)]
    Contract(contract::Verb),
    Doctor(doctor::Args),
    Formats(formats::Args),
    Encode(rows::Encode),
    Decode(rows::Decode),
    Score(rows::Score),
    Calibrate(calibrate::Args),
    Capture(capture::Args),
    Quality(quality::Args),
    Eval(eval::Args),
    Verify(verify::Args),
}

const EXIT_CODES: &str = "\
Example:
  kvforge ship ~/llama.cpp && kvforge build ~/llama.cpp

Exit codes: 0 done, 1 a check failed, 2 wrong usage or input.";

/// What a verb found out; errors are the third possibility.
enum Outcome {
    Done,
    CheckFailed,
}

fn main() -> ExitCode {
    let result = match Cli::parse().verb {
        Verb::Ship(args) => ship::run(args),
        Verb::Unship(args) => unship::run(args),
        Verb::Status(args) => status::run(args),
        Verb::Build(args) => build::run(args),
        Verb::Smoke(args) => smoke::run(args),
        Verb::Contract(verb) => contract::run(verb),
        Verb::Doctor(args) => doctor::run(args),
        Verb::Formats(args) => formats::run(args),
        Verb::Encode(args) => rows::encode(args),
        Verb::Decode(args) => rows::decode(args),
        Verb::Score(args) => rows::score(args),
        Verb::Calibrate(args) => calibrate::run(args),
        Verb::Capture(args) => capture::run(args),
        Verb::Quality(args) => quality::run(args),
        Verb::Eval(args) => eval::run(args),
        Verb::Verify(args) => verify::run(args),
    };
    match result {
        Ok(Outcome::Done) => ExitCode::SUCCESS,
        Ok(Outcome::CheckFailed) => ExitCode::from(1),
        Err(e) => {
            // Where it cannot be said, the exit code says it.
            let _ = writeln!(std::io::stderr(), "error: {e:#}");
            let failed_build = matches!(e.downcast_ref(), Some(Error::BuildFailed { .. }));
            ExitCode::from(if failed_build { 1 } else { 2 })
        }
    }
}

/// The tree that every verb works on.
#[derive(clap::Args)]
struct TreeArg {
    /// Folder of a llama.cpp source tree (the one that holds ggml/ and src/)
    #[arg(value_name = "TREE")]
    path: PathBuf,
}

impl TreeArg {
    fn open(&self) -> Result<Tree, Error> {
        Tree::open(&self.path)
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

/// `1 file`, `2 files`.
fn count(n: usize, what: &str) -> String {
    let s = if n == 1 { "" } else { "s" };
    format!("{n} {what}{s}")
}
