//! `kvforge eval`, with a script in place of llama-perplexity.
#![cfg(unix)]

#[path = "common/capture.rs"]
mod capture;
mod common;
#[path = "common/perplexity.rs"]
mod perplexity;

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use perplexity::{Place, means, text};
use serde_json::Value;

fn row<'r>(task: &'r Value, k: &str, centred: bool) -> &'r Value {
    let rows = task["rows"].as_array().unwrap();
    let found = rows
        .iter()
        .find(|r| r["types"]["k"] == k && r["centred"] == centred);
    found.unwrap_or_else(|| panic!("no {k} in {task}"))
}

const TYPES: [&str; 2] = ["--types", "tbq4_0/tbq3_0,q4_polar"];

#[test]
fn peers_and_types_are_measured_and_a_refusal_stops_nothing() {
    let place = Place::new();
    let out = place.eval(&[&TYPES[..], &["--copy", "512"]].concat());
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    let report = place.report();
    assert_eq!(report["schema"], "kvforge-eval/1");
    for task in [&report["divergence"], &report["copy"]] {
        assert_eq!(task["rows"].as_array().unwrap().len(), 8);
        let ours = row(task, "tbq4_0", false);
        assert_eq!(ours["figures"]["meanKld"]["value"], 0.06);
        assert_eq!(ours["figures"]["sameTop"]["error"], 0.795);
        assert_eq!(ours["bitsPerValue"], 4.0);
        let ratio = &ours["ratios"]["toQ4_0"];
        let error = 1.5 * f64::hypot(0.001 / 0.06, 0.001 / 0.04);
        assert!(
            (ratio["value"].as_f64().unwrap() - 1.5).abs() < 1e-9,
            "{ours}"
        );
        assert!(
            (ratio["error"].as_f64().unwrap() - error).abs() < 1e-9,
            "{ours}"
        );
        assert!(row(task, "f16", false)["ratios"]["toQ4_0"].is_null());
        let refused = &row(task, "q4_polar", false)["refused"];
        assert_eq!(refused, "K cache type q4_polar takes heads of 128");
    }
    assert_eq!(report["copy"]["modelCopies"], true);
    let passage = report["copy"]["passageTokens"].as_u64().unwrap();
    assert!((230..=256).contains(&passage), "{passage}");
    let copied = fs::read_to_string(place.at("out/copy.txt")).unwrap();
    let words: Vec<&str> = copied.split_whitespace().collect();
    assert!(words.len() >= 1024);
    let again = |i: usize| words[i] == words[i - passage as usize];
    assert!(
        (256..words.len()).all(again),
        "what is scored stood there before"
    );

    let calls = place.calls();
    assert_eq!(calls[0], "f16 f16 text.txt", "{calls:?}");
    assert_eq!(calls[1], "f16 f16 compared text.txt", "{calls:?}");
    assert_eq!(calls.len(), 18, "{calls:?}");
    let again = place.eval(&[&TYPES[..], &["--copy", "512"]].concat());
    assert!(text(&again.stderr).contains("done before"));
    assert_eq!(place.calls(), [""; 0], "nothing runs twice");

    place.mode("forgets copy");
    fs::write(place.at("model.gguf"), "other weights").unwrap();
    let out = place.eval(&["--copy", "512"]);
    assert!(
        text(&out.stdout).contains("prove nothing"),
        "{}",
        text(&out.stdout)
    );
    assert_eq!(place.report()["copy"]["modelCopies"], false);
    place.eval(&["--copy", "0"]);
    assert_eq!(place.report()["copy"]["notRun"], "--copy 0");
}

