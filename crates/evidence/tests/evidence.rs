//! Round trip, and everything that must not pass for evidence.

use std::fs;
use std::path::{Path, PathBuf};

use kvforge_evidence::{
    Against, Error, Evidence, FILE_NAME, Hashed, Host, Measure, ReachedBy, Record, Run, Status,
    TreeId,
};

/// A tree with two sources, a build folder with a library, and evidence of both.
struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("tree/kernels/rust")).unwrap();
        fs::create_dir_all(folder.path().join("build/bin")).unwrap();
        fs::write(folder.path().join("tree/kernels/glue.c"), "int x;\n").unwrap();
        fs::write(folder.path().join("tree/kernels/rust/lib.rs"), "mod y;\n").unwrap();
        fs::write(
            folder.path().join("build/bin/lib.so"),
            [0x7f, b'E', b'L', b'F'],
        )
        .unwrap();
        Place { folder }
    }

    fn tree(&self) -> PathBuf {
        self.folder.path().join("tree")
    }

    fn build(&self) -> PathBuf {
        self.folder.path().join("build")
    }

    fn file(&self) -> PathBuf {
        self.build().join(FILE_NAME)
    }

    fn run(&self) -> Run {
        Run {
            kvforge: "0.1.0".into(),
            date: "2026-11-30T15:04:05Z".into(),
            command: "kvforge smoke tree".into(),
            host: Host {
                cpu: "a processor".into(),
                os: "linux".into(),
                arch: "x86_64".into(),
            },
            tree: TreeId {
                version: "host 1.2.3".into(),
                shipped_by: Some("0.1.0".into()),
                type_ids: [("tbq4_0".to_string(), 44)].into(),
            },
            kernel_source: Some(Hashed::of(&self.tree(), "kernels").unwrap()),
            libraries: vec![Hashed::of(&self.build(), "bin/lib.so").unwrap()],
        }
    }

    fn evidence(&self, record: Record) -> Evidence {
        Evidence::new(self.run(), vec![record])
    }

    fn ready(&self, evidence: &Evidence) -> bool {
        let checked = evidence.check(&self.tree(), &self.build()).unwrap();
        checked.ready("tbq4_0", "SET_ROWS", "cpu")
    }
}

fn record() -> Record {
    serde_json::from_str(
        r#"{
            "format": "tbq4_0", "operation": "SET_ROWS", "backend": "cpu",
            "reachedBy": "smoke-graph", "notRun": null,
            "kernel": "tbq4_0/encode/avx2", "isa": "avx2",
            "cases": 3, "scores": 0, "failed": 0, "counted": 96, "expectedCount": 96, "status": null,
            "measures": [
                {"against": "reference", "least": 0, "worst": 0, "floor": 0, "tolerance": 0},
                {"against": "unquantised", "least": 0.99, "worst": 1.01, "floor": 0.97, "tolerance": 1.03}
            ]
        }"#,
    )
    .unwrap()
}

fn status(place: &Place, change: impl FnOnce(&mut Record)) -> Status {
    let mut record = record();
    change(&mut record);
    place.evidence(record).records()[0].status().clone()
}

#[test]
fn round_trip() {
    let place = Place::new();
    let evidence = place.evidence(record());
    evidence.write(&place.file()).unwrap();
    let again = Evidence::read(&place.file()).unwrap();
    assert_eq!(again, evidence);
    assert_eq!(*again.records()[0].status(), Status::Verified);
    assert!(place.ready(&again));
    // Writing again replaces the file and leaves nothing beside it.
    evidence.write(&place.file()).unwrap();
    assert_eq!(fs::read_dir(place.build()).unwrap().count(), 2);
}

#[test]
fn a_link_is_followed_and_a_folder_in_the_way_is_left() {
    let place = Place::new();
    let old = place.evidence(record());
    let moved = place.build().join("moved");
    old.write(&moved).unwrap();
    std::os::unix::fs::symlink("moved", place.file()).unwrap();
    let other = Evidence::new(place.run(), vec![]);
    other.write(&place.file()).unwrap();
    assert!(place.file().is_symlink());
    assert_eq!(Evidence::read(&moved).unwrap(), other);
    assert!(matches!(other.write(&place.build()), Err(Error::Io { .. })));
    assert_eq!(fs::read_dir(place.build()).unwrap().count(), 3);
}

#[test]
fn statuses_are_ordered_and_not_run_is_outside() {
    use Status::{Compiled, Declared, Dispatched, NotRun, Shipped, Verified};
    let order = [Declared, Shipped, Compiled, Dispatched, Verified];
    for (i, a) in order.iter().enumerate() {
        for (j, b) in order.iter().enumerate() {
            assert_eq!(a.partial_cmp(b), Some(i.cmp(&j)), "{a} and {b}");
        }
        let not_run = NotRun("no model".into());
        assert_eq!(a.partial_cmp(&not_run), None);
        assert_eq!(not_run.partial_cmp(a), None);
    }
}

