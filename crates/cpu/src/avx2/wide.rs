//! Formats of 128-value blocks: a block at a time, its values in their order.

use core::arch::x86_64::*;
use core::array;

use kvforge_formats::{CodecError, Domain, FormatSpec, Transform, for_blocks};

use super::lanes::{self, load, store, transpose};
use super::qjl1_256;
use super::row::{self, BLOCK};
use crate::kernels::{LINE, TILE};
use crate::scalar::codec::blocks_written;
use crate::view::Span;
use crate::{Encoder, Isa, Op, counters};

/// What a format does to one block.
///
/// # Safety
/// All `unsafe` methods need AVX2, FMA and F16C and ask for nothing else; they are
/// `unsafe` only because a trait method cannot be safe and need an instruction set.
pub(super) trait Wide {
    /// The format.
    const SPEC: &'static FormatSpec;

    /// Vectors of a block's coded values.
    const CODED: usize = Self::SPEC.len_in(Domain::Rotated) / 8;

    /// The bytes of a block.
    type Block;

    /// The whole blocks of a row.
    fn blocks(bytes: &[u8]) -> &[Self::Block];

    /// Encodes finite values as [`FormatSpec::encode`] and
    /// [`FormatSpec::encode_best`] do; `None`, and nothing written, if the scale is
    /// too large.
    ///
    /// # Safety
    /// AVX2, FMA and F16C are available.
    unsafe fn encode(encoder: Encoder, x: &[f32; BLOCK], out: &mut [u8]) -> Option<()>;

    /// The factor on every coded value.
    ///
    /// # Safety
    /// AVX2, FMA and F16C are available.
    unsafe fn scale(block: &Self::Block) -> __m256;

    /// Coded values `8 * i .. 8 * i + 8` times that, for `i` below
    /// [`Wide::CODED`].
    ///
    /// # Safety
    /// AVX2, FMA and F16C are available.
    unsafe fn coded(block: &Self::Block, scale: __m256, i: usize) -> __m256;

    /// Decodes into the original domain.
    ///
    /// # Safety
    /// AVX2, FMA and F16C are available.
    unsafe fn original(block: &Self::Block, x: &mut [f32; BLOCK]);
}

/// `x` and `bytes` hold the same number of whole blocks.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn encode<F: Wide>(
    encoder: Encoder,
    x: &[f32],
    bytes: &mut [u8],
    slot: u32,
) -> Result<(), CodecError> {
    let result = for_blocks::<BLOCK>(F::SPEC, x, bytes, |x, out| {
        // SAFETY: the enclosing function has the instruction sets.
        unsafe { F::encode(encoder, x, out) }
    });
    let blocks = blocks_written(F::SPEC, x.len(), &result);
    counters::add(F::SPEC, Op::Encode, Isa::Avx2, slot, blocks);
    result
}

/// `bytes` and `x` hold the same number of whole blocks.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn decode<F: Wide>(domain: Domain, bytes: &[u8], x: &mut [f32], slot: u32) {
    let blocks = F::blocks(bytes);
    match domain {
        Domain::Rotated => {
            for (block, x) in blocks.iter().zip(x.chunks_exact_mut(8 * F::CODED)) {
                decode_coded::<F>(block, x);
            }
        }
        Domain::Original => {
            for (block, x) in blocks.iter().zip(x.as_chunks_mut().0) {
                // SAFETY: this function has the instruction sets.
                unsafe { F::original(block, x) };
            }
        }
    }
    counters::add(F::SPEC, Op::Decode, Isa::Avx2, slot, blocks.len());
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn decode_coded<F: Wide>(block: &F::Block, x: &mut [f32]) {
    // SAFETY: this function has the instruction sets.
    let scale = unsafe { F::scale(block) };
    for (i, x) in x.as_chunks_mut().0.iter_mut().enumerate().take(F::CODED) {
        // SAFETY: as above.
        store(x, unsafe { F::coded(block, scale, i) });
    }
}

/// `bytes` and `q` hold the same number of whole blocks.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn dot<F: Wide>(bytes: &[u8], q: &[f32], slot: u32) -> f32 {
    let blocks = F::blocks(bytes);
    let mut sums = [_mm256_setzero_ps(); 2];
    for (block, q) in blocks.iter().zip(q.as_chunks().0) {
        let mut coded_q = [0.0; qjl1_256::OUTPUTS];
        transform(F::SPEC.transform, q, &mut coded_q);
        // SAFETY: this function has the instruction sets.
        let scale = unsafe { F::scale(block) };
        for (i, q) in coded_q.as_chunks().0.iter().enumerate().take(F::CODED) {
            // SAFETY: as above.
            let k = unsafe { F::coded(block, scale, i) };
            sums[i % 2] = _mm256_fmadd_ps(load(q), k, sums[i % 2]);
        }
    }
    counters::add(F::SPEC, Op::Dot, Isa::Avx2, slot, blocks.len());
    row::total(_mm256_add_ps(sums[0], sums[1]))
}

/// A query as it meets coded values.
#[target_feature(enable = "avx2")]
#[inline]
fn transform(transform: Transform, q: &[f32; BLOCK], coded: &mut [f32; qjl1_256::OUTPUTS]) {
    match transform {
        Transform::Rotation(rotation) => {
            let mut x = row::read(q);
            row::rotate(rotation, &mut x);
            row::write(&x, &mut coded.as_chunks_mut().0[0]);
        }
        Transform::Sketch => qjl1_256::project(q, coded),
    }
}

/// As [`Kernels::keys`](crate::kernels::Kernels::keys): eight keys by eight values
/// at a time, transposed in registers.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn keys<F: Wide>(keys: Span<'_>, tile: &mut [f32]) {
    let columns = tile
        .as_chunks_mut::<8>()
        .0
        .as_chunks_mut::<{ TILE / 8 }>()
        .0;
    let last = keys.len().saturating_sub(1);
    for eight in 0..keys.len().next_multiple_of(LINE) / 8 {
        for i in 8 * eight..8 * eight + 8 {
            lanes::prefetch(keys, i);
        }
        // Behind the last key it is repeated.
        let rows: [&[F::Block]; 8] =
            array::from_fn(|i| F::blocks(keys.row((8 * eight + i).min(last))));
        for (b, columns) in columns.chunks_exact_mut(8 * F::CODED).enumerate() {
            let Some(blocks) = lanes::each_ref(&rows, b) else {
                break;
            };
            // SAFETY: this function has the instruction sets.
            let scales = blocks.map(|block| unsafe { F::scale(block) });
            for (i, columns) in columns.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                let mut values = scales;
                for (value, block) in values.iter_mut().zip(blocks) {
                    // SAFETY: as above.
                    *value = unsafe { F::coded(block, *value, i) };
                }
                for (column, v) in columns.iter_mut().zip(transpose(values)) {
                    store(&mut column[eight % (TILE / 8)], v);
                }
            }
        }
    }
}

/// As [`Kernels::values`](crate::kernels::Kernels::values). Rows of blocks fill
/// the pitch, so nothing is padded.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn values<F: Wide>(values: Span<'_>, seen: u64, tile: &mut [f32], pitch: usize) {
    for (t, out) in tile.chunks_exact_mut(pitch).enumerate().take(values.len()) {
        lanes::prefetch(values, t);
        if seen >> t & 1 == 0 {
            out.fill(0.0);
            continue;
        }
        let blocks = F::blocks(values.row(t));
        for (block, out) in blocks.iter().zip(out.chunks_exact_mut(8 * F::CODED)) {
            decode_coded::<F>(block, out);
        }
    }
}
