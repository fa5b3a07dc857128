//! `formats`, `encode`, `decode`, `score`, `quality` and `verify`, as a person meets them.

#[path = "common/capture.rs"]
mod capture;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use kvforge_formats::{Domain, FORMATS, FormatSpec};
use serde_json::{Value, json};

use capture::{capture, wave};

/// Exit code, standard output, standard error.
fn kvforge(args: &[&str]) -> (i32, String, String) {
    let done = Command::new(env!("CARGO_BIN_EXE_kvforge"))
        .args(args)
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (
        done.status.code().unwrap(),
        text(done.stdout),
        text(done.stderr),
    )
}

fn done(args: &[&str]) -> String {
    let (code, out, err) = kvforge(args);
    assert_eq!((code, err.as_str()), (0, ""), "{args:?}: {out}");
    out
}

/// A folder, and the names of files in it.
struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Files {
        Files(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_string()
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> String {
        fs::write(self.path(name), bytes).unwrap();
        self.path(name)
    }

    fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).unwrap()
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.0.path()).unwrap();
        let mut names: Vec<String> = entries
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

/// What `numpy.save` writes.
fn npy(shape: &str, values: &[f32]) -> Vec<u8> {
    let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}");
    let mut bytes = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    bytes.extend(format!("{header:<117}\n").bytes());
    bytes.extend(values.iter().flat_map(|v| v.to_le_bytes()));
    bytes
}

/// Values, after a look at the shape.
fn values(npy: &[u8], shape: &str) -> Vec<f32> {
    let header = str::from_utf8(&npy[10..128]).unwrap();
    assert!(header.contains(&format!("'shape': {shape},")), "{header}");
    let data = npy[128..].as_chunks().0.iter();
    data.map(|b| f32::from_le_bytes(*b)).collect()
}

/// Rows of 256 values, coded and decoded by the library.
fn by_library(spec: &FormatSpec, x: &[f32]) -> (Vec<u8>, Vec<f32>, Vec<f32>) {
    let (mut bytes, mut original, mut rotated) = (vec![], vec![], vec![]);
    for row in x.chunks(256) {
        let mut block = vec![0; spec.row_bytes(256).unwrap()];
        (spec.encode)(row, &mut block).unwrap();
        for (domain, all) in [
            (Domain::Original, &mut original),
            (Domain::Rotated, &mut rotated),
        ] {
            let mut decoded = vec![0.0; 256 / spec.block_len * spec.len_in(domain)];
            (spec.decode)(&block, &mut decoded, domain).unwrap();
            all.extend(decoded);
        }
        bytes.extend(block);
    }
    (bytes, original, rotated)
}

