//! `encode`, `decode` and `score`: arrays of rows in and out of a format.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;
use clap::builder::PossibleValuesParser;
use kvforge::npy::Array;
use kvforge::{rows, write_atomic};
use kvforge_formats::{Domain, FORMATS, FormatSpec};

use crate::Outcome;

/// The format that a verb works on.
#[derive(clap::Args)]
struct FormatArg {
    /// Format of the blocks (see `kvforge formats`)
    #[arg(
        long,
        value_name = "F",
        value_parser = PossibleValuesParser::new(FORMATS.iter().map(|f| f.name))
    )]
    format: String,
}

impl FormatArg {
    fn spec(&self) -> Result<&'static FormatSpec, kvforge::Error> {
        rows::format(&self.format)
    }
}

/// Which of a format's encoders.
#[derive(Clone, Copy, ValueEnum)]
pub enum Encoder {
    /// Byte for byte what the public encoder writes
    Reference,
    /// Less error, for the same decoders
    Best,
}

impl From<Encoder> for rows::Encoder {
    fn from(encoder: Encoder) -> rows::Encoder {
        match encoder {
            Encoder::Reference => rows::Encoder::Reference,
            Encoder::Best => rows::Encoder::Best,
        }
    }
}

/// Encode rows of a .npy file into blocks
///
/// The input is fp32, [rows, head_dim] (one dimension is one row); the output is the rows' blocks, one after the
/// other, and nothing else.
#[derive(clap::Args)]
#[command(after_help = "\
Example:
  kvforge encode --format tbq4_0 keys.npy keys.bin")]
pub struct Encode {
    #[command(flatten)]
    format: FormatArg,
    /// Which encoder
    #[arg(long, value_enum, default_value_t = Encoder::Reference)]
    encoder: Encoder,
    /// Rows to encode, .npy
    #[arg(value_name = "IN.npy")]
    input: PathBuf,
    /// File to write the blocks to
    #[arg(value_name = "OUT.bin")]
    output: PathBuf,
}

/// Decode blocks into rows of a .npy file
#[derive(clap::Args)]
#[command(after_help = "\
Example:
  kvforge decode --format tbq4_0 keys.bin decoded.npy")]
pub struct Decode {
    #[command(flatten)]
    format: FormatArg,
    /// Which vectors: as they were encoded, or as they were coded (rotated, or the sketch)
    #[arg(long, default_value = "original", value_parser = ["original", "rotated"])]
    domain: String,
    /// Values of a row
    #[arg(long, value_name = "N", default_value_t = 128)]
    head_dim: u32,
    /// Blocks, as `kvforge encode` writes them
    #[arg(value_name = "IN.bin")]
    input: PathBuf,
    /// File to write the rows to, .npy
    #[arg(value_name = "OUT.npy")]
    output: PathBuf,
}

/// Dot products of queries with encoded rows
///
/// The queries are as they are, not rotated, fp32 [n, head_dim]. A row is as long as a
/// query: the blocks do not say. The output is [n, rows], not scaled. For qjl1_256 it is the estimate with the projection of seed 42.
#[derive(clap::Args)]
#[command(after_help = "\
Example:
  kvforge score --format tbq4_0 --query queries.npy keys.bin scores.npy")]
pub struct Score {
    #[command(flatten)]
    format: FormatArg,
    /// Queries, .npy; their length is that of a row
    #[arg(long, value_name = "Q.npy")]
    query: PathBuf,
    /// Apply the residual bit of q4_polar
    #[arg(long, value_name = "0|1", default_value = "0", value_parser = ["0", "1"])]
    use_qjl: String,
    /// Blocks, as `kvforge encode` writes them
    #[arg(value_name = "IN.bin")]
    input: PathBuf,
    /// File to write the scores to, .npy
    #[arg(value_name = "OUT.npy")]
    output: PathBuf,
}

pub fn encode(args: Encode) -> Result<Outcome> {
    keep_input(&args.input, &args.output)?;
    let rows = Array::read(&args.input)?;
    let bytes = rows::encode(args.format.spec()?, args.encoder.into(), &rows)
        .with_context(|| args.input.display().to_string())?;
    write_atomic(&args.output, &bytes)?;
    Ok(Outcome::Done)
}

pub fn decode(args: Decode) -> Result<Outcome> {
    keep_input(&args.input, &args.output)?;
    let domain = match args.domain.as_str() {
        "rotated" => Domain::Rotated,
        _ => Domain::Original,
    };
    let blocks = read(&args.input)?;
    let head_dim = args.head_dim as usize;
    let spec = args.format.spec()?;
    let rows = rows::decode(spec, domain, &blocks, head_dim)
        .with_context(|| format!("{} (--head-dim {head_dim})", args.input.display()))?;
    finite(&args.input, spec, &rows, |i| i / rows.cols())?;
    rows.write(&args.output)?;
    Ok(Outcome::Done)
}

pub fn score(args: Score) -> Result<Outcome> {
    keep_input(&args.input, &args.output)?;
    keep_input(&args.query, &args.output)?;
    let queries = Array::read(&args.query)?;
    let blocks = read(&args.input)?;
    let residual = args.use_qjl == "1";
    let (input, query) = (args.input.display(), args.query.display());
    let spec = args.format.spec()?;
    let scores = rows::score(spec, &queries, &blocks, residual)
        .with_context(|| format!("{input} with the queries of {query}"))?;
    finite(&args.input, spec, &scores, |i| i % scores.cols())?;
    scores.write(&args.output)?;
    Ok(Outcome::Done)
}

/// Refuses to write the result over what it is made of.
pub fn keep_input(input: &Path, output: &Path) -> Result<()> {
    if kvforge_files::same(input, output) {
        bail!(
            "{}: expected another file than the input {}, found the same one; name a new file",
            output.display(),
            input.display()
        );
    }
    Ok(())
}

/// Refuses what came of blocks that no encoder writes; `row` says which of them made the
/// value at an index.
fn finite(
    input: &Path,
    spec: &FormatSpec,
    made: &Array,
    row: impl Fn(usize) -> usize,
) -> Result<()> {
    if let Some(i) = made.data().iter().position(|v| !v.is_finite()) {
        bail!(
            "{}: row {}: expected blocks of {} with finite values, found {}; it is damaged, or of another format",
            input.display(),
            row(i),
            spec.name,
            made.data()[i]
        );
    }
    Ok(())
}

fn read(path: &Path) -> Result<Vec<u8>> {
    kvforge_files::read(path).with_context(|| format!("{}: cannot read the file", path.display()))
}
