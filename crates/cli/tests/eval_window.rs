//! `kvforge eval --window`, with a script in place of llama-perplexity.
#![cfg(unix)]

mod common;
#[path = "common/perplexity.rs"]
mod perplexity;

use std::fs;

use perplexity::{Place, means, text};
use serde_json::Value;

#[test]
fn ours_run_with_every_window_and_llama_cpps_own_with_none() {
    let place = Place::new();
    fs::write(place.at("means"), means(1.0)).unwrap();
    let base = ["--copy", "0", "--types", "tbq4_0,q4_0"];
    let eval = |more: &[&str]| {
        let out = place.eval(&[&base, more].concat());
        (out.status.code(), text(&out.stderr), place.calls())
    };
    let (code, said, calls) = eval(&["--window", "0,16", "--first", "0,4"]);
    assert_eq!(code, Some(0), "{said}");
    let call = |how: &str| format!("tbq4_0 tbq4_0{how} compared text.txt");
    let ours = ["", " 16+0", " 16+4"].map(call);
    assert_eq!(calls[calls.len() - 3..], ours);
    let report = place.report();
    let rows = report["divergence"]["rows"].as_array().unwrap();
    let facts = |row: &Value| {
        let bits = ["bitsPerValue", "effectiveBits"].map(|name| row[name].as_f64().unwrap());
        (row["window"].clone(), row["first"].clone(), bits)
    };
    let [.., window, both] = &rows[..] else {
        panic!("{report}");
    };
    assert_eq!(facts(&rows[2]), (0.into(), 0.into(), [4.5, 4.5]));
    assert_eq!(facts(window), (16.into(), 0.into(), [4.5, 5.5]));
    assert_eq!(facts(both), (16.into(), 4.into(), [4.5, 5.75]));
    assert_eq!(both["figures"]["cacheMib"], 18.28 + 1.25);
    assert_eq!(both["ratios"]["toQ4_0"]["value"], 0.25);
    let command = both["command"].as_str().unwrap();
    assert!(command.contains("--kv-window 16 --kv-first 4"), "{command}");
    assert!(
        both["log"]
            .as_str()
            .unwrap()
            .ends_with("-window16-first4.log")
    );

    // Another window is another run, the same one is not; with means only the better way.
    let (_, _, calls) = eval(&["--window", "0,16,8"]);
    assert_eq!(calls, [call(" 8+4")], "the first four by themselves");
    let (_, _, calls) = eval(&["--window", "0,16", "--cal", "means"]);
    let last = call(" centred 16+4");
    assert_eq!((calls.len(), calls.last()), (6, Some(&last)), "{calls:?}");
    let centred = place.report();
    let centred = centred["divergence"]["rows"]
        .as_array()
        .unwrap()
        .last()
        .unwrap();
    assert!(
        centred["ratios"]["toNotCentred"].is_null(),
        "without a window is no peer"
    );

    // A program that takes the options and does nothing with them, and one that cannot.
    place.mode("deaf");
    let (code, said, _) = eval(&["--window", "64"]);
    assert_eq!(code, Some(1), "{said}");
    let needle = "the newest 64 and the first 4 tokens are read exact, found 32 and 0";
    assert!(said.contains(needle), "{said}");
    let (code, said, _) = eval(&["--window", "0", "--types", "tbq3_0"]);
    assert_eq!(code, Some(1), "{said}");
    place.mode("windowless");
    let (code, said, _) = eval(&["--window", "64"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.contains("refused: no window: this cache is not one"),
        "{said}"
    );

    for (args, needle) in [
        (
            ["--window", "1000001"],
            "--window of at most 1000000, found 1000001",
        ),
        (
            ["--first", "0,2000000"],
            "--first of at most 1000000, found 2000000",
        ),
        (["--window", ""], "--window"),
        (["--window", "all"], "--window"),
    ] {
        let (code, said, calls) = eval(&args);
        assert_eq!((code, calls.len()), (Some(2), 0), "{said}");
        assert!(said.contains(needle), "{said}");
    }
}
