//! Holds a contract against its evidence, and the evidence against what is on
//! disk.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use serde_json::Value;

use super::judge::{name, shortcomings};
use super::problem::{Problem, Problems, Rule};
use super::read::short;
use super::{Contract, Kernel, KernelStatus, Project};
use crate::{Error, Evidence, Hashed, digest, file::io_error, json};

/// What came of it.
#[derive(Clone, Debug)]
pub struct Check {
    /// The contract, as far as it can be read.
    pub contract: Option<Contract>,
    /// Everything that is wrong.
    pub problems: Vec<Problem>,
}

/// Where a contract's evidence belongs.
#[derive(Clone, Copy, Debug)]
struct Place<'a> {
    evidence: &'a Path,
    tree: &'a Path,
    build_dir: &'a Path,
    project: &'a Project,
}

impl<'a> Place<'a> {
    fn new(evidence: &'a Path, tree: &'a Path, project: &'a Project) -> Self {
        Place {
            evidence,
            tree,
            build_dir: evidence.parent().unwrap_or(Path::new(".")),
            project,
        }
    }

    /// A verb with the tree, and with the build folder if that is not the usual one.
    fn command(&self, verb: &str) -> String {
        let (tree, build_dir) = (self.tree.display(), self.build_dir.display());
        match self.build_dir == self.tree.join(self.project.build_dir) {
            true => format!("`kvforge {verb} {tree}`"),
            false => format!("`kvforge {verb} {tree} --build-dir {build_dir}`"),
        }
    }

    fn prove_again(&self) -> String {
        let (smoke, write) = (self.command("smoke"), self.command("contract write"));
        format!("{smoke} and then {write}")
    }
}

/// Holds the contract `file` against the evidence file `evidence`, which is about
/// `tree`, and which the smoke left in a build folder.
///
/// # Errors
/// [`Error::Io`] if something is there and cannot be read.
pub fn check(file: &Path, tree: &Path, evidence: &Path, project: &Project) -> Result<Check, Error> {
    let place = Place::new(evidence, tree, project);
    if !file.exists() {
        let mut all = vec![];
        let mut problems = Problems {
            file,
            mend: format!("run {}", place.command("contract write")),
            all: &mut all,
        };
        problems.add(Rule::NoContract, "", "a contract", "no such file");
        check_place(&place, None, &mut all)?;
        return Ok(Check {
            contract: None,
            problems: all,
        });
    }
    let reading = Contract::read(file)?;
    let (contract, mut all) = (reading.contract, reading.problems);
    for problem in &mut all {
        problem.mend = format!("run {}", place.prove_again());
    }
    let backend = contract.as_ref().map(|c| c.backend.as_str());
    let proved = check_place(&place, backend, &mut all)?;
    let mut problems = Problems {
        file,
        mend: format!("run {}", place.prove_again()),
        all: &mut all,
    };
    match (&contract, proved) {
        (Some(contract), _) if contract.kvforge.is_none() => no_proof(contract, &mut problems),
        (Some(contract), Some(evidence)) => compare(contract, &evidence, project, &mut problems),
        (Some(contract), None) => claims(contract, &mut problems, "evidence that can be read"),
        (None, _) => {}
    }
    Ok(Check {
        contract,
        problems: all,
    })
}

/// What a contract claims for which nobody has said where the evidence is.
///
/// # Errors
/// [`Error::Io`] if the file cannot be read.
pub fn check_claims(file: &Path) -> Result<Check, Error> {
    let reading = Contract::read(file)?;
    let (contract, mut all) = (reading.contract, reading.problems);
    if let Some(contract) = &contract {
        let mut problems = Problems {
            file,
            mend: "run `kvforge smoke TREE` and then `kvforge contract write TREE`".into(),
            all: &mut all,
        };
        no_proof(contract, &mut problems);
    }
    Ok(Check {
        contract,
        problems: all,
    })
}

/// Whether evidence can be relied on: what keeps a contract from being written.
///
/// # Errors
/// [`Error::Io`] if something is there and cannot be read.
pub fn check_evidence(
    evidence: &Path,
    tree: &Path,
    project: &Project,
) -> Result<Vec<Problem>, Error> {
    let place = Place::new(evidence, tree, project);
    let mut all = vec![];
    intact(&place, &mut all)?;
    Ok(all)
}

/// The evidence, if it is there, as it was written, and of this tree and build.
fn intact(place: &Place<'_>, all: &mut Vec<Problem>) -> Result<Option<Proved>, Error> {
    let mut problems = Problems {
        file: place.evidence,
        mend: format!("run {}", place.prove_again()),
        all,
    };
    let evidence = match Evidence::read(place.evidence) {
        Ok(evidence) => evidence,
        Err(error) => {
            match error {
                Error::Io { cause, .. } if cause.kind() == io::ErrorKind::NotFound => {
                    let expected = "evidence of a smoke run";
                    problems.add(Rule::NoEvidence, "", expected, "no such file");
                }
                Error::Malformed { what, .. } => {
                    problems.add(Rule::Json, "", "evidence of a smoke run", what);
                }
                Error::Edited {
                    expected, found, ..
                } => problems.add(
                    Rule::Edited,
                    "digest",
                    format!("content with {expected}"),
                    format!("{found}: edited by hand"),
                ),
                Error::Overclaimed {
                    format,
                    operation,
                    claimed,
                    supported,
                    ..
                } => problems.add(
                    Rule::Edited,
                    format!("{operation} on {format}"),
                    format!("`{supported}`, as its numbers say"),
                    format!("`{claimed}`: edited by hand"),
                ),
                other => return Err(other),
            }
            return Ok(None);
        }
    };
    for stale in evidence.check(place.tree, place.build_dir)?.stale() {
        all.push(Problem {
            rule: Rule::Stale,
            file: stale.path.clone(),
            place: "every kernel".into(),
            expected: format!("what the smoke ran, BLAKE3 {}", stale.expected),
            found: stale.found.clone().unwrap_or("nothing".into()),
            mend: format!("run {}, {}", place.command("build"), place.prove_again()),
        });
    }
    let blake3 = digest::file(place.evidence).map_err(io_error(place.evidence, "read the file"))?;
    Ok(Some(Proved { evidence, blake3 }))
}

