use std::path::PathBuf;

use anyhow::{Context as _, Result};
use kvforge::capture::Builder;
use kvforge_llama::probe::Record;

use crate::probe::Source;
use crate::say::say;
use crate::{Outcome, count};

/// Capture queries, keys and values of a model, for `kvforge quality`
///
/// Runs one sequence of a text through the model in a built tree and keeps keys and
/// values of all positions, and 128 queries a head of the second half.
#[derive(clap::Args)]
#[command(after_help = "\
Example:
  kvforge capture --tree ~/llama.cpp --model model.gguf --layers 0,7,14 -o kv.safetensors
  kvforge quality kv.safetensors")]
pub struct Args {
    #[command(flatten)]
    source: Source,
    /// Most tokens of the text to use
    #[arg(long, value_name = "N", default_value_t = 1024,
          value_parser = clap::value_parser!(u32).range(8..=1 << 16))]
    tokens: u32,
    /// Capture these layers only [default: all]
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    layers: Vec<usize>,
    /// File to write
    #[arg(long, short, value_name = "KV.safetensors")]
    output: PathBuf,
}

pub fn run(args: Args) -> Result<Outcome> {
    args.source.keep(&args.output)?;
    let mut builder = None;
    args.source.run(args.tokens, args.tokens, &mut |record| {
        collect(&mut builder, &args.layers, record)
    })?;
    let capture = builder.context("the probe told of no model")?.finish()?;
    capture.write(&args.output)?;
    if capture.n_tokens < args.tokens as usize {
        say!(
            "the text has fewer than the {} tokens asked for",
            args.tokens
        );
    }
    say!(
        "{}: {} of {}, {}, {} a head",
        args.output.display(),
        count(capture.layers.len(), "layer"),
        capture.model,
        count(capture.n_tokens, "token"),
        match capture.q_positions.len() {
            1 => "1 query".into(),
            n => format!("{n} queries"),
        },
    );
    Ok(Outcome::Done)
}

/// One thing that the probe tells.
fn collect(builder: &mut Option<Builder>, layers: &[usize], record: Record) -> Result<()> {
    if let Record::Model { name, .. } = record {
        *builder = Some(Builder::new(&name, layers));
        return Ok(());
    }
    let builder = builder.as_mut().context("the probe told of no model")?;
    match record {
        Record::Scale { layer, scale } => builder.scale(layer as usize, scale),
        Record::Vectors {
            layer,
            part,
            n_heads,
            head_dim,
            first,
            values,
        } => {
            let shape = [n_heads, head_dim];
            builder.add(layer as usize, part, shape, first as usize, &values)?;
        }
        Record::LeftAlone { layer, reason } => say!("layer {layer} is left alone: {reason}"),
        Record::Model { .. } | Record::Rope { .. } => {}
    }
    Ok(())
}
