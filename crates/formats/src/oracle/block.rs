use std::sync::{Arc, Mutex};
use std::{vec, vec::Vec};

use super::attention::dot;
use super::half::from_half;
use super::projection::projection;
use crate::{Code, FormatSpec, Packing, Rotation, Transform, q4_polar};

/// Decodes a row of whole blocks into the original domain.
///
/// # Panics
/// If `bytes` is not a whole number of blocks.
pub fn decode(spec: &FormatSpec, bytes: &[u8]) -> Vec<f64> {
    adjoint(spec, &decode_rotated(spec, bytes))
}

/// Decodes a row of [`q4_polar`] blocks, residual added, into the original domain.
///
/// # Panics
/// If `bytes` is not a whole number of blocks.
pub fn decode_residual(bytes: &[u8]) -> Vec<f64> {
    let spec = &q4_polar::SPEC;
    let mut row = decode_rotated(spec, bytes);
    for (block, row) in bytes
        .chunks(spec.block_bytes)
        .zip(row.chunks_mut(spec.block_len))
    {
        let up = bit(block, 8 * 66);
        for (i, v) in row.iter_mut().enumerate() {
            let minus = q4_polar::RESIDUAL_NEGATIVE >> i & 1 == 1;
            // 0.5 / sqrt(128) of the codebook's unit, which is 1 / sqrt(128).
            let step = from_half(half_bits(block, 0)) * 0.5 / 128.0;
            *v += if up != minus { step } else { -step };
        }
    }
    adjoint(spec, &row)
}

/// Decodes a row of whole blocks and leaves it transformed.
///
/// # Panics
/// If `bytes` is not a whole number of blocks.
pub fn decode_rotated(spec: &FormatSpec, bytes: &[u8]) -> Vec<f64> {
    assert_eq!(
        bytes.len() % spec.block_bytes,
        0,
        "not a whole number of blocks"
    );
    let mut row = Vec::new();
    for block in bytes.chunks(spec.block_bytes) {
        for i in 0..coded_len(spec) {
            let (scale, value) = (scale(spec, block, i), entry_of(spec, block, i));
            // A scale of zero is zero, whatever the codes are.
            row.push(if scale == 0.0 { 0.0 } else { scale * value });
        }
    }
    row
}

/// Transforms a row of whole blocks, as an encoder does and as a query must be to
/// meet coded keys.
///
/// # Panics
/// If `x` is not a whole number of blocks.
pub fn rotate(spec: &FormatSpec, x: &[f64]) -> Vec<f64> {
    let n = spec.block_len;
    assert_eq!(x.len() % n, 0, "not a whole number of blocks");
    let matrix = matrix(spec);
    let blocks = x.chunks(n);
    let rotated = blocks.flat_map(|x| matrix.chunks(n).map(move |row| dot(x, row)));
    rotated.collect()
}

/// The transposed matrix: what takes a coded row back.
fn adjoint(spec: &FormatSpec, coded: &[f64]) -> Vec<f64> {
    let (n, m) = (spec.block_len, coded_len(spec));
    let matrix = matrix(spec);
    let mut out = vec![0.0; coded.len() / m * n];
    for (coded, out) in coded.chunks(m).zip(out.chunks_mut(n)) {
        for (c, row) in coded.iter().zip(matrix.chunks(n)) {
            for (out, entry) in out.iter_mut().zip(row) {
                *out += c * entry;
            }
        }
    }
    out
}

/// The matrix that transforms a block, row by row. Written out once for each
/// transform: the smoke decodes many thousand blocks.
fn matrix(spec: &FormatSpec) -> Arc<Vec<f64>> {
    static KNOWN: Mutex<Vec<(Transform, Arc<Vec<f64>>)>> = Mutex::new(Vec::new());
    let mut known = KNOWN.lock().expect("no one panics with it");
    if let Some((_, matrix)) = known.iter().find(|k| k.0 == spec.transform) {
        return matrix.clone();
    }
    let (n, m) = (spec.block_len, coded_len(spec));
    let entries = (0..m * n).map(|at| entry(spec, at / n, at % n));
    let matrix = Arc::new(entries.collect());
    known.push((spec.transform, Arc::clone(&matrix)));
    matrix
}