struct Proved {
    evidence: Evidence,
    blake3: String,
}

/// The same, and whether all that ran on the backend was right.
fn check_place(
    place: &Place<'_>,
    backend: Option<&str>,
    all: &mut Vec<Problem>,
) -> Result<Option<Proved>, Error> {
    let Some(proved) = intact(place, all)? else {
        return Ok(None);
    };
    let mut problems = Problems {
        file: place.evidence,
        mend: format!(
            "mend what {} reports, then run {}",
            place.command("smoke"),
            place.prove_again()
        ),
        all,
    };
    let mut of_backend = proved
        .evidence
        .records()
        .iter()
        .filter(|r| backend.is_none_or(|b| r.backend == b))
        .peekable();
    if of_backend.peek().is_none() {
        let backend = backend.unwrap_or("any");
        let expected = format!("records of the backend {backend}");
        problems.add(Rule::Skip, "records", expected, "none: nothing ran");
    }
    for record in of_backend {
        for s in shortcomings(record) {
            problems.add(s.rule, name(record), s.expected, s.found);
        }
    }
    Ok(Some(proved))
}

/// A contract without our part: what it claims is not proved by anything.
fn no_proof(contract: &Contract, problems: &mut Problems<'_>) {
    claims(contract, problems, "evidence attached to the claim");
}

fn claims(contract: &Contract, problems: &mut Problems<'_>, expected: &str) {
    for (name, kernel) in &contract.kernels {
        if claims_ready(kernel) {
            let found = "it claims runtime-ready, no evidence attached";
            let place = json::member("kernels", name);
            problems.add(Rule::Unproven, place, expected, found);
        }
    }
}

fn claims_ready(kernel: &Kernel) -> bool {
    kernel.runtime_ready || kernel.status == KernelStatus::RuntimeReady
}

/// Works the contract out again, and tells every difference.
fn compare(contract: &Contract, proved: &Proved, project: &Project, problems: &mut Problems<'_>) {
    let Some(proof) = &contract.kvforge else {
        return;
    };
    if proof.evidence.blake3 != proved.blake3 {
        let expected = format!("the evidence's BLAKE3 {}", proved.blake3);
        let place = "kvforge.evidence.blake3";
        let found = proof.evidence.blake3.clone();
        problems.add(Rule::Stale, place, expected, found);
    }
    let file = Hashed {
        path: proof.evidence.path.clone(),
        blake3: proof.evidence.blake3.clone(),
    };
    let expected = Contract::from_evidence(&proved.evidence, file, &contract.backend, project);
    let of_file = |p: &&Problem| p.file == problems.file;
    let told = problems.all.iter().filter(of_file);
    let mut told: Vec<String> = told.map(|p| p.place.clone()).collect();
    for (name, due) in &expected.kernels {
        let claimed = contract.kernels.get(name).is_some_and(claims_ready);
        if claimed && !due.runtime_ready {
            let place = json::member("kernels", name);
            told.extend(["status", "runtimeReady"].map(|field| json::member(&place, field)));
            let expected = format!("no such claim, because: {}", due.notes);
            problems.add(Rule::Skip, place, expected, "it claims runtime-ready");
        }
    }
    let json = |contract| serde_json::to_value(contract).expect("a contract is JSON");
    differences(
        "",
        &json(&expected),
        &json(contract),
        &mut |path, due, found| {
            // What cannot be read, or is wrong by itself, has been told already.
            if !told
                .iter()
                .any(|t| json::within(t, path) || json::within(path, t))
            {
                let due = format!("{}, as the evidence says", due.map_or("none".into(), short));
                problems.add(Rule::Edited, path, due, found.map_or("none".into(), short));
            }
        },
    );
}

/// Calls `tell` with the path of every member in which two documents differ, and
/// what both have there.
fn differences(
    path: &str,
    a: &Value,
    b: &Value,
    tell: &mut impl FnMut(&str, Option<&Value>, Option<&Value>),
) {
    let (Value::Object(x), Value::Object(y)) = (a, b) else {
        if a != b {
            tell(path, Some(a), Some(b));
        }
        return;
    };
    let names: BTreeSet<&String> = x.keys().chain(y.keys()).collect();
    for name in names {
        let path = json::member(path, name);
        match (x.get(name), y.get(name)) {
            (Some(a), Some(b)) => differences(&path, a, b, tell),
            (a, b) => tell(&path, a, b),
        }
    }
}
