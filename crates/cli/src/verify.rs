use std::path::PathBuf;

use anyhow::Result;
use kvforge::fixture::{self, Reading, TOLERANCE};

use crate::say::say;
use crate::{Outcome, count};

/// Check the reference decoders against a public fixture file
///
/// Computes every output of the fixture from its blocks and its query, in fp64, and
/// compares it with the expected one. Exit code 1 if any differs by 0.001 or more.
#[derive(clap::Args)]
#[command(after_help = "\
Example:
  kvforge verify --fixture turbo3_tcq.json")]
pub struct Args {
    /// Fixture, JSON
    #[arg(long, value_name = "F.json")]
    fixture: PathBuf,
}

pub fn run(args: Args) -> Result<Outcome> {
    let verdict = fixture::verify(&args.fixture)?;
    let kernel = verdict.kernel;
    if let Some(r) = verdict.fitting() {
        say!(
            "{kernel}: {} of {} as expected, largest difference {:.1e}, allowed {TOLERANCE}",
            count(r.outputs, "output"),
            r.codec,
            r.max_diff,
        );
        return Ok(Outcome::Done);
    }
    for Reading {
        codec,
        worst,
        found,
        expected,
        max_diff,
        ..
    } in &verdict.readings
    {
        say!(
            "{kernel}: not as expected when read as {codec}: output {worst} is {found}, \
             expected {expected}, difference {max_diff:.1e}, allowed {TOLERANCE}"
        );
    }
    Ok(Outcome::CheckFailed)
}
