use kvforge_formats::cache_formats;
use proptest::prelude::*;

use super::*;
use crate::TypeIds;
use region::take_apart;

fn hook(id: &str, anchor: &str, place: Place, expect: usize) -> Hook {
    let wrap = place == Place::Wrap;
    Hook {
        id: id.into(),
        file: "a.c".into(),
        anchor: anchor.into(),
        matching: Matching::Line,
        within: None,
        until: None,
        expect,
        place,
        lines: (!wrap).then(|| format!("{id} @type_count@\n@each   @name@\n")),
        through: None,
        before: wrap.then(|| "#if 0".into()),
        after: wrap.then(|| "#endif\n".into()),
        reason: "tests".into(),
    }
}

/// Types of a tree that had seven.
fn type_count() -> usize {
    7 + cache_formats().count()
}

fn put(hooks: &[Hook], text: &str) -> String {
    apply(hooks, text, &TypeIds::starting_at(7)).unwrap()
}

#[test]
fn regions_are_marked_with_their_hash_and_indented_like_the_anchor() {
    let text = "a {\n    x\n}\n";
    let names: String = cache_formats().map(|f| format!("  {}\n", f.name)).collect();
    let body = format!("h {}\n{names}", type_count());
    let hash = region::hash(&body);
    assert_eq!(
        put(&[hook("h", "x", Place::Before, 1)], text),
        format!("a {{\n    // kvforge:begin h {hash}\n{body}    // kvforge:end h\n    x\n}}\n")
    );
    assert_eq!(hash.len(), 16);
}

#[test]
fn a_wrap_holds_nothing_but_its_lines() {
    let text = "x\ny\nz\n";
    let mut wrap = hook("w", "x", Place::Wrap, 1);
    wrap.through = Some("y".into());
    let all = [
        hook("after", "y", Place::After, 1),
        wrap,
        hook("before", "x", Place::Before, 1),
        hook("next", "z", Place::Before, 1),
    ];
    let out = put(&all, text);
    let plain: Vec<&str> = out
        .lines()
        .filter(|l| !l.contains("kvforge:") && !l.starts_with("  "))
        .collect();
    let counted = |word: &str| format!("{word} {}", type_count());
    let (before, after, next) = (counted("before"), counted("after"), counted("next"));
    let expected = [&before, "#if 0", "x", "y", "#endif", &after, &next, "z"];
    assert_eq!(plain, expected);
}

#[test]
fn every_expected_anchor_gets_the_hook() {
    let out = put(&[hook("h", "x", Place::After, 2)], "x\ny\nx\n");
    assert_eq!(out.matches("kvforge:begin h ").count(), 2);
    assert_eq!(take_apart(&out).unwrap().upstream, "x\ny\nx\n");
}

#[test]
fn line_endings_of_the_file_are_kept() {
    let out = put(&[hook("h", "x", Place::Before, 1)], "x\r\ny\r\n");
    assert_eq!(out.matches('\n').count(), out.matches("\r\n").count());
    let out = put(&[hook("h", "y", Place::After, 1)], "x\r\ny");
    assert_eq!(out.matches('\n').count(), out.matches("\r\n").count());
    assert!(
        out.ends_with("// kvforge:end h"),
        "a missing final newline stays missing"
    );
}

#[test]
fn a_change_of_line_endings_is_no_edit() {
    let out = put(&[hook("h", "x", Place::Before, 1)], "x\n").replace('\n', "\r\n");
    assert!(!take_apart(&out).unwrap().regions[0].edited());
}

#[test]
fn an_edit_is_seen() {
    let out = put(&[hook("h", "x", Place::Before, 1)], "x\n").replace("tbq3_0", "tbq3_1");
    let region = take_apart(&out).unwrap().regions.remove(0);
    assert!(region.edited());
    assert_eq!((region.hook.as_str(), region.line), ("h", 1));
}

