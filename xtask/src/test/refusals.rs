//! What a built tree must refuse, and in which words; and the way round flash
//! attention, which must work.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use kvforge_formats::{FormatSpec, cache_formats};

use super::tree;
use crate::command::Log;
use crate::fetch;
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

/// What the loader of a model says early, if it is let.
const LOADING: &str = "load_tensors";
const VERBOSE: [&str; 2] = ["-lv", "4"];

pub fn check(log: &Log, bench: &Bench<'_>, first_id: u32) -> Result<Checked> {
    let mut checks = 0;
    for (i, format) in cache_formats().enumerate() {
        let name = format.name;
        if tree::fitting().iter().any(|fits| fits.name == name) {
            checks += of_fitting(log, bench, name)?;
        } else {
            checks += of_wider(log, bench, format)?;
        }
        let id = first_id + i as u32;
        let file = bench.folder.join(format!("weights-{name}.gguf"));
        with_type_id(bench.model, &file, id)?;
        let other = Bench {
            tree: bench.tree,
            model: &file,
            folder: PathBuf::new(),
        };
        let weights = format!("has type {id}, which this build uses for the KV-cache type {name}");
        refused(log, &other, ("f16", "f16"), &[], &weights)?;
        fs::remove_file(&file)?;
        checks += 1;
    }
    loads(log, bench)?;
    checks += 1 + variables(log, bench)?;
    Ok(Checked::new(checks, "refusals and detours"))
}

/// What a type must do whose blocks fit the model's heads.
fn of_fitting(log: &Log, bench: &Bench<'_>, name: &str) -> Result<usize> {
    // Without flash attention, scores come from vec_dot of the type traits.
    let mut plain = bench.on("llama-completion", name, "f16");
    let text = log.run_apart(plain.args(SHORT).args(["-fa", "off", "--temp", "0"]))?;
    if !text.stdout.contains("Paris") {
        bail!("without flash attention, K {name}: {}", text.stdout.trim());
    }
    let quantised_v = "quantized V cache requires flash_attn";
    refused(log, bench, ("f16", name), &["-fa", "off"], quantised_v)?;
    let pair = format!("V cache type q4_0 cannot be paired with {name}: use f16");
    refused(log, bench, (name, "q4_0"), &[], &pair)?;
    Ok(3)
}

/// A type whose blocks are larger than the model's heads is refused by what the
/// model's file says, before it is loaded, and those that fit are named.
fn of_wider(log: &Log, bench: &Bench<'_>, format: &FormatSpec) -> Result<usize> {
    let (name, block) = (format.name, format.block_len);
    let names: Vec<&str> = tree::fitting().iter().map(|f| f.name).collect();
    let instead = format!("use {} or f16 for", names.join(", "));
    let size = format!(
        "cache type {name} takes heads whose size is a multiple of {block}, this model's is {}: {instead}",
        fetch::SMALL.head
    );
    let as_values = match format.holds_values() {
        true => format!("V {size} V"),
        false => format!("V cache type {name} keeps only what scores need: {instead} V"),
    };
    for (pair, words) in [
        ((name, "f16"), format!("K {size} K")),
        (("f16", name), as_values),
    ] {
        let printed = refused(log, bench, pair, &VERBOSE, &words)?;
        if printed.contains(LOADING) {
            bail!(
                "K {}, V {}: refused, but only after loading",
                pair.0,
                pair.1
            );
        }
    }
    Ok(2)
}

/// Misspelt variables are refused like misspelt options.
fn variables(log: &Log, bench: &Bench<'_>) -> Result<usize> {
    let name = tree::fitting()[0].name;
    let all = [
        ("KVFORGE_ENCODER", "worst", "there are best, reference"),
        ("KVFORGE_ISA", "mmx", "there are auto, scalar, avx2"),
    ];
    for (variable, value, known) in all {
        let mut command = bench.on("llama-completion", name, name);
        command.args(SHORT).args(VERBOSE).env(variable, value);
        let (status, printed) = log.run_any(&mut command)?;
        let words = format!("{variable}={value} is not known: {known}");
        if status.code() != Some(1) || !printed.log.contains(&words) {
            bail!("expected exit code 1 and `{words}`, found {status}");
        }
        if printed.log.contains(LOADING) {
            bail!("{variable}: refused, but only after loading");
        }
    }
    Ok(all.len())
}

/// The line that `of_wider` takes for a sign of loading is one.
fn loads(log: &Log, bench: &Bench<'_>) -> Result<()> {
    let mut command = bench.on("llama-completion", "f16", "f16");
    let printed = log.run(command.args(SHORT).args(VERBOSE))?.log;
    match printed.contains(LOADING) {
        true => Ok(()),
        false => bail!("a loaded model is not seen: no `{LOADING}` in the log"),
    }
}

/// The program must end with an error and say why; returns all that it said.
fn refused(
    log: &Log,
    bench: &Bench<'_>,
    (k, v): (&str, &str),
    more: &[&str],
    words: &str,
) -> Result<String> {
    let mut command = bench.on("llama-completion", k, v);
    let (status, printed) = log.run_any(command.args(SHORT).args(more))?;
    if status.code() != Some(1) {
        bail!("K {k}, V {v}: expected exit code 1, found {status}");
    }
    if !printed.log.contains(words) {
        bail!("K {k}, V {v}: expected a message with `{words}`");
    }
    Ok(printed.log)
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
