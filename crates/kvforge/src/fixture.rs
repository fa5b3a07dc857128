//! The public test files of these formats: blocks, a query, and what a kernel should
//! make of them.
//!
//! | `kernel` | query | read as | expected |
//! |---|---|---|---|
//! | `turbo3` | rotated | `tbq3_0`, or `turbo3_legacy`, which takes as many bytes | scores |
//! | `turbo4` | rotated | `tbq4_0` (18-byte blocks), `turbo4_legacy` (66-byte blocks) | scores |
//! | `turbo3_tcq` | rotated | `tbq3_tcq` | scores |
//! | `qjl` | sketch | `qjl1_256` | scores |
//! | `polar` | raw | `q4_polar`, with the residual bit if `use_qjl` | scores |
//! | `polar_preht` | `H_128 q`, not normalised | `q4_polar`, without and with the residual bit | scores |
//! | `fused_attn_qjl_tbq` | sketch | `qjl1_256` keys, `tbq3_0` values | outputs |
//! | `fused_attn_qjl_polar` | sketch | `qjl1_256` keys, `q4_polar` values | outputs |
//!
//! Everything is computed from the reference decoders in fp64.

use std::path::Path;

use kvforge_formats::{Domain, FormatSpec, by_name};
use serde::Deserialize;

use crate::npy::Array;
use crate::{Error, file, rows};

/// How far an output may be from the expected one, as in the public harness.
pub const TOLERANCE: f64 = 1e-3;

/// What a fixture's blocks gave when they were read as one format.
#[derive(Clone, Debug)]
pub struct Reading {
    /// The format, and how it was read.
    pub codec: String,
    /// Outputs that were compared.
    pub outputs: usize,
    /// The largest difference.
    pub max_diff: f64,
    /// Index of the output that differs most.
    pub worst: usize,
    /// That output.
    pub found: f64,
    /// What it should be.
    pub expected: f64,
}

impl Reading {
    /// Whether every output is within [`TOLERANCE`].
    pub fn fits(&self) -> bool {
        self.max_diff < TOLERANCE
    }
}

/// What came of a fixture.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// Its kind.
    pub kernel: &'static str,
    /// Every way in which its blocks may be read; never empty.
    pub readings: Vec<Reading>,
}

impl Verdict {
    /// The reading that agrees with the fixture, if one does.
    pub fn fitting(&self) -> Option<&Reading> {
        self.readings.iter().find(|r| r.fits())
    }
}

/// Reads a fixture and compares every output of it.
///
/// # Errors
/// [`Error::Io`]; [`Error::Malformed`] if it is of a kind or block size that is not
/// readable, or its arrays do not fit together.
pub fn verify(path: &Path) -> Result<Verdict, Error> {
    let bytes = file::read(path)?;
    let fixture: Fixture = serde_json::from_slice(&bytes)
        .map_err(|e| Error::malformed(path, "a fixture of a known kind", e.to_string()))?;
    fixture.check().map_err(|e| match e {
        Error::Mismatch { expected, found } => Error::malformed(path, expected, found),
        other => Error::malformed(path, "a fixture that can be decoded", other.to_string()),
    })
}

#[derive(Deserialize)]
#[serde(tag = "kernel", rename_all = "snake_case")]
enum Fixture {
    Turbo3(Turbo),
    Turbo4(Turbo),
    Turbo3Tcq(Turbo),
    Qjl(Qjl),
    Polar(Polar),
    PolarPreht(PolarPreht),
    FusedAttnQjlTbq(Fused),
    FusedAttnQjlPolar(Fused),
}

#[derive(Deserialize)]
struct Turbo {
    head_dim: usize,
    n_kv: usize,
    block_bytes: usize,
    blocks_per_kv: usize,
    q: Vec<f64>,
    k_blocks: Vec<u8>,
    expected_scores: Vec<f64>,
}

#[derive(Deserialize)]
struct Qjl {
    head_dim: usize,
    proj_dim: usize,
    n_heads: usize,
    n_kv_heads: usize,
    n_tokens: usize,
    block_bytes: usize,
    q_sketch: Vec<f64>,
    k_blocks: Vec<u8>,
    expected_scores: Vec<f64>,
}