#[test]
fn damaged_markers_are_named_by_line() {
    let whats = |text: &str| -> Vec<(usize, String)> {
        take_apart(text)
            .unwrap_err()
            .into_iter()
            .map(|d| (d.line, d.what))
            .collect()
    };
    let unended = whats("x\n// kvforge:begin a 0\ny\n");
    assert_eq!(unended.len(), 1);
    assert_eq!(unended[0].0, 2);
    assert!(unended[0].1.contains("ends nowhere"));
    assert!(whats("// kvforge:end a\n")[0].1.contains("began nowhere"));
    assert!(
        whats("// kvforge:begin a 0\n// kvforge:end b\n")[0]
            .1
            .contains("`a` is the one")
    );
    assert!(
        whats("// kvforge:begin a 0\n// kvforge:begin b 0\n// kvforge:end a\n")[0]
            .1
            .contains("inside `a`")
    );
    assert!(
        whats("int x; // kvforge:begin a 0\n")[0]
            .1
            .contains("not a marker")
    );
}

fn miss(hook: &Hook, text: &str) -> Miss {
    *apply([hook], text, &TypeIds::starting_at(7))
        .unwrap_err()
        .remove(0)
        .1
}

#[test]
fn a_missing_anchor_names_the_nearest_line() {
    let m = miss(
        &hook("h", "GGML_TYPE_COUNT = 43,", Place::Before, 1),
        "a\n  GGML_TYPE_COUNT = 44,\nb\n",
    );
    assert_eq!(
        (m.what, m.expected, m.found.len(), m.searched),
        ("anchor", 1, 0, (1, 3))
    );
    assert_eq!(m.nearest, Some((2, "GGML_TYPE_COUNT = 44,".into())));
}

#[test]
fn a_repeated_anchor_is_refused_with_its_lines() {
    assert_eq!(
        miss(&hook("h", "x", Place::Before, 1), "x\ny\nx\n").found,
        [1, 3]
    );
    assert_eq!(
        miss(&hook("h", "x", Place::Before, 3), "x\ny\nx\n").found,
        [1, 3]
    );
}

#[test]
fn within_ends_with_the_function() {
    let text = "f() {\n    if (a) {\n    }\n    x\n}\ng() {\n    x\n    x\n}\n";
    let mut h = hook("h", "x", Place::Before, 1);
    h.within = Some("f() {".into());
    assert!(
        put(std::slice::from_ref(&h), text)
            .starts_with("f() {\n    if (a) {\n    }\n    // kvforge:begin h")
    );
    // The same said with `until`: an inner brace does not count.
    h.until = Some("}".into());
    put(std::slice::from_ref(&h), text);
    h.within = Some("g() {".into());
    assert_eq!(miss(&h, text).found, [7, 8]);
    // No anchor in the function: the one in the next function is not taken.
    let m = miss(&h, "g() {\n    y\n}\nf() {\n    x\n}\n");
    assert_eq!((m.found.len(), m.searched), (0, (2, 2)));
    h.within = Some("() {".into());
    assert_eq!(
        (miss(&h, text).what, miss(&h, text).found),
        ("within", vec![1, 6])
    );
    h.within = Some("f() {".into());
    h.until = Some("return;".into());
    assert_eq!(miss(&h, text).what, "until");
}

#[test]
fn within_ends_with_the_cmake_block() {
    let text = "if (A)\n  x\nendif()\nif (B)\n  x\nendif()\n";
    let mut h = hook("h", "x", Place::Before, 1);
    h.within = Some("if (B)".into());
    let out = put(&[h], text);
    assert!(out.starts_with("if (A)\n  x\nendif()\nif (B)\n  // kvforge:begin h"));
}

