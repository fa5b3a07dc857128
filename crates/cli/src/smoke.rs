use std::env;
use std::ffi::OsString;
use std::fs;
use std::iter;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result};
use kvforge_evidence::{Against, Measure, ReachedBy};
use kvforge_formats::{FormatSpec, cache_formats};
use kvforge_llama::Payload;
use kvforge_llama::smoke::{BACKEND, Group, Smoke, SmokeOptions, smoke};
use serde_json::json;

use crate::say::say;
use crate::{Outcome, TreeArg, count, ship};

/// Prove which kernels a built llama.cpp tree runs, and that their numbers are right
///
/// Runs graphs of every operation on every format through the built libraries,
/// compares them with an oracle in double precision, and requires the kernels'
/// own counters to be exact. The proof is left in the build folder, bound to
/// hashes of sources and libraries. Exit code 1 if any check fails.
#[derive(clap::Args)]
#[command(after_help = "\
Example:
  kvforge smoke ~/llama.cpp --model SmolLM2-135M-Instruct.Q4_1.gguf")]
pub struct Args {
    #[command(flatten)]
    tree: TreeArg,
    /// Backend to check
    #[arg(long, default_value = BACKEND, value_parser = [BACKEND])]
    backend: String,
    /// Build folder [default: build-kvforge in the tree]
    #[arg(long, value_name = "DIR")]
    build_dir: Option<PathBuf>,
    /// Only these formats, separated by commas; the others count as not run
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = cache_format)]
    formats: Vec<&'static FormatSpec>,
    /// GGUF model to generate text with, to see that llama.cpp takes the route by itself;
    /// may be given more than once, for types that need other head sizes
    #[arg(long, value_name = "GGUF")]
    model: Vec<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A format that a cache may hold, by its name.
fn cache_format(name: &str) -> Result<&'static FormatSpec, String> {
    let known = || {
        cache_formats()
            .map(|f| f.name)
            .collect::<Vec<_>>()
            .join(", ")
    };
    let found = cache_formats().find(|f| f.name == name);
    found.ok_or_else(|| format!("there are {}", known()))
}

/// Set for the process that loads the libraries: a file to say what it is doing.
const TRACE: &str = "KVFORGE_SMOKE_TRACE";

/// The built libraries run in a process of their own, so that a defect that ends
/// it is a failed check like any other.
pub fn run(args: Args) -> Result<Outcome> {
    if let Some(trace) = env::var_os(TRACE) {
        return run_here(args, trace);
    }
    // A wrong path is told before anything is started.
    args.tree.open()?;
    let trace = env::temp_dir().join(format!("kvforge-smoke-{}", std::process::id()));
    let child = Command::new(env::current_exe()?)
        .args(env::args_os().skip(1))
        .env(TRACE, &trace)
        // No debugger either, to print where ggml stopped: the trace says it.
        .env("GGML_NO_BACKTRACE", "1")
        .status();
    let doing = fs::read_to_string(&trace).unwrap_or_else(|_| "loading the libraries".into());
    let _ = fs::remove_file(&trace);
    let status = child.context("cannot start the process that loads the libraries")?;
    match status.code() {
        Some(0) => Ok(Outcome::Done),
        Some(1) => Ok(Outcome::CheckFailed),
        // It has said why.
        Some(2) => std::process::exit(2),
        _ => {
            say!("failed: {doing}: the process that ran it ended with {status}");
            say!("smoke: stopped, nothing is proved");
            Ok(Outcome::CheckFailed)
        }
    }
}

fn run_here(args: Args, trace: OsString) -> Result<Outcome> {
    let options = SmokeOptions {
        build_dir: args.build_dir,
        formats: args.formats,
        models: args.model,
        // Without the folder that the program lies in: apps ship what this ends up in.
        command: iter::once("kvforge".into())
            .chain(env::args_os().skip(1).map(|a| a.display().to_string()))
            .collect::<Vec<_>>()
            .join(" "),
        trace: Some(trace.into()),
    };
    let mut progress = |group: &Group| {
        if !args.json {
            say!("{}", line(group));
            for failure in &group.failures {
                say!("  failed: {failure}");
            }
        }
    };
    let payload = Payload::embedded()?;
    let smoke = smoke(&args.tree.open()?, &payload, &options, &mut progress)?;
    let failures: Vec<&str> = smoke.failures().collect();
    if args.json {
        ship::print_json(&json!({
            "passed": smoke.passed(),
            "failed": failures,
            "evidenceFile": smoke.file.display().to_string(),
            "evidence": serde_json::to_value(&smoke.evidence)?,
        }))?;
    } else {
        print_evidence(&smoke);
        let passed = count(smoke.passed(), "check");
        let (failed, isa) = (failures.len(), &smoke.isa);
        say!(
            "smoke: {passed} passed, {failed} failed ({}, {isa})",
            args.backend
        );
    }
    Ok(match failures.is_empty() {
        true => Outcome::Done,
        false => Outcome::CheckFailed,
    })
}

/// One group: how many checks, which kernel, how exact.
fn line(group: &Group) -> String {
    let mut line = format!("{:<28} {:>10}", group.name, count(group.passed, "check"));
    if !group.failures.is_empty() {
        line += &format!(", {} FAILED", group.failures.len());
    }
    if let Some(record) = &group.record {
        line += &format!("   {} counted {}", record.kernel, record.counted);
        for measure in &record.measures {
            line += &exactness(measure);
        }
    }
    line
}

fn exactness(m: &Measure) -> String {
    match m.against {
        Against::Reference if m.worst == 0.0 => ", exact".into(),
        Against::Reference => ", not exact".into(),
        Against::Decoded => format!(", error {:.1e} (limit {:.1e})", m.worst, m.tolerance),
        Against::Unquantised => format!(", loss {:.2} to {:.2} of specified", m.least, m.worst),
    }
}

fn print_evidence(smoke: &Smoke) {
    say!("\nevidence: {}", smoke.file.display());
    for r in smoke.evidence.records() {
        let graph = match r.reached_by {
            ReachedBy::SmokeGraph => "smoke graph",
            ReachedBy::ModelGraph => "model graph",
        };
        let (kernel, status) = (&r.kernel, r.status());
        say!(
            "  {} {:<14} {graph}  {kernel:<18}  {status}",
            r.format,
            r.operation
        );
    }
    say!("");
}
