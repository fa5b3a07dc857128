//! `ship`, `unship` and `status` on a small tree, whole files at a time.
#![cfg(unix)]

mod common;

use std::fs;

use common::{GGML_H, HOOKS, MiniTree, payload};
use kvforge_llama::{Action, Error, HookState, Restored, Source, State, status, unship};

fn state(tree: &MiniTree, hooks: &str) -> State {
    status(&tree.open(), &payload(hooks)).unwrap().state
}

#[test]
fn ship_then_unship_gives_back_every_byte_and_mode() {
    let tree = MiniTree::new();
    let before = tree.snapshot();
    assert_eq!(state(&tree, HOOKS), State::NotShipped);

    tree.ship(&payload(HOOKS));
    assert_eq!(state(&tree, HOOKS), State::Shipped);
    let shipped = tree.snapshot();
    assert!(shipped.len() > before.len());
    for (path, (bytes, mode)) in &before {
        assert_eq!(shipped[path].1, *mode, "{path} keeps its mode");
        let patched = [
            "ggml/include/ggml.h",
            "ggml/src/CMakeLists.txt",
            "src/llama-kv-cache.cpp",
            "common/arg.cpp",
        ];
        assert_eq!(
            shipped[path].0 != *bytes,
            patched.contains(&path.as_str()),
            "{path}"
        );
    }

    let done = unship(&tree.open(), &payload(HOOKS), false).unwrap();
    assert_eq!(done.upstream.len(), 4);
    assert!(
        done.upstream
            .iter()
            .all(|(_, restored)| *restored == Restored::Exactly),
        "{done:?}"
    );
    assert_eq!(done.removed, 4);
    assert_eq!(tree.snapshot(), before);
    assert_eq!(state(&tree, HOOKS), State::NotShipped);
    assert!(
        unship(&tree.open(), &payload(HOOKS), false)
            .unwrap()
            .is_empty()
    );
}

#[test]
fn the_tree_gets_what_the_hooks_say() {
    let tree = MiniTree::new();
    tree.ship(&payload(HOOKS));
    let plain = |path: &str| -> String {
        tree.read(path)
            .split_inclusive('\n')
            .filter(|l| !l.contains("kvforge:"))
            .collect()
    };
    let formats = kvforge_formats::cache_formats();
    let types: String = formats
        .zip(43..)
        .map(|(f, id)| format!("        GGML_TYPE_{} = {id},\n", f.name.to_uppercase()))
        .collect();
    let count = 43 + kvforge_formats::cache_formats().count();
    assert_eq!(
        plain("ggml/include/ggml.h"),
        GGML_H.replace(
            "        GGML_TYPE_COUNT   = 43,\n",
            &format!("{types}        GGML_TYPE_COUNT = {count},\n#if 0\n        GGML_TYPE_COUNT   = 43,\n#endif\n")
        )
    );
    assert!(
        plain("src/llama-kv-cache.cpp")
            .ends_with("void b() {\r\n    if (ours()) return;\r\n    rotate();\r\n}\r\n")
    );
    assert!(
        tree.read("ggml/src/CMakeLists.txt")
            .contains("            # kvforge:begin cmake-base ")
    );
    let last = kvforge_formats::cache_formats().last().unwrap().name;
    assert!(
        tree.read("common/arg.cpp")
            .ends_with(&format!("name(\"{last}\");\n// kvforge:end names"))
    );
    assert_eq!(tree.read("ggml/src/kvforge/glue.c"), "int glue;\n");

    let header = tree.read("ggml/src/kvforge/kvforge-formats.h");
    for format in kvforge_formats::cache_formats() {
        let row = format!(
            " \\\n    X({}, {}, {}, {}, {})",
            format.name.to_uppercase(),
            format.name,
            format.id,
            format.block_len,
            format.block_bytes
        );
        assert!(header.contains(&row), "{header}");
    }
    let manifest: serde_json::Value =
        serde_json::from_str(&tree.read("ggml/src/kvforge/manifest.json")).unwrap();
    assert_eq!(manifest["ggml"], "0.25.3");
    assert_eq!(manifest["types"][1]["ggml_id"], 44);
    let h = &manifest["patched"][0];
    assert_eq!(h["path"], "ggml/include/ggml.h");
    assert_eq!(
        h["before"],
        blake3::hash(GGML_H.as_bytes()).to_hex().as_str()
    );
    assert_eq!(
        h["after"],
        blake3::hash(tree.read("ggml/include/ggml.h").as_bytes())
            .to_hex()
            .as_str()
    );
    assert_eq!(h["regions"].as_array().unwrap().len(), 2);
}

