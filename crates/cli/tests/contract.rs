//! `kvforge contract` on a tree and a build folder that this test makes: what is
//! sound passes, and everything that must not pass for a proof does not.
#![cfg(unix)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use kvforge_evidence::contract::{Contract, FILE_NAME as CONTRACT, KERNELS};
use kvforge_evidence::{
    Evidence, FILE_NAME as EVIDENCE, Hashed, Host, Measure, ReachedBy, Record, Run, TreeId, digest,
};
use kvforge_llama::contract::PROJECT;
use serde_json::Value;

/// Exit code, and everything that was printed.
fn contract(args: &[&str]) -> (i32, String) {
    let done = Command::new(env!("CARGO_BIN_EXE_kvforge"))
        .arg("contract")
        .args(args)
        .output()
        .unwrap();
    let out = String::from_utf8_lossy(&done.stdout);
    let err = String::from_utf8_lossy(&done.stderr);
    (done.status.code().unwrap(), format!("{out}{err}"))
}

/// A tree that was shipped, built and smoked, as far as a contract can see.
struct Place {
    folder: tempfile::TempDir,
}

const KERNEL_SOURCE: &str = "ggml/src/kvforge/rust/cpu/src/kernel.rs";
const LIBRARY: &str = "bin/libggml-base.so";

impl Place {
    fn new() -> Place {
        let place = Place {
            folder: tempfile::tempdir().unwrap(),
        };
        let version =
            "set(GGML_VERSION_MAJOR 0)\nset(GGML_VERSION_MINOR 1)\nset(GGML_VERSION_PATCH 2)\n";
        let home = format!("CMAKE_HOME_DIRECTORY:INTERNAL={}\n", place.tree().display());
        for (path, text) in [
            ("include/llama.h", ""),
            ("ggml/CMakeLists.txt", version),
            ("ggml/include/ggml.h", ""),
            (KERNEL_SOURCE, "fn dot() {}\n"),
            ("build-kvforge/CMakeCache.txt", &home),
            ("build-kvforge/bin/libggml-base.so", "\u{7f}ELF"),
        ] {
            let path = place.tree().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        place.prove(records());
        place
    }

    fn tree(&self) -> PathBuf {
        self.folder.path().canonicalize().unwrap()
    }

    fn build_dir(&self) -> PathBuf {
        self.tree().join("build-kvforge")
    }

    fn contract(&self) -> PathBuf {
        self.build_dir().join(CONTRACT)
    }

    fn evidence(&self) -> PathBuf {
        self.build_dir().join(EVIDENCE)
    }

    /// Leaves the evidence of a run.
    fn prove(&self, records: Vec<Record>) {
        let run = Run {
            kvforge: "0.1.0".into(),
            date: "2026-11-30T15:04:05Z".into(),
            command: "kvforge smoke tree".into(),
            host: Host {
                cpu: "a processor".into(),
                os: "linux".into(),
                arch: "x86_64".into(),
            },
            tree: TreeId {
                version: "ggml 0.1.2".into(),
                shipped_by: Some("0.1.0".into()),
                type_ids: [("tbq4_0".to_string(), 44)].into(),
            },
            kernel_source: Some(Hashed::of(&self.tree(), "ggml/src/kvforge").unwrap()),
            libraries: vec![Hashed::of(&self.build_dir(), LIBRARY).unwrap()],
        };
        Evidence::new(run, records).write(&self.evidence()).unwrap();
    }

    /// The same with a contract that was written from it.
    fn prove_and_write(&self, records: Vec<Record>) {
        self.prove(records);
        let (code, said) = self.run("write");
        let unproved = said.contains("not proved, so `kvforge contract check` will fail");
        assert_eq!(code, i32::from(unproved), "{said}");
    }

    /// Other evidence, and the contract changed by hand so that its hash fits.
    fn prove_behind_its_back(&self, change: fn(&mut Record)) {
        let hash = |file: &Path| digest::file(file).unwrap();
        let before = hash(&self.evidence());
        self.prove(changed(change));
        let after = hash(&self.evidence());
        edit(&self.contract(), |text| text.replace(&before, &after));
    }

    fn run(&self, verb: &str) -> (i32, String) {
        contract(&[verb, self.tree().to_str().unwrap()])
    }
}

fn edit(file: &Path, change: impl FnOnce(&str) -> String) {
    let text = fs::read_to_string(file).unwrap();
    let changed = change(&text);
    assert_ne!(text, changed, "{}: nothing to change", file.display());
    fs::write(file, changed).unwrap();
}

/// A verified record of every public kernel's score operation, and one that the
/// run skipped.
fn records() -> Vec<Record> {
    let text = r#"{
        "format": "", "operation": "", "backend": "cpu",
        "reachedBy": "smoke-graph", "notRun": null, "kernel": "", "isa": "avx2",
        "cases": 4, "scores": 128, "failed": 0,
        "measures": [
            {"against": "decoded", "least": 1e-8, "worst": 3e-8, "floor": 0, "tolerance": 8e-7}
        ],
        "counted": 96, "expectedCount": 96, "status": null
    }"#;
    let template: Record = serde_json::from_str(text).unwrap();
    let mut all: Vec<Record> = KERNELS
        .iter()
        .map(|kernel| Record {
            format: kernel.format.into(),
            operation: kernel.operation.into(),
            kernel: format!("{}/score/avx2", kernel.format),
            ..template.clone()
        })
        .collect();
    all.push(Record {
        operation: "FLASH_ATTN_EXT".into(),
        reached_by: ReachedBy::ModelGraph,
        not_run: Some("no model was given".into()),
        ..all[1].clone()
    });
    all
}