#[test]
fn status_follows_from_the_numbers() {
    let place = Place::new();
    assert_eq!(status(&place, |_| ()), Status::Verified);
    assert_eq!(status(&place, |r| r.counted = 95), Status::Compiled);
    assert_eq!(status(&place, |r| r.counted = 97), Status::Compiled);
    let nothing_expected = |r: &mut Record| (r.counted, r.expected_count) = (0, 0);
    assert_eq!(status(&place, nothing_expected), Status::Compiled);
    assert_eq!(status(&place, |r| r.cases = 0), Status::Dispatched);
    assert_eq!(status(&place, |r| r.measures.clear()), Status::Dispatched);
    assert_eq!(
        status(&place, |r| r.measures[0].worst = 1.0),
        Status::Dispatched
    );
    assert_eq!(status(&place, |r| r.failed = 1), Status::Dispatched);
    // Suspiciously exact is not right either.
    assert_eq!(
        status(&place, |r| r.measures[1].least = 0.5),
        Status::Dispatched
    );
    // Nor is what contradicts itself.
    assert_eq!(
        status(&place, |r| r.measures[1].least = 1.02),
        Status::Dispatched
    );
    let reason = "no such backend";
    assert_eq!(
        status(&place, |r| r.not_run = Some(reason.into())),
        Status::NotRun(reason.into())
    );

    let unbuilt = Run {
        libraries: vec![],
        ..place.run()
    };
    let evidence = Evidence::new(unbuilt.clone(), vec![record()]);
    assert_eq!(*evidence.records()[0].status(), Status::Shipped);
    let unshipped = Run {
        kernel_source: None,
        ..unbuilt
    };
    let evidence = Evidence::new(unshipped, vec![record()]);
    assert_eq!(*evidence.records()[0].status(), Status::Declared);
}

#[test]
fn what_is_not_finite_is_never_ready() {
    let place = Place::new();
    for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let fields: [fn(&mut Measure) -> &mut f64; 4] = [
            |m| &mut m.least,
            |m| &mut m.worst,
            |m| &mut m.floor,
            |m| &mut m.tolerance,
        ];
        for field in fields {
            let mut record = record();
            *field(&mut record.measures[1]) = bad;
            let evidence = place.evidence(record);
            assert!(!place.ready(&evidence));
            // JSON has no such number; it must not come back as a good one.
            evidence.write(&place.file()).unwrap();
            let again = Evidence::read(&place.file()).unwrap();
            assert!(!place.ready(&again));
            assert_eq!(*again.records()[0].status(), Status::Dispatched);
        }
    }
}

#[test]
fn only_compared_records_make_ready() {
    let place = Place::new();
    let of_model = Record {
        reached_by: ReachedBy::ModelGraph,
        ..record()
    };
    assert!(!place.ready(&place.evidence(of_model.clone())));
    assert!(!place.ready(&Evidence::new(place.run(), vec![])));
    let both = Evidence::new(place.run(), vec![of_model, record()]);
    assert!(place.ready(&both));
    let checked = both.check(&place.tree(), &place.build()).unwrap();
    assert!(!checked.ready("tbq3_0", "SET_ROWS", "cpu"));
    assert!(!checked.ready("tbq4_0", "GET_ROWS", "cpu"));
    assert!(!checked.ready("tbq4_0", "SET_ROWS", "vulkan"));
    // One failing record of several is enough to fail.
    let failing = Record {
        counted: 1,
        ..record()
    };
    assert!(!place.ready(&Evidence::new(place.run(), vec![record(), failing])));
}

#[test]
fn any_change_makes_it_stale() {
    let place = Place::new();
    let evidence = place.evidence(record());
    type Change = fn(&Path, &Path);
    let changes: [(&str, Change); 6] = [
        ("a byte of a library", |_, build| {
            fs::write(build.join("bin/lib.so"), [0x7f, b'E', b'L', b'G']).unwrap();
        }),
        ("no library", |_, build| {
            fs::remove_file(build.join("bin/lib.so")).unwrap();
        }),
        ("a byte of a source", |tree, _| {
            fs::write(tree.join("kernels/rust/lib.rs"), "mod z;\n").unwrap();
        }),
        ("one more source", |tree, _| {
            fs::write(tree.join("kernels/rust/more.rs"), "").unwrap();
        }),
        ("a source moved", |tree, _| {
            let from = tree.join("kernels/rust/lib.rs");
            fs::rename(from, tree.join("kernels/lib.rs")).unwrap();
        }),
        ("no sources", |tree, _| {
            fs::remove_dir_all(tree.join("kernels")).unwrap();
        }),
    ];
    assert!(place.ready(&evidence));
    for (what, change) in changes {
        let fresh = Place::new();
        assert!(fresh.ready(&evidence), "before: {what}");
        change(&fresh.tree(), &fresh.build());
        let checked = evidence.check(&fresh.tree(), &fresh.build()).unwrap();
        assert_eq!(checked.stale().len(), 1, "{what}");
        assert!(!fresh.ready(&evidence), "{what}");
    }
}

