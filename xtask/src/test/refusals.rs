//! What a built tree must refuse, and in which words; and the way round flash
//! attention, which must work.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use kvforge_formats::FORMATS;

use crate::command::Log;
use crate::measure::Bench;
use crate::report::Checked;

const SHORT: [&str; 7] = [
    "-p",
    "The capital of France is",
    "-n",
    "16",
    "-c",
    "256",
    "-no-cnv",
];

pub fn check(log: &Log, bench: &Bench<'_>, first_id: u32) -> Result<Checked> {
    let mut checks = 0;
    for (i, format) in FORMATS.iter().enumerate() {
        let name = format.name;
        // Without flash attention, scores come from vec_dot of the type traits.
        let mut plain = bench.on("llama-completion", name, "f16");
        let text = log.run_apart(plain.args(SHORT).args(["-fa", "off", "--temp", "0"]))?;
        if !text.stdout.contains("Paris") {
            bail!("without flash attention, K {name}: {}", text.stdout.trim());
        }
        let quantised_v = "quantized V cache requires flash_attn";
        refused(
            log,
            bench,
            bench.model,
            ("f16", name),
            &["-fa", "off"],
            quantised_v,
        )?;
        let pair = format!("V cache type q4_0 cannot be paired with {name}: use f16");
        refused(log, bench, bench.model, (name, "q4_0"), &[], &pair)?;

        let id = first_id + i as u32;
        let file = bench.folder.join(format!("weights-{name}.gguf"));
        with_type_id(bench.model, &file, id)?;
        let weights = format!("has type {id}, which this build uses for the KV-cache type {name}");
        refused(log, bench, &file, ("f16", "f16"), &[], &weights)?;
        fs::remove_file(&file)?;
        checks += 4;
    }
    Ok(Checked::new(checks, "refusals and detours"))
}

/// Whether the program ends with an error, and says why.
fn refused(
    log: &Log,
    bench: &Bench<'_>,
    model: &Path,
    (k, v): (&str, &str),
    more: &[&str],
    words: &str,
) -> Result<()> {
    let other = Bench {
        tree: bench.tree,
        model,
        folder: PathBuf::new(),
    };
    let mut command = other.on("llama-completion", k, v);
    let (status, printed) = log.run_any(command.args(SHORT).args(more))?;
    if status.code() != Some(1) {
        bail!("K {k}, V {v}: expected exit code 1, found {status}");
    }
    if !printed.log.contains(words) {
        bail!("K {k}, V {v}: expected a message with `{words}`");
    }
    Ok(())
}

/// A copy of a model whose embeddings claim to be of another type.
fn with_type_id(model: &Path, copy: &Path, id: u32) -> Result<()> {
    const TENSOR: &[u8] = b"token_embd.weight";
    let mut bytes = fs::read(model).with_context(|| format!("cannot read {}", model.display()))?;
    // The name is followed by the number of dimensions, the dimensions, the type.
    let name = bytes
        .windows(TENSOR.len())
        .position(|window| window == TENSOR)
        .context("the model has no token_embd.weight")?;
    let at = name + TENSOR.len() + 4 + 2 * 8;
    bytes[at..at + 4].copy_from_slice(&id.to_le_bytes());
    fs::write(copy, bytes).with_context(|| format!("cannot write {}", copy.display()))
}