#[derive(Deserialize)]
struct Polar {
    head_dim: usize,
    n_rows: usize,
    block_bytes: usize,
    use_qjl: u8,
    q: Vec<f64>,
    k_blocks: Vec<u8>,
    expected_scores: Vec<f64>,
}

#[derive(Deserialize)]
struct PolarPreht {
    head_dim: usize,
    n_rows: usize,
    block_bytes: usize,
    hadamard_inv_scale: f64,
    hq: Vec<f64>,
    k_blocks: Vec<u8>,
    k_blocks_qjl: Vec<u8>,
    expected_scores: Vec<f64>,
    expected_scores_qjl: Vec<f64>,
}

#[derive(Deserialize)]
struct Fused {
    head_dim: usize,
    proj_dim: usize,
    k_block_bytes: usize,
    v_block_bytes: usize,
    v_blocks_per_token: usize,
    #[serde(default)]
    use_qjl: u8,
    sm_scale: f64,
    q_is_pre_projected: u8,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    n_heads: usize,
    n_kv_heads: usize,
    n_kv: usize,
    #[serde(default)]
    causal: u8,
    /// Position of the one query; it matters if `causal`.
    #[serde(default)]
    q_pos_base: usize,
    q_sketch: Vec<f64>,
    k_blocks: Vec<u8>,
    v_blocks: Vec<u8>,
    expected_out: Vec<f64>,
}

impl Fixture {
    fn check(&self) -> Result<Verdict, Error> {
        let (kernel, readings) = match self {
            Fixture::Turbo3(f) => ("turbo3", f.check(&["tbq3_0", "turbo3_legacy"])?),
            Fixture::Turbo4(f) => ("turbo4", f.check(&["tbq4_0", "turbo4_legacy"])?),
            Fixture::Turbo3Tcq(f) => ("turbo3_tcq", f.check(&["tbq3_tcq"])?),
            Fixture::Qjl(f) => ("qjl", vec![f.check()?]),
            Fixture::Polar(f) => ("polar", vec![f.check()?]),
            Fixture::PolarPreht(f) => ("polar_preht", vec![f.check()?]),
            Fixture::FusedAttnQjlTbq(f) => ("fused_attn_qjl_tbq", vec![f.check("tbq3_0")?]),
            Fixture::FusedAttnQjlPolar(f) => ("fused_attn_qjl_polar", vec![f.check("q4_polar")?]),
        };
        Ok(Verdict { kernel, readings })
    }
}

impl Turbo {
    fn check(&self, codecs: &[&str]) -> Result<Vec<Reading>, Error> {
        count("q", self.q.len(), self.head_dim)?;
        let row_bytes = self.block_bytes.saturating_mul(self.blocks_per_kv);
        let known: Vec<_> = codecs.iter().filter_map(|name| by_name(name)).collect();
        let fitting: Vec<_> = known
            .iter()
            .filter(|spec| spec.row_bytes(self.head_dim) == Ok(row_bytes))
            .collect();
        if fitting.is_empty() {
            let sizes = known.iter().map(|spec| {
                let (bytes, len) = (spec.block_bytes, spec.block_len);
                format!("{} ({bytes} bytes for {len} values)", spec.name)
            });
            return Err(Error::mismatch(
                format!("blocks of {}", sizes.collect::<Vec<_>>().join(" or ")),
                format!(
                    "block_bytes {}, blocks_per_kv {} and head_dim {}",
                    self.block_bytes, self.blocks_per_kv, self.head_dim
                ),
            ));
        }
        let read = |spec: &&&'static FormatSpec| {
            let keys = keys(
                spec,
                Domain::Rotated,
                &self.k_blocks,
                self.head_dim,
                self.n_kv,
            )?;
            let scores = keys.iter().map(|k| dot(&self.q, k)).collect();
            compare(spec.name, scores, &self.expected_scores)
        };
        fitting.iter().map(read).collect()
    }
}

