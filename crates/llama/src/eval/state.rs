//! What an evaluation's folder remembers, so that one that was stopped goes on.
//!
//! Everything is filed under a key, a digest of all that a result depends on. A
//! changed text, model, program or calibration has other keys, and what is filed
//! under the old ones is left alone and not found.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use kvforge_evidence::digest;
use serde::{Deserialize, Serialize};

use super::EvalError;
use super::parse::{Estimate, Figures};

const FILE: &str = "state.json";
const SCHEMA: &str = "kvforge-eval-state/1";

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    schema: String,
    bases: BTreeMap<String, SavedBase>,
    runs: BTreeMap<String, SavedRun>,
    passages: BTreeMap<String, SavedPassage>,
}

/// A base run that ended well.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SavedBase {
    pub ppl: Estimate,
    /// Digest of the logits.
    pub logits: String,
}

/// A run that ended well, or that the tree refused, as it will again.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "lowercase")]
pub(crate) enum SavedRun {
    Measured { figures: Figures, seconds: f64 },
    Refused(String),
}

/// A passage for the copy task that was measured.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SavedPassage {
    pub words: usize,
    pub tokens: usize,
}

/// The state of a folder, written whenever something is added.
#[derive(Debug)]
pub(crate) struct State {
    path: PathBuf,
    content: Content,
}

impl State {
    /// Reads the state of `folder`, or begins one.
    pub fn open(folder: &Path) -> Result<State, EvalError> {
        let path = folder.join(FILE);
        let content = match kvforge_files::read(&path) {
            Ok(bytes) => parse(&bytes).map_err(|found| EvalError::State {
                path: path.clone(),
                found,
            })?,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Content {
                schema: SCHEMA.into(),
                bases: BTreeMap::new(),
                runs: BTreeMap::new(),
                passages: BTreeMap::new(),
            },
            Err(e) => return Err(EvalError::io(&path, "read the file")(e)),
        };
        let state = State { path, content };
        // Before hours of work: can it be written?
        state.write()?;
        Ok(state)
    }

    pub fn base(&self, key: &str) -> Option<&SavedBase> {
        self.content.bases.get(key)
    }

    pub fn run(&self, key: &str) -> Option<&SavedRun> {
        self.content.runs.get(key)
    }

    pub fn passage(&self, key: &str) -> Option<SavedPassage> {
        self.content.passages.get(key).copied()
    }

    pub fn add_base(&mut self, key: &str, base: SavedBase) -> Result<(), EvalError> {
        self.content.bases.insert(key.into(), base);
        self.write()
    }

    pub fn add_run(&mut self, key: &str, run: SavedRun) -> Result<(), EvalError> {
        self.content.runs.insert(key.into(), run);
        self.write()
    }

    pub fn add_passage(&mut self, key: &str, passage: SavedPassage) -> Result<(), EvalError> {
        self.content.passages.insert(key.into(), passage);
        self.write()
    }

    fn write(&self) -> Result<(), EvalError> {
        let mut text = serde_json::to_vec_pretty(&self.content).expect("it is JSON");
        text.push(b'\n');
        kvforge_files::write(&self.path, &text).map_err(EvalError::io(&self.path, "write the file"))
    }
}

fn parse(bytes: &[u8]) -> Result<Content, String> {
    let content: Content = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
    match content.schema == SCHEMA {
        true => Ok(content),
        false => Err(format!(
            "schema `{}` instead of `{SCHEMA}`",
            kvforge_files::excerpt(&content.schema)
        )),
    }
}

/// Digest of the parts, in their order. With the lengths no two lists read the same.
pub(crate) fn key(parts: &[&str]) -> String {
    let mut bytes = vec![];
    for part in parts {
        bytes.extend_from_slice(&(part.len() as u64).to_le_bytes());
        bytes.extend_from_slice(part.as_bytes());
    }
    digest::bytes(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_state_outlives_its_process_and_a_broken_one_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let passage = SavedPassage {
            words: 3,
            tokens: 7,
        };
        let mut state = State::open(folder.path()).unwrap();
        state.add_passage("k", passage).unwrap();
        let again = State::open(folder.path()).unwrap();
        assert_eq!(again.passage("k").unwrap().tokens, 7);
        assert!(again.passage("other").is_none());

        let file = folder.path().join(FILE);
        let good = fs::read_to_string(&file).unwrap();
        for bad in [
            good.replace("state/1", "state/9"),
            good[..good.len() / 2].into(),
            good.replace("words", "woods"),
            String::new(),
        ] {
            fs::write(&file, &bad).unwrap();
            let said = State::open(folder.path()).unwrap_err().to_string();
            assert!(
                said.contains("state.json: expected") && said.contains("delete it"),
                "{said}"
            );
            assert_eq!(fs::read_to_string(&file).unwrap(), bad, "left as it is");
        }
    }

    #[test]
    fn keys_tell_lists_apart() {
        assert_ne!(key(&["a", "b"]), key(&["ab", ""]));
        assert_ne!(key(&["a", ""]), key(&["a"]));
        assert_eq!(key(&["a", "b"]), key(&["a", "b"]));
    }
}
