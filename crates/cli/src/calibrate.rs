use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use kvforge::calibration::{Builder, Calibration, Layer, SINKS, Turning};
use kvforge::capture::Part;
use kvforge_llama::probe::Record;
use serde_json::{Value, json};

use crate::probe::Source;
use crate::say::say;
use crate::ship::print_json;
use crate::{Outcome, count};

/// Tokens of a sequence.
const CHUNK: u32 = 512;

/// Measure a model's mean keys, which its compressed caches are then centred on
///
/// Runs a text through the model in a built tree, takes RoPE off the keys, and leaves
/// their means in a file. From it follows the centre for any context length. Once per
/// model is enough, and the text need not be like the one to come.
#[derive(clap::Args)]
#[command(after_help = "\
Example:
  kvforge calibrate --tree ~/llama.cpp --model SmolLM2-135M-Instruct.Q4_1.gguf
  kvforge calibrate --show SmolLM2-135M-Instruct.Q4_1.kvcal")]
pub struct Args {
    #[command(flatten)]
    source: Option<Source>,
    /// Most tokens of the text to use
    #[arg(long, value_name = "N", default_value_t = 2048,
          value_parser = clap::value_parser!(u32).range(8..=1 << 24))]
    tokens: u32,
    /// File to write [default: the model's name, with .kvcal]
    #[arg(long, short, value_name = "KVCAL")]
    output: Option<PathBuf>,
    /// Print what is in such a file instead
    #[arg(long, value_name = "KVCAL",
          conflicts_with_all = ["tree", "model", "text", "build_dir", "tokens", "output"])]
    show: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> Result<Outcome> {
    match (&args.show, &args.source) {
        (Some(path), _) => show(&Calibration::read(path)?, args.json)?,
        (None, Some(source)) => calibrate(&args, source)?,
        (None, None) => anyhow::bail!("expected --tree and --model, or --show; see --help"),
    }
    Ok(Outcome::Done)
}

fn calibrate(args: &Args, source: &Source) -> Result<()> {
    let output = match &args.output {
        Some(output) => output.clone(),
        None => source.model().with_extension("kvcal"),
    };
    source.keep(&output)?;
    let mut builder = None;
    source.run(args.tokens, CHUNK, &mut |record| {
        sum_up(&mut builder, record)
    })?;
    let builder = builder.context("the probe told of no model")?;
    let left_alone: Vec<(u32, String)> = builder
        .left_alone()
        .map(|(n, why)| (n, why.to_string()))
        .collect();
    let calibration = builder.finish()?;
    kvforge::write_atomic(&output, calibration.bytes())?;

    let content = calibration.content();
    if args.json {
        let mut json = summary(&calibration);
        json["file"] = json!(output.display().to_string());
        json["leftAlone"] = left_alone
            .iter()
            .map(|(layer, reason)| json!({ "layer": layer, "reason": reason }))
            .collect();
        return print_json(&json);
    }
    for (layer, reason) in &left_alone {
        say!("layer {layer} is left alone: {reason}");
    }
    if content.n_tokens < u64::from(args.tokens) - u64::from(args.tokens.div_ceil(CHUNK) * SINKS) {
        say!(
            "the text has fewer than the {} tokens asked for",
            args.tokens
        );
    }
    say!(
        "{}: {} of {}, means over {} tokens, hash {:016x}",
        output.display(),
        count(content.n_layers as usize, "layer"),
        content.name(),
        content.n_tokens,
        content.hash,
    );
    Ok(())
}

/// One thing that the probe tells.
fn sum_up(builder: &mut Option<Builder>, record: Record) -> Result<()> {
    if let Record::Model { identity, name } = record {
        *builder = Some(Builder::new(identity, &name));
        return Ok(());
    }
    let builder = builder.as_mut().context("the probe told of no model")?;
    match record {
        Record::Rope {
            layer,
            head_dim,
            rope,
            step,
            check_position,
            check,
        } => {
            let turning = Turning {
                rope,
                step: &step,
                check_position,
                check: &check,
            };
            builder.layer(layer, head_dim, turning);
        }
        Record::Vectors {
            layer,
            part,
            n_heads,
            first,
            values,
            ..
        } => match part {
            Part::Query => builder.queries(layer, n_heads, first, &values)?,
            Part::Key => builder.keys(layer, n_heads, first, &values)?,
            Part::Value => {}
        },
        Record::LeftAlone { layer, reason } => builder.leave_alone(layer, reason),
        Record::Model { .. } | Record::Scale { .. } => {}
    }
    Ok(())
}

fn show(calibration: &Calibration, as_json: bool) -> Result<()> {
    if as_json {
        return print_json(&summary(calibration));
    }
    let content = calibration.content();
    say!(
        "{} (model {:016x}): {}, means over {} tokens, hash {:016x}",
        content.name(),
        content.model,
        count(content.n_layers as usize, "layer"),
        content.n_tokens,
        content.hash,
    );
    say!("{HEADINGS}");
    for layer in content.layers() {
        let rope = match layer.has_rope() {
            true => format!(
                "base {}, {}",
                layer.rope.freq_base,
                count(layer.n_pairs(), "pair")
            ),
            false => "none".into(),
        };
        say!(
            "{:>5}  {:>4}  {:>5}  {:>4}  {:>12.1} %  {rope}",
            layer.index,
            layer.n_head_kv(),
            layer.n_head(),
            layer.head_dim(),
            100.0 * share(&layer),
        );
    }
    Ok(())
}

const HEADINGS: &str = "
       kv     query  head  energy in the
layer  heads  heads  size  mean before RoPE";

/// Part of the keys' energy before RoPE that is their mean's.
fn share(layer: &Layer) -> f64 {
    let energy: f64 = layer.k_square().map(f64::from).sum();
    let of_mean: f64 = layer.k_mean().map(|m| f64::from(m).powi(2)).sum();
    match energy > 0.0 {
        true => of_mean / energy,
        false => 0.0,
    }
}

fn summary(calibration: &Calibration) -> Value {
    let content = calibration.content();
    let layers = content.layers().map(|layer| {
        let r = layer.rope;
        let rope = json!({
            "mode": r.mode,
            "nDims": r.n_dims,
            "nCtxOrig": r.n_ctx_orig,
            "freqBase": r.freq_base,
            "freqScale": r.freq_scale,
            "extFactor": r.ext_factor,
            "attnFactor": r.attn_factor,
            "betaFast": r.beta_fast,
            "betaSlow": r.beta_slow,
            "hasFactors": r.has_factors,
            "nPairs": layer.n_pairs(),
        });
        json!({
            "layer": layer.index,
            "nHeadKv": layer.n_head_kv(),
            "nHead": layer.n_head(),
            "headDim": layer.head_dim(),
            "rope": if layer.has_rope() { rope } else { Value::Null },
            "energyInMean": share(&layer),
        })
    });
    json!({
        "version": kvforge_calibration::VERSION,
        "name": content.name(),
        "model": format!("{:016x}", content.model),
        "hash": format!("{:016x}", content.hash),
        "nTokens": content.n_tokens,
        "layers": layers.collect::<Vec<_>>(),
    })
}

/// The calibration at `path`, given to a capture.
pub fn centre(path: &Path, capture: &mut kvforge::capture::Capture) -> Result<()> {
    let calibration = Calibration::read(path)?;
    calibration
        .centre(capture)
        .with_context(|| path.display().to_string())
}
