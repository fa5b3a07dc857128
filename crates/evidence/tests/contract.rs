//! Contracts by themselves: the one that apps have, what follows from evidence,
//! and everything that breaks a rule.

mod common;

use std::fs;
use std::path::PathBuf;

use common::{METAL, contract, records};
use kvforge_evidence::contract::{Contract, FILE_NAME, KernelStatus, Problem, Reading, Rule};
use kvforge_evidence::{Against, ReachedBy, Record};
use serde_json::{Value, json};

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(tempfile::tempdir().unwrap())
    }

    fn file(&self) -> PathBuf {
        self.0.path().join(FILE_NAME)
    }

    fn read(&self, text: &str) -> Reading {
        fs::write(self.file(), text).unwrap();
        Contract::read(&self.file()).unwrap()
    }
}

fn rules(problems: &[Problem]) -> Vec<(Rule, &str)> {
    problems
        .iter()
        .map(|p| (p.rule, p.place.as_str()))
        .collect()
}

#[test]
fn the_contract_that_apps_have_is_read_and_written_again() {
    let folder = Folder::new();
    let Reading { contract, problems } = folder.read(METAL);
    assert_eq!(problems, []);
    let contract = contract.unwrap();
    assert_eq!(contract.backend, "metal");
    let ready: Vec<&str> = contract.ready().collect();
    assert_eq!(ready, ["turbo3", "turbo4", "turbo3_tcq", "qjl", "polar"]);
    assert_eq!(contract.kernels["polar"].smoke_scores, 128);
    assert_eq!(contract.kernels["polar"].max_diff, Some(3.815e-6));
    assert_eq!(contract.kvforge, None);
    contract.write(&folder.file()).unwrap();
    let again: Value = serde_json::from_slice(&fs::read(folder.file()).unwrap()).unwrap();
    assert_eq!(again, serde_json::from_str::<Value>(METAL).unwrap());
}

#[test]
fn a_generated_contract_is_read_again() {
    let folder = Folder::new();
    let written = contract(records());
    written.write(&folder.file()).unwrap();
    let Reading { contract, problems } = Contract::read(&folder.file()).unwrap();
    assert_eq!(problems, []);
    assert_eq!(contract.unwrap(), written);
}

type Edit = fn(&mut Value);

/// Changes of the file that apps have, and the problem that each must give.
const EDITS: [(Rule, &str, Edit); 27] = [
    (Rule::Schema, "schemaVersion", |c| {
        c["schemaVersion"] = json!(2)
    }),
    (Rule::Field, "backend", |c| c["backend"] = json!(" ")),
    (Rule::Field, "sourceOfTruth", |c| {
        c["sourceOfTruth"] = json!(1)
    }),
    (Rule::Field, "kernels", |c| c["kernels"] = json!([])),
    (Rule::Field, "author", |c| c["author"] = json!("me")),
    (Rule::Kernel, "kernels.turbo3", |c| {
        c["kernels"].as_object_mut().unwrap().remove("turbo3");
    }),
    (Rule::Kernel, "kernels.turbo9", |c| {
        c["kernels"]["turbo9"] = c["kernels"]["turbo4"].clone();
    }),
    (Rule::Field, "kernels.qjl", |c| {
        c["kernels"]["qjl"] = json!(null)
    }),
    (Rule::Field, "kernels.qjl.notes", |c| {
        c["kernels"]["qjl"].as_object_mut().unwrap().remove("notes");
    }),
    (Rule::Field, "kernels.qjl.speed", |c| {
        c["kernels"]["qjl"]["speed"] = json!(1)
    }),
    (Rule::Field, "kernels.turbo3.status", |c| {
        c["kernels"]["turbo3"]["status"] = json!("quantum-ready");
    }),
    (Rule::Kernel, "kernels.qjl.runtimeCapabilityKey", |c| {
        c["kernels"]["qjl"]["runtimeCapabilityKey"] = json!("qjl");
    }),
    (Rule::Kernel, "kernels.qjl.graphOp", |c| {
        c["kernels"]["qjl"]["graphOp"] = json!("HOST_OP_ATTN_SCORE_TBQ");
    }),
    (Rule::Ready, "kernels.turbo4.runtimeReady", |c| {
        c["kernels"]["turbo4"]["runtimeReady"] = json!(false);
    }),
    (Rule::Ready, "kernels.turbo4.runtimeReady", |c| {
        c["kernels"]["turbo4"]["status"] = json!("verified");
    }),
    (Rule::Symbols, "kernels.turbo4.shippedSymbols", |c| {
        c["kernels"]["turbo4"]["shippedSymbols"] = json!([]);
    }),
    (Rule::Symbols, "kernels.turbo4.shippedSymbols", |c| {
        c["kernels"]["turbo4"]["shippedSymbols"] = json!(["a", ""]);
    }),
    (Rule::Smoke, "kernels.polar.smokeTarget", |c| {
        c["kernels"]["polar"]["smokeTarget"] = json!("");
    }),
    (Rule::Smoke, "kernels.polar.smokeCommand", |c| {
        c["kernels"]["polar"]["smokeCommand"] = json!("");
    }),
    (Rule::Scores, "kernels.turbo3_tcq.smokeScores", |c| {
        c["kernels"]["turbo3_tcq"]["smokeScores"] = json!(31);
    }),
    (Rule::Scores, "kernels.polar.smokeScores", |c| {
        c["kernels"]["polar"]["smokeScores"] = json!(127);
    }),
    (Rule::MaxDiff, "kernels.polar.maxDiff", |c| {
        c["kernels"]["polar"]["maxDiff"] = json!(null);
    }),
    (Rule::MaxDiff, "kernels.polar.maxDiff", |c| {
        c["kernels"]["polar"]["maxDiff"] = json!(-1e-9);
    }),
    (Rule::Field, "kernels.polar.maxDiff", |c| {
        c["kernels"]["polar"]["maxDiff"] = json!("NaN");
    }),
    (Rule::Date, "kernels.polar.evidenceDate", |c| {
        c["kernels"]["polar"]["evidenceDate"] = json!("2026-02-29");
    }),
    (Rule::Gate, "platformTargets.ios.nextGate", |c| {
        c["platformTargets"]["ios"] = json!({
            "kernelVerification": "verified", "runtimeDispatch": "blocked",
            "deviceRun": "needs-hardware", "nextGate": "a phone"
        });
    }),
    (Rule::Field, "kvforge", |c| {
        c["kvforge"] = json!({"schemaVersion": 2})
    }),
];

