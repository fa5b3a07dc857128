//! Is the tree a stock one? And where in it are lines of ours? Both are
//! answered by one reading of all its sources.

use std::collections::BTreeSet;

use kvforge_formats::cache_formats;

use super::tree::Tree;
use crate::Error;
use crate::patch::{region, template};

/// ggml types that the public fork added to its trees.
const FORK_TYPES: [&str; 7] = [
    "TBQ3_0", "TBQ4_0", "TBQ3_K", "TBQ4_K", "TBQ3_TCQ", "QJL1_256", "Q4_POLAR",
];

/// Starts of the marks that the fork's patchers leave.
const FORK_MARKS: [&str; 2] = ["MILADY-", "ELIZA-"];

/// The upstream files that hold markers of ours. What is not stock is added to
/// `problems`.
pub(super) fn scan(tree: &Tree, problems: &mut Vec<Error>) -> Result<BTreeSet<String>, Error> {
    let mut tell_tales: Vec<(String, &'static str)> = Vec::new();
    for mark in FORK_MARKS {
        tell_tales.push((mark.into(), "the patcher of a llama.cpp fork left there"));
    }
    let ours = cache_formats().map(template::upper);
    let names: BTreeSet<String> = FORK_TYPES
        .iter()
        .map(|t| t.to_string())
        .chain(ours)
        .collect();
    for name in names {
        tell_tales.push((format!("GGML_TYPE_{name}"), "this tree defines by itself"));
    }
    for format in cache_formats() {
        tell_tales.push((format!("\"{}\"", format.name), "this tree uses by itself"));
    }

    let mut marked = BTreeSet::new();
    tree.each_source(&mut |path, text| {
        let is_marked = region::mentioned(&text);
        if is_marked {
            marked.insert(path.to_string());
        }
        tell_tales.retain(|(what, origin)| {
            // One report a tell-tale is enough.
            let line = text
                .contains(what.as_str())
                .then(|| foreign_line(&text, is_marked, what))
                .flatten();
            if let Some(line) = line {
                problems.push(Error::NotStock {
                    file: path.into(),
                    line,
                    found: what.clone(),
                    origin,
                });
            }
            line.is_none()
        });
    })?;
    Ok(marked)
}

/// Number of the first line, from 1, that holds the word `what` outside our
/// regions.
fn foreign_line(text: &str, is_marked: bool, what: &str) -> Option<usize> {
    let lines: Vec<&str> = text.lines().collect();
    let mut ours = vec![false; lines.len()];
    if is_marked {
        // A damaged file is reported elsewhere.
        for r in region::take_apart(text).ok()?.regions {
            let end = r.line + r.body.lines().count() + 1;
            ours[r.line - 1..end].fill(true);
        }
    }
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let holds = |line: &str| {
        line.match_indices(what).any(|(at, _)| {
            let open_end = !what.ends_with(is_word);
            let after = line[at + what.len()..].chars().next();
            let before = line[..at].chars().next_back();
            (open_end || !after.is_some_and(is_word)) && !before.is_some_and(is_word)
        })
    };
    (0..lines.len())
        .find(|&i| !ours[i] && holds(lines[i]))
        .map(|i| i + 1)
}
