//! Measures cache types with the tree's own programs: memory, how far the
//! predictions move, speed.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use crate::command::Log;
use crate::kvforge::{Tree, threads};
use crate::parse;
use crate::steps::{Inputs, Results};

/// Types of K and V that are compared.
pub const PAIRS: [(&str, &str); 6] = [
    ("f16", "f16"),
    ("q8_0", "q8_0"),
    ("q4_0", "q4_0"),
    ("tbq4_0", "tbq4_0"),
    ("tbq4_0", "tbq3_0"),
    ("tbq3_0", "tbq3_0"),
];

/// Programs of the tree that measure.
const PROGRAMS: [&str; 3] = ["llama-completion", "llama-perplexity", "llama-bench"];

/// Pages of the tree's own documentation: an English text that needs no
/// further download. About half of it is read.
const TEXT: [&str; 3] = [
    "CONTRIBUTING.md",
    "docs/development/HOWTO-add-model.md",
    "docs/speculative.md",
];

const PERPLEXITY: [&str; 6] = ["-c", "512", "--chunks", "8", "-fa", "on"];
const BENCH: [&str; 10] = ["-p", "512", "-n", "32", "-r", "2", "-fa", "1", "-o", "json"];
/// A long cache, so that two decimals of a MiB are less than half a byte a
/// token, and a log that tells its size.
const MEMORY: [&str; 12] = [
    "-c",
    "32768",
    "-n",
    "1",
    "-p",
    "Once",
    "-no-cnv",
    "--no-warmup",
    "-fa",
    "on",
    "-lv",
    "4",
];

/// What was measured of one pair of types.
#[derive(Serialize, Deserialize)]
pub struct Row {
    k: String,
    v: String,
    bits_per_value: f64,
    bytes_per_token: f64,
    mean_kld: f64,
    same_top: f64,
    prompt_speed: f64,
    generation_speed: f64,
}

impl Row {
    /// Mean Kullback-Leibler divergence from the f16 cache, in nats.
    pub fn mean_kld(&self) -> f64 {
        self.mean_kld
    }
}

/// A model in a built tree.
pub struct Bench<'a> {
    /// The tree, shipped and built.
    pub tree: &'a Tree,
    /// A GGUF file.
    pub model: &'a Path,
    /// Where the text and the predictions with the f16 cache go.
    pub folder: PathBuf,
}

impl Bench<'_> {
    /// Measures one pair of types, unless that was done with these programs.
    pub fn row(&self, results: &Results, log: &Log, k: &str, v: &str) -> Result<(Row, bool)> {
        let inputs = self
            .inputs("row")?
            .text(k)
            .text(v)
            .text(&format!("{BENCH:?} {MEMORY:?}"));
        results.get(&format!("cache-{k}-{v}"), inputs, || {
            self.measure(results, log, k, v)
        })
    }

    fn measure(&self, results: &Results, log: &Log, k: &str, v: &str) -> Result<Row> {
        let base = self.base(results, log)?;
        let size =
            parse::cache_size(&log.run(self.on("llama-completion", k, v).args(MEMORY))?.log)?;
        let mut perplexity = self.on("llama-perplexity", k, v);
        perplexity
            .args(PERPLEXITY)
            .arg("--kl-divergence")
            .arg("--kl-divergence-base")
            .arg(base);
        let divergence = parse::divergence(&log.run(&mut perplexity)?.log)?;
        let speeds = log.run_apart(self.on("llama-bench", k, v).args(BENCH))?;
        let (prompt_speed, generation_speed) = parse::speeds(&speeds.stdout)?;
        Ok(Row {
            k: k.into(),
            v: v.into(),
            bits_per_value: 8.0 * size.bytes_per_token / size.values_per_token,
            bytes_per_token: size.bytes_per_token,
            mean_kld: divergence.mean_kld,
            same_top: divergence.same_top,
            prompt_speed,
            generation_speed,
        })
    }

    /// Predictions with the f16 cache, which the others are compared with.
    fn base(&self, results: &Results, log: &Log) -> Result<PathBuf> {
        let base = self.folder.join("f16-predictions.bin");
        if !base.exists() {
            results.forget("f16-predictions");
        }
        results.get("f16-predictions", self.inputs("base")?, || {
            let text = self.text()?;
            let mut perplexity = self.on("llama-perplexity", "f16", "f16");
            perplexity
                .args(PERPLEXITY)
                .arg("-f")
                .arg(text)
                .arg("--kl-divergence-base")
                .arg(&base);
            log.run(&mut perplexity)?;
            Ok(())
        })?;
        Ok(base)
    }

    fn text(&self) -> Result<PathBuf> {
        let mut text = String::new();
        for name in TEXT {
            let page = self.tree.root.join(name);
            text += &fs::read_to_string(&page)
                .with_context(|| format!("cannot read {}", page.display()))?;
        }
        let path = self.folder.join("text.txt");
        fs::write(&path, text)?;
        Ok(path)
    }

    fn inputs(&self, step: &str) -> Result<Inputs> {
        let mut inputs = Inputs::of(step)
            .text(&format!("{PERPLEXITY:?} {TEXT:?}"))
            .file(self.model)?;
        for file in self.tree.built_files(&PROGRAMS)? {
            inputs = inputs.file(&file)?;
        }
        Ok(inputs)
    }

    /// A program of the tree on this model, with these types of cache.
    pub fn on(&self, program: &str, k: &str, v: &str) -> Command {
        let mut command = self.tree.built(program);
        command.arg("-m").arg(self.model).args([
            "-ctk",
            k,
            "-ctv",
            v,
            "-t",
            &threads().to_string(),
        ]);
        command
    }
}

/// The table that `cargo xtask up` ends with.
pub fn table(rows: &[Row]) -> String {
    let mut out = String::from(
        "  K / V             bits/value  KV bytes/token  mean KLD  same top token  prompt t/s  generation t/s\n",
    );
    for row in rows {
        writeln!(
            out,
            "  {:<17} {:>10.2}  {:>14.0}  {:>8.4}  {:>12.1} %  {:>10.1}  {:>14.1}",
            format!("{} / {}", row.k, row.v),
            row.bits_per_value,
            row.bytes_per_token,
            row.mean_kld,
            row.same_top,
            row.prompt_speed,
            row.generation_speed,
        )
        .expect("a String takes any text");
    }
    out
}