#[test]
fn every_broken_rule_is_named_and_no_other() {
    let folder = Folder::new();
    for (rule, place, edit) in EDITS {
        let mut value: Value = serde_json::from_str(METAL).unwrap();
        edit(&mut value);
        let problems = folder.read(&value.to_string()).problems;
        assert_eq!(rules(&problems), [(rule, place)], "{problems:?}");
    }
}

#[test]
fn all_problems_are_told_at_once() {
    let folder = Folder::new();
    let mut value: Value = serde_json::from_str(METAL).unwrap();
    let mut expected = vec![];
    for (rule, place, edit) in EDITS {
        // A kernel that cannot be read is not judged further, and of two edits at
        // the same place the second undoes the first.
        let readable = rule != Rule::Schema && rule != Rule::Field || place == "author";
        if readable && expected.iter().all(|(_, p)| *p != place) {
            edit(&mut value);
            expected.push((rule, place));
        }
    }
    assert!(expected.len() >= 14);
    let problems = folder.read(&value.to_string()).problems;
    let mut found = rules(&problems);
    found.sort();
    expected.sort();
    assert_eq!(found, expected);
}

#[test]
fn what_is_no_json_is_shown() {
    let folder = Folder::new();
    for (from, to, said) in [
        ("3.815e-06", "NaN", "`\"maxDiff\": NaN,`"),
        ("3.815e-06", "-Infinity", "`\"maxDiff\": -Infinity,`"),
        ("3.815e-06", "1e999", "number out of range"),
        ("\"kernels\": {", "", "JSON"),
    ] {
        let text = METAL.replace(from, to);
        assert_ne!(text, METAL);
        let Reading { contract, problems } = folder.read(&text);
        assert_eq!((rules(&problems), contract), (vec![(Rule::Json, "")], None));
        let words = problems[0].to_string();
        assert!(words.contains(said), "{words}");
    }
    for end in (0..METAL.trim_end().len()).step_by(11) {
        let Reading { contract, problems } = folder.read(&METAL[..end]);
        assert!(contract.is_none() && problems.len() == 1, "{end} bytes");
    }
}

#[test]
fn what_stands_twice_is_found_where_it_is() {
    let folder = Folder::new();
    let twice = METAL.replace(
        "\"smokeScores\": 128,",
        "\"smokeScores\": 4, \"smokeScores\": 128,",
    );
    let problems = folder.read(&twice).problems;
    assert_eq!(
        rules(&problems),
        [(Rule::Duplicate, "kernels.polar.smokeScores")]
    );
}

#[test]
fn an_unknown_status_is_refused_by_name() {
    let folder = Folder::new();
    let text = METAL.replacen("\"runtime-ready\"", "\"quantum-ready\"", 1);
    let problems = folder.read(&text).problems;
    let words = problems[0].to_string();
    let expected = "kernels.turbo3.status: expected one of blocked, compile-only, needs-hardware, \
        needs-runtime-smoke, partial-qjl-only, reference-only, runtime-ready, standalone-verified, \
        symbol-shipped, verified, found \"quantum-ready\"";
    assert!(words.contains(expected), "{words}");
    for status in KernelStatus::ALL {
        let text = METAL.replacen("\"runtime-ready\"", &format!("\"{}\"", status.name()), 1);
        let contract = folder.read(&text).contract.unwrap();
        assert_eq!(contract.kernels["turbo3"].status, status);
    }
}