impl Qjl {
    fn check(&self) -> Result<Reading, Error> {
        let spec = qjl(self.head_dim, self.proj_dim, self.block_bytes)?;
        let group = group(self.n_heads, self.n_kv_heads)?;
        let sketch = sketch_len(spec, self.head_dim);
        count(
            "q_sketch",
            self.q_sketch.len(),
            self.n_heads.saturating_mul(sketch),
        )?;
        let n_rows = self.n_kv_heads.saturating_mul(self.n_tokens);
        let keys = keys(spec, Domain::Rotated, &self.k_blocks, self.head_dim, n_rows)?;
        let queries = self.q_sketch.chunks_exact(sketch).enumerate();
        let scores = queries.flat_map(|(h, q)| {
            let first = h / group * self.n_tokens;
            keys.iter()
                .skip(first)
                .take(self.n_tokens)
                .map(|k| dot(q, k))
        });
        compare(spec.name, scores.collect(), &self.expected_scores)
    }
}

impl Polar {
    fn check(&self) -> Result<Reading, Error> {
        let spec = polar(self.block_bytes)?;
        count("q", self.q.len(), self.head_dim)?;
        let residual = self.use_qjl != 0;
        let keys = polar_rows(
            spec,
            Domain::Original,
            &self.k_blocks,
            self.head_dim,
            self.n_rows,
            residual,
        )?;
        let scores = keys.iter().map(|k| dot(&self.q, k)).collect();
        let codec = match residual {
            true => "q4_polar with the residual bit",
            false => spec.name,
        };
        compare(codec, scores, &self.expected_scores)
    }
}

impl PolarPreht {
    fn check(&self) -> Result<Reading, Error> {
        let spec = polar(self.block_bytes)?;
        count("hq", self.hq.len(), self.head_dim)?;
        // The query comes with the butterfly only, the coded domain has it orthonormal.
        let scale = self.hadamard_inv_scale.sqrt();
        let mut scores = vec![];
        for (blocks, residual) in [(&self.k_blocks, false), (&self.k_blocks_qjl, true)] {
            let coded = polar_rows(
                spec,
                Domain::Rotated,
                blocks,
                self.head_dim,
                self.n_rows,
                residual,
            )?;
            scores.extend(coded.iter().map(|k| scale * dot(&self.hq, k)));
        }
        let expected = [&self.expected_scores[..], &self.expected_scores_qjl].concat();
        compare(
            "q4_polar without and with the residual bit",
            scores,
            &expected,
        )
    }
}

impl Fused {
    fn check(&self, v_format: &str) -> Result<Reading, Error> {
        let k_spec = qjl(self.head_dim, self.proj_dim, self.k_block_bytes)?;
        let v_spec = rows::format(v_format)?;
        let residual = self.use_qjl != 0;
        count("v_block_bytes", self.v_block_bytes, v_spec.block_bytes)?;
        let v_len = self.v_blocks_per_token.saturating_mul(v_spec.block_len);
        count("values of v_blocks_per_token blocks", v_len, self.head_dim)?;
        count("q_is_pre_projected", self.q_is_pre_projected.into(), 1)?;

        let (mut outputs, mut expected) = (vec![], vec![]);
        for case in &self.cases {
            let group = group(case.n_heads, case.n_kv_heads)?;
            let sketch = sketch_len(k_spec, self.head_dim);
            count(
                "q_sketch",
                case.q_sketch.len(),
                case.n_heads.saturating_mul(sketch),
            )?;
            let n_rows = case.n_kv_heads.saturating_mul(case.n_kv);
            let k = keys(
                k_spec,
                Domain::Rotated,
                &case.k_blocks,
                self.head_dim,
                n_rows,
            )?;
            let v = if v_format == "q4_polar" {
                polar_rows(
                    v_spec,
                    Domain::Original,
                    &case.v_blocks,
                    self.head_dim,
                    n_rows,
                    residual,
                )?
            } else {
                keys(
                    v_spec,
                    Domain::Original,
                    &case.v_blocks,
                    self.head_dim,
                    n_rows,
                )?
            };
            let seen = match case.causal {
                0 => case.n_kv,
                _ => case.n_kv.min(case.q_pos_base.saturating_add(1)),
            };
            for (h, q) in case.q_sketch.chunks_exact(sketch).enumerate() {
                let first = h / group * case.n_kv;
                let seen_of = |rows| Array::iter(rows).skip(first).take(seen);
                let scores: Vec<f64> = seen_of(&k).map(|k| self.sm_scale * dot(q, k)).collect();
                outputs.extend(attend(&scores, seen_of(&v), self.head_dim));
            }
            expected.extend_from_slice(&case.expected_out);
        }
        let codec = format!("{} keys, {v_format} values", k_spec.name);
        compare(&codec, outputs, &expected)
    }
}

