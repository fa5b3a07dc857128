use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use kvforge_evidence::contract::{self, Check, Contract, KERNELS, Problem};
use kvforge_evidence::{Evidence, FILE_NAME, Hashed};
use kvforge_llama::Tree;
use kvforge_llama::contract::{PROJECT, tree_of};
use kvforge_llama::smoke::BACKEND;
use serde_json::{Value, json};

use crate::say::say;
use crate::{Outcome, TreeArg, count, ship};

/// Read, write or check the contract: which kernels an app may rely on
///
/// A kernel is runtime-ready if a graph of the built tree ran it and its numbers
/// were right, and as long as neither sources nor libraries have changed.
#[derive(Subcommand)]
#[command(after_help = "\
Example:
  kvforge smoke ~/llama.cpp && kvforge contract write ~/llama.cpp
  kvforge contract check ~/llama.cpp")]
pub enum Verb {
    Show(ShowArgs),
    Write(WriteArgs),
    Check(CheckArgs),
}

/// Print a contract as a table
///
/// It shows what the file claims; `kvforge contract check` says what is true.
#[derive(Args)]
#[command(after_help = "\
Example:
  kvforge contract show CONTRACT.json")]
pub struct ShowArgs {
    /// A contract file, or the tree in whose build folder it lies
    #[arg(value_name = "TREE|FILE")]
    path: PathBuf,
    /// Build folder [default: build-kvforge in the tree]
    #[arg(long, value_name = "D")]
    build_dir: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Write the contract that follows from the evidence of `kvforge smoke`
///
/// Nothing is written if the evidence is missing, edited or stale. Exit code 1 if an
/// operation that the smoke ran was not proved.
#[derive(Args)]
#[command(after_help = "\
Example:
  kvforge contract write ~/llama.cpp")]
pub struct WriteArgs {
    #[command(flatten)]
    tree: TreeArg,
    /// Build folder [default: build-kvforge in the tree]
    #[arg(long, value_name = "D")]
    build_dir: Option<PathBuf>,
    /// Backend that the contract is about
    #[arg(long, default_value = BACKEND, value_parser = [BACKEND])]
    backend: String,
    /// Write this file [default: kvforge-contract.json in the build folder]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Say everything that is wrong with contracts and with what they rest on
///
/// Fails if evidence is missing, stale or edited, if a number is not finite or out
/// of its limits, if a kernel was never reached, if a skip is presented as a pass,
/// or if a contract does not say what its evidence says. Exit code 1 if so.
#[derive(Args)]
#[command(after_help = "\
Example:
  kvforge contract check ~/llama.cpp
  kvforge contract check --tree ~/llama.cpp app/CONTRACT.json")]
pub struct CheckArgs {
    /// Contract files, or trees in whose build folders they lie
    #[arg(value_name = "TREE|FILE", required = true)]
    paths: Vec<PathBuf>,
    /// Build folder [default: build-kvforge in the tree; of a file: where its evidence lies]
    #[arg(long, value_name = "D")]
    build_dir: Option<PathBuf>,
    /// Tree that a file is about [default: the one that the build folder was made from]
    #[arg(long, value_name = "TREE")]
    tree: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(verb: Verb) -> Result<Outcome> {
    match verb {
        Verb::Show(args) => show(args),
        Verb::Write(args) => write(args),
        Verb::Check(args) => check(args),
    }
}

fn show(args: ShowArgs) -> Result<Outcome> {
    let file = match args.path.is_dir() {
        true => build_dir(&Tree::open(&args.path)?, args.build_dir).join(contract::FILE_NAME),
        false => args.path,
    };
    let reading = Contract::read(&file)?;
    if args.json {
        ship::print_json(&json!({
            "file": file.display().to_string(),
            "contract": reading.contract,
            "problems": reading.problems,
        }))?;
    } else {
        if let Some(contract) = &reading.contract {
            print(&file, contract);
        }
        print_problems(&reading.problems);
    }
    Ok(outcome(reading.problems.is_empty()))
}

fn write(args: WriteArgs) -> Result<Outcome> {
    let tree = args.tree.open()?;
    let build_dir = build_dir(&tree, args.build_dir);
    let evidence_file = build_dir.join(FILE_NAME);
    let problems = contract::check_evidence(&evidence_file, tree.root(), &PROJECT)?;
    if !problems.is_empty() {
        print_problems(&problems);
        say!("nothing was written");
        return Ok(Outcome::CheckFailed);
    }
    let file = args
        .output
        .unwrap_or_else(|| build_dir.join(contract::FILE_NAME));
    let mut hashed = Hashed::of(&build_dir, FILE_NAME)?;
    let folder = folder_of(&file);
    let same_folder = folder.canonicalize().ok() == build_dir.canonicalize().ok();
    if !same_folder {
        let evidence_file = evidence_file.canonicalize()?;
        hashed.path = evidence_file.display().to_string();
    }
    let evidence = Evidence::read(&evidence_file)?;
    let contract = Contract::from_evidence(&evidence, hashed, &args.backend, &PROJECT);
    contract.write(&file)?;
    print(&file, &contract);
    let unproved: Vec<String> = evidence.unproved().collect();
    if !unproved.is_empty() {
        let (n, unproved) = (count(unproved.len(), "operation"), unproved.join(", "));
        say!("{n} not proved, so `kvforge contract check` will fail: {unproved}");
    }
    Ok(outcome(unproved.is_empty()))
}

fn check(args: CheckArgs) -> Result<Outcome> {
    let mut good = true;
    let mut reports: Vec<Value> = vec![];
    for path in &args.paths {
        let (file, check) = match path.is_dir() {
            true => check_tree(path, &args)?,
            false => check_file(path, &args)?,
        };
        good &= check.problems.is_empty();
        let ready: Vec<&str> = check.contract.iter().flat_map(Contract::ready).collect();
        if args.json {
            let (problems, good) = (&check.problems, check.problems.is_empty());
            reports.push(json!({
                "file": file.display().to_string(),
                "good": good,
                "ready": if good { ready } else { vec![] },
                "problems": problems,
            }));
            continue;
        }
        print_problems(&check.problems);
        let file = file.display();
        match check.problems.len() {
            0 => say!(
                "{file}: as its evidence says, {} of {} kernels runtime-ready",
                ready.len(),
                KERNELS.len()
            ),
            n => say!(
                "{file}: {}, nothing is to be relied on",
                count(n, "problem")
            ),
        }
    }
    if args.json {
        ship::print_json(&reports.into())?;
    }
    Ok(outcome(good))
}

fn check_tree(path: &Path, args: &CheckArgs) -> Result<(PathBuf, Check)> {
    let tree = Tree::open(path)?;
    let build_dir = build_dir(&tree, args.build_dir.clone());
    let file = build_dir.join(contract::FILE_NAME);
    let evidence = build_dir.join(FILE_NAME);
    let check = contract::check(&file, tree.root(), &evidence, &PROJECT)?;
    Ok((file, check))
}

fn check_file(file: &Path, args: &CheckArgs) -> Result<(PathBuf, Check)> {
    let claims = contract::check_claims(file)?;
    let proof = claims.contract.as_ref().and_then(|c| c.kvforge.as_ref());
    let evidence = match (&args.build_dir, proof) {
        (Some(folder), _) => folder.join(FILE_NAME),
        (None, Some(proof)) => folder_of(file).join(&proof.evidence.path),
        (None, None) => return Ok((file.into(), claims)),
    };
    let tree = match &args.tree {
        Some(tree) => Tree::open(tree)?,
        None => match tree_of(folder_of(&evidence)) {
            Some(tree) => Tree::open(&tree)?,
            None => bail!(
                "{}: expected the tree that its evidence is about, found none at {}; add `--tree TREE`, and `--build-dir D` if the evidence lies elsewhere",
                file.display(),
                evidence.display()
            ),
        },
    };
    let check = contract::check(file, tree.root(), &evidence, &PROJECT)?;
    Ok((file.into(), check))
}

fn build_dir(tree: &Tree, asked: Option<PathBuf>) -> PathBuf {
    asked.unwrap_or_else(|| tree.root().join(PROJECT.build_dir))
}

fn folder_of(file: &Path) -> &Path {
    match file.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    }
}

fn outcome(good: bool) -> Outcome {
    match good {
        true => Outcome::Done,
        false => Outcome::CheckFailed,
    }
}

fn print_problems(problems: &[Problem]) {
    for problem in problems {
        say!("{problem}");
    }
}

fn print(file: &Path, contract: &Contract) {
    say!("{}: backend {}", file.display(), contract.backend);
    for public in &KERNELS {
        let Some(kernel) = contract.kernels.get(public.name) else {
            continue;
        };
        let error = kernel.max_diff.map_or("-".into(), |x| format!("{x:.1e}"));
        say!(
            "  {:<11} {:<20} {:>6} scores  error {error:<8} {}  {}",
            public.name,
            kernel.status.name(),
            kernel.smoke_scores,
            kernel.evidence_date,
            kernel.graph_op
        );
    }
    for (name, platform) in &contract.platform_targets {
        say!(
            "  {name:<11} kernels {}, graphs {}, device {}; next: {}",
            platform.kernel_verification.name(),
            platform.runtime_dispatch.name(),
            platform.device_run.name(),
            platform.next_gate
        );
    }
    match &contract.kvforge {
        Some(proof) => say!("evidence: {} ({})", proof.evidence.path, proof.tree.version),
        None => say!("evidence: none attached"),
    }
}
