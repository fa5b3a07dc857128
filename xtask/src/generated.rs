//! Files that are generated from the crates and checked in.

use std::fs;

use anyhow::{Context as _, Result, bail};
use kvforge_evidence::schema;

use crate::header;
use crate::places::{root, shown};

/// A generated file, and the folder that it says what stands in.
struct Generated {
    path: &'static str,
    source: &'static str,
    text: fn() -> Result<String>,
}

const FILES: [Generated; 3] = [
    Generated {
        path: "crates/capi/include/kvforge.h",
        source: "crates/capi",
        text: header::generate,
    },
    Generated {
        path: "crates/evidence/schema/contract.json",
        source: "crates/evidence",
        text: || json(&schema::contract()),
    },
    Generated {
        path: "crates/evidence/schema/evidence.json",
        source: "crates/evidence",
        text: || json(&schema::evidence()),
    },
];

/// Writes every file, or, if `check`, only says whether it is up to date. Returns
/// a line about each.
pub fn write(check: bool) -> Result<Vec<String>> {
    FILES.iter().map(|file| file.write(check)).collect()
}

impl Generated {
    fn write(&self, check: bool) -> Result<String> {
        let path = root().join(self.path);
        let text = (self.text)()?;
        let before = fs::read_to_string(&path).ok();
        if before.as_deref() == Some(text.as_str()) {
            return Ok(format!("{} is up to date", shown(&path)));
        }
        if check {
            let line = differing_line(before.as_deref().unwrap_or_default(), &text);
            bail!(
                "{}:{line} is not what {} says; run `cargo xtask gen`",
                shown(&path),
                self.source
            );
        }
        fs::create_dir_all(path.parent().expect("in a folder"))?;
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(format!("wrote {}", shown(&path)))
    }
}

fn json(value: &serde_json::Value) -> Result<String> {
    Ok(serde_json::to_string_pretty(value)? + "\n")
}

/// The first line, counted from 1, in which two texts differ.
fn differing_line(a: &str, b: &str) -> usize {
    1 + a.lines().zip(b.lines()).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_differing_line_is_found() {
        assert_eq!(differing_line("a\nb\nc\n", "a\nx\nc\n"), 2);
        assert_eq!(differing_line("", "a\n"), 1);
    }
}