#[test]
fn wrong_hooks_are_refused_by_name() {
    let refusal = |fields: &str| {
        let text = format!(
            "[[hook]]\nid = \"h\"\nfile = \"a.c\"\nanchor = \"x\"\nreason = \"r\"\n{fields}"
        );
        PatchSet::parse(&text).unwrap_err().to_string()
    };
    assert!(refusal("place = \"wrap\"\nlines = \"a\"").contains("`h`: place = \"wrap\" takes"));
    assert!(refusal("place = \"before\"\nbefore = \"a\"").contains("take `lines` only"));
    assert!(refusal("place = \"before\"\nlines = \"a @nope@\"").contains("`@nope@` is unknown"));
    assert!(
        refusal("place = \"before\"\nlines = \"// kvforge:end h\"").contains("must not contain")
    );
    assert!(
        refusal("place = \"before\"\nlines = \"a\"\nuntil = \"}\"").contains("until needs within")
    );
    assert!(refusal("place = \"before\"\nlines = \"a\"\nexpect = 0").contains("at least 1"));
    assert!(refusal("place = \"before\"\nlines = \"a\"\nlins = \"b\"").contains("lins"));
    let hook = "[[hook]]\nid = \"h\"\nfile = \"a.c\"\nanchor = \"x\"\nreason = \"r\"\nplace = \"before\"\nlines = \"a\"\n";
    assert_eq!(PatchSet::parse(hook).unwrap().hooks().len(), 1);
    assert!(
        PatchSet::parse(&hook.repeat(2))
            .unwrap_err()
            .to_string()
            .contains("another hook has this id")
    );
    for (good, bad) in [
        ("a.c", "../a.c"),
        ("a.c", "/a.c"),
        ("a.c", "a.md"),
        ("\"x\"", "\" x\""),
        ("\"h\"", "\"H\""),
    ] {
        PatchSet::parse(&hook.replace(good, bad)).unwrap_err();
    }
}

/// Lines with every kind of ending in any mixture, some of them anchors.
fn texts() -> impl Strategy<Value = String> {
    let line = prop_oneof![
        Just("x"),
        Just("\t  y"),
        Just(""),
        Just("z\r"),
        Just("  é"),
        Just("}"),
        Just("\r")
    ];
    let end = prop_oneof![Just("\n"), Just("\r\n")];
    let lines = prop::collection::vec((line.clone(), end), 0..12);
    (lines, prop_oneof![Just(""), line.boxed()]).prop_map(|(lines, last)| {
        lines
            .iter()
            .map(|(l, e)| format!("{l}{e}"))
            .collect::<String>()
            + last
    })
}

fn places() -> impl Strategy<Value = Place> {
    prop_oneof![Just(Place::Before), Just(Place::After), Just(Place::Wrap)]
}

proptest! {
    #[test]
    fn taking_apart_undoes_applying(text in texts(), places in prop::collection::vec((places(), prop::bool::ANY), 1..5)) {
        let hooks: Vec<Hook> = places
            .into_iter()
            .enumerate()
            .filter_map(|(i, (place, on_x))| {
                let anchor = if on_x { "x" } else { "y" };
                let count = text.split('\n').filter(|l| l.trim() == anchor).count();
                (count > 0).then(|| hook(&format!("h{i}"), anchor, place, count))
            })
            .collect();
        let out = put(&hooks, &text);
        let parts = take_apart(&out).unwrap();
        prop_assert_eq!(&parts.upstream, &text);
        prop_assert!(parts.regions.iter().all(|r| !r.edited()));
        for h in &hooks {
            let blocks = if h.place == Place::Wrap { 2 } else { 1 };
            let found = parts.regions.iter().filter(|r| r.hook == h.id).count();
            prop_assert_eq!(found, h.expect * blocks);
        }
        prop_assert_eq!(put(&hooks, &parts.upstream), out);
    }

    #[test]
    fn text_without_markers_is_left_alone(text in "\\PC*(\r?\n\\PC*)*") {
        let parts = take_apart(&text).unwrap();
        prop_assert_eq!(parts.upstream, text);
        prop_assert!(parts.regions.is_empty());
    }
}