/// The same with the record of `turbo4` changed.
fn changed(change: fn(&mut Record)) -> Vec<Record> {
    let mut all = records();
    change(&mut all[1]);
    all
}

fn measure(change: fn(&mut Measure), record: &mut Record) {
    change(&mut record.measures[0]);
}

/// Something that breaks a sound contract.
struct Control {
    what: &'static str,
    break_it: fn(&Place),
    /// What must be said of it.
    said: &'static [&'static str],
}

const CONTROLS: [Control; 27] = [
    Control {
        what: "a byte of a kernel source changed",
        break_it: |p| edit(&p.tree().join(KERNEL_SOURCE), |t| t.replace("dot", "dog")),
        said: &[
            "ggml/src/kvforge: every kernel: expected what the smoke ran, BLAKE3 ",
            "run `kvforge build ",
            "`kvforge smoke ",
        ],
    },
    Control {
        what: "a kernel source more",
        break_it: |p| fs::write(p.tree().join("ggml/src/kvforge/more.rs"), "").unwrap(),
        said: &["ggml/src/kvforge: every kernel: expected what the smoke ran"],
    },
    Control {
        what: "no kernel sources",
        break_it: |p| fs::remove_dir_all(p.tree().join("ggml/src/kvforge")).unwrap(),
        said: &[
            "ggml/src/kvforge: every kernel: expected what",
            "found nothing",
        ],
    },
    Control {
        what: "a byte of a built library changed",
        break_it: |p| edit(&p.build_dir().join(LIBRARY), |t| t.replace("ELF", "ELG")),
        said: &["bin/libggml-base.so: every kernel: expected what the smoke ran, BLAKE3 "],
    },
    Control {
        what: "no library",
        break_it: |p| fs::remove_file(p.build_dir().join(LIBRARY)).unwrap(),
        said: &["bin/libggml-base.so: every kernel: ", "found nothing"],
    },
    Control {
        what: "no evidence",
        break_it: |p| fs::remove_file(p.evidence()).unwrap(),
        said: &[
            "kvforge-evidence.json: expected evidence of a smoke run, found no such file",
            "kernels.turbo4: expected evidence that can be read, found it claims runtime-ready",
        ],
    },
    Control {
        what: "no contract",
        break_it: |p| fs::remove_file(p.contract()).unwrap(),
        said: &[
            "kvforge-contract.json: expected a contract, found no such file; run `kvforge contract write ",
        ],
    },
    Control {
        what: "a number of the evidence edited",
        break_it: |p| edit(&p.evidence(), |t| t.replacen("3e-8", "2e-8", 1)),
        said: &[
            "kvforge-evidence.json: digest: expected content with ",
            "edited by hand",
        ],
    },
    Control {
        what: "a status of the evidence raised",
        break_it: |p| {
            p.prove(changed(|r| r.counted = 0));
            edit(&p.evidence(), |t| t.replace("\"compiled\"", "\"verified\""));
        },
        said: &[
            "ATTN_SCORE_TBQ on tbq4_0: expected `compiled`, as its numbers say, found `verified`: edited by hand",
        ],
    },
    Control {
        what: "evidence cut off",
        break_it: |p| edit(&p.evidence(), |t| t[..t.len() / 2].into()),
        said: &["kvforge-evidence.json: expected evidence of a smoke run, found EOF"],
    },
    Control {
        what: "a number of the contract edited",
        break_it: |p| edit(&p.contract(), |t| t.replacen("3e-8", "2e-8", 1)),
        said: &[
            "kernels.polar.maxDiff: expected 3e-8, as the evidence says, found 2e-8; run `kvforge smoke ",
        ],
    },
    Control {
        what: "a date of the contract edited",
        break_it: |p| edit(&p.contract(), |t| t.replacen("2026-11-30", "2026-12-01", 1)),
        said: &[
            "kernels.polar.evidenceDate: expected \"2026-11-30\", as the evidence says, found \"2026-12-01\"",
        ],
    },
    Control {
        what: "a platform raised",
        break_it: |p| {
            edit(&p.contract(), |t| {
                t.replacen("\"blocked\"", "\"verified\"", 1)
            })
        },
        said: &[
            "platformTargets.cuda.kernelVerification: expected \"blocked\", as the evidence says, found \"verified\"",
        ],
    },
    Control {
        what: "a record of the contract raised",
        break_it: |p| {
            p.prove_and_write(changed(|r| r.not_run = Some("no time".into())));
            edit(&p.contract(), |t| {
                t.replace(
                    "{\n          \"not-run\": \"no time\"\n        }",
                    "\"verified\"",
                )
            });
        },
        said: &["kvforge.records: expected ["],
    },
    Control {
        what: "another backend named",
        break_it: |p| edit(&p.contract(), |t| t.replace("\"cpu\"", "\"metal\"")),
        said: &[
            "records: expected records of the backend metal, found none: nothing ran",
            "kernels.turbo4: expected no such claim",
        ],
    },
    Control {
        what: "the proof taken out",
        break_it: |p| {
            edit(&p.contract(), |text| {
                let mut value: Value = serde_json::from_str(text).unwrap();
                value.as_object_mut().unwrap().remove("kvforge");
                value.to_string()
            });
        },
        said: &[
            "kernels.turbo4: expected evidence attached to the claim, found it claims runtime-ready, no evidence attached",
        ],
    },
    Control {
        what: "a smoke since then",
        break_it: |p| p.prove(changed(|r| r.counted = 0)),
        said: &[
            "kvforge.evidence.blake3: expected the evidence's BLAKE3 ",
            "kernels.turbo4: expected no such claim, because: ATTN_SCORE_TBQ on tbq4_0: expected tbq4_0/score/avx2 to count itself 96 times, found 0 times",
        ],
    },
    Control {
        what: "NaN in the evidence",
        break_it: |p| p.prove_and_write(changed(|r| measure(|m| m.worst = f64::NAN, r))),
        said: &[
            "ATTN_SCORE_TBQ on tbq4_0 (tbq4_0/score/avx2): expected finite numbers, found 1e-8 to NaN; mend what `kvforge smoke ",
        ],
    },
    Control {
        what: "NaN in the contract",
        break_it: |p| edit(&p.contract(), |t| t.replacen("3e-8", "NaN", 1)),
        said: &[
            "kvforge-contract.json: expected JSON, found expected value",
            "`\"maxDiff\": NaN,`",
        ],
    },
    Control {
        what: "an error over its tolerance",
        break_it: |p| p.prove_and_write(changed(|r| measure(|m| m.worst = 9e-7, r))),
        said: &[
            "ATTN_SCORE_TBQ on tbq4_0 (tbq4_0/score/avx2): expected numbers from 0e0 to 8e-7, found 1e-8 to 9e-7",
        ],
    },
    Control {
        what: "an error under its floor",
        break_it: |p| p.prove_and_write(changed(|r| measure(|m| m.floor = 2e-8, r))),
        said: &["expected numbers from 2e-8 to 8e-7, found 1e-8 to 3e-8"],
    },
    Control {
        what: "a failed check",
        break_it: |p| p.prove_and_write(changed(|r| r.failed = 1)),
        said: &["tbq4_0 (tbq4_0/score/avx2): expected no check to fail, found 1 failed"],
    },
    Control {
        what: "a kernel that was never reached",
        break_it: |p| p.prove_and_write(changed(|r| r.counted = 0)),
        said: &["expected tbq4_0/score/avx2 to count itself 96 times, found 0 times"],
    },
    Control {
        what: "a kernel that was reached too seldom",
        break_it: |p| p.prove_and_write(changed(|r| r.counted = 95)),
        said: &["expected tbq4_0/score/avx2 to count itself 96 times, found 95 times"],
    },
    Control {
        what: "a smoke that compared nothing",
        break_it: |p| {
            p.prove_and_write(changed(|r| (r.cases, r.measures) = (0, vec![])));
        },
        said: &["expected numbers that were compared, found none: nothing ran"],
    },
    Control {
        what: "a smoke without a record",
        break_it: |p| p.prove_and_write(vec![]),
        said: &["records: expected records of the backend cpu, found none: nothing ran"],
    },
    Control {
        what: "a skip presented as a pass",
        break_it: |p| p.prove_behind_its_back(|r| r.not_run = Some("no time".into())),
        said: &[
            "kernels.turbo4: expected no such claim, because: ATTN_SCORE_TBQ on tbq4_0 was not run: no time., found it claims runtime-ready",
        ],
    },
];

