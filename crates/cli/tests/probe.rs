//! `calibrate`, `capture` and what `quality` makes of them, with a program in place of the
//! probe that writes a stream and may fail.
#![cfg(unix)]

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

const DIM: usize = 32;
const KV: usize = 1;
const HEADS: usize = 2;
const TOKENS: usize = 40;

/// Kind, layer, three sizes, first position.
fn record(head: [u32; 6], payload: &[u8]) -> Vec<u8> {
    let mut bytes: Vec<u8> = head
        .iter()
        .chain(&[0])
        .flat_map(|w| w.to_le_bytes())
        .collect();
    bytes.extend((payload.len() as u64).to_le_bytes());
    bytes.extend(payload);
    bytes
}

fn floats(values: impl IntoIterator<Item = f32>) -> Vec<u8> {
    values.into_iter().flat_map(f32::to_le_bytes).collect()
}

/// `R(p) x` with neighbours as pairs.
fn turned(x: &[f32; DIM], position: usize) -> [f32; DIM] {
    let mut y = *x;
    for pair in 0..DIM / 2 {
        let (sin, cos) = (position as f64 * 0.5_f64.powi(pair as i32)).sin_cos();
        let (a, b) = (f64::from(x[2 * pair]), f64::from(x[2 * pair + 1]));
        y[2 * pair] = (a * cos - b * sin) as f32;
        y[2 * pair + 1] = (a * sin + b * cos) as f32;
    }
    y
}

fn matrix(position: usize) -> Vec<f32> {
    let unit = |i| std::array::from_fn(|j| f32::from(u8::from(i == j)));
    (0..DIM).flat_map(|i| turned(&unit(i), position)).collect()
}

/// Before RoPE: a mean that grows with the channel, and a part that differs.
fn vector(seed: usize) -> [f32; DIM] {
    std::array::from_fn(|c| 1.0 + c as f32 / 8.0 + ((seed * 37 + c * 11) % 17) as f32 / 40.0)
}

/// A model of a layer that can be calibrated and one that cannot.
fn stream(value: f32) -> Vec<u8> {
    let mut bytes = b"KVFPROB1".to_vec();
    bytes.extend(record([0; 6], b"\x07\0\0\0\0\0\0\0tiny"));
    bytes.extend(record([5, 0, 0, 0, 0, 0], &floats([0.25])));
    bytes.extend(record([6, 1, 0, 0, 0, 0], b"norm after RoPE"));
    let facts = [0, DIM as u32, 2048].map(u32::to_le_bytes).concat();
    let reals = floats([1e4, 1.0, 0.0, 1.0, 32.0, 1.0]);
    let check = [0, 777_u32, 0].map(u32::to_le_bytes).concat();
    let matrices = [floats(matrix(1)), floats(matrix(777))].concat();
    let payload = [facts, reals, check, matrices].concat();
    bytes.extend(record([1, 0, DIM as u32, 0, 0, 0], &payload));
    for (kind, heads) in [(3, KV), (4, KV), (2, HEADS)] {
        let one = |i: usize| match kind {
            4 => vector(i),
            _ => turned(&vector(i), i / heads),
        };
        let mut values: Vec<f32> = (0..TOKENS * heads).flat_map(one).collect();
        values[6 * DIM * heads] *= value;
        let sizes = [kind, 0, DIM as u32, heads as u32, TOKENS as u32, 0];
        bytes.extend(record(sizes, &floats(values)));
    }
    bytes.extend(record([7, 0, 0, 0, 0, 0], b""));
    bytes
}

/// A tree with a program that writes `stream` and ends with `code`.
struct Tree(tempfile::TempDir);