#[test]
fn a_dry_run_writes_nothing_and_shows_what_a_real_run_writes() {
    let tree = MiniTree::new();
    let before = tree.snapshot();
    let plan = tree.plan(&payload(HOOKS)).unwrap();
    let diff = plan.diff();
    assert_eq!(tree.snapshot(), before);
    let planned: Vec<String> = plan.changes().iter().map(|c| c.path.clone()).collect();
    plan.write().unwrap();
    let after = tree.snapshot();
    let mut written: Vec<&String> = after
        .iter()
        .filter(|(p, e)| e.0.is_some() && before.get(*p) != Some(e))
        .map(|(p, _)| p)
        .collect();
    written.sort_by_key(|p| planned.iter().position(|q| q == *p));
    assert_eq!(written, planned.iter().collect::<Vec<_>>());

    // The added lines of the diff are the lines that the files gained.
    assert!(diff.contains("--- a/common/arg.cpp\n+++ b/common/arg.cpp\n"));
    for line in tree
        .read("ggml/include/ggml.h")
        .lines()
        .filter(|l| !GGML_H.lines().any(|g| g == *l))
    {
        assert!(diff.contains(&format!("\n+{line}\n")), "{line}");
    }
    assert!(
        !diff
            .lines()
            .any(|l| l.starts_with('-') && !l.starts_with("---") && !l.contains("last line")),
        "{diff}"
    );
}

#[test]
fn a_second_ship_touches_nothing() {
    let tree = MiniTree::new();
    tree.ship(&payload(HOOKS));
    let times = tree.times();
    let plan = tree.plan(&payload(HOOKS)).unwrap();
    assert!(plan.is_empty(), "{:?}", plan.changes());
    assert_eq!(plan.diff(), "");
    plan.write().unwrap();
    assert_eq!(tree.times(), times);
}

#[test]
fn every_problem_is_reported_and_nothing_is_written() {
    let tree = MiniTree::new();
    tree.edit("ggml/include/ggml.h", "GGML_TYPE_COUNT", "GGML_TYPES_COUNT");
    tree.edit(
        "src/llama-kv-cache.cpp",
        "void b() {\r\n    rotate();",
        "void b() {\r\n    rotate();\r\n    rotate();",
    );
    fs::remove_file(tree.path("common/arg.cpp")).unwrap();
    let before = tree.snapshot();
    let text: String = tree
        .refusal(&payload(HOOKS))
        .iter()
        .map(|e| format!("{e}\n"))
        .collect();
    assert_eq!(tree.snapshot(), before);
    let report = status(&tree.open(), &payload(HOOKS)).unwrap();
    assert!(
        report.types.is_empty(),
        "ids that cannot be read are not made up"
    );

    assert!(text.contains("ggml/include/ggml.h: expected 1 line for the anchor `GGML_TYPE_COUNT` of hook `type-enum`, found 0"), "{text}");
    assert!(
        text.contains("nearest is line 8: `GGML_TYPES_COUNT   = 43,`"),
        "{text}"
    );
    assert!(text.contains("gives every format an id"), "{text}");
    assert!(text.contains("src/llama-kv-cache.cpp: expected 1 line for the anchor `rotate();` of hook `rotation`, found 2"), "{text}");
    assert!(text.contains("found at 8, 9"), "{text}");
    assert!(
        text.contains("common/arg.cpp: expected this file for hook `names`, found none"),
        "{text}"
    );
}