#[test]
fn what_is_no_proof_does_not_pass() {
    for control in CONTROLS {
        let what = control.what;
        let place = Place::new();
        assert_eq!(place.run("write").0, 0, "{what}");
        let (code, said) = place.run("check");
        assert_eq!(code, 0, "before: {what}\n{said}");
        assert!(
            said.ends_with("as its evidence says, 5 of 5 kernels runtime-ready\n"),
            "{said}"
        );

        (control.break_it)(&place);
        let (code, said) = place.run("check");
        assert_eq!(code, 1, "{what}\n{said}");
        for words in control.said {
            assert!(said.contains(words), "{what}: {words}\n{said}");
        }
        assert!(!said.contains("as its evidence says,"), "{said}");
        let tree = place.tree();
        let mend = [
            format!("kvforge smoke {}`", tree.display()),
            format!("kvforge contract write {}`", tree.display()),
        ];
        assert!(mend.iter().any(|m| said.contains(m)), "{what}: {said}");
    }
}

#[test]
fn a_skip_that_says_so_passes() {
    let place = Place::new();
    place.prove_and_write(changed(|r| r.not_run = Some("no such backend".into())));
    let (code, said) = place.run("check");
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("4 of 5 kernels runtime-ready"), "{said}");
    let (_, said) = place.run("show");
    assert!(said.contains("turbo4      needs-runtime-smoke"), "{said}");
}