#[test]
fn what_has_changed_is_run_again_and_nothing_else() {
    let place = Place::new();
    let args = ["--copy", "0", "--types", "tbq4_0", "--cal", "means"];
    fs::write(place.at("means"), means(1.0)).unwrap();
    let run = || {
        let out = place.eval(&args);
        assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
        place.calls().len()
    };
    assert_eq!((run(), run()), (12, 0));
    let report = place.report();
    let ratio = &row(&report["divergence"], "tbq4_0", true)["ratios"]["toNotCentred"]["value"];
    assert!(
        (ratio.as_f64().unwrap() - 1.0 / 3.0).abs() < 1e-9,
        "{ratio}"
    );

    fs::write(place.at("means"), means(2.0)).unwrap();
    assert_eq!((run(), run()), (6, 0), "only what is centred");
    // A program that takes the file and does nothing with it.
    fs::write(place.at("means"), means(3.0)).unwrap();
    place.mode("uncentred");
    let out = place.eval(&args);
    assert_eq!(out.status.code(), Some(1), "{}", text(&out.stderr));
    assert!(text(&out.stderr).contains("a line that keys are centred, found none"));
    place.mode("");
    assert_eq!((run(), run()), (6 + 6, 0));
    fs::write(place.at("means"), "no means").unwrap();
    let out = place.eval(&args);
    let said = text(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{said}");
    assert!(said.contains("means") && place.calls().is_empty(), "{said}");
    fs::write(place.at("means"), means(2.0)).unwrap();
    fs::write(place.at("text.txt"), "words ".repeat(1024)).unwrap();
    assert_eq!((run(), run()), (12, 0));
    fs::write(
        place.at("build-kvforge/bin/libggml-base.so"),
        "better kernels",
    )
    .unwrap();
    assert_eq!((run(), run()), (12, 0));
    // Saved predictions that are not what was saved are made anew, if they are needed.
    fs::write(place.at("out/base-text.bin"), "logit").unwrap();
    assert_eq!(run(), 0);
    let out = place.eval(&["--copy", "0", "--types", "tbq3_0", "--window", "0"]);
    assert_eq!(out.status.code(), Some(0));
    assert_eq!(
        place.calls(),
        ["f16 f16 text.txt", "tbq3_0 tbq3_0 compared text.txt"]
    );
}

#[test]
fn a_run_that_fails_loses_no_other_and_is_tried_again() {
    let args = ["--copy", "0", "--types", "tbq4_0,tbq3_0", "--window", "0"];
    for (mode, says) in [
        ("nan tbq4_0", "`Mean    KLD` is `nan`, no number"),
        ("cut tbq4_0", "`Same top p` is missing"),
        ("die tbq4_0", "signal: 9"),
    ] {
        let place = Place::new();
        place.mode(mode);
        let out = place.eval(&args);
        assert_eq!(out.status.code(), Some(1), "{mode}: {}", text(&out.stderr));
        let report = place.report();
        let failed = row(&report["divergence"], "tbq4_0", false)["failed"].to_string();
        let log = "logs/text-tbq4_0-tbq4_0.log";
        assert!(failed.contains(says) && failed.contains(log), "{failed}");
        assert!(row(&report["divergence"], "tbq3_0", false)["figures"].is_object());
        place.calls();
        place.mode("");
        assert_eq!(place.eval(&args).status.code(), Some(0));
        assert_eq!(place.calls(), ["tbq4_0 tbq4_0 compared text.txt"]);
    }
}

#[test]
fn a_killed_evaluation_goes_on_where_it_was() {
    let place = Place::new();
    let args = ["--copy", "0", "--types", "tbq4_0,tbq3_0", "--window", "0"];
    place.mode("hang tbq4_0");
    let mut command = place.command(&args);
    let quiet = command.stdout(Stdio::null()).stderr(Stdio::piped());
    let child = quiet.process_group(0).spawn().unwrap();
    let begun = "tbq4_0 tbq4_0 compared text.txt";
    let calls = place.at("build-kvforge/bin/calls");
    let limit = Instant::now() + Duration::from_secs(60);
    while !fs::read_to_string(&calls)
        .unwrap_or_default()
        .contains(begun)
    {
        assert!(Instant::now() < limit, "it did not come to {begun}");
        sleep(Duration::from_millis(20));
    }
    // Time to read the estimate.
    sleep(Duration::from_millis(500));
    let group = format!("-{}", child.id());
    assert!(
        Command::new("kill")
            .args(["-9", "--", &group])
            .status()
            .unwrap()
            .success()
    );
    let said = text(&child.wait_with_output().unwrap().stderr);
    assert!(said.contains("will take about 3 s"), "{said}");
    assert!(!place.at("out/eval.json").exists());
    // What was killed may hold the lock a moment longer than its parent lives.
    let lock = fs::File::open(place.at("out/lock")).unwrap();
    lock.lock().unwrap();
    drop(lock);
    place.calls();
    place.mode("");
    assert_eq!(place.eval(&args).status.code(), Some(0));
    assert_eq!(place.calls(), [begun, "tbq3_0 tbq3_0 compared text.txt"]);
}

#[test]
fn the_page_is_well_formed_and_needs_nothing_else() {
    let place = Place::new();
    fs::write(place.at("means"), means(1.0)).unwrap();
    fs::rename(place.at("text.txt"), place.at("a <b> & \"c\".txt")).unwrap();
    fs::write(place.at("kv"), capture::capture()).unwrap();
    let args = ["--cal", "means", "--copy", "512", "--capture", "kv"];
    let mut command = place.command_on("a <b> & \"c\".txt", &args);
    let out = command.args(TYPES).output().unwrap();
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    let page = fs::read_to_string(place.at("out/eval.html")).unwrap();
    for outside in ["http", "src=", "href=", "url(", "@import", "<script"] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert!(page.contains("a &lt;b&gt; &amp; &quot;c&quot;.txt"));
    assert!(!page.contains("NaN") && !page.contains("inf\""));
    let mut open = vec![];
    let mut rest = page.strip_prefix("<!DOCTYPE html>").unwrap();
    while let Some((before, tag)) = rest.split_once('<') {
        assert!(!before.contains('>'), "{before}");
        let (tag, after) = tag.split_once('>').unwrap();
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        let name = tag.split_whitespace().next().unwrap();
        if let Some(name) = name.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name));
        } else if !tag.ends_with('/') {
            open.push(name);
        }
        rest = after;
    }
    assert_eq!(open, [""; 0]);
    assert_eq!(page.matches("<svg").count(), 4);
    assert_eq!(page.matches("<svg").count(), page.matches("<desc").count());
    let report = place.report();
    let layers = &report["layers"]["reports"][0];
    assert_eq!(layers["formats"][1]["format"], "q4_0_rot", "{layers}");
    assert_eq!(layers["formats"][1]["layers"][0]["layer"], 3);
    let markdown = fs::read_to_string(place.at("out/eval.md")).unwrap();
    assert!(
        markdown.contains("| tbq4_0/tbq3_0, centred | 4 | 0.0200 ± 0.0010 |"),
        "{markdown}"
    );
    assert!(
        markdown.contains("| q4_polar | 5.125 | refused: K cache type"),
        "{markdown}"
    );
    let windowed = "tbq4_0/tbq3_0, centred, window 32, first 4";
    assert!(
        markdown.contains(&format!("| {windowed} | 6.25 | 0.0100 ± 0.0010 |")),
        "{markdown}"
    );
    let plot = page.split("<svg").nth(1).unwrap();
    assert!(plot.contains(&format!("{windowed} at 6.25 bits: ")));
    assert!(
        plot.contains(">tbq4_0/tbq3_0, window 32, first 4</text>"),
        "{plot}"
    );
}

