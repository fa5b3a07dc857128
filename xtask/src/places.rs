//! Where things are.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// The root of the checkout.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask lies in the root")
        .to_path_buf()
}

/// A workshop: the folder, ignored by git, that everything fetched, built or
/// measured goes into.
#[derive(Clone, Debug)]
pub struct Workshop {
    dir: PathBuf,
}

impl Workshop {
    /// Opens `dir`, or `target/kvforge` if none is given.
    pub fn open(dir: Option<PathBuf>) -> Result<Self> {
        let dir = dir.unwrap_or_else(|| root().join("target/kvforge"));
        fs::create_dir_all(&dir)
            .with_context(|| format!("cannot make the folder {}", dir.display()))?;
        let dir = dir
            .canonicalize()
            .with_context(|| format!("cannot open the folder {}", dir.display()))?;
        Ok(Workshop { dir })
    }

    /// A path in the workshop.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// A folder in the workshop, made if it is not there.
    pub fn folder(&self, name: &str) -> Result<PathBuf> {
        let path = self.path(name);
        fs::create_dir_all(&path)
            .with_context(|| format!("cannot make the folder {}", path.display()))?;
        Ok(path)
    }

    /// The workshop itself.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

/// Where cargo puts what it builds for this workspace.
pub fn cargo_target() -> PathBuf {
    match env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => root().join(dir),
        None => root().join("target"),
    }
}

/// A path as it is best shown: relative to the checkout if it is inside.
pub fn shown(path: &Path) -> String {
    path.strip_prefix(root())
        .unwrap_or(path)
        .display()
        .to_string()
}
