//! What this machine and a tree can do, and what comes next. Everything here only
//! looks.

use std::env::consts::{ARCH, OS};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use kvforge_cpu::Isa;
use kvforge_evidence::Evidence;
use kvforge_evidence::contract::{self, Problem};
use kvforge_formats::cache_formats;
use serde::{Serialize, Serializer};

use crate::contract::PROJECT;
use crate::smoke::{BACKEND, Built};
use crate::tools::{self, Tool};
use crate::{Payload, State, Tree, status};

/// Head sizes of models that people run.
const HEADS: [usize; 9] = [64, 80, 96, 112, 128, 192, 256, 512, 576];

/// What was found.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Diagnosis {
    /// Operating system and architecture.
    pub machine: String,
    /// The instruction set that the CPU kernels take.
    pub isa: &'static str,
    /// Whether the processor announces AMX; see [`AMX_NOTE`].
    pub amx: bool,
    /// Programs.
    pub tools: Vec<ToolReport>,
    /// Every format that a cache may hold.
    pub formats: Vec<FormatReport>,
    /// Every backend.
    pub backends: Vec<BackendReport>,
    /// The tree, if one was given.
    pub tree: Option<TreeReport>,
    /// What keeps things from working, and what to do about it.
    pub blocking: Vec<String>,
    /// What to do next.
    pub next: String,
}

/// A program.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolReport {
    /// What it is called.
    pub name: &'static str,
    /// Its version, or what it says instead of one; absent if it is missing.
    pub version: Option<String>,
    /// The Debian package that brings it.
    pub package: &'static str,
    /// Whether `kvforge build` needs it.
    pub needed: bool,
}

/// A format and the head sizes that it fits.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FormatReport {
    /// Name that people type.
    pub name: &'static str,
    /// What a cache may hold in it.
    pub role: &'static str,
    /// Bits per value, scale included.
    pub bits_per_value: f64,
    /// Values in a block.
    pub block_len: usize,
    /// Common head sizes that are whole blocks.
    pub heads: Vec<usize>,
    /// Common head sizes that are not.
    pub no_heads: Vec<usize>,
}

/// A backend.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BackendReport {
    /// Its name.
    pub name: &'static str,
    /// Whether there are kernels for it.
    pub kernels: bool,
}

/// A path as text; what is not UTF-8 in it is replaced.
fn lossy<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&path.display())
}

/// A tree and its build folder.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TreeReport {
    /// The tree.
    #[serde(serialize_with = "lossy")]
    pub path: PathBuf,
    /// Version of ggml.
    pub ggml: String,
    /// What state it is in.
    pub state: State,
    /// The build folder.
    #[serde(serialize_with = "lossy")]
    pub build_dir: PathBuf,
    /// Whether there are shared libraries in it.
    pub built: bool,
    /// What is wrong with the evidence; empty if it is there and fresh.
    pub evidence_problems: Vec<Problem>,
    /// Operations on formats that ran in a smoke and are not proved.
    pub unproved: Vec<String>,
    /// What is wrong with the contract or what it rests on; empty if nothing is.
    pub contract_problems: Vec<Problem>,
    /// Kernels that an app may rely on.
    pub ready: Vec<String>,
}

/// To be said where a processor announces AMX.
pub const AMX_NOTE: &str = "ggml's own AMX code ends in SIGSEGV or SIGILL where a virtual machine \
    announces AMX but does not keep its registers; if it does, build without it, as README.md says";

