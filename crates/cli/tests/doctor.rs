//! `kvforge doctor` on machines and trees that this test makes.
#![cfg(unix)]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::hollow_tree;
use kvforge_cpu::Isa;
use serde_json::Value;

/// A machine with these programs, each of which prints a line.
struct Machine {
    folder: tempfile::TempDir,
}

const PROGRAMS: [(&str, &str); 6] = [
    ("cmake", "cmake version 3.25.1"),
    ("cc", "cc (Debian 12.2.0-14) 12.2.0"),
    ("c++", "c++ (Debian 12.2.0-14) 12.2.0"),
    ("rustc", "rustc 1.95.0 (59807616e 2026-04-14)"),
    ("ninja", "1.11.1"),
    ("python3", "pip 23.0.1 from somewhere (python 3.11)"),
];

impl Machine {
    fn new() -> Machine {
        let machine = Machine {
            folder: tempfile::tempdir().unwrap(),
        };
        for (program, line) in PROGRAMS {
            machine.install(program, line);
        }
        machine
    }

    fn install(&self, program: &str, line: &str) {
        let file = self.folder.path().join(program);
        fs::write(&file, format!("#!/bin/sh\necho '{line}'\n")).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn remove(&self, program: &str) {
        fs::remove_file(self.folder.path().join(program)).unwrap();
    }

    /// Exit code, and everything that was printed.
    fn doctor(&self, args: &[&str]) -> (i32, String) {
        let done = Command::new(env!("CARGO_BIN_EXE_kvforge"))
            .arg("doctor")
            .args(args)
            .env("PATH", self.folder.path())
            .env("HOME", self.folder.path())
            .env_remove("CC")
            .env_remove("CXX")
            .output()
            .unwrap();
        let out = String::from_utf8_lossy(&done.stdout);
        let err = String::from_utf8_lossy(&done.stderr);
        (done.status.code().unwrap(), format!("{out}{err}"))
    }
}

#[test]
fn a_machine_with_everything_is_fit() {
    let machine = Machine::new();
    let (code, said) = machine.doctor(&[]);
    assert_eq!(code, 0, "{said}");
    for line in [
        "program   cmake 3.25.1\n",
        "program   rustc 1.95.0\n",
        "program   python3 with pip 23.0.1\n",
        "format    tbq4_0 (K and V), 4.5 bits a value, heads of 64 ",
        "backend   cpu has kernels\n",
        "next      kvforge doctor TREE, or kvforge ship TREE\n",
        &format!("kernels use {}\n", Isa::best().name()),
    ] {
        assert!(said.contains(line), "{line}\n{said}");
    }
    let (code, said) = machine.doctor(&["--help"]);
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("Example:\n  kvforge doctor\n"), "{said}");
    let (code, said) = machine.doctor(&["--json"]);
    let json: Value = serde_json::from_str(&said).unwrap();
    assert_eq!((code, &json["blocking"]), (0, &Value::Array(vec![])));
    for format in json["formats"].as_array().unwrap() {
        let len = format["blockLen"].as_u64().unwrap();
        let all = |key: &str| -> Vec<u64> {
            let heads = format[key].as_array().unwrap();
            heads.iter().map(|h| h.as_u64().unwrap()).collect()
        };
        assert!(all("heads").iter().all(|h| h % len == 0), "{format}");
        assert!(all("noHeads").iter().all(|h| h % len != 0), "{format}");
        assert_eq!(all("heads").len() + all("noHeads").len(), 9);
    }
}

#[test]
fn what_is_missing_or_old_is_named_with_its_package() {
    for (program, package) in [
        ("cmake", "cmake"),
        ("cc", "gcc"),
        ("c++", "g++"),
        ("rustc", "rustc-web"),
        ("ninja", "ninja-build"),
    ] {
        let machine = Machine::new();
        machine.remove(program);
        let (code, said) = machine.doctor(&[]);
        assert_eq!(code, 1, "{said}");
        let words = format!(
            "blocking  expected the program {program}, found none that runs; install the Debian package {package}"
        );
        assert!(said.contains(&words), "{words}\n{said}");
        assert!(
            said.contains(&format!("program   {program} MISSING")),
            "{said}"
        );
    }
    let machine = Machine::new();
    machine.install("rustc", "rustc 1.94.0 (0000000 2026-01-01)");
    let (code, said) = machine.doctor(&[]);
    assert_eq!(code, 1, "{said}");
    assert!(
        said.contains("blocking  expected rustc 1.95 or newer, found 1.94.0"),
        "{said}"
    );

    // Others do as well, or are not needed here.
    let machine = Machine::new();
    machine.remove("ninja");
    machine.install("make", "GNU Make 4.3");
    machine.remove("python3");
    let (code, said) = machine.doctor(&[]);
    assert_eq!(code, 0, "{said}");
    assert!(
        said.contains("program   python3 with pip missing; only `cargo xtask up` needs it"),
        "{said}"
    );
}

#[test]
fn a_tree_is_looked_at_and_not_touched() {
    let machine = Machine::new();
    let tree = hollow_tree();
    let before = snapshot(tree.path());
    let (code, said) = machine.doctor(&[tree.path().to_str().unwrap()]);
    // No hook has a place in it.
    assert_eq!(code, 1, "{said}");
    for words in [
        " not shipped (ggml 0.1.2)",
        "build-kvforge not built",
        "\nevidence  none\ncontract  none\n",
        "blocking  ggml/include/ggml.h",
    ] {
        assert!(said.contains(words), "{words}\n{said}");
    }
    assert_eq!(snapshot(tree.path()), before);
    let (code, said) = machine.doctor(&["/absent/llama.cpp"]);
    assert_eq!(code, 2, "{said}");
    assert!(said.contains("/absent/llama.cpp is not a folder"), "{said}");
}

fn snapshot(folder: &Path) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(snapshot(&path));
            all.insert(path, None);
        } else {
            let bytes = fs::read(&path).unwrap();
            all.insert(path, Some(bytes));
        }
    }
    all
}
