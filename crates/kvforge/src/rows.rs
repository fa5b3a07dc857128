//! Arrays of rows in and out of a format.
//!
//! A row is a head's vector of `head_dim` values and takes
//! [`row_bytes(head_dim)`](FormatSpec::row_bytes) bytes; rows follow each other
//! without a gap. The bytes hold no shape, so that a reader has to know both the
//! format and the head size.

pub use kvforge_cpu::Encoder;
use kvforge_formats::q4_polar::{self, Residual};
use kvforge_formats::{CodecError, Domain, Encode, FORMATS, FormatSpec, by_name};
use rayon::prelude::*;

use crate::Error;
use crate::npy::Array;

fn encoder(spec: &FormatSpec, encoder: Encoder) -> Encode {
    match encoder {
        Encoder::Reference => spec.encode,
        Encoder::Best => spec.encode_best,
    }
}

/// The format called `name`.
///
/// # Errors
/// [`Error::UnknownFormat`].
pub fn format(name: &str) -> Result<&'static FormatSpec, Error> {
    by_name(name).ok_or_else(|| Error::UnknownFormat {
        name: name.into(),
        known: names(FORMATS.iter().map(|f| f.name)),
    })
}

pub(crate) fn names<'a>(all: impl Iterator<Item = &'a str>) -> String {
    all.collect::<Vec<_>>().join(", ")
}

/// Encodes rows `[rows, head_dim]` into `rows * row_bytes(head_dim)` bytes.
///
/// # Errors
/// [`Error::Row`] for the first row that the format cannot hold;
/// [`Error::Mismatch`] if the row is not made of whole blocks.
pub fn encode(spec: &FormatSpec, which: Encoder, x: &Array) -> Result<Vec<u8>, Error> {
    let row_bytes = row_bytes(spec, x.cols())?;
    let mut bytes = vec![0; x.rows() * row_bytes];
    let encode = encoder(spec, which);
    let rows = bytes
        .par_chunks_exact_mut(row_bytes)
        .zip(x.data().par_chunks_exact(x.cols()));
    first_error(rows.map(|(bytes, x)| encode(x, bytes)))?;
    Ok(bytes)
}

/// Decodes rows of `head_dim` values into `[rows, head_dim]`, or into
/// `[rows, head_dim / block_len * len_in(Rotated)]` in [`Domain::Rotated`].
///
/// # Errors
/// [`Error::Mismatch`] if the bytes are not whole rows.
pub fn decode(
    spec: &FormatSpec,
    domain: Domain,
    bytes: &[u8],
    head_dim: usize,
) -> Result<Array, Error> {
    decode_with(spec, domain, bytes, head_dim, |bytes, x| {
        (spec.decode)(bytes, x, domain)
    })
}

/// The dot product, in fp64, of every query with every decoded row of the
/// original domain: `[n, head_dim]` queries give `[n, rows]` scores.
///
/// For `qjl1_256` that is the published estimator with the projection of seed
/// 42, since the decoded row is what the estimator takes the product with.
/// `residual` adds what the residual bit of `q4_polar` says (`use_qjl`).
///
/// # Errors
/// [`Error::Mismatch`] if the bytes are not whole rows of the queries' length,
/// there is no row, a query is not finite, or the format has no residual.
pub fn score(
    spec: &FormatSpec,
    queries: &Array,
    bytes: &[u8],
    residual: bool,
) -> Result<Array, Error> {
    let head_dim = queries.cols();
    if let Some(i) = queries.data().iter().position(|v| !v.is_finite()) {
        return Err(Error::mismatch(
            "finite queries",
            format!("{} in query {}", queries.data()[i], i / head_dim),
        ));
    }
    let rows = if residual {
        decode_residual(spec, Domain::Original, bytes, head_dim)?
    } else {
        decode(spec, Domain::Original, bytes, head_dim)?
    };
    let scores = queries
        .data()
        .par_chunks_exact(head_dim)
        .flat_map_iter(|q| rows.iter().map(|k| dot(q, k) as f32))
        .collect();
    Array::new(rows.rows(), scores)
}

/// [`decode`] with the residual bit of `q4_polar`.
pub(crate) fn decode_residual(
    spec: &FormatSpec,
    domain: Domain,
    bytes: &[u8],
    head_dim: usize,
) -> Result<Array, Error> {
    if *spec != q4_polar::SPEC {
        return Err(Error::mismatch(
            "q4_polar, the only format with a residual bit",
            spec.name,
        ));
    }
    decode_with(spec, domain, bytes, head_dim, |bytes, x| {
        q4_polar::decode(bytes, x, domain, Residual::Added)
    })
}

fn decode_with(
    spec: &FormatSpec,
    domain: Domain,
    bytes: &[u8],
    head_dim: usize,
    decode: impl Fn(&[u8], &mut [f32]) -> Result<(), CodecError> + Sync,
) -> Result<Array, Error> {
    let row_bytes = row_bytes(spec, head_dim)?;
    if !bytes.len().is_multiple_of(row_bytes) {
        return Err(Error::mismatch(
            format!(
                "whole rows of {row_bytes} bytes ({head_dim} values of {})",
                spec.name
            ),
            format!("{} bytes", bytes.len()),
        ));
    }
    let cols = head_dim / spec.block_len * spec.len_in(domain);
    let mut x = vec![0.0; bytes.len() / row_bytes * cols];
    let rows = x
        .par_chunks_exact_mut(cols)
        .zip(bytes.par_chunks_exact(row_bytes));
    first_error(rows.map(|(x, bytes)| decode(bytes, x)))?;
    Array::new(cols, x)
}

/// Bytes of a row, which has at least one block.
fn row_bytes(spec: &FormatSpec, head_dim: usize) -> Result<usize, Error> {
    match spec.row_bytes(head_dim) {
        Ok(bytes) if bytes > 0 => Ok(bytes),
        _ => Err(Error::mismatch(
            format!(
                "rows of a multiple of {} values, the block of {}",
                spec.block_len, spec.name
            ),
            format!("rows of {head_dim}"),
        )),
    }
}

/// The error of the lowest row, whichever thread met one first.
fn first_error(
    rows: impl IndexedParallelIterator<Item = Result<(), CodecError>>,
) -> Result<(), Error> {
    rows.enumerate()
        .find_map_first(|(row, done)| done.err().map(|cause| Error::Row { row, cause }))
        .map_or(Ok(()), Err)
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| *a as f64 * *b as f64).sum()
}
