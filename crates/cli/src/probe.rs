//! What `calibrate` and `capture` share: which model, which text, and the probe.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use kvforge::calibration::TEXT;
use kvforge_llama::Tree;
use kvforge_llama::probe::{ProbeOptions, Record, probe};

use crate::rows::keep_input;

/// What to run the model on.
#[derive(clap::Args)]
pub struct Source {
    /// Folder of a shipped and built llama.cpp tree
    #[arg(long, value_name = "TREE", required = true)]
    tree: Option<PathBuf>,
    /// The model
    #[arg(long, value_name = "GGUF", required = true)]
    model: Option<PathBuf>,
    /// Plain text to run through it [default: a built-in mix of prose, code and numbers]
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
    /// Build folder [default: build-kvforge in the tree]
    #[arg(long, value_name = "DIR")]
    build_dir: Option<PathBuf>,
}

impl Source {
    /// The model's file.
    pub fn model(&self) -> &Path {
        self.model.as_deref().unwrap_or(Path::new(""))
    }

    /// Refuses to write over what is read.
    pub fn keep(&self, output: &Path) -> Result<()> {
        let text = self.text.as_deref();
        [Some(self.model()), text]
            .into_iter()
            .flatten()
            .try_for_each(|input| keep_input(input, output))
    }

    /// Runs the probe on at most `tokens` tokens, in sequences of `chunk`.
    pub fn run(
        &self,
        tokens: u32,
        chunk: u32,
        each: &mut dyn FnMut(Record) -> Result<()>,
    ) -> Result<()> {
        let tree = Tree::open(self.tree.as_deref().unwrap_or(Path::new("")))?;
        let mut built_in = None;
        let text = match &self.text {
            Some(text) => text.as_path(),
            None => {
                let mut file = tempfile::NamedTempFile::new().context("no temporary file")?;
                file.write_all(TEXT.as_bytes())
                    .context("no temporary file")?;
                built_in.insert(file).path()
            }
        };
        let options = ProbeOptions {
            build_dir: self.build_dir.as_deref(),
            model: self.model(),
            text,
            tokens,
            chunk,
        };
        probe(&tree, &options, each)
    }
}