#[test]
fn edited_lines_are_refused_and_only_force_removes_them() {
    let tree = MiniTree::new();
    let before = tree.snapshot();
    tree.ship(&payload(HOOKS));
    tree.edit(
        "src/llama-kv-cache.cpp",
        "if (ours()) return;",
        "if (mine()) return;",
    );
    let edited = tree.snapshot();

    let problems = tree.refusal(&payload(HOOKS));
    assert_eq!(problems.len(), 1);
    let text = problems[0].to_string();
    assert!(
        text.starts_with(
            "src/llama-kv-cache.cpp:8: expected the lines that kvforge wrote for hook `rotation`"
        ),
        "{text}"
    );
    assert!(matches!(
        unship(&tree.open(), &payload(HOOKS), false),
        Err(Error::Refused { .. })
    ));
    assert_eq!(tree.snapshot(), edited);

    let report = status(&tree.open(), &payload(HOOKS)).unwrap();
    assert_eq!(report.state, State::EditedByHand);
    let hook = report.hooks.iter().find(|h| h.id == "rotation").unwrap();
    assert_eq!((hook.state, hook.line), (HookState::EditedByHand, Some(8)));

    unship(&tree.open(), &payload(HOOKS), true).unwrap();
    assert_eq!(tree.snapshot(), before);
}

#[test]
fn edited_files_of_ours_are_refused_and_only_force_removes_them() {
    let tree = MiniTree::new();
    let before = tree.snapshot();
    tree.ship(&payload(HOOKS));
    tree.edit("ggml/src/kvforge/glue.c", "glue", "grease");
    assert!(
        matches!(&tree.refusal(&payload(HOOKS))[..], [Error::OwnFileEdited { file }] if file.ends_with("glue.c"))
    );
    assert_eq!(state(&tree, HOOKS), State::EditedByHand);
    assert!(unship(&tree.open(), &payload(HOOKS), false).is_err());
    unship(&tree.open(), &payload(HOOKS), true).unwrap();
    assert_eq!(tree.snapshot(), before);
}

#[test]
fn damaged_markers_are_never_guessed_at() {
    let tree = MiniTree::new();
    tree.ship(&payload(HOOKS));
    tree.edit(
        "src/llama-kv-cache.cpp",
        "    // kvforge:end rotation\r\n",
        "",
    );
    let damaged = tree.snapshot();
    assert!(matches!(
        tree.refusal(&payload(HOOKS))[..],
        [Error::MarkerDamaged { line: 8, .. }]
    ));
    for force in [false, true] {
        assert!(unship(&tree.open(), &payload(HOOKS), force).is_err());
    }
    assert_eq!(state(&tree, HOOKS), State::EditedByHand);
    assert_eq!(tree.snapshot(), damaged);
}

#[test]
fn an_older_version_is_replaced_completely() {
    // The old version had another body, a hook and a file that are gone, and
    // lacked one hook.
    let (rest, names) = HOOKS.split_at(HOOKS.find("[[hook]]\nid = \"names\"").unwrap());
    let gone = names
        .replace("names", "gone")
        .replace("common/arg.cpp", "include/llama.h")
        .replace("}; // last line", "#pragma once");
    let old_hooks = rest.replace("ours()", "theirs()") + &gone;
    let mut old = payload(&old_hooks);
    old.sources[0].bytes = b"int old_glue;\n";
    old.sources.push(Source {
        path: "deep/er/gone.c",
        bytes: b"gone\n",
    });
    let tree = MiniTree::new();
    let before = tree.snapshot();
    tree.ship(&old);

    let report = status(&tree.open(), &payload(HOOKS)).unwrap();
    assert_eq!(report.state, State::Older);
    let hook = |id: &str| report.hooks.iter().find(|h| h.id == id).unwrap().state;
    assert_eq!(
        ["type-enum", "rotation", "names", "gone"].map(hook),
        [
            HookState::Applied,
            HookState::Older,
            HookState::Missing,
            HookState::Obsolete
        ]
    );

    let plan = tree.plan(&payload(HOOKS)).unwrap();
    let action = |path: &str| {
        plan.changes()
            .iter()
            .find(|c| c.path == path)
            .map(|c| c.action)
    };
    assert_eq!(
        action("ggml/src/kvforge/deep/er/gone.c"),
        Some(Action::Remove)
    );
    assert_eq!(action("ggml/src/kvforge/glue.c"), Some(Action::Replace));
    assert_eq!(action("include/llama.h"), Some(Action::Patch));
    assert_eq!(action("ggml/include/ggml.h"), None);
    let order: Vec<Action> = plan.changes().iter().map(|c| c.action).collect();
    let last = |a: Action| order.iter().rposition(|o| *o == a).unwrap();
    assert!(
        last(Action::Patch) < last(Action::Remove),
        "what is no longer called goes last"
    );
    assert!(
        plan.changes()
            .last()
            .unwrap()
            .path
            .ends_with("manifest.json")
    );
    plan.write().unwrap();

    let fresh = MiniTree::new();
    fresh.ship(&payload(HOOKS));
    assert_eq!(tree.snapshot(), fresh.snapshot());
    unship(&tree.open(), &payload(HOOKS), false).unwrap();
    assert_eq!(tree.snapshot(), before);
}

