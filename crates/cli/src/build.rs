use std::path::PathBuf;

use anyhow::Result;
use kvforge_llama::Payload;
use kvforge_llama::build::{BuildOptions, build};

use crate::say::say;
use crate::{Outcome, TreeArg};

/// Build a llama.cpp tree that kvforge has been shipped into
///
/// Runs cmake, with Ninja if it is there, in TREE/build-kvforge. Builds the
/// libraries, llama-cli, llama-server, llama-completion, llama-perplexity, llama-bench,
/// the probe that `calibrate` runs, and the tests of our operations, unless targets are named.
#[derive(clap::Args)]
#[command(after_help = "\
Example:
  kvforge build ~/llama.cpp
  kvforge build ~/llama.cpp --target llama-quantize -- -DGGML_NATIVE=OFF")]
pub struct Args {
    #[command(flatten)]
    tree: TreeArg,
    /// Build in this folder instead
    #[arg(long, value_name = "D")]
    build_dir: Option<PathBuf>,
    /// How many jobs at once
    #[arg(long, short, value_name = "N")]
    jobs: Option<usize>,
    /// Build this target only; may be given several times
    #[arg(long, value_name = "T")]
    target: Vec<String>,
    /// Further arguments for cmake
    #[arg(last = true, value_name = "CMAKE ARGS")]
    cmake_args: Vec<String>,
}

pub fn run(args: Args) -> Result<Outcome> {
    let options = BuildOptions {
        build_dir: args.build_dir,
        jobs: args.jobs,
        targets: args.target,
        cmake_args: args.cmake_args,
    };
    let folder = build(&args.tree.open()?, &Payload::embedded()?, &options)?;
    say!("built in {}", folder.display());
    Ok(Outcome::Done)
}
