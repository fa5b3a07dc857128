//! `cargo xtask test`: everything that continuous integration runs.

mod capi;
mod centre;
mod link;
mod refusals;
mod rust;
mod server;
mod sessions;
mod tree;

use std::path::PathBuf;

use anyhow::Result;

use crate::places::{Workshop, shown};
use crate::report::{Checked, Report, Step};
use crate::system;

/// Options of the test.
#[derive(clap::Args)]
pub struct Args {
    /// Measure perplexities, too
    #[arg(long)]
    full: bool,
    /// Run one part only; may be given several times
    #[arg(long, value_name = "PART")]
    only: Vec<Part>,
    /// Go on with the built tree of an earlier run, for work on one step: what
    /// needs an untouched tree does not run
    #[arg(long)]
    reuse: bool,
    /// Folder for everything fetched and built [default: target/kvforge]
    #[arg(long, value_name = "D")]
    dir: Option<PathBuf>,
}

/// A part of the test that can be run alone.
#[derive(Clone, Copy, PartialEq, clap::ValueEnum)]
enum Part {
    /// What cargo checks, and what concerns the sources alone
    Rust,
    /// The C ABI as C and C++ programs use it
    Capi,
    /// A llama.cpp tree from end to end
    Tree,
}

/// Runs every step, and says whether all is well.
pub fn run(args: Args) -> Result<bool> {
    let workshop = Workshop::open(args.dir)?;
    println!("everything goes into {}", shown(workshop.dir()));
    let mut report = Report::new(workshop.path("logs"));
    let packages = Step {
        name: PACKAGES,
        after: &[],
        repair: "install what is missing",
    };
    report.step(packages, |log| {
        println!("      {}", system::ensure_programs(log)?);
        Ok(Checked::new(system::PROGRAMS, "programs there"))
    });
    let mut asked = |part: Part, name: &str| {
        let asked = args.only.is_empty() || args.only.contains(&part);
        if !asked {
            report.skip(name, "not asked for");
        }
        asked
    };
    let (rust, capi, tree) = (
        asked(Part::Rust, "rust"),
        asked(Part::Capi, "capi"),
        asked(Part::Tree, "tree"),
    );
    if rust {
        rust::steps(&mut report, tree);
    }
    if capi {
        capi::steps(&mut report, &workshop);
    }
    if tree {
        tree::steps(&mut report, &workshop, args.full, args.reuse);
    }
    Ok(report.finish())
}

/// The step that most others need.
const PACKAGES: &str = "system packages";