#[test]
fn status_follows_from_the_records() {
    let all = contract(records());
    assert_eq!(all.ready().count(), 5);
    let turbo4 = &all.kernels["turbo4"];
    assert_eq!((turbo4.max_diff, turbo4.smoke_scores), (Some(3e-8), 128));
    assert_eq!(turbo4.evidence_date, "2026-11-30");
    assert_eq!(turbo4.shipped_symbols, ["tbq4_0/score/avx2"]);
    assert_eq!(turbo4.graph_op, "HOST_OP_ATTN_SCORE_TBQ");

    type Change = fn(&mut Record);
    let cases: [(Change, KernelStatus, &str); 12] = [
        (
            |r| r.not_run = Some("no such backend".into()),
            KernelStatus::NeedsRuntimeSmoke,
            "was not run: no such backend",
        ),
        (
            |r| r.backend = "metal".into(),
            KernelStatus::NeedsRuntimeSmoke,
            "has no ATTN_SCORE_TBQ on tbq4_0",
        ),
        (
            |r| r.operation = "MUL_MAT".into(),
            KernelStatus::NeedsRuntimeSmoke,
            "has no ATTN_SCORE_TBQ on tbq4_0",
        ),
        (
            |r| r.reached_by = ReachedBy::ModelGraph,
            KernelStatus::NeedsRuntimeSmoke,
            "has no ATTN_SCORE_TBQ on tbq4_0",
        ),
        (
            |r| r.scores = 31,
            KernelStatus::NeedsRuntimeSmoke,
            "31 scores compared, at least 32 needed",
        ),
        (
            |r| (r.cases, r.measures) = (0, vec![]),
            KernelStatus::NeedsRuntimeSmoke,
            "expected numbers that were compared, found none",
        ),
        (
            |r| r.measures.retain(|m| m.against != Against::Decoded),
            KernelStatus::NeedsRuntimeSmoke,
            "128 scores compared",
        ),
        (
            |r| r.counted = 0,
            KernelStatus::SymbolShipped,
            "to count itself 96 times, found 0 times",
        ),
        (
            |r| (r.counted, r.expected_count) = (0, 0),
            KernelStatus::SymbolShipped,
            "to count itself, found 0 times",
        ),
        (
            |r| r.failed = 1,
            KernelStatus::Blocked,
            "no check to fail, found 1 failed",
        ),
        (
            |r| r.measures[0].worst = 9e-7,
            KernelStatus::Blocked,
            "numbers from 0e0 to 8e-7, found 1e-8 to 9e-7",
        ),
        (
            |r| r.measures[0].worst = f64::NAN,
            KernelStatus::Blocked,
            "finite numbers, found 1e-8 to NaN",
        ),
    ];
    for (change, status, said) in cases {
        let mut records = records();
        change(&mut records[1]);
        let contract = contract(records);
        let turbo4 = &contract.kernels["turbo4"];
        assert_eq!(
            (turbo4.status, turbo4.runtime_ready),
            (status, false),
            "{said}"
        );
        assert!(turbo4.notes.contains(said), "{}", turbo4.notes);
        assert_eq!(contract.ready().count(), 4);
    }

    // One failing record of several is enough.
    let mut several = records();
    several.push(Record {
        counted: 95,
        ..several[1].clone()
    });
    assert_eq!(
        contract(several).kernels["turbo4"].status,
        KernelStatus::SymbolShipped
    );
    let none = contract(vec![]);
    assert_eq!(none.ready().count(), 0);
    assert_eq!(none.kernels.len(), 5);
}

#[test]
fn platforms_follow_from_the_records_where_they_are_from() {
    let gate = |records: Vec<Record>| {
        let contract = contract(records);
        let other = &contract.platform_targets["cpu-aarch64"];
        assert_eq!(other.kernel_verification, KernelStatus::ReferenceOnly);
        let here = &contract.platform_targets["cpu-x86_64"];
        (
            here.kernel_verification,
            here.runtime_dispatch,
            here.device_run,
            here.next_gate.clone(),
        )
    };
    use KernelStatus::{Blocked, NeedsRuntimeSmoke, RuntimeReady, Verified};
    let model = |not_run: Option<&str>| {
        let mut all = records();
        all.push(Record {
            reached_by: ReachedBy::ModelGraph,
            not_run: not_run.map(String::from),
            cases: 0,
            measures: vec![],
            ..all[0].clone()
        });
        all
    };
    let with = "run `kvforge smoke` with a model".to_string();
    assert_eq!(
        gate(model(Some("no model"))),
        (Verified, RuntimeReady, NeedsRuntimeSmoke, with)
    );
    let (verified, ready, device, _) = gate(model(None));
    assert_eq!(
        (verified, ready, device),
        (Verified, RuntimeReady, Verified)
    );
    let mut wrong = model(None);
    wrong[2].failed = 1;
    let mend = "mend what `kvforge smoke` reports".to_string();
    assert_eq!(gate(wrong), (Blocked, NeedsRuntimeSmoke, Verified, mend));
    let score = "score graphs of the built tree for turbo3, turbo4, turbo3_tcq, qjl, polar";
    assert_eq!(gate(vec![]).3, score);
}