/// `sum softmax(scores) v`.
fn attend<'a>(scores: &[f64], v: impl Iterator<Item = &'a [f32]>, head_dim: usize) -> Vec<f64> {
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
    let sum: f64 = weights.iter().sum();
    let mut output = vec![0.0; head_dim];
    for (weight, v) in weights.iter().zip(v) {
        for (o, v) in output.iter_mut().zip(v) {
            *o += weight / sum * *v as f64;
        }
    }
    output
}

fn compare(codec: &str, found: Vec<f64>, expected: &[f64]) -> Result<Reading, Error> {
    count("expected outputs", expected.len(), found.len())?;
    let differences = found.iter().zip(expected).map(|(f, e)| (f - e).abs());
    // A NaN counts as larger than everything, and fits nothing.
    let worst = differences.enumerate().max_by(|a, b| a.1.total_cmp(&b.1));
    let Some((worst, max_diff)) = worst else {
        return Err(Error::mismatch("outputs to compare", "none"));
    };
    Ok(Reading {
        codec: codec.into(),
        outputs: found.len(),
        max_diff,
        worst,
        found: found[worst],
        expected: expected[worst],
    })
}

/// Decoded rows, of which there have to be `n_rows`.
fn keys(
    spec: &FormatSpec,
    domain: Domain,
    blocks: &[u8],
    head_dim: usize,
    n_rows: usize,
) -> Result<Array, Error> {
    let rows = rows::decode(spec, domain, blocks, head_dim)?;
    count("rows of blocks", rows.rows(), n_rows)?;
    Ok(rows)
}

/// The same of q4_polar, with the residual bit or without it.
fn polar_rows(
    spec: &FormatSpec,
    domain: Domain,
    blocks: &[u8],
    head_dim: usize,
    n_rows: usize,
    residual: bool,
) -> Result<Array, Error> {
    if !residual {
        return keys(spec, domain, blocks, head_dim, n_rows);
    }
    let rows = rows::decode_residual(spec, domain, blocks, head_dim)?;
    count("rows of blocks", rows.rows(), n_rows)?;
    Ok(rows)
}

fn polar(block_bytes: usize) -> Result<&'static FormatSpec, Error> {
    let spec = rows::format("q4_polar")?;
    count("block_bytes", block_bytes, spec.block_bytes)?;
    Ok(spec)
}

fn qjl(head_dim: usize, proj_dim: usize, block_bytes: usize) -> Result<&'static FormatSpec, Error> {
    let spec = rows::format("qjl1_256")?;
    count("block_bytes", block_bytes, spec.block_bytes)?;
    count("proj_dim", proj_dim, sketch_len(spec, head_dim))?;
    Ok(spec)
}

/// Values of a sketch of a vector of `head_dim` values.
fn sketch_len(spec: &FormatSpec, head_dim: usize) -> usize {
    head_dim / spec.block_len * spec.len_in(Domain::Rotated)
}

/// Query heads for one kv head.
fn group(n_heads: usize, n_kv_heads: usize) -> Result<usize, Error> {
    if n_kv_heads == 0 || n_heads == 0 || !n_heads.is_multiple_of(n_kv_heads) {
        return Err(Error::mismatch(
            "n_heads to be a multiple of n_kv_heads, neither of them 0",
            format!("{n_heads} and {n_kv_heads}"),
        ));
    }
    Ok(n_heads / n_kv_heads)
}

fn count(what: &str, found: usize, expected: usize) -> Result<(), Error> {
    if found == expected {
        return Ok(());
    }
    Err(Error::mismatch(
        format!("{what}: {expected}"),
        found.to_string(),
    ))
}

fn dot(a: &[f64], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * *b as f64).sum()
}
