//! Chores of this repository: `cargo xtask help`.

mod command;
mod digest;
mod fetch;
mod generated;
mod header;
mod http;
mod kvforge;
mod measure;
mod parse;
mod places;
mod report;
mod steps;
mod system;
mod test;
mod tidy;
mod up;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::command::Log;
use crate::places::Workshop;

/// Chores of the kvforge repository.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Fetch, ship, build, smoke, generate text on a compressed cache, compare cache types
    ///
    /// Needs only Rust and the package registries of Debian, Python and Rust. A
    /// second run reuses what is there.
    Up {
        /// Folder for everything fetched, built and measured [default: target/kvforge]
        #[arg(long, value_name = "D")]
        dir: Option<PathBuf>,
    },
    /// Run every test, as continuous integration does
    Test(test::Args),
    /// Write what is generated: the C header and the JSON schemas
    Gen {
        /// Only say whether it is up to date
        #[arg(long)]
        check: bool,
    },
    /// Download the llama.cpp tree and the models, and check them
    Fetch {
        /// Folder that they go into [default: target/kvforge]
        #[arg(long, value_name = "D")]
        dir: Option<PathBuf>,
    },
    /// Check the house rules that no compiler knows
    Tidy,
}

fn main() -> ExitCode {
    match run(Cli::parse().chore) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(chore: Chore) -> Result<bool> {
    match chore {
        Chore::Up { dir } => up::run(Workshop::open(dir)?)?,
        Chore::Test(args) => return test::run(args),
        Chore::Gen { check } => println!("{}", generated::write(check)?.join("\n")),
        Chore::Fetch { dir } => {
            let workshop = Workshop::open(dir)?;
            let log = Log::new(workshop.path("logs").join("fetch.log"))?;
            println!(
                "{}",
                fetch::tree(&workshop, &log, &workshop.path("llama.cpp"))?
            );
            for model in [fetch::SMALL, fetch::WIDE] {
                println!("{}", fetch::model(&workshop, &log, &model)?.1);
            }
        }
        Chore::Tidy => println!("{} files are tidy", tidy::check()?),
    }
    Ok(true)
}