/// Coded values of a block.
fn coded_len(spec: &FormatSpec) -> usize {
    match spec.code {
        Code::Signs { .. } => 256,
        _ => spec.block_len,
    }
}

/// Entry of the matrix that transforms a block.
fn entry(spec: &FormatSpec, row: usize, column: usize) -> f64 {
    let (n, before, after) = match spec.transform {
        Transform::Sketch => return projection(column, row),
        Transform::Rotation(Rotation::SignedHadamard32 { negative }) => (32, negative.into(), 0),
        Transform::Rotation(Rotation::SignedHadamard128 { before, after }) => (128, before, after),
    };
    let mut minus = (row & column).count_ones() % 2 == 1;
    minus ^= before & 1 << column != 0;
    minus ^= after & 1 << row != 0;
    let magnitude = 1.0 / f64::from(n).sqrt();
    if minus { -magnitude } else { magnitude }
}

/// What the block's scale multiplies to give coded value `i`.
fn entry_of(spec: &FormatSpec, block: &[u8], i: usize) -> f64 {
    match &spec.code {
        Code::Scalar { codebook, unit, .. } => {
            f64::from(codebook[code(spec, block, i)]) * exact_unit(*unit)
        }
        Code::Trellis { codebook } => {
            let state = (0..9).map(|b| usize::from(bit(block, 16 + 3 * i + b)) << b);
            f64::from(codebook[state.sum::<usize>()])
        }
        Code::Signs { unit } => {
            let unit = f64::from(*unit);
            if bit(block, i) { unit } else { -unit }
        }
    }
}

/// A unit is 1 or the reciprocal of an irrational length.
fn exact_unit(unit: f32) -> f64 {
    if unit == 1.0 {
        1.0
    } else {
        1.0 / 128f64.sqrt()
    }
}

/// The scale of coded value `i`.
fn scale(spec: &FormatSpec, block: &[u8], i: usize) -> f64 {
    match spec.code {
        Code::Scalar {
            packing: Packing::SplitPlanes,
            ..
        } => from_half(half_bits(block, i / 32 * 14)),
        Code::Scalar { .. } | Code::Trellis { .. } => from_half(half_bits(block, 0)),
        // bfloat16 is the upper half of an fp32 number.
        Code::Signs { .. } => f64::from(f32::from_bits(u32::from(half_bits(block, 32)) << 16)),
    }
}

/// Sixteen bits from byte `at` on.
pub(super) fn half_bits(block: &[u8], at: usize) -> u16 {
    (0..16).fold(0, |h, b| h | u16::from(bit(block, 8 * at + b)) << b)
}

/// Position in the block of bit `b` of code `i` of a scalar code.
pub(super) fn code_bit(spec: &FormatSpec, i: usize, b: usize) -> usize {
    let Code::Scalar { bits, packing, .. } = spec.code else {
        panic!("{} has no codes", spec.name);
    };
    match packing {
        Packing::Stream => 16 + bits * i + b,
        Packing::SplitNibbles => {
            let half = spec.block_len / 2;
            16 + 8 * (i % half) + 4 * (i / half) + b
        }
        Packing::SplitPlanes => {
            let (group, i) = (8 * 14 * (i / 32), i % 32);
            group + if b < 2 { 16 + 2 * i + b } else { 80 + i }
        }
    }
}

/// Code `i` of a scalar code.
pub(super) fn code(spec: &FormatSpec, block: &[u8], i: usize) -> usize {
    (0..spec.code.bits())
        .map(|b| usize::from(bit(block, code_bit(spec, i, b))) << b)
        .sum()
}

/// Bit `i` of a little-endian, least-significant-bit-first string.
pub(super) fn bit(bytes: &[u8], i: usize) -> bool {
    bytes[i / 8] & 1 << (i % 8) != 0
}
