use std::{format, string::String, vec, vec::Vec};

use super::half::{from_half, to_half};
use crate::{FormatSpec, Packing, Rotation};

/// Bits of the fp16 scale that opens a block.
const SCALE_BITS: usize = 16;

/// Decodes a row of whole blocks into the original domain.
///
/// # Panics
/// If `bytes` is not a whole number of blocks.
pub fn decode(spec: &FormatSpec, bytes: &[u8]) -> Vec<f64> {
    let rows = decode_rotated(spec, bytes);
    // The inverse of an orthogonal matrix is its transpose.
    transform(spec, &rows, |i, j| entry(spec, j, i))
}

/// Decodes a row of whole blocks and leaves it rotated.
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
        let scale = from_half(scale_bits(block));
        for i in 0..spec.block_len {
            // A block of scale zero is zero, whatever its codes are.
            row.push(if scale == 0.0 {
                0.0
            } else {
                scale * f64::from(spec.codebook[code(spec, block, i)])
            });
        }
    }
    row
}

/// Rotates a row of whole blocks, as an encoder does and as a query must be to
/// meet rotated keys.
///
/// # Panics
/// If `x` is not a whole number of blocks.
pub fn rotate(spec: &FormatSpec, x: &[f64]) -> Vec<f64> {
    transform(spec, x, |i, j| entry(spec, i, j))
}

/// Encodes a row by the text, with all arithmetic in `f64`. Where a value lies
/// within fp32 rounding of a border between two codes, or a scale of one between
/// two fp16 numbers, the byte-exact encoder may rightly choose the other: ask
/// [`judge`].
///
/// # Panics
/// If `x` is not a whole number of blocks, or a scale does not fit fp16.
pub fn encode(spec: &FormatSpec, x: &[f32]) -> Vec<u8> {
    let x: Vec<f64> = x.iter().copied().map(f64::from).collect();
    let mut bytes = Vec::new();
    for r in rotate(spec, &x).chunks(spec.block_len) {
        let scale = rms(r);
        let stored = to_half(scale);
        assert!(
            from_half(stored).is_finite(),
            "scale {scale} does not fit fp16"
        );
        let mut block = vec![0; spec.block_bytes];
        for i in 0..SCALE_BITS {
            set_bit(&mut block, i, stored >> i & 1 == 1);
        }
        for (i, v) in r.iter().enumerate() {
            let code = if scale == 0.0 {
                0
            } else {
                nearest(spec, v / scale)
            };
            for b in 0..spec.code_bits {
                set_bit(&mut block, code_bit(spec, i) + b, code >> b & 1 == 1);
            }
        }
        bytes.extend(block);
    }
    bytes
}

/// Says whether `bytes` is what an encoder with fp32 arithmetic may make of `x`:
/// each scale is the fp16 number nearest to the RMS, and each code the nearest
/// codebook entry, both up to the rounding errors of fp32.
///
/// # Errors
/// The first block and value that is neither.
///
/// # Panics
/// If the lengths do not fit together.
pub fn judge(spec: &FormatSpec, x: &[f32], bytes: &[u8]) -> Result<(), String> {
    // Rotation, sum of 32 squares, root and quotient err by less than 30 units
    // of 2^-24 on a quotient of at most sqrt(32).
    const RELATIVE: f64 = 2e-6;
    const ABSOLUTE: f64 = 1.1e-5;
    let x: Vec<f64> = x.iter().copied().map(f64::from).collect();
    assert_eq!(
        bytes.len() % spec.block_bytes,
        0,
        "not a whole number of blocks"
    );
    assert_eq!(
        x.len() / spec.block_len,
        bytes.len() / spec.block_bytes,
        "rows differ in length"
    );
    let rotated = rotate(spec, &x);
    for (b, (r, block)) in rotated
        .chunks(spec.block_len)
        .zip(bytes.chunks(spec.block_bytes))
        .enumerate()
    {
        let scale = rms(r);
        let stored = scale_bits(block);
        let lowest = to_half(scale * (1.0 - RELATIVE));
        let highest = to_half(scale * (1.0 + RELATIVE));
        if stored < lowest || stored > highest {
            return Err(format!(
                "block {b}: scale {stored:#06x}, the RMS is {scale:e}"
            ));
        }
        // Codes of a block that decodes to zero mean nothing.
        if stored == 0 {
            continue;
        }
        for (i, v) in r.iter().enumerate() {
            let distance = |code: usize| (v / scale - f64::from(spec.codebook[code])).abs();
            let (code, best) = (code(spec, block, i), nearest(spec, v / scale));
            if distance(code) > distance(best) + 2.0 * ABSOLUTE {
                return Err(format!(
                    "block {b}, value {i}: code {code}, nearest to {} is {best}",
                    v / scale
                ));
            }
        }
    }
    Ok(())
}

/// Applies the `block_len` square matrix `m(row, column)` to every block.
fn transform(spec: &FormatSpec, x: &[f64], m: impl Fn(usize, usize) -> f64) -> Vec<f64> {
    let n = spec.block_len;
    assert_eq!(x.len() % n, 0, "not a whole number of blocks");
    let matrix: Vec<f64> = (0..n * n).map(|at| m(at / n, at % n)).collect();
    let mut out = Vec::new();
    for block in x.chunks(n) {
        for row in matrix.chunks(n) {
            out.push(row.iter().zip(block).map(|(a, b)| a * b).sum());
        }
    }
    out
}

/// Entry of the orthogonal matrix that rotates a block.
fn entry(spec: &FormatSpec, row: usize, column: usize) -> f64 {
    let Rotation::SignedHadamard32 { negative } = spec.rotation;
    let sylvester = (row & column).count_ones() % 2 == 1;
    let sign = negative & 1 << column != 0;
    let magnitude = 1.0 / (spec.block_len as f64).sqrt();
    if sylvester != sign {
        -magnitude
    } else {
        magnitude
    }
}

fn rms(r: &[f64]) -> f64 {
    (r.iter().map(|v| v * v).sum::<f64>() / r.len() as f64).sqrt()
}

/// First of the codebook entries with the smallest distance to `x`.
fn nearest(spec: &FormatSpec, x: f64) -> usize {
    let mut best = 0;
    for (i, &c) in spec.codebook.iter().enumerate() {
        if (x - f64::from(c)).abs() < (x - f64::from(spec.codebook[best])).abs() {
            best = i;
        }
    }
    best
}

fn scale_bits(block: &[u8]) -> u16 {
    (0..SCALE_BITS).fold(0, |h, i| h | u16::from(bit(block, i)) << i)
}

/// Position in the block of the lowest bit of code `i`.
fn code_bit(spec: &FormatSpec, i: usize) -> usize {
    SCALE_BITS
        + match spec.packing {
            Packing::Stream => spec.code_bits * i,
            Packing::SplitNibbles => {
                let half = spec.block_len / 2;
                8 * (i % half) + 4 * (i / half)
            }
        }
}

fn code(spec: &FormatSpec, block: &[u8], i: usize) -> usize {
    let first = code_bit(spec, i);
    (0..spec.code_bits)
        .map(|b| usize::from(bit(block, first + b)) << b)
        .sum()
}

/// Bit `i` of a little-endian, least-significant-bit-first string.
fn bit(bytes: &[u8], i: usize) -> bool {
    bytes[i / 8] & 1 << (i % 8) != 0
}

fn set_bit(bytes: &mut [u8], i: usize, on: bool) {
    if on {
        bytes[i / 8] |= 1 << (i % 8);
    }
}
