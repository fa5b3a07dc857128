//! Trees that `ship` and `unship` cannot or must not change, and writes that fail.
#![cfg(unix)]

mod common;

use std::fs;

use common::{HOOKS, MiniTree, payload};
use kvforge_llama::{Action, Error, OWN_DIR, State, Tree, status, unship};

fn state(tree: &MiniTree, hooks: &str) -> State {
    status(&tree.open(), &payload(hooks)).unwrap().state
}

#[test]
fn a_write_that_fails_midway_is_undone() {
    let tree = MiniTree::new();
    let plan = tree.plan(&payload(HOOKS)).unwrap();
    // The last upstream file changes after the plan has been made.
    let last = plan
        .changes()
        .iter()
        .rfind(|c| c.action == Action::Patch)
        .unwrap()
        .path
        .clone();
    let text = tree.read(&last);
    tree.write(&last, text + "someone else\n");
    let (before, times) = (tree.snapshot(), tree.times());
    assert!(matches!(plan.write(), Err(Error::ChangedMeanwhile { path }) if path.ends_with(&last)));
    assert_eq!(tree.snapshot(), before);
    assert_eq!(tree.times(), times);
}

#[test]
fn a_folder_that_cannot_be_made_leaves_nothing_behind() {
    let tree = MiniTree::new();
    let plan = tree.plan(&payload(HOOKS)).unwrap();
    // A file stands where a folder of ours must be.
    tree.write(&format!("{OWN_DIR}/rust"), "in the way");
    let before = tree.snapshot();
    assert!(matches!(plan.write(), Err(Error::Io { .. })));
    assert_eq!(tree.snapshot(), before);
}

#[test]
fn a_file_in_place_of_our_folder_is_found_before_anything_is_written() {
    let tree = MiniTree::new();
    tree.write(OWN_DIR, "in the way");
    let said = tree.plan(&payload(HOOKS)).unwrap_err().to_string();
    assert!(said.contains(OWN_DIR), "{said}");
}

#[test]
fn write_protection_is_respected_even_for_a_superuser() {
    for (path, mode) in [("ggml/src", 0o555), ("common/arg.cpp", 0o444)] {
        let tree = MiniTree::new();
        tree.chmod(path, mode);
        let before = tree.snapshot();
        let problems = tree.refusal(&payload(HOOKS));
        assert!(
            problems
                .iter()
                .all(|p| matches!(p, Error::ReadOnly { path: p } if p.ends_with(path))),
            "{problems:?}"
        );
        assert_eq!(tree.snapshot(), before);
        tree.chmod(path, 0o755);
    }
}

#[test]
fn the_owner_of_a_file_is_kept() {
    use std::os::unix::fs::{MetadataExt as _, chown};
    let tree = MiniTree::new();
    let file = tree.path("common/arg.cpp");
    if chown(&file, Some(12345), Some(54321)).is_err() {
        println!("not run: only a superuser can give files away");
        return;
    }
    tree.ship(&payload(HOOKS));
    let meta = fs::metadata(&file).unwrap();
    assert_eq!(
        (meta.uid(), meta.gid(), meta.mode() & 0o7777),
        (12345, 54321, 0o755)
    );
}

#[test]
fn links_out_of_the_tree_are_refused() {
    let tree = MiniTree::new();
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("arg.cpp"), "}; // last line").unwrap();
    fs::remove_file(tree.path("common/arg.cpp")).unwrap();
    std::os::unix::fs::symlink(outside.path().join("arg.cpp"), tree.path("common/arg.cpp"))
        .unwrap();
    assert!(
        matches!(&tree.refusal(&payload(HOOKS))[..], [Error::LeavesTree { file, .. }] if file == "common/arg.cpp")
    );

    fs::remove_dir_all(tree.path("common")).unwrap();
    std::os::unix::fs::symlink(outside.path(), tree.path("common")).unwrap();
    assert!(
        matches!(&tree.refusal(&payload(HOOKS))[..], [Error::LeavesTree { file, .. }] if file == "common/arg.cpp")
    );
}