#[test]
fn unknown_fields_are_refused_everywhere() {
    let place = Place::new();
    place.evidence(record()).write(&place.file()).unwrap();
    let good = fs::read_to_string(place.file()).unwrap();
    let objects: Vec<usize> = good.match_indices('{').map(|(at, _)| at).collect();
    assert!(objects.len() >= 9, "every kind of object is in the file");
    for at in objects {
        let map = good[..at].ends_with("\"typeIds\": ");
        let text = format!("{}\"surplus\": 1,{}", &good[..=at], &good[at + 1..]);
        fs::write(place.file(), text).unwrap();
        let error = Evidence::read(&place.file()).unwrap_err();
        // The table of type ids may hold any name, and is only not what was
        // written; nothing else may.
        match map {
            true => assert!(matches!(error, Error::Edited { .. }), "at byte {at}"),
            false => assert!(matches!(error, Error::Malformed { .. }), "at byte {at}"),
        }
    }
}

#[test]
fn a_truncated_file_is_refused() {
    let place = Place::new();
    place.evidence(record()).write(&place.file()).unwrap();
    let good = fs::read(place.file()).unwrap();
    // The last byte is a line end, which is not needed.
    for len in 0..good.len() - 1 {
        fs::write(place.file(), &good[..len]).unwrap();
        let read = Evidence::read(&place.file());
        assert!(matches!(read, Err(Error::Malformed { .. })), "{len} bytes");
    }
}

#[test]
fn another_schema_is_refused() {
    let place = Place::new();
    place.evidence(record()).write(&place.file()).unwrap();
    let text = fs::read_to_string(place.file()).unwrap();
    let other = text.replace("\"schemaVersion\": 2", "\"schemaVersion\": 1");
    assert_ne!(text, other);
    fs::write(place.file(), other).unwrap();
    let error = Evidence::read(&place.file()).unwrap_err();
    assert!(matches!(error, Error::Malformed { .. }), "{error}");
}

#[test]
fn a_status_raised_by_hand_is_refused() {
    let place = Place::new();
    let failing = Record {
        counted: 95,
        ..record()
    };
    place.evidence(failing).write(&place.file()).unwrap();
    let text = fs::read_to_string(place.file()).unwrap();
    let raised = text.replace("\"status\": \"compiled\"", "\"status\": \"verified\"");
    assert_ne!(text, raised);
    fs::write(place.file(), raised).unwrap();
    let error = Evidence::read(&place.file()).unwrap_err();
    assert!(
        matches!(
            &error,
            Error::Overclaimed {
                claimed: Status::Verified,
                supported: Status::Compiled,
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn an_edited_file_is_refused() {
    let place = Place::new();
    place.evidence(record()).write(&place.file()).unwrap();
    let text = fs::read_to_string(place.file()).unwrap();
    // Each by itself is a number that a run could have had.
    for (from, to) in [
        ("\"worst\": 1.01", "\"worst\": 1.005"),
        ("\"tolerance\": 1.03", "\"tolerance\": 1.04"),
        ("\"cases\": 3", "\"cases\": 4"),
        ("15:04:05Z", "15:04:06Z"),
        ("\"cpu\": \"a", "\"cpu\": \"the"),
    ] {
        let edited = text.replacen(from, to, 1);
        assert_ne!(text, edited, "{from}");
        fs::write(place.file(), edited).unwrap();
        let error = Evidence::read(&place.file()).unwrap_err();
        assert!(matches!(error, Error::Edited { .. }), "{from}: {error}");
    }
    // What another program only laid out anew is still the same.
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    fs::write(place.file(), value.to_string()).unwrap();
    Evidence::read(&place.file()).unwrap();
    // In a table of names a parser would take the second of two.
    let twice = text.replace("\"tbq4_0\": 44", "\"tbq4_0\": 43, \"tbq4_0\": 44");
    assert_ne!(text, twice);
    fs::write(place.file(), twice).unwrap();
    let error = Evidence::read(&place.file()).unwrap_err().to_string();
    assert!(
        error.contains("found `run.tree.typeIds.tbq4_0` twice"),
        "{error}"
    );
}

#[test]
fn expectations_have_stable_names() {
    let names = [
        (Against::Reference, "\"reference\""),
        (Against::Decoded, "\"decoded\""),
        (Against::Unquantised, "\"unquantised\""),
    ];
    for (against, name) in names {
        assert_eq!(serde_json::to_string(&against).unwrap(), name);
    }
}