impl Tree {
    fn new(stream: &[u8], code: u8) -> Tree {
        let tree = Tree(common::hollow_tree());
        let bin = tree.path("build-kvforge/bin");
        fs::create_dir_all(&bin).unwrap();
        fs::write(tree.path("stream"), stream).unwrap();
        let script = format!(
            "#!/bin/sh\n[ \"$1 $3 $5 $7\" = '-m -f -n -c' ] && [ -s \"$2\" ] && [ -s \"$4\" ] || exit 9\n\
             cat '{}'\necho 'nothing left to say' >&2\nexit {code}\n",
            tree.path("stream").display()
        );
        let program = bin.join("llama-kvforge-probe");
        fs::write(&program, script).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        // The least that passes for a model.
        let gguf = [&b"GGUF\x03\0\0\0"[..], &[0; 16]].concat();
        fs::write(tree.path("tiny.gguf"), gguf).unwrap();
        tree
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Exit code, output, errors.
    fn run(&self, args: &[&str]) -> (i32, String, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvforge"));
        let done = command
            .current_dir(self.0.path())
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

    fn done(&self, args: &[&str]) -> String {
        let (code, out, err) = self.run(args);
        assert_eq!((code, err.as_str()), (0, ""), "{args:?}: {out}");
        out
    }
}

const CALIBRATE: [&str; 5] = ["calibrate", "--tree", ".", "--model", "tiny.gguf"];
const CAPTURE: [&str; 7] = [
    "capture",
    "--tree",
    ".",
    "--model",
    "tiny.gguf",
    "-o",
    "kv.st",
];

#[test]
fn a_model_is_calibrated_captured_and_measured() {
    let tree = Tree::new(&stream(1.0), 0);
    let out = tree.done(&CALIBRATE);
    assert!(
        out.contains("layer 1 is left alone: norm after RoPE"),
        "{out}"
    );
    assert!(
        out.contains("fewer than the 2048 tokens asked for"),
        "{out}"
    );
    assert!(
        out.contains("tiny.kvcal: 1 layer of tiny, means over 36 tokens"),
        "{out}"
    );

    let out = tree.done(&["calibrate", "--show", "tiny.kvcal"]);
    assert!(
        out.contains("tiny (model 0000000000000007)") && out.contains("base 10000, 16 pairs"),
        "{out}"
    );
    let shown: Value =
        serde_json::from_str(&tree.done(&["calibrate", "--json", "--show", "tiny.kvcal"])).unwrap();
    assert_eq!(
        (&shown["nTokens"], &shown["layers"][0]["headDim"]),
        (&36.into(), &DIM.into())
    );
    // Nearly all of these keys is their mean, before RoPE.
    let share = shown["layers"][0]["energyInMean"].as_f64().unwrap();
    assert!(share > 0.99 && share < 1.0, "{share}");

    let out = tree.done(&[&CAPTURE[..], &["--tokens", "40"]].concat());
    assert!(
        out.contains("kv.st: 1 layer of tiny, 40 tokens, 20 queries a head"),
        "{out}"
    );
    let error = |more: &[&str]| {
        let args = ["quality", "kv.st", "--formats", "tbq4_0", "--json"];
        let report: Value = serde_json::from_str(&tree.done(&[&args, more].concat())).unwrap();
        report["formats"][0]["k_rel_mse"].as_f64().unwrap()
    };
    let (none, centred) = (
        error(&[]),
        error(&["--center", "file", "--cal", "tiny.kvcal"]),
    );
    assert!(centred < 0.7 * none, "{centred} {none}");

    let (code, _, err) = tree.run(&["quality", "kv.st", "--cal", "tiny.kvcal"]);
    assert!(code == 2 && err.contains("--center file"), "{err}");
    let (code, _, err) = tree.run(&["quality", "kv.st", "--center", "file", "--cal", "kv.st"]);
    assert!(
        code == 2 && err.contains("kv.st: not a calibration file"),
        "{err}"
    );
}

#[test]
fn what_goes_wrong_is_said_and_leaves_nothing() {
    let good = stream(1.0);
    let cut = &good[..good.len() - 1];
    for (stream, code, about) in [
        (cut, 0, "the probe ended early"),
        (cut, 1, "it said last:\nnothing left to say"),
        (&good[..], 1, "exit status: 1"),
        (b"something else", 0, "KVFPROB1"),
        (
            &stream(f32::NAN),
            0,
            "finite keys in layer 0, found NaN at position 6",
        ),
    ] {
        let tree = Tree::new(stream, code);
        let (code, out, err) = tree.run(&CALIBRATE);
        assert_eq!((code, out.as_str()), (2, ""), "{about}: {err}");
        assert!(err.contains(about), "{about}: {err}");
        assert!(!tree.path("tiny.kvcal").exists(), "{about}");
        assert_eq!(tree.run(&CAPTURE).0, 2, "{about}");
        assert!(!tree.path("kv.st").exists(), "{about}");
    }
    let tree = Tree::new(&good, 0);
    for (args, about) in [
        (&["--text", "none.txt"][..], "none.txt: "),
        (
            &["--build-dir", "elsewhere"],
            "expected llama-kvforge-probe of a built tree",
        ),
        (&["--tokens", "7"], "7 is not in 8"),
    ] {
        let (code, _, err) = tree.run(&[&CALIBRATE, args].concat());
        assert!(code == 2 && err.contains(about), "{about}: {err}");
    }
    for verb in ["calibrate", "capture"] {
        let args = [
            verb,
            "--tree",
            ".",
            "--model",
            "tiny.gguf",
            "-o",
            "./tiny.gguf",
        ];
        let before = fs::read(tree.path("tiny.gguf")).unwrap();
        let (code, _, err) = tree.run(&args);
        assert!(
            code == 2 && err.contains("another file than the input"),
            "{err}"
        );
        assert_eq!(fs::read(tree.path("tiny.gguf")).unwrap(), before);
    }
    fs::write(tree.path("tiny.gguf"), "no model").unwrap();
    let (code, _, err) = tree.run(&CALIBRATE);
    assert!(code == 2 && err.contains("tiny.gguf: "), "{err}");
    let (code, _, err) = tree.run(&["calibrate"]);
    assert!(code == 2 && err.contains("--tree"), "{err}");
}