#[test]
fn a_link_inside_the_tree_stays_a_link() {
    let tree = MiniTree::new();
    fs::rename(tree.path("common/arg.cpp"), tree.path("common/real.cpp")).unwrap();
    std::os::unix::fs::symlink("real.cpp", tree.path("common/arg.cpp")).unwrap();
    tree.ship(&payload(HOOKS));
    assert!(tree.path("common/arg.cpp").is_symlink());
    assert!(tree.read("common/real.cpp").contains("kvforge:begin names"));
    unship(&tree.open(), &payload(HOOKS), false).unwrap();
    assert!(!tree.read("common/real.cpp").contains("kvforge"));
}

#[test]
fn trees_of_a_fork_are_refused_with_file_and_line() {
    let cases = [
        (
            "ggml/include/ggml.h",
            "GGML_TYPE_Q2_0    = 42,",
            "GGML_TYPE_TBQ3_0 = 42,",
            7,
        ),
        (
            "ggml/include/ggml.h",
            "GGML_TYPE_Q2_0    = 42,",
            "GGML_TYPE_QJL1_256 = 42,",
            7,
        ),
        ("common/arg.cpp", "    F32,", "    \"tbq4_0\",", 2),
        (
            "ggml/src/CMakeLists.txt",
            "gguf.cpp)",
            "gguf.cpp) # MILADY-KERNEL-PATCH-V1",
            3,
        ),
        (
            "src/llama-kv-cache.cpp",
            "#include <map>",
            "// ELIZA-DISPATCH-V1",
            1,
        ),
    ];
    for (path, from, to, line) in cases {
        let tree = MiniTree::new();
        tree.edit(path, from, to);
        let problems = tree.refusal(&payload(HOOKS));
        let here = |p: &Error| matches!(p, Error::NotStock { file, line: l, .. } if file == path && *l == line);
        assert!(problems.iter().any(here), "{to}: {problems:?}");
    }
    // Once our own types are in, they are not taken for someone else's.
    let tree = MiniTree::new();
    tree.edit("common/arg.cpp", "F32", "GGML_TYPE_TBQ3_0X, \"tbq3_0x\"");
    tree.ship(&payload(HOOKS));
    assert_eq!(state(&tree, HOOKS), State::Shipped);
}

#[test]
fn what_is_not_a_tree_is_refused() {
    let tree = MiniTree::new();
    let open = |path: &str| Tree::open(&tree.path(path)).unwrap_err();
    assert!(matches!(open("absent"), Error::NoTree { .. }));
    assert!(matches!(open("README.md"), Error::NoTree { .. }));
    assert!(matches!(
        open("ggml"),
        Error::NotLlamaCpp {
            missing: "ggml/include/ggml.h",
            ..
        }
    ));
    tree.edit("ggml/CMakeLists.txt", "set(GGML_VERSION_MINOR 25)", "");
    assert!(
        open("")
            .to_string()
            .starts_with("ggml/CMakeLists.txt: expected `set(GGML_VERSION_MINOR <number>)`")
    );
}

#[test]
fn text_that_is_not_utf8_is_refused() {
    let tree = MiniTree::new();
    tree.write("common/arg.cpp", b"\xff}; // last line");
    assert!(
        matches!(&tree.refusal(&payload(HOOKS))[..], [Error::NotText { file }] if file == "common/arg.cpp")
    );
}

#[test]
fn an_unreadable_manifest_is_reported() {
    let tree = MiniTree::new();
    let before = tree.snapshot();
    tree.ship(&payload(HOOKS));
    for text in ["{", "{\"schema\":99}"] {
        tree.write("ggml/src/kvforge/manifest.json", text);
        assert!(matches!(
            tree.refusal(&payload(HOOKS))[..],
            [Error::Manifest { .. }]
        ));
    }
    unship(&tree.open(), &payload(HOOKS), false).unwrap();
    assert_eq!(tree.snapshot(), before);
}

#[test]
fn unship_removes_the_build_folder_that_build_made_and_no_other() {
    let tree = MiniTree::new();
    tree.ship(&payload(HOOKS));
    tree.write("build-kvforge/CMakeCache.txt", "");
    unship(&tree.open(), &payload(HOOKS), false).unwrap();
    assert!(tree.path("build-kvforge").exists());
    tree.write("build-kvforge/.kvforge-build", "");
    assert!(
        unship(&tree.open(), &payload(HOOKS), false)
            .unwrap()
            .build_removed
    );
    assert!(!tree.path("build-kvforge").exists());
}