/// Why nothing could be found out.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
#[non_exhaustive]
pub enum Error {
    /// The tree cannot be read.
    Tree(#[from] crate::Error),
    /// Evidence or contract cannot be read.
    Evidence(#[from] kvforge_evidence::Error),
}

/// Looks at the machine, and at a tree if one is given.
///
/// # Errors
/// If the tree is none or cannot be read.
pub fn examine(tree: Option<&Tree>, build_dir: Option<&Path>) -> Result<Diagnosis, Error> {
    let mut blocking = vec![];
    let tools = examine_tools(&mut blocking);
    let tree = match tree {
        Some(tree) => Some(examine_tree(tree, build_dir, &mut blocking)?),
        None => None,
    };
    Ok(Diagnosis {
        machine: format!("{OS} {ARCH}"),
        isa: Isa::best().name(),
        amx: announces_amx(),
        tools,
        formats: cache_formats().map(format_report).collect(),
        backends: backends(),
        next: next(tree.as_ref(), &blocking),
        tree,
        blocking,
    })
}

fn examine_tools(blocking: &mut Vec<String>) -> Vec<ToolReport> {
    let mut tools: Vec<ToolReport> = tools::BUILD
        .iter()
        .map(|tool| {
            let found = tool.find();
            let line = found.and_then(|p| tools::first_line(Command::new(p).arg("--version")));
            let version = line.map(|line| tools::version(&line).unwrap_or(&line).to_string());
            if let Some(problem) = problem_of(tool, version.as_deref()) {
                blocking.push(problem);
            }
            ToolReport {
                name: tool.name,
                version,
                package: tool.package,
                needed: true,
            }
        })
        .collect();
    let pip = tools::find("python3").and_then(|python| {
        tools::first_line(Command::new(python).args(["-m", "pip", "--version"]))
    });
    tools.push(ToolReport {
        name: "python3 with pip",
        version: pip.map(|line| tools::version(&line).unwrap_or(&line).to_string()),
        package: "python3-pip",
        needed: false,
    });
    tools
}

/// What keeps a tool from being of use.
fn problem_of(tool: &Tool, version: Option<&str>) -> Option<String> {
    let (name, package) = (tool.name, tool.package);
    let Some(version) = version else {
        return Some(format!(
            "expected the program {name}, found none that runs; install the Debian package {package}"
        ));
    };
    // The minimum of this crate is that of the sources which it ships.
    let least = env!("CARGO_PKG_RUST_VERSION");
    let old = name == tools::RUSTC.name && !tools::at_least(version, least);
    old.then(|| format!("expected {name} {least} or newer, found {version}; install {package}"))
}

fn format_report(format: &'static kvforge_formats::FormatSpec) -> FormatReport {
    let (heads, no_heads) = HEADS
        .iter()
        .partition(|&&head| format.row_bytes(head).is_ok());
    FormatReport {
        name: format.name,
        role: format.role.in_words(),
        bits_per_value: format.bits_per_value(),
        block_len: format.block_len,
        heads,
        no_heads,
    }
}

fn backends() -> Vec<BackendReport> {
    let mut all: Vec<BackendReport> = vec![];
    for target in PROJECT.targets {
        if all.iter().all(|b| b.name != target.backend) {
            all.push(BackendReport {
                name: target.backend,
                kernels: target.backend == BACKEND,
            });
        }
    }
    all
}

fn examine_tree(
    tree: &Tree,
    build_dir: Option<&Path>,
    blocking: &mut Vec<String>,
) -> Result<TreeReport, Error> {
    let status = status(tree, &Payload::embedded()?)?;
    let root = tree.root();
    if status.state == State::EditedByHand {
        let tree = root.display();
        blocking.push(format!(
            "{tree} is {}; `kvforge status {tree}` says where",
            status.state.in_words()
        ));
    } else {
        blocking.extend(status.problems);
    }
    let build_dir = build_dir.map_or_else(|| root.join(PROJECT.build_dir), Path::to_path_buf);
    let evidence = build_dir.join(kvforge_evidence::FILE_NAME);
    let file = build_dir.join(contract::FILE_NAME);
    let evidence_problems = contract::check_evidence(&evidence, root, &PROJECT)?;
    let check = contract::check(&file, root, &evidence, &PROJECT)?;
    let good = check.problems.is_empty();
    let unproved = match evidence_problems.is_empty() {
        true => Evidence::read(&evidence)?.unproved().collect(),
        false => vec![],
    };
    let ready = check.contract.iter().flat_map(|c| c.ready());
    Ok(TreeReport {
        path: root.into(),
        ggml: status.ggml,
        state: status.state,
        built: Built::find(&build_dir).is_ok(),
        ready: ready.filter(|_| good).map(String::from).collect(),
        evidence_problems,
        unproved,
        contract_problems: check.problems,
        build_dir,
    })
}

fn next(tree: Option<&TreeReport>, blocking: &[String]) -> String {
    if let Some(first) = blocking.first() {
        return first.clone();
    }
    let Some(tree) = tree else {
        return "kvforge doctor TREE, or kvforge ship TREE".into();
    };
    let path = tree.path.display();
    let build_dir = match tree.build_dir == tree.path.join(PROJECT.build_dir) {
        true => String::new(),
        false => format!(" --build-dir {}", tree.build_dir.display()),
    };
    if tree.state != State::Shipped {
        return format!("kvforge ship {path}");
    }
    if !tree.built {
        return format!("kvforge build {path}{build_dir}");
    }
    let mut problems = tree.evidence_problems.iter().chain(&tree.contract_problems);
    match problems.next() {
        Some(problem) => problem.mend.clone(),
        None => format!("nothing is left to do; use {}", tree.build_dir.display()),
    }
}

/// Whether the processor says that it has AMX, where the system tells.
fn announces_amx() -> bool {
    fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| text.contains(" amx_tile"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(mend: &str) -> Problem {
        Problem {
            rule: contract::Rule::Stale,
            file: "f".into(),
            place: String::new(),
            expected: String::new(),
            found: String::new(),
            mend: mend.into(),
        }
    }

    #[test]
    fn what_comes_next_is_the_first_thing_that_is_missing() {
        let mut tree = TreeReport {
            path: "t".into(),
            ggml: "1.2.3".into(),
            state: State::NotShipped,
            build_dir: "t/build-kvforge".into(),
            built: false,
            evidence_problems: vec![problem("run `kvforge smoke t`")],
            unproved: vec![],
            contract_problems: vec![problem("run `kvforge contract write t`")],
            ready: vec![],
        };
        assert_eq!(next(Some(&tree), &["no rustc".into()]), "no rustc");
        assert_eq!(next(Some(&tree), &[]), "kvforge ship t");
        tree.state = State::Shipped;
        assert_eq!(next(Some(&tree), &[]), "kvforge build t");
        tree.built = true;
        assert_eq!(next(Some(&tree), &[]), "run `kvforge smoke t`");
        tree.evidence_problems.clear();
        assert_eq!(next(Some(&tree), &[]), "run `kvforge contract write t`");
        tree.contract_problems.clear();
        let done = "nothing is left to do; use t/build-kvforge";
        assert_eq!(next(Some(&tree), &[]), done);
        tree.built = false;
        tree.build_dir = "b".into();
        assert_eq!(next(Some(&tree), &[]), "kvforge build t --build-dir b");
    }
}
