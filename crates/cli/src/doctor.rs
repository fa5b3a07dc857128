use std::path::PathBuf;

use anyhow::Result;
use kvforge_evidence::contract::Rule;
use kvforge_llama::Tree;
use kvforge_llama::doctor::{AMX_NOTE, Diagnosis, TreeReport, examine};

use crate::say::say;
use crate::{Outcome, count, ship};

/// Say what this machine and a llama.cpp tree can do, and what comes next
///
/// Looks for the programs that a build needs, for the instruction set that kernels
/// will use, and at the state of the tree, its build and its evidence. Writes
/// nothing. Exit code 1 if something keeps a build from working.
#[derive(clap::Args)]
#[command(after_help = "\
Example:
  kvforge doctor
  kvforge doctor ~/llama.cpp")]
pub struct Args {
    /// Folder of a llama.cpp source tree
    #[arg(value_name = "TREE")]
    tree: Option<PathBuf>,
    /// Build folder [default: build-kvforge in the tree]
    #[arg(long, value_name = "D", requires = "tree")]
    build_dir: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> Result<Outcome> {
    let tree = args.tree.as_deref().map(Tree::open).transpose()?;
    let found = examine(tree.as_ref(), args.build_dir.as_deref())?;
    match args.json {
        true => ship::print_json(&serde_json::to_value(&found)?)?,
        false => print(&found),
    }
    Ok(match found.blocking.is_empty() {
        true => Outcome::Done,
        false => Outcome::CheckFailed,
    })
}

fn print(found: &Diagnosis) {
    say!("machine   {}, kernels use {}", found.machine, found.isa);
    if found.amx {
        say!("          this processor announces AMX: {AMX_NOTE}");
    }
    for tool in &found.tools {
        let name = tool.name;
        match (&tool.version, tool.needed) {
            (Some(version), _) => say!("program   {name} {version}"),
            (None, true) => say!("program   {name} MISSING: install {}", tool.package),
            (None, false) => say!(
                "program   {name} missing; only `cargo xtask up` needs it ({})",
                tool.package
            ),
        }
    }
    for format in &found.formats {
        let (fits, not) = (list(&format.heads), list(&format.no_heads));
        let not = match not.is_empty() {
            true => String::new(),
            false => format!("; not {not}"),
        };
        say!(
            "format    {} ({}), {} bits a value, heads of {fits}, any multiple of {}{not}",
            format.name,
            format.role,
            format.bits_per_value,
            format.block_len
        );
    }
    for backend in &found.backends {
        let kernels = match backend.kernels {
            true => "has kernels",
            false => "no kernels yet",
        };
        say!("backend   {} {kernels}", backend.name);
    }
    if let Some(tree) = &found.tree {
        print_tree(tree);
    }
    for problem in &found.blocking {
        say!("blocking  {problem}");
    }
    say!("next      {}", found.next);
}

fn print_tree(tree: &TreeReport) {
    let path = tree.path.display();
    say!(
        "tree      {path} {} (ggml {})",
        tree.state.in_words(),
        tree.ggml
    );
    let built = if tree.built { "built" } else { "not built" };
    say!("build     {} {built}", tree.build_dir.display());
    let evidence = match tree.evidence_problems.first().map(|p| p.rule) {
        None if tree.unproved.is_empty() => "fresh".into(),
        None => format!("fresh, but not proved: {}", tree.unproved.join(", ")),
        Some(Rule::NoEvidence) => "none".into(),
        Some(Rule::Stale) => "stale: sources or libraries changed since the smoke".into(),
        Some(Rule::Edited) => "edited by hand".into(),
        Some(_) => "unreadable".to_string(),
    };
    say!("evidence  {evidence}");
    let problems = &tree.contract_problems;
    let ready = match tree.ready.is_empty() {
        true => "none".into(),
        false => tree.ready.join(", "),
    };
    match problems.first().map(|p| p.rule) {
        None => say!("contract  as its evidence says; runtime-ready: {ready}"),
        Some(Rule::NoContract) => say!("contract  none"),
        Some(_) => {
            let n = count(problems.len(), "problem");
            say!("contract  {n}; `kvforge contract check {path}` tells them");
        }
    }
}

fn list(numbers: &[usize]) -> String {
    let words: Vec<String> = numbers.iter().map(usize::to_string).collect();
    words.join(" ")
}
