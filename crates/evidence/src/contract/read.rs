//! Reads a contract that anybody may have written, and collects what is wrong
//! with it instead of stopping at the first thing.

use std::collections::BTreeMap;
use std::path::Path;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::problem::{Problem, Problems, Rule};
use super::rules::keep_rules;
use super::{Contract, Kernel, KernelStatus, PROOF_SCHEMA, Platform, Proof, SCHEMA};
use crate::file::io_error;
use crate::{Error, json};

const MEND: &str = "`kvforge contract write TREE` writes it from evidence";

/// What could be read, and what is wrong with it.
#[derive(Clone, Debug)]
pub struct Reading {
    /// The contract without the kernels and platforms that cannot be read;
    /// absent if the rest cannot be read either.
    pub contract: Option<Contract>,
    /// Everything that is wrong with the file by itself.
    pub problems: Vec<Problem>,
}

impl Contract {
    /// Reads a contract file and holds it against the rules that need no
    /// evidence.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be read.
    pub fn read(path: &Path) -> Result<Reading, Error> {
        let bytes = kvforge_files::read(path).map_err(io_error(path, "read the file"))?;
        let mut all = vec![];
        let mut problems = Problems {
            file: path,
            mend: MEND.into(),
            all: &mut all,
        };
        let contract = parse(&bytes, &mut problems);
        if let Some(contract) = &contract {
            keep_rules(contract, &mut problems);
        }
        Ok(Reading {
            contract,
            problems: all,
        })
    }
}

fn parse(bytes: &[u8], problems: &mut Problems<'_>) -> Option<Contract> {
    let json = match json::parse(bytes) {
        Ok(json) => json,
        Err(e) => {
            let text = String::from_utf8_lossy(bytes);
            let line = text.lines().nth(e.line().saturating_sub(1)).unwrap_or("");
            // JSON has no NaN and no infinity; the line shows it.
            problems.add(Rule::Json, "", "JSON", format!("{e}: `{}`", line.trim()));
            return None;
        }
    };
    for path in json.duplicates {
        problems.add(Rule::Duplicate, path, "one member of this name", "two");
    }
    let mut top = Object::new(json.value, "", problems)?;
    let schema_version: u64 = top.take("schemaVersion", "a number")?;
    if schema_version != SCHEMA {
        let (expected, found) = (SCHEMA.to_string(), schema_version.to_string());
        let problems = top.problems;
        problems.add(Rule::Schema, "schemaVersion", expected, found);
        return None;
    }
    let backend = top.take("backend", "text");
    let source_of_truth = top.take("sourceOfTruth", "text");
    let latest_report = top.take("latestReport", "text");
    let kernels = top.take::<Value>("kernels", "an object");
    let kernels = kernels.map(|value| entries(value, "kernels", top.problems, kernel));
    let targets = top.take_optional::<Value>("platformTargets", "an object");
    let platform_targets = targets.map_or_else(BTreeMap::new, |value| {
        entries(value, "platformTargets", top.problems, platform)
    });
    let kvforge = top.take_optional("kvforge", "the proof that `kvforge contract write` adds");
    let kvforge = kvforge.filter(|proof: &Proof| {
        let (found, place) = (proof.schema_version, "kvforge.schemaVersion");
        let known = found == PROOF_SCHEMA;
        if !known {
            let expected = PROOF_SCHEMA.to_string();
            let problems = &mut *top.problems;
            problems.add(Rule::Schema, place, expected, found.to_string());
        }
        known
    });
    top.end();
    Some(Contract {
        schema_version,
        backend: backend?,
        source_of_truth: source_of_truth?,
        latest_report: latest_report?,
        kernels: kernels?,
        platform_targets,
        kvforge,
    })
}

fn kernel(mut o: Object<'_, '_>) -> Option<Kernel> {
    let runtime_capability_key = o.take("runtimeCapabilityKey", "text");
    let status = o.take("status", &one_of());
    let runtime_ready = o.take("runtimeReady", "true or false");
    let shipped_symbols = o.take("shippedSymbols", "a list of names");
    let graph_op = o.take("graphOp", "text");
    let smoke_target = o.take("smokeTarget", "text");
    let smoke_command = o.take("smokeCommand", "text");
    let smoke_scores = o.take("smokeScores", "a count");
    let max_diff = o.take("maxDiff", "a number or null");
    let evidence_date = o.take("evidenceDate", "text");
    let notes = o.take("notes", "text");
    o.end();
    Some(Kernel {
        runtime_capability_key: runtime_capability_key?,
        status: status?,
        runtime_ready: runtime_ready?,
        shipped_symbols: shipped_symbols?,
        graph_op: graph_op?,
        smoke_target: smoke_target?,
        smoke_command: smoke_command?,
        smoke_scores: smoke_scores?,
        max_diff: max_diff?,
        evidence_date: evidence_date?,
        notes: notes?,
    })
}

fn platform(mut o: Object<'_, '_>) -> Option<Platform> {
    let kernel_verification = o.take("kernelVerification", &one_of());
    let runtime_dispatch = o.take("runtimeDispatch", &one_of());
    let device_run = o.take("deviceRun", &one_of());
    let next_gate = o.take("nextGate", "text");
    o.end();
    Some(Platform {
        kernel_verification: kernel_verification?,
        runtime_dispatch: runtime_dispatch?,
        device_run: device_run?,
        next_gate: next_gate?,
    })
}

fn one_of() -> String {
    format!("one of {}", KernelStatus::spellings())
}

/// Every member of an object that can be read.
fn entries<T>(
    value: Value,
    place: &str,
    problems: &mut Problems<'_>,
    read: fn(Object<'_, '_>) -> Option<T>,
) -> BTreeMap<String, T> {
    let members = Object::new(value, place, problems).map(|o| o.members);
    let mut all = BTreeMap::new();
    for (name, value) in members.into_iter().flatten() {
        let entry = Object::new(value, &json::member(place, &name), problems).and_then(read);
        if let Some(entry) = entry {
            all.insert(name, entry);
        }
    }
    all
}

/// An object whose members are taken out one by one.
struct Object<'a, 'b> {
    place: String,
    members: Map<String, Value>,
    problems: &'a mut Problems<'b>,
}

impl<'a, 'b> Object<'a, 'b> {
    fn new(value: Value, place: &str, problems: &'a mut Problems<'b>) -> Option<Self> {
        match value {
            Value::Object(members) => Some(Object {
                place: place.into(),
                members,
                problems,
            }),
            other => {
                problems.add(Rule::Field, place, "an object", short(&other));
                None
            }
        }
    }

    fn take<T: DeserializeOwned>(&mut self, name: &str, expected: &str) -> Option<T> {
        if !self.members.contains_key(name) {
            let place = json::member(&self.place, name);
            self.problems.add(Rule::Field, place, expected, "none");
        }
        self.take_optional(name, expected)
    }

    fn take_optional<T: DeserializeOwned>(&mut self, name: &str, expected: &str) -> Option<T> {
        let value = self.members.remove(name)?;
        let found = short(&value);
        let read = serde_json::from_value(value).ok();
        if read.is_none() {
            let place = json::member(&self.place, name);
            self.problems.add(Rule::Field, place, expected, found);
        }
        read
    }

    /// What is left is unknown.
    fn end(self) {
        for (name, value) in &self.members {
            let place = json::member(&self.place, name);
            let found = short(value);
            self.problems
                .add(Rule::Field, place, "no such member", found);
        }
    }
}

/// JSON for a message.
pub(super) fn short(value: &Value) -> String {
    const LONGEST: usize = 80;
    let text = value.to_string();
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}
