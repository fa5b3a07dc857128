//! What kvforge brings: the patch set, and the files of its own folder.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use kvforge_formats::cache_formats;

use super::OWN_DIR;
use crate::Error;
use crate::patch::{PatchSet, template};

/// Everything that `ship` puts into a tree.
#[derive(Clone, Debug)]
pub struct Payload {
    /// Lines for upstream files.
    pub patches: PatchSet,
    /// Files of our own.
    pub sources: Vec<Source>,
}

/// A file that goes into kvforge's own folder as it is.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    /// Path inside the folder, with `/`.
    pub path: &'static str,
    /// Contents.
    pub bytes: &'static [u8],
}

const EMBEDDED: &[(&str, &[u8])] = &include!(concat!(env!("OUT_DIR"), "/sources.rs"));

impl Payload {
    /// What this kvforge was built with.
    ///
    /// # Errors
    /// [`Error::PatchSet`] if the embedded patch set is wrong.
    pub fn embedded() -> Result<Self, Error> {
        Ok(Payload {
            patches: PatchSet::parse(concat!(
                include_str!("../../patchsets/llama-cpp/ggml.toml"),
                include_str!("../../patchsets/llama-cpp/llama.toml"),
                include_str!("../../patchsets/llama-cpp/tools.toml"),
                include_str!("../../patchsets/llama-cpp/tests.toml"),
            ))?,
            sources: EMBEDDED
                .iter()
                .map(|&(path, bytes)| Source { path, bytes })
                .collect(),
        })
    }

    /// The files of our folder by their path in the tree, but the manifest.
    pub(crate) fn own_files(&self) -> BTreeMap<String, Vec<u8>> {
        let mut files: BTreeMap<String, Vec<u8>> = self
            .sources
            .iter()
            .map(|s| (own_path(s.path), s.bytes.to_vec()))
            .collect();
        files.insert(own_path("kvforge-formats.h"), formats_header().into_bytes());
        files
    }
}

/// Path in the tree of a file in our folder.
pub(crate) fn own_path(path: &str) -> String {
    format!("{OWN_DIR}/{path}")
}

/// The formats as an X-macro, for the C glue. What else there is to know of a
/// format, the glue asks the kernels.
fn formats_header() -> String {
    let mut out = String::from(
        "// Written by `kvforge ship`.\n\
         #pragma once\n\
         \n\
         // X(NAME, name, kvforge id, values of a block, bytes of a block)\n\
         #define KVFORGE_FORMATS(X)",
    );
    for format in cache_formats() {
        write!(
            out,
            " \\\n    X({}, {}, {}, {}, {})",
            template::upper(format),
            format.name,
            format.id,
            format.block_len,
            format.block_bytes,
        )
        .expect("a String takes any text");
    }
    out.push('\n');
    out
}