#[test]
fn arrays_go_through_every_format() {
    let files = Files::new();
    let (x, q) = (wave(5 * 256, 0.37), wave(3 * 256, 0.11));
    let input = files.write("in.npy", npy("(5, 256)", &x));
    let query = files.write("q.npy", npy("(3, 256)", &q));
    let [blocks, out] = ["blocks.bin", "out.npy"].map(|name| files.path(name));
    for spec in FORMATS {
        let (bytes, original, rotated) = by_library(spec, &x);
        let format = ["--format", spec.name];
        let run = |verb: &[&str], more: &[&str]| done(&[verb, &format, more].concat());

        run(&["encode"], &[&input, &blocks]);
        assert_eq!(files.read("blocks.bin"), bytes, "{}", spec.name);
        run(&["decode", "--head-dim", "256"], &[&blocks, &out]);
        assert_eq!(
            values(&files.read("out.npy"), "(5, 256)"),
            original,
            "{}",
            spec.name
        );
        run(
            &["decode", "--head-dim=256", "--domain=rotated"],
            &[&blocks, &out],
        );
        let shape = format!("(5, {})", rotated.len() / 5);
        assert_eq!(
            values(&files.read("out.npy"), &shape),
            rotated,
            "{}",
            spec.name
        );

        run(&["score", "--query", &query], &[&blocks, &out]);
        let scores = values(&files.read("out.npy"), "(3, 5)");
        for (i, score) in scores.iter().enumerate() {
            let (q, k) = (&q[i / 5 * 256..][..256], &original[i % 5 * 256..][..256]);
            let exact: f64 = q
                .iter()
                .zip(k)
                .map(|(q, k)| f64::from(*q) * f64::from(*k))
                .sum();
            assert_eq!(*score, exact as f32, "{} {i}", spec.name);
        }

        // Different bytes, of the same size, that are no worse.
        run(&["encode", "--encoder", "best"], &[&input, &blocks]);
        run(&["decode", "--head-dim", "256"], &[&blocks, &out]);
        let error = |y: &[f32]| {
            x.iter()
                .zip(y)
                .map(|(x, y)| f64::from(x - y).powi(2))
                .sum::<f64>()
        };
        let best = values(&files.read("out.npy"), "(5, 256)");
        assert!(error(&best) <= error(&original), "{}", spec.name);
        assert_eq!(files.read("blocks.bin").len(), bytes.len());
    }
    assert_eq!(
        files.names(),
        ["blocks.bin", "in.npy", "out.npy", "q.npy"],
        "nothing is left behind"
    );

    // A row of 128, which is what decode takes by default.
    let one = files.write("one.npy", npy("(128,)", &x[..128]));
    done(&["encode", "--format", "tbq4_0", &one, &blocks]);
    done(&["decode", "--format", "tbq4_0", &blocks, &out]);
    assert_eq!(values(&files.read("out.npy"), "(1, 128)").len(), 128);
}

#[test]
fn the_residual_bit_of_polar() {
    use kvforge_formats::q4_polar::{Residual, decode};
    let files = Files::new();
    let (x, q) = (wave(4 * 128, 0.37), wave(128, 0.11));
    let input = files.write("in.npy", npy("(4, 128)", &x));
    let query = files.write("q.npy", npy("(128,)", &q));
    let [blocks, out] = ["blocks.bin", "out.npy"].map(|name| files.path(name));
    done(&["encode", "--format", "q4_polar", &input, &blocks]);
    for (use_qjl, residual) in [("0", Residual::Ignored), ("1", Residual::Added)] {
        done(&[
            "score",
            "--format",
            "q4_polar",
            "--use-qjl",
            use_qjl,
            "--query",
            &query,
            &blocks,
            &out,
        ]);
        let mut k = vec![0.0; x.len()];
        decode(
            &files.read("blocks.bin"),
            &mut k,
            Domain::Original,
            residual,
        )
        .unwrap();
        let exact = k.chunks(128).map(|k| {
            let products = q.iter().zip(k).map(|(q, k)| f64::from(*q) * f64::from(*k));
            products.sum::<f64>() as f32
        });
        assert_eq!(
            values(&files.read("out.npy"), "(1, 4)"),
            exact.collect::<Vec<_>>()
        );
    }
}