#[test]
fn edits_elsewhere_survive_and_are_reported() {
    let tree = MiniTree::new();
    let before = tree.snapshot();
    tree.ship(&payload(HOOKS));
    tree.edit("ggml/src/CMakeLists.txt", "gguf.cpp", "gguf.cpp more.cpp");
    assert_eq!(state(&tree, HOOKS), State::Drifted);
    let done = unship(&tree.open(), &payload(HOOKS), false).unwrap();
    let restored = |path: &str| done.upstream.iter().find(|u| u.0 == path).unwrap().1;
    assert_eq!(
        restored("ggml/src/CMakeLists.txt"),
        Restored::EditedElsewhere
    );
    assert_eq!(restored("ggml/include/ggml.h"), Restored::Exactly);
    tree.edit("ggml/src/CMakeLists.txt", "gguf.cpp more.cpp", "gguf.cpp");
    assert_eq!(tree.snapshot(), before);
}

#[test]
fn shipping_again_after_an_upstream_change_settles_the_drift() {
    let tree = MiniTree::new();
    tree.ship(&payload(HOOKS));
    tree.edit(
        "ggml/include/ggml.h",
        "GGML_TYPE_COUNT   = 43",
        "GGML_TYPE_NEW = 43,\n        GGML_TYPE_COUNT   = 44",
    );
    assert_eq!(state(&tree, HOOKS), State::Older);
    tree.ship(&payload(HOOKS));
    assert_eq!(state(&tree, HOOKS), State::Shipped);
    assert!(
        tree.read("ggml/include/ggml.h")
            .contains("GGML_TYPE_TBQ3_0 = 44,")
    );
}

#[test]
fn markers_are_enough_to_unship() {
    let tree = MiniTree::new();
    let before = tree.snapshot();
    tree.ship(&payload(HOOKS));
    fs::remove_file(tree.path("ggml/src/kvforge/manifest.json")).unwrap();
    assert_eq!(state(&tree, HOOKS), State::Partial);
    let done = unship(&tree.open(), &payload(HOOKS), false).unwrap();
    assert!(
        done.upstream
            .iter()
            .all(|(_, restored)| *restored == Restored::Unproven)
    );
    assert_eq!(tree.snapshot(), before);
}

#[test]
fn what_is_not_ours_stays_in_our_folder() {
    let tree = MiniTree::new();
    tree.ship(&payload(HOOKS));
    tree.write("ggml/src/kvforge/rust/notes", "mine");
    assert_eq!(state(&tree, HOOKS), State::Shipped);
    let done = unship(&tree.open(), &payload(HOOKS), false).unwrap();
    assert_eq!(done.left, ["ggml/src/kvforge/rust/notes"]);
    assert_eq!(tree.read("ggml/src/kvforge/rust/notes"), "mine");
}

#[test]
fn a_partly_shipped_tree_is_said_to_be_one_and_ship_completes_it() {
    let tree = MiniTree::new();
    tree.ship(&payload(HOOKS));
    let whole = tree.snapshot();
    let text = tree.read("common/arg.cpp");
    tree.write(
        "common/arg.cpp",
        &text[..text.find("\n// kvforge:begin").unwrap()],
    );
    let report = status(&tree.open(), &payload(HOOKS)).unwrap();
    assert_eq!(report.state, State::Partial);
    assert_eq!(
        report
            .hooks
            .iter()
            .filter(|h| h.state == HookState::Missing)
            .count(),
        1
    );
    tree.ship(&payload(HOOKS));
    assert_eq!(tree.snapshot(), whole);
}