#[test]
fn bad_input_is_told_before_anything_is_measured() {
    let place = Place::new();
    let says = |args: &[&str], needles: &[&str]| {
        let out = place.eval(args);
        let said = text(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{args:?}: {said}");
        for needle in needles {
            assert!(said.contains(needle), "{args:?}: {said}");
        }
    };
    let clap_keeps_the_last = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvforge"));
        command
            .current_dir(place.tree.path())
            .arg("eval")
            .args(args);
        let out = command.output().unwrap();
        assert_eq!(out.status.code(), Some(2), "{args:?}");
        text(&out.stderr)
    };
    says(
        &["--types", "tbq9_0"],
        &["expected a cache type", "`tbq9_0`", "tbq4_0"],
    );
    says(&["--copy", "100"], &["--copy 100", "100 scored tokens"]);
    let most = "--copy of at most 16777216";
    says(&["--copy", "100000000000"], &[most, "100000000000"]);
    says(&["--copy", "18446744073709551615"], &[most]);
    says(&["--cal", "none"], &["none: cannot read"]);
    let rest = ["--model", "model.gguf", "--text", "text.txt", "-o", "out"];
    let on = |tree: &str| clap_keeps_the_last(&[&["--tree", tree][..], &rest].concat());
    assert!(on("nowhere").contains("nowhere is not a folder"));
    let other = common::hollow_tree();
    let said = on(other.path().to_str().unwrap());
    assert!(
        said.contains("expected llama-perplexity") && said.contains("kvforge build"),
        "{said}"
    );
    assert!(!place.at("out").exists(), "nothing was written yet");
    fs::write(place.at("out"), "a file").unwrap();
    says(&[], &["out/logs: cannot create the folder"]);
    fs::remove_file(place.at("out")).unwrap();
    assert_eq!(place.calls(), [""; 0]);

    fs::write(place.at("text.txt"), "word ".repeat(511)).unwrap();
    says(
        &[],
        &[
            "text.txt: expected a text of at least 512 tokens",
            "found 511",
        ],
    );
    fs::write(place.at("text.txt"), "word ".repeat(1023)).unwrap();
    let out = place.command(&[]).args(["--copy", "0"]).output().unwrap();
    assert_eq!(
        out.status.code(),
        Some(0),
        "two chunks fit: {}",
        text(&out.stderr)
    );
    let said = clap_keeps_the_last(
        &[&["--tree", ".", "--ctx", "256", "--chunks", "4"][..], &rest].concat(),
    );
    assert!(
        said.contains("at least 1024 tokens (4 chunks of 256), found 3 chunks"),
        "{said}"
    );
    place.mode("cut base");
    fs::write(place.at("model.gguf"), "other weights").unwrap();
    says(
        &[],
        &["logs/text-base.log", "`Final estimate: PPL` is missing"],
    );
    fs::write(place.at("out/state.json"), "{").unwrap();
    says(
        &[],
        &[
            "out/state.json: expected the state",
            "delete it to begin anew",
        ],
    );
}

#[test]
fn two_evaluations_do_not_share_a_folder() {
    let place = Place::new();
    let args = ["--copy", "0"];
    assert_eq!(place.eval(&args).status.code(), Some(0));
    let lock = fs::File::open(place.at("out/lock")).unwrap();
    lock.lock().unwrap();
    let out = place.eval(&args);
    let said = text(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{said}");
    assert!(said.contains("another evaluation is going on"), "{said}");
    drop(lock);
    assert_eq!(place.eval(&args).status.code(), Some(0));
}
