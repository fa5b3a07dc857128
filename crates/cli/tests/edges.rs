//! Files, paths and streams that nobody means to give.
#![cfg(unix)]

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use kvforge_formats::FORMATS;

fn kvforge(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvforge"));
    command.args(args).current_dir(folder);
    command
}

/// The same, and what it said on its way to exit code 2.
fn refused(folder: &Path, args: &[&str]) -> String {
    let done = kvforge(folder, args).output().unwrap();
    let said = String::from_utf8(done.stderr).unwrap();
    assert_eq!(done.status.code(), Some(2), "{args:?}: {said}");
    said
}

/// One row of 128 ones.
fn npy() -> Vec<u8> {
    let header = "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 128), }";
    let mut bytes = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    bytes.extend(format!("{header:<117}\n").bytes());
    bytes.extend([1.0f32; 128].iter().flat_map(|v| v.to_le_bytes()));
    bytes
}

#[test]
fn no_verb_writes_over_its_input() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("x.npy"), npy()).unwrap();
    std::os::unix::fs::symlink("x.npy", at("link")).unwrap();
    fs::hard_link(at("x.npy"), at("other name")).unwrap();
    fs::write(at("x.bin"), [0; 72]).unwrap();
    for args in [
        &["encode", "x.npy", "x.npy"][..],
        &["encode", "x.npy", "./link"],
        &["encode", "x.npy", "other name"],
        &["decode", "x.bin", "x.bin"],
        &["score", "--query", "x.npy", "x.bin", "x.bin"],
        &["score", "--query", "x.npy", "x.bin", "x.npy"],
    ] {
        let said = refused(folder.path(), &[args, &["--format", "tbq4_0"]].concat());
        assert!(said.contains("found the same one"), "{args:?}: {said}");
    }
    assert_eq!(fs::read(at("x.npy")).unwrap(), npy());
    assert_eq!(fs::read(at("x.bin")).unwrap(), [0; 72]);
    assert!(at("link").is_symlink());
}

#[test]
fn blocks_that_no_encoder_writes_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("q.npy"), npy()).unwrap();
    for spec in FORMATS {
        // A good row, and one whose scale is NaN wherever it stands.
        let row = spec.row_bytes(128).unwrap();
        fs::write(at("x.bin"), [vec![0; row], vec![0xff; row]].concat()).unwrap();
        for args in [
            &["decode", "x.bin", "out"][..],
            &["score", "--query", "q.npy", "x.bin", "out"],
        ] {
            let said = refused(folder.path(), &[args, &["--format", spec.name]].concat());
            assert!(said.contains("x.bin: row 1: expected "), "{said}");
        }
    }
    assert!(!at("out").exists());
}

#[test]
fn little_of_a_file_is_repeated() {
    let folder = tempfile::tempdir().unwrap();
    let endless = format!("\u{1b}[2J{}", "x".repeat(50_000));
    let mut shape = b"\x93NUMPY\x02\x00".to_vec();
    let header = format!("{{'descr': '<f4', 'fortran_order': {endless}, 'shape': (1,)}}");
    shape.extend((header.len() as u32).to_le_bytes());
    shape.extend(header.bytes());
    fs::write(folder.path().join("x.npy"), shape).unwrap();
    let fixture = serde_json::json!({ "kernel": endless }).to_string();
    fs::write(folder.path().join("x.json"), fixture).unwrap();
    for args in [
        &["encode", "--format", "tbq4_0", "x.npy", "out"][..],
        &["verify", "--fixture", "x.json"],
    ] {
        let said = refused(folder.path(), args);
        assert!(said.len() < 400 && !said.contains('\u{1b}'), "{said}");
    }
    fs::write(folder.path().join("c.json"), &endless).unwrap();
    let shown = kvforge(folder.path(), &["contract", "show", "c.json"]).output();
    let said = String::from_utf8(shown.unwrap().stdout).unwrap();
    assert!(said.len() < 400 && !said.contains('\u{1b}'), "{said}");
}

#[test]
fn standard_output_is_written_into() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("x.npy"), npy()).unwrap();
    let encode = |to: &str| {
        kvforge(
            folder.path(),
            &["encode", "--format", "tbq4_0", "x.npy", to],
        )
    };
    assert!(encode("x.bin").status().unwrap().success());
    let blocks = fs::read(at("x.bin")).unwrap();
    assert_eq!(encode("/dev/stdout").output().unwrap().stdout, blocks);
    fs::write(at("log"), "before ").unwrap();
    let log = File::options().append(true).open(at("log")).unwrap();
    let done = encode("/dev/stdout").stdout(log).status().unwrap();
    assert!(done.success());
    assert_eq!(
        fs::read(at("log")).unwrap(),
        [b"before ", &blocks[..]].concat()
    );
}

#[test]
fn names_that_are_no_text_end_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let odd = OsStr::from_bytes(b"ct\xff.json");
    fs::write(folder.path().join(odd), "{}").unwrap();
    for verb in ["show", "check"] {
        let mut command = kvforge(folder.path(), &["contract", verb, "--json"]);
        let done = command.arg(odd).output().unwrap();
        let said = String::from_utf8(done.stdout).unwrap();
        assert_eq!(done.status.code(), Some(1), "{said}");
        assert!(said.contains("ct\u{fffd}.json"), "{said}");
    }
    let tree = folder.path().join(OsStr::from_bytes(b"tree\xff"));
    for (path, text) in [
        ("include/llama.h", ""),
        (
            "ggml/CMakeLists.txt",
            "set(GGML_VERSION_MAJOR 0)\nset(GGML_VERSION_MINOR 1)\nset(GGML_VERSION_PATCH 2)\n",
        ),
        ("ggml/include/ggml.h", ""),
    ] {
        let path = tree.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    for (verb, code) in [("doctor", 1), ("smoke", 2)] {
        let mut command = kvforge(folder.path(), &[verb, "--json"]);
        let done = command.arg(&tree).output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(code), "{said}");
        assert!(!said.contains("panicked"), "{said}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn an_error_that_cannot_be_said_has_its_exit_code() {
    for args in [&["status", "/absent"][..], &["status"], &["no verb"]] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let mut command = kvforge(Path::new("/"), args);
        let done = command.stderr(Stdio::from(full)).status().unwrap();
        assert_eq!(done.code(), Some(2), "{args:?}");
    }
}
