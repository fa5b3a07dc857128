use std::path::PathBuf;

use anyhow::Result;
use clap::ValueEnum;
use kvforge::capture::Capture;
use kvforge::quality::{self, Entry, Figures, Outcome as Measured, Window};

use crate::calibrate;
use crate::rows::Encoder;
use crate::say::say;
use crate::ship::print_json;
use crate::{Outcome, count};

/// Measure what each format does to captured attention
///
/// Compares every format, and the cache types that llama.cpp has, on queries, keys and
/// values captured from a model: error of keys and values, divergence of the attention
/// rows (KL, in nats), error of the outputs. Coded are keys or values, never both.
#[derive(clap::Args)]
#[command(after_help = "\
Example:
  kvforge quality model.safetensors
  kvforge quality model.safetensors --formats tbq4_0,q4_0_rot --center file --json
  kvforge quality model.safetensors --center self --window 32 --first 4

The capture: tensors blk.L.q [n_heads, n_queries, head_dim], blk.L.k and blk.L.v
[n_kv_heads, n_tokens, head_dim] after RoPE, blk.L.k_mean_other_text [n_kv_heads, head_dim]
for --center file; F16, BF16 or F32. Metadata: model, head_dim, n_heads, n_kv_heads,
n_tokens, kq_scale, q_positions (such as 512,516,...,1020).")]
pub struct Args {
    /// Captured q, k and v
    #[arg(value_name = "KV.safetensors")]
    capture: PathBuf,
    /// Measure these only [default: all]
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    formats: Vec<String>,
    /// Constant to subtract from the keys of a head
    #[arg(long, value_enum, default_value_t = Center::None)]
    center: Center,
    /// With --center file: centre of this calibration instead of the capture's own
    #[arg(long, value_name = "KVCAL")]
    cal: Option<PathBuf>,
    /// Newest keys and values (its own included) that each query reads as fp16, all others
    /// coded; relative errors and bits stay those of all coded
    #[arg(long, value_name = "N", default_value_t = 0)]
    window: usize,
    /// First keys and values that every query reads as fp16, too
    #[arg(long, value_name = "N", default_value_t = 0)]
    first: usize,
    /// Which encoder of the formats
    #[arg(long, value_enum, default_value_t = Encoder::Best)]
    encoder: Encoder,
    /// Print JSON, with the figures of every layer
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Center {
    /// None
    None,
    /// The mean of the captured keys
    #[value(name = "self")]
    Own,
    /// The mean over another text, from the capture or from a calibration
    File,
}

pub fn run(args: Args) -> Result<Outcome> {
    let mut capture = Capture::read(&args.capture)?;
    if let Some(calibration) = &args.cal {
        anyhow::ensure!(
            matches!(args.center, Center::File),
            "--cal gives the centre of --center file; say that too"
        );
        calibrate::centre(calibration, &mut capture)?;
    }
    let formats: Vec<&str> = match args.formats.is_empty() {
        true => quality::names().collect(),
        false => args.formats.iter().map(String::as_str).collect(),
    };
    let center = match args.center {
        Center::None => quality::Center::None,
        Center::Own => quality::Center::Own,
        Center::File => quality::Center::File,
    };
    let window = Window {
        newest: args.window,
        first: args.first,
    };
    let report = quality::measure(&capture, &formats, center, window, args.encoder.into())?;
    if args.json {
        print_json(&serde_json::to_value(&report)?)?;
        return Ok(Outcome::Done);
    }
    say!(
        "{}: {}, {}, {}, head size {}",
        report.model,
        count(capture.layers.len(), "layer"),
        count(capture.n_heads, "query head"),
        count(capture.n_kv_heads, "kv head"),
        capture.head_dim,
    );
    if window != Window::NONE {
        say!(
            "read as fp16: the newest {} and the first {} tokens of each query",
            window.newest,
            window.first
        );
    }
    say!("{HEADINGS}");
    report
        .formats
        .iter()
        .for_each(|entry| say!("{}", line(entry)));
    Ok(Outcome::Done)
}

const HEADINGS: &str = "
                         relative error      attention KL, nats            error of the output
format           bits    K        V        mean     median   max      K coded  V coded";

fn line(entry: &Entry) -> String {
    let start = format!("{:<15}  {:<6}", entry.format, entry.bits_per_value);
    match &entry.outcome {
        Measured::NotRun { not_run } => format!("{start}  not run: {not_run}"),
        Measured::Measured { figures, .. } => format!("{start}  {}", columns(figures)),
    }
}

fn columns(f: &Figures) -> String {
    let columns = [
        Some(f.k_rel_mse),
        f.v_rel_mse,
        Some(f.attention_kl_mean),
        Some(f.attention_kl_median),
        Some(f.attention_kl_max),
        Some(f.output_rel_error_k),
        f.output_rel_error_v,
    ];
    let columns = columns.map(|x| format!("{:<7}", x.map_or("-".into(), three_digits)));
    columns.join("  ").trim_end().to_string()
}

/// `12.3`, `0.0123`, `1.23e-5`.
fn three_digits(x: f64) -> String {
    if x != 0.0 && x.abs() < 1e-3 {
        return format!("{x:.2e}");
    }
    let before_point = x.abs().max(1e-3).log10().floor() as i32;
    format!("{x:.*}", (2 - before_point).max(0) as usize)
}