#[test]
fn bad_input_is_named_and_nothing_is_written() {
    let files = Files::new();
    let mut broken = wave(3 * 128, 0.2);
    // The first of several is the one to report, whichever thread meets it.
    broken[128 + 5] = f32::INFINITY;
    broken[2 * 128..].fill(f32::NAN);
    let good = files.write("good.npy", npy("(3, 128)", &wave(3 * 128, 0.2)));
    let broken = files.write("broken.npy", npy("(3, 128)", &broken));
    let short = files.write("short.npy", npy("(3, 100)", &wave(300, 0.2)));
    let cut = files.write("cut.npy", &npy("(3, 128)", &wave(384, 0.2))[..1000]);
    let odd = files.write("odd.bin", vec![0; 73]);
    let out = files.write("out", "as it was");
    let (none, nowhere) = (files.path("none"), files.path("none/out"));
    let before = files.names();
    let cases: &[(&[&str], &str)] = &[
        (
            &["encode", "--format", "tbq4_0", &broken, &out],
            "broken.npy: row 1: value 5 ",
        ),
        (
            &["encode", "--format", "tbq4_0", &short, &out],
            "short.npy: expected rows of a multiple of 32",
        ),
        (
            &["encode", "--format", "tbq4_0", &cut, &out],
            "cut.npy: expected exactly the values of the shape",
        ),
        (
            &["encode", "--format", "tbq4_0", &none, &out],
            "none: cannot read the file",
        ),
        (
            &["encode", "--format", "tbq4_0", &good, &nowhere],
            "out: cannot write the file",
        ),
        (
            &["encode", "--format", "tbq5", &good, &out],
            "[possible values: tbq3_0, tbq4_0",
        ),
        (&["encode", &good, &out], "--format"),
        (
            &["decode", "--format", "tbq4_0", &odd, &out],
            "odd.bin (--head-dim 128): expected whole rows of 72 bytes",
        ),
        (
            &[
                "decode",
                "--format",
                "tbq4_0",
                "--head-dim",
                "0",
                &odd,
                &out,
            ],
            "found rows of 0",
        ),
        (
            &[
                "decode",
                "--format",
                "tbq4_0",
                "--head-dim",
                "4294967296",
                &odd,
                &out,
            ],
            "--head-dim",
        ),
        (
            &[
                "decode", "--format", "tbq4_0", "--domain", "both", &odd, &out,
            ],
            "[possible values: original, rotated]",
        ),
        (
            &["score", "--format", "tbq4_0", "--query", &good, &odd, &out],
            "good.npy: expected whole rows of 72 bytes",
        ),
        (
            &[
                "score", "--format", "tbq4_0", "--query", &broken, &odd, &out,
            ],
            "broken.npy: expected finite queries, found inf in query 1",
        ),
        (
            &["score", "--format", "tbq4_0", "--query", &odd, &odd, &out],
            "odd.bin: expected an .npy file",
        ),
        (
            &[
                "score",
                "--format",
                "tbq4_0",
                "--use-qjl",
                "1",
                "--query",
                &good,
                &odd,
                &out,
            ],
            "q4_polar, the only format",
        ),
        (&["quality", &good], "good.npy: expected a safetensors file"),
        (
            &["verify", "--fixture", &good],
            "good.npy: expected a fixture",
        ),
    ];
    for (args, about) in cases {
        let (code, said, err) = kvforge(args);
        assert_eq!((code, said.as_str()), (2, ""), "{args:?}: {err}");
        assert!(err.contains(about), "{about}: {err}");
        assert!(!err.contains("panicked"), "{err}");
    }
    assert_eq!(files.names(), before);
    assert_eq!(files.read("out"), b"as it was");
}

#[test]
fn formats_are_listed() {
    let listed: Value = serde_json::from_str(&done(&["formats", "--json"])).unwrap();
    let listed = listed["formats"].as_array().unwrap();
    assert_eq!(listed.len(), FORMATS.len());
    let text = done(&["formats"]);
    for (found, spec) in listed.iter().zip(FORMATS) {
        assert_eq!(found["name"], spec.name);
        assert_eq!(found["block_bytes"], spec.block_bytes);
        assert_eq!(found["bits_per_value"], spec.bits_per_value());
        assert!(
            text.contains(spec.name) && text.contains(spec.summary),
            "{text}"
        );
    }
}

fn published(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../kvforge/tests/fixtures")
        .join(name)
}

#[test]
fn fixtures_pass_as_published_and_not_otherwise() {
    for (name, codec) in [
        ("turbo3_tcq.json", "tbq3_tcq"),
        ("turbo4_legacy66.json", "turbo4_legacy"),
    ] {
        let path = published(name);
        let said = done(&["verify", "--fixture", path.to_str().unwrap()]);
        assert!(
            said.contains(&format!("8 outputs of {codec} as expected")),
            "{said}"
        );

        let original: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        let files = Files::new();
        for (pointer, value) in [
            ("/k_blocks/10", json!(77)),
            ("/expected_scores/2", json!(1.5)),
        ] {
            let mut changed = original.clone();
            *changed.pointer_mut(pointer).unwrap() = value;
            let path = files.write(name, changed.to_string());
            let (code, said, err) = kvforge(&["verify", "--fixture", &path]);
            assert_eq!((code, err.as_str()), (1, ""), "{pointer}: {said}");
            assert!(
                said.contains(&format!("not as expected when read as {codec}: output ")),
                "{said}"
            );
        }
    }
}

