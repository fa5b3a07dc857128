//! The checked-in schemas, as somebody else's validator reads them.

mod common;

use common::{METAL, contract, evidence, records};
use jsonschema::Validator;
use serde_json::{Value, json};

fn validator(text: &str) -> Validator {
    jsonschema::validator_for(&serde_json::from_str(text).unwrap()).unwrap()
}

fn valid(validator: &Validator, value: &Value) {
    let errors: Vec<String> = validator
        .iter_errors(value)
        .map(|e| e.to_string())
        .collect();
    assert!(errors.is_empty(), "{errors:?}");
}

#[test]
fn contracts_are_valid_and_broken_ones_are_not() {
    let validator = validator(include_str!("../schema/contract.json"));
    let metal: Value = serde_json::from_str(METAL).unwrap();
    valid(&validator, &metal);
    let generated = serde_json::to_value(contract(records())).unwrap();
    valid(&validator, &generated);
    valid(&validator, &serde_json::to_value(contract(vec![])).unwrap());

    let breaks: [fn(&mut Value); 9] = [
        |c| c["schemaVersion"] = json!(2),
        |c| c["author"] = json!("me"),
        |c| c["kernels"]["qjl"]["status"] = json!("quantum-ready"),
        |c| c["kernels"]["qjl"]["maxDiff"] = json!("NaN"),
        |c| c["kernels"]["qjl"]["smokeScores"] = json!(-1),
        |c| c["kernels"]["qjl"]["evidenceDate"] = json!("yesterday"),
        |c| {
            c["kernels"]["qjl"].as_object_mut().unwrap().remove("notes");
        },
        |c| c["platformTargets"]["cpu-x86_64"]["nextGate"] = json!("soon"),
        |c| c["kvforge"]["evidence"]["date"] = json!("2026-11-30"),
    ];
    for (n, break_it) in breaks.into_iter().enumerate() {
        let mut broken = generated.clone();
        break_it(&mut broken);
        assert!(!validator.is_valid(&broken), "break {n}");
    }
}

#[test]
fn evidence_is_valid_and_broken_evidence_is_not() {
    let validator = validator(include_str!("../schema/evidence.json"));
    let mut of_all_kinds = records();
    of_all_kinds[0].not_run = Some("no time".into());
    of_all_kinds[1].counted = 0;
    of_all_kinds[2].failed = 1;
    of_all_kinds[3].measures[0].worst = f64::NAN;
    let good = serde_json::to_value(evidence(of_all_kinds)).unwrap();
    valid(&validator, &good);

    let breaks: [fn(&mut Value); 6] = [
        |e| e["records"][4]["status"] = json!("splendid"),
        |e| e["records"][4]["measures"][0]["worst"] = json!("NaN"),
        |e| e["records"][4]["surplus"] = json!(1),
        |e| e["records"][4]["counted"] = json!(-1),
        |e| e["run"]["libraries"] = json!(null),
        |e| {
            e.as_object_mut().unwrap().remove("digest");
        },
    ];
    for (n, break_it) in breaks.into_iter().enumerate() {
        let mut broken = good.clone();
        break_it(&mut broken);
        assert!(!validator.is_valid(&broken), "break {n}");
    }
}
