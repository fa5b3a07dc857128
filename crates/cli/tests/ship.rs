//! The verbs that work on a tree, as a person meets them.
#![cfg(unix)]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// Exit code, standard output and standard error.
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

/// A folder that passes for llama.cpp and has no place for any hook.
fn hollow_tree() -> tempfile::TempDir {
    let tree = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| {
        let path = tree.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write("include/llama.h", "");
    write(
        "ggml/CMakeLists.txt",
        "set(GGML_VERSION_MAJOR 0)\nset(GGML_VERSION_MINOR 1)\nset(GGML_VERSION_PATCH 2)\n",
    );
    write(
        "ggml/include/ggml.h",
        "enum ggml_type {\nGGML_TYPE_F32 = 0,\n};\n",
    );
    tree
}

#[test]
fn every_help_has_an_example() {
    for verb in [
        None,
        Some("ship"),
        Some("unship"),
        Some("status"),
        Some("build"),
    ] {
        let args: Vec<&str> = verb.into_iter().chain(["--help"]).collect();
        let (code, out, _) = kvforge(&args);
        assert_eq!(code, 0, "{verb:?}");
        assert!(out.contains("Example:\n  kvforge "), "{verb:?}:\n{out}");
    }
}

#[test]
fn wrong_usage_and_wrong_input_exit_with_2() {
    assert_eq!(kvforge(&["ship"]).0, 2);
    assert_eq!(kvforge(&["shop", "."]).0, 2);
    for verb in ["ship", "unship", "status", "build"] {
        let (code, _, err) = kvforge(&[verb, "/absent/llama.cpp"]);
        assert_eq!(code, 2);
        assert!(
            err.starts_with("error: /absent/llama.cpp is not a folder; give"),
            "{err}"
        );
    }
}

#[test]
fn a_tree_without_places_is_refused_with_all_problems() {
    let tree = hollow_tree();
    let path = tree.path().to_str().unwrap();
    let (code, out, err) = kvforge(&["ship", path]);
    assert_eq!((code, out.as_str()), (2, ""));
    assert!(err.contains("problems, nothing was written"), "{err}");
    assert!(err.contains("expected this file for hook"), "{err}");

    let (code, out, _) = kvforge(&["ship", "--json", "--dry-run", path]);
    let json: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, json["result"].as_str()), (2, Some("refused")));
    assert!(json["problems"].as_array().unwrap().len() > 2);
}

#[test]
fn a_stock_tree_is_not_shipped() {
    let tree = hollow_tree();
    let path = tree.path().to_str().unwrap();
    let (code, out, _) = kvforge(&["status", path]);
    assert_eq!(code, 1);
    assert!(
        out.starts_with(&format!("{path}: not shipped (ggml 0.1.2)\n")),
        "{out}"
    );
    let (code, out, _) = kvforge(&["status", "--json", path]);
    let json: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, json["state"].as_str()), (1, Some("not-shipped")));

    let (code, out, _) = kvforge(&["unship", path]);
    assert_eq!(
        (code, out),
        (0, format!("{path}: nothing to do, not shipped\n"))
    );
    let (code, _, err) = kvforge(&["build", path]);
    assert_eq!(code, 2);
    assert!(
        err.contains("found one that is not shipped; run `kvforge ship` on it first"),
        "{err}"
    );
}

#[test]
fn a_real_tree_is_shipped_and_given_back() {
    let Some(original) = std::env::var_os("KVFORGE_TREE") else {
        println!("not run: KVFORGE_TREE is not set");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let tree = folder.path().join("llama.cpp");
    copy(Path::new(&original), &tree);
    let before = snapshot(&tree);
    let path = tree.to_str().unwrap();

    let (code, out, err) = kvforge(&["ship", "--dry-run", path]);
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("\n+        GGML_TYPE_TBQ3_0 = "), "{out}");
    assert_eq!(snapshot(&tree), before);

    let (code, out, err) = kvforge(&["ship", path]);
    assert_eq!(code, 0, "{err}");
    assert!(
        out.starts_with(&format!("{path}: shipped; patched ")),
        "{out}"
    );
    let (code, out, _) = kvforge(&["ship", path]);
    assert_eq!(code, 0);
    assert!(
        out.starts_with(&format!(
            "{path}: nothing to do, already shipped (tbq3_0 = "
        )),
        "{out}"
    );
    let (code, out, _) = kvforge(&["status", path]);
    assert_eq!(code, 0, "{out}");

    let (code, out, _) = kvforge(&["unship", path]);
    assert_eq!(code, 0);
    assert_eq!(out.lines().count(), 1, "nothing to remark: {out}");
    assert!(
        snapshot(&tree) == before,
        "every byte and mode is as it was"
    );
}

type Snapshot = BTreeMap<String, (Vec<u8>, u32)>;

fn snapshot(tree: &Path) -> Snapshot {
    let mut all = Snapshot::new();
    each(tree, &mut |path| {
        let mode = fs::symlink_metadata(path).unwrap().permissions().mode();
        let bytes = if path.is_file() {
            fs::read(path).unwrap()
        } else {
            Vec::new()
        };
        all.insert(path.to_str().unwrap().into(), (bytes, mode));
    });
    all
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    each(from, &mut |path| {
        let copied = to.join(path.strip_prefix(from).unwrap());
        if path.is_dir() {
            fs::create_dir(copied).unwrap();
        } else if path.is_file() {
            fs::copy(path, copied).unwrap();
        }
    });
}

/// Visits everything in a tree but its version control, folders first.
fn each(folder: &Path, visit: &mut dyn FnMut(&Path)) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.file_name().unwrap() == ".git" {
            continue;
        }
        visit(&path);
        if path.is_dir() && !path.is_symlink() {
            each(&path, visit);
        }
    }
}