#[test]
fn quality_reports_every_format() {
    let files = Files::new();
    let capture = files.write("kv.safetensors", capture());
    let report = |args: &[&str]| -> Value {
        let all = [&["quality", &capture, "--json"], args].concat();
        serde_json::from_str(&done(&all)).unwrap()
    };
    let all = report(&[]);
    assert_eq!(
        (&all["model"], &all["center"]),
        (&json!("waves"), &json!("none"))
    );
    let names: Vec<&Value> = all["formats"]
        .as_array()
        .unwrap()
        .iter()
        .map(|f| &f["format"])
        .collect();
    let peers = ["q8_0", "q4_0", "q4_0_rot", "iq4_nl"];
    let expected: Vec<&str> = FORMATS.iter().map(|f| f.name).chain(peers).collect();
    assert_eq!(names, expected);
    for format in all["formats"].as_array().unwrap() {
        if format["not_run"].is_null() {
            assert!(format["k_rel_mse"].as_f64().unwrap() > 0.0, "{format}");
            assert_eq!(format["layers"][0]["layer"], 3);
            assert_eq!(format["layers"][0]["k_rel_mse"], format["k_rel_mse"]);
        } else {
            let why = format["not_run"].as_str().unwrap();
            assert!(
                why.contains("head size 64 is not a multiple of 128"),
                "{why}"
            );
        }
    }

    let two = ["--formats", "tbq4_0,q4_0", "--center", "self"];
    let centred = report(&two);
    assert_eq!(centred["center"], "self");
    assert_eq!(centred["formats"].as_array().unwrap().len(), 2);
    for (i, before) in [(0, 1), (1, FORMATS.len() + 1)] {
        let kl =
            |report: &Value, i: usize| report["formats"][i]["attention_kl_mean"].as_f64().unwrap();
        assert!(kl(&centred, i) < 0.5 * kl(&all, before), "{centred}");
    }
    let text = done(&[&["quality", &capture], &two[..]].concat());
    assert!(
        text.starts_with("waves: 1 layer, 2 query heads, 1 kv head, head size 64\n"),
        "{text}"
    );
    assert_eq!(text.lines().count(), 6, "{text}");
    assert!(done(&["quality", &capture]).contains("not run: head size 64"));

    let exact = [&two[..], &["--window", "16", "--first", "2"]].concat();
    let windowed = report(&exact);
    assert_eq!(
        (&windowed["window"], &windowed["first"]),
        (&json!(16), &json!(2))
    );
    assert_eq!((&all["window"], &all["first"]), (&json!(0), &json!(0)));
    let kl = windowed["formats"][0]["attention_kl_mean"]
        .as_f64()
        .unwrap();
    assert!(kl < 1e-6, "16 are all of them: {windowed}");
    let text = done(&[&["quality", &capture], &exact[..]].concat());
    let said = "read as fp16: the newest 16 and the first 2 tokens";
    assert!(text.contains(said), "{text}");

    for (args, about) in [
        (["--center", "file"], "blk.3.k_mean_other_text"),
        (
            ["--formats", "tbq9"],
            "unknown format `tbq9`; there are tbq3_0, ",
        ),
        (["--encoder", "fast"], "[possible values: reference, best]"),
        (
            ["--window", "all"],
            "invalid value 'all' for '--window <N>'",
        ),
    ] {
        let (code, _, err) = kvforge(&[&["quality", &capture], &args[..]].concat());
        assert_eq!(code, 2, "{err}");
        assert!(err.contains(about), "{err}");
    }
}

#[test]
fn every_help_has_an_example() {
    for verb in ["formats", "encode", "decode", "score", "quality", "verify"] {
        let help = done(&[verb, "--help"]);
        assert!(
            help.contains(&format!("Example:\n  kvforge {verb}")),
            "{help}"
        );
    }
}