#[test]
fn several_problems_are_told_at_once() {
    let place = Place::new();
    place.prove_and_write(changed(|r| {
        r.counted = 0;
        measure(|m| m.worst = f64::NAN, r);
    }));
    edit(&place.tree().join(KERNEL_SOURCE), |t| {
        t.replace("dot", "dog")
    });
    edit(&place.contract(), |t| t.replacen("3e-8", "2e-8", 1));
    let tree = place.tree();
    let (code, said) = contract(&["check", "--json", tree.to_str().unwrap()]);
    assert_eq!(code, 1);
    let json: Value = serde_json::from_str(&said).unwrap();
    let rules: Vec<&str> = json[0]["problems"]
        .as_array()
        .unwrap()
        .iter()
        .map(|p| p["rule"].as_str().unwrap())
        .collect();
    assert_eq!(
        rules,
        ["stale", "never-reached", "not-finite", "edited"],
        "{said}"
    );
    assert_eq!(
        (&json[0]["good"], &json[0]["ready"]),
        (&false.into(), &Value::Array(vec![]))
    );
}

#[test]
fn nothing_is_written_from_what_is_no_proof() {
    let breaks: [fn(&Place); 3] = [
        |p| fs::remove_file(p.evidence()).unwrap(),
        |p| edit(&p.evidence(), |t| t.replacen("3e-8", "2e-8", 1)),
        |p| edit(&p.build_dir().join(LIBRARY), |t| t.replace("ELF", "ELG")),
    ];
    for break_it in breaks {
        let place = Place::new();
        break_it(&place);
        let (code, said) = place.run("write");
        assert_eq!(code, 1, "{said}");
        assert!(said.contains("nothing was written"), "{said}");
        assert!(!place.contract().exists());
    }
}

