//! Results that are kept. A step's result is stored with the hash of what it
//! was made from, and made again only when that changes.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// What a result was made from.
pub struct Inputs(blake3::Hasher);

impl Inputs {
    /// Nothing yet but the name of the step.
    pub fn of(step: &str) -> Self {
        Inputs(blake3::Hasher::new()).text(step)
    }

    /// A text: a version, a command line.
    pub fn text(mut self, text: &str) -> Self {
        self.part(text.as_bytes());
        self
    }

    /// A file's contents.
    pub fn file(mut self, path: &Path) -> Result<Self> {
        let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        self.part(&bytes);
        Ok(self)
    }

    /// The length goes first, so that no two lists of parts look alike.
    fn part(&mut self, bytes: &[u8]) {
        self.0.update(&(bytes.len() as u64).to_le_bytes());
        self.0.update(bytes);
    }

    fn hash(self) -> String {
        self.0.finalize().to_hex().to_string()
    }
}

/// Where results are kept.
pub struct Results {
    folder: PathBuf,
}

#[derive(Serialize, Deserialize)]
struct Stored<T> {
    inputs: String,
    result: T,
}

impl Results {
    /// In a folder.
    pub fn new(folder: PathBuf) -> Self {
        Results { folder }
    }

    /// Makes sure that `name` is made again.
    pub fn forget(&self, name: &str) {
        // not being there is what is wanted
        let _ = fs::remove_file(self.path(name));
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.json"))
    }

    /// The kept result of `name` if its inputs are the same, else a new one;
    /// and whether it is new.
    pub fn get<T: Serialize + DeserializeOwned>(
        &self,
        name: &str,
        inputs: Inputs,
        make: impl FnOnce() -> Result<T>,
    ) -> Result<(T, bool)> {
        let path = self.path(name);
        let inputs = inputs.hash();
        let kept = fs::read(&path)
            .ok()
            .and_then(|bytes| serde_json::from_slice::<Stored<T>>(&bytes).ok());
        if let Some(kept) = kept.filter(|kept| kept.inputs == inputs) {
            return Ok((kept.result, false));
        }
        let stored = Stored {
            inputs,
            result: make()?,
        };
        let partial = path.with_extension("part");
        fs::write(&partial, serde_json::to_vec_pretty(&stored)?)
            .and_then(|()| fs::rename(&partial, &path))
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok((stored.result, true))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_kept_until_an_input_changes() {
        let dir = tempfile::tempdir().unwrap();
        let results = Results::new(dir.path().into());
        let file = dir.path().join("input");
        let get = |made: u32| {
            let inputs = Inputs::of("step").text("flags").file(&file).unwrap();
            results.get("step", inputs, || Ok(made)).unwrap()
        };
        fs::write(&file, "one").unwrap();
        assert_eq!(get(1), (1, true));
        assert_eq!(get(2), (1, false));
        fs::write(&file, "two").unwrap();
        assert_eq!(get(3), (3, true));
        fs::write(results.path("step"), "{").unwrap(); // a broken file is no result
        assert_eq!(get(4), (4, true));
        results.forget("step");
        assert_eq!(get(5), (5, true));
    }

    #[test]
    fn a_failed_step_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let results = Results::new(dir.path().into());
        assert!(
            results
                .get::<u32>("step", Inputs::of("step"), || anyhow::bail!("no"))
                .is_err()
        );
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn parts_do_not_run_together() {
        assert_ne!(
            Inputs::of("s").text("ab").text("c").hash(),
            Inputs::of("s").text("a").text("bc").hash()
        );
    }
}
