//! `manifest.json` in our folder: what was written, and what was there before.

use serde::{Deserialize, Serialize};

use super::own::own_path;
use super::types::{TypeEntry, TypeIds};
use crate::Error;

/// Version of the manifest's layout.
const SCHEMA: u32 = 1;

/// What a `ship` did. The same ship always writes the same manifest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    pub schema: u32,
    pub kvforge: String,
    pub ggml: String,
    pub types: Vec<TypeEntry>,
    /// Our files, but the manifest itself.
    pub files: Vec<FileEntry>,
    pub patched: Vec<PatchedEntry>,
}

/// A file and the BLAKE3 of its contents.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct FileEntry {
    pub path: String,
    pub blake3: String,
}

/// An upstream file: BLAKE3 without and with our regions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct PatchedEntry {
    pub path: String,
    pub before: String,
    pub after: String,
    /// One entry a region, in file order.
    pub regions: Vec<RegionEntry>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct RegionEntry {
    pub hook: String,
    pub hash: String,
}

pub(crate) fn path() -> String {
    own_path("manifest.json")
}

pub(crate) fn digest(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex().to_string()
}

impl Manifest {
    pub fn new(
        ggml: &str,
        ids: &TypeIds,
        files: Vec<FileEntry>,
        patched: Vec<PatchedEntry>,
    ) -> Self {
        Manifest {
            schema: SCHEMA,
            kvforge: env!("CARGO_PKG_VERSION").into(),
            ggml: ggml.into(),
            types: ids.entries(),
            files,
            patched,
        }
    }

    pub fn read(bytes: &[u8]) -> Result<Self, Error> {
        let unreadable = |found: String| Error::Manifest {
            file: path(),
            found,
        };
        let manifest: Manifest =
            serde_json::from_slice(bytes).map_err(|e| unreadable(e.to_string()))?;
        match manifest.schema {
            SCHEMA => Ok(manifest),
            other => Err(unreadable(format!(
                "schema {other}, this kvforge reads {SCHEMA}"
            ))),
        }
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec_pretty(self).expect("a manifest is JSON");
        bytes.push(b'\n');
        bytes
    }

    pub fn file(&self, path: &str) -> Option<&FileEntry> {
        self.files.iter().find(|f| f.path == path)
    }

    pub fn patched(&self, path: &str) -> Option<&PatchedEntry> {
        self.patched.iter().find(|f| f.path == path)
    }

    pub fn knows_hook(&self, hook: &str) -> bool {
        self.patched
            .iter()
            .flat_map(|f| &f.regions)
            .any(|r| r.hook == hook)
    }
}