#[test]
fn a_contract_elsewhere_finds_its_evidence() {
    let place = Place::new();
    let elsewhere = tempfile::tempdir().unwrap();
    let file = elsewhere.path().join("app.json");
    let (tree, file) = (place.tree(), file.to_str().unwrap());
    let (code, said) = contract(&["write", tree.to_str().unwrap(), "-o", file]);
    assert_eq!(code, 0, "{said}");
    let (code, said) = contract(&["check", file]);
    assert_eq!(code, 0, "{said}");
    edit(&place.build_dir().join(LIBRARY), |t| {
        t.replace("ELF", "ELG")
    });
    let (code, said) = contract(&["check", file]);
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("bin/libggml-base.so: every kernel"), "{said}");
    // When the build folder no longer says what it was made from, one must.
    fs::remove_file(place.build_dir().join("CMakeCache.txt")).unwrap();
    let (code, said) = contract(&["check", file]);
    assert_eq!(code, 2, "{said}");
    assert!(said.contains("add `--tree TREE`"), "{said}");
    let (code, said) = contract(&["check", "--tree", tree.to_str().unwrap(), file]);
    assert_eq!(code, 1, "{said}");
}

#[test]
fn a_contract_without_evidence_is_shown_and_not_believed() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("metal.json");
    let metal = include_str!("../../evidence/tests/fixtures/metal-contract.json");
    fs::write(&file, metal).unwrap();
    let file = file.to_str().unwrap();
    let (code, said) = contract(&["show", file]);
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("backend metal"), "{said}");
    assert!(
        said.contains("polar       runtime-ready           128 scores  error 3.8e-6"),
        "{said}"
    );
    assert!(said.contains("evidence: none attached"), "{said}");
    let (code, said) = contract(&["check", file]);
    assert_eq!(code, 1, "{said}");
    for kernel in KERNELS {
        let words = format!(
            "kernels.{}: expected evidence attached to the claim, found it claims runtime-ready, no evidence attached",
            kernel.name
        );
        assert!(said.contains(&words), "{said}");
    }
    // Without a claim there is nothing to prove.
    let honest = metal
        .replace("\"runtime-ready\"", "\"needs-runtime-smoke\"")
        .replace("\"runtimeReady\": true", "\"runtimeReady\": false");
    fs::write(file, honest).unwrap();
    assert_eq!(contract(&["check", file]).0, 0);
}

#[test]
fn wrong_usage_and_absent_files_exit_with_2() {
    for args in [
        &["check"][..],
        &["check", "/absent/contract.json"],
        &["show", "/absent/contract.json"],
        &["write", "/absent/llama.cpp"],
    ] {
        let (code, said) = contract(args);
        assert_eq!(code, 2, "{said}");
    }
    for verb in ["show", "write", "check"] {
        let (code, said) = contract(&[verb, "--help"]);
        assert_eq!(code, 0, "{said}");
        assert!(said.contains("Example:\n  kvforge contract "), "{said}");
    }
}

#[test]
fn platforms_have_a_name_once_and_say_what_comes_next() {
    let evidence = {
        let place = Place::new();
        Evidence::read(&place.evidence()).unwrap()
    };
    let file = Hashed {
        path: EVIDENCE.into(),
        blake3: String::new(),
    };
    let contract = Contract::from_evidence(&evidence, file, "cpu", &PROJECT);
    assert_eq!(contract.platform_targets.len(), PROJECT.targets.len());
    for (name, platform) in contract.platform_targets {
        assert!(platform.next_gate.len() >= 8, "{name}");
    }
}
