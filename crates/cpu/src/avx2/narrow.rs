//! Formats of 32-value blocks: encode, decode and dot, eight blocks at a time.

use core::arch::x86_64::*;
use core::array;

use kvforge_formats::{CodecError, Domain, SCALES};

use super::lanes::{self, BLOCK, Lanes};
use super::layout::Layout;
use super::scalar_code::{Codebook, nearest};
use crate::kernels::{LINE, TILE};
use crate::view::Span;
use crate::{Encoder, Isa, Op, counters};

/// Exponent bits of an fp16 number: all set in infinities and NaNs.
const F16_EXPONENT: u16 = 0x7c00;

/// `x` and `bytes` hold the same number of whole blocks.
#[target_feature(enable = "avx2,f16c")]
pub(super) fn encode<F: Layout>(
    encoder: Encoder,
    x: &[f32],
    bytes: &mut [u8],
    slot: u32,
) -> Result<(), CodecError> {
    let x = x.as_chunks::<BLOCK>().0;
    let mut written = 0;
    for (x, out) in x.chunks(8).zip(F::blocks_mut(bytes).chunks_mut(8)) {
        let done = match x.as_array() {
            Some(x) => encode_eight::<F>(encoder, x, out),
            None => {
                let mut padded = [[0.0; BLOCK]; 8];
                for (padded, x) in padded.iter_mut().zip(x) {
                    *padded = *x;
                }
                encode_eight::<F>(encoder, &padded, out)
            }
        };
        written += done;
        if done < out.len() {
            break;
        }
    }
    counters::add(F::SPEC, Op::Encode, Isa::Avx2, slot, written);
    match x.get(written) {
        None => Ok(()),
        Some(bad) => Err(match bad.iter().position(|v| !v.is_finite()) {
            Some(i) => CodecError::NonFinite {
                index: written * BLOCK + i,
            },
            None => CodecError::ScaleOverflow { block: written },
        }),
    }
}

/// Encodes up to the first block that has no finite scale, which is so for a
/// block with a value that is not finite: the rotation spreads it. Writes at
/// most `out.len()` blocks and returns how many. The operations, their order
/// and their rounding are the reference's; so no fused multiply-add here.
#[target_feature(enable = "avx2,f16c")]
fn encode_eight<F: Layout>(encoder: Encoder, x: &[[f32; BLOCK]; 8], out: &mut [F::Block]) -> usize {
    let mut r = lanes::gather(x);
    lanes::rotate(F::NEGATIVE, &mut r);
    let mut codes = [_mm256_setzero_si256(); BLOCK];
    let scale = match encoder {
        Encoder::Reference => code_by_rms::<F>(&r, &mut codes),
        Encoder::Best => fit::<F>(&mut r, &mut codes),
    };
    let mut stored = [0u16; 8];
    // SAFETY: writes the 16 bytes of `stored`; the store needs no alignment.
    unsafe {
        _mm_storeu_si128(
            stored.as_mut_ptr().cast(),
            _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(scale),
        );
    }
    let good = stored
        .iter()
        .take_while(|s| **s & F16_EXPONENT != F16_EXPONENT)
        .count();
    let writable = good.min(out.len());
    if let Some(out) = out.get_mut(..writable) {
        // SAFETY: this function has AVX2.
        unsafe { F::pack(&stored, &codes, out) };
    }
    writable
}

/// The reference encoder's scale, the RMS, and codes.
#[target_feature(enable = "avx2")]
#[inline]
fn code_by_rms<F: Layout>(r: &Lanes, codes: &mut [__m256i; BLOCK]) -> __m256 {
    let mut sum = _mm256_setzero_ps();
    for r in r {
        sum = _mm256_add_ps(sum, _mm256_mul_ps(*r, *r));
    }
    let scale = root_mean(sum);
    // A block of zeros has all codes 0.
    let coded = _mm256_cmp_ps::<_CMP_NEQ_UQ>(scale, _mm256_setzero_ps());
    let inverse = _mm256_div_ps(_mm256_set1_ps(1.0), scale);
    for (code, r) in codes.iter_mut().zip(r) {
        let nearest = nearest::<F>(_mm256_mul_ps(*r, inverse));
        *code = _mm256_and_si256(nearest, _mm256_castps_si256(coded));
    }
    scale
}

/// The best encoder's scale and codes, which the formats' `fit` describes: eight
/// blocks go through it together.
#[target_feature(enable = "avx2")]
#[inline]
fn fit<F: Layout>(r: &mut Lanes, codes: &mut [__m256i; BLOCK]) -> __m256 {
    let zero = _mm256_setzero_ps();
    let mut squares = [zero; STRANDS];
    for (i, r) in r.iter().enumerate() {
        squares[i % STRANDS] = _mm256_add_ps(squares[i % STRANDS], _mm256_mul_ps(*r, *r));
    }
    let rms = root_mean(total(squares));
    let coded = _mm256_cmp_ps::<_CMP_NEQ_UQ>(rms, zero);
    let inverse = _mm256_div_ps(_mm256_set1_ps(1.0), rms);
    for r in r.iter_mut() {
        *r = _mm256_mul_ps(*r, inverse);
    }
    // The error is least where along^2 / square is largest.
    let (mut best, mut along, mut square) = (zero, zero, _mm256_set1_ps(1.0));
    for factor in SCALES {
        let (a, s) = products::<F>(r, _mm256_set1_ps(factor));
        let gain = _mm256_div_ps(_mm256_mul_ps(a, a), s);
        let better = _mm256_cmp_ps::<_CMP_GT_OQ>(gain, best);
        best = _mm256_blendv_ps(best, gain, better);
        along = _mm256_blendv_ps(along, a, better);
        square = _mm256_blendv_ps(square, s, better);
    }
    let factor = _mm256_div_ps(square, along);
    let (along, square) = products::<F>(r, factor);
    for (code, r) in codes.iter_mut().zip(r) {
        let nearest = nearest::<F>(_mm256_mul_ps(*r, factor));
        *code = _mm256_and_si256(nearest, _mm256_castps_si256(coded));
    }
    let scale = _mm256_mul_ps(rms, _mm256_div_ps(along, square));
    _mm256_and_ps(scale, coded)
}

/// What least squares needs of the codes that a factor gives: the entries' product
/// with the values, and with themselves.
#[target_feature(enable = "avx2")]
#[inline]
fn products<F: Layout>(r: &Lanes, factor: __m256) -> (__m256, __m256) {
    let codebook = Codebook::of::<F>();
    let mut along = [_mm256_setzero_ps(); STRANDS];
    let mut square = along;
    for (i, r) in r.iter().enumerate() {
        let entry = codebook.look_up::<F>(nearest::<F>(_mm256_mul_ps(*r, factor)));
        let i = i % STRANDS;
        along[i] = _mm256_add_ps(along[i], _mm256_mul_ps(*r, entry));
        square[i] = _mm256_add_ps(square[i], _mm256_mul_ps(entry, entry));
    }
    (total(along), total(square))
}

/// Strands of the best encoders' sums: term `i` goes into strand `i % 8`.
const STRANDS: usize = 8;

/// Strands into their sum, in the formats' order.
#[target_feature(enable = "avx2")]
#[inline]
fn total(s: [__m256; STRANDS]) -> __m256 {
    let add = |a, b| _mm256_add_ps(a, b);
    let s = [
        add(s[0], s[4]),
        add(s[1], s[5]),
        add(s[2], s[6]),
        add(s[3], s[7]),
    ];
    add(add(s[0], s[2]), add(s[1], s[3]))
}

/// Root of the mean of a block's squares.
#[target_feature(enable = "avx2")]
#[inline]
fn root_mean(sum: __m256) -> __m256 {
    _mm256_sqrt_ps(_mm256_div_ps(sum, _mm256_set1_ps(BLOCK as f32)))
}

/// `bytes` and `x` hold the same number of whole blocks.
#[target_feature(enable = "avx2,f16c")]
pub(super) fn decode<F: Layout>(domain: Domain, bytes: &[u8], x: &mut [f32], slot: u32) {
    let blocks = F::blocks(bytes);
    let x = x.as_chunks_mut::<BLOCK>().0;
    match domain {
        Domain::Rotated => {
            let codebook = Codebook::of::<F>();
            for (block, x) in blocks.iter().zip(x) {
                let values = decode_block::<F>(codebook, block);
                for (x, v) in x.as_chunks_mut().0.iter_mut().zip(values) {
                    // The reference's zeros are positive: add one.
                    lanes::store(x, _mm256_add_ps(v, _mm256_setzero_ps()));
                }
            }
        }
        Domain::Original => {
            for (blocks, x) in blocks.chunks(8).zip(x.chunks_mut(8)) {
                let lanes = decode_original::<F>(fill_up(blocks));
                match x.as_mut_array() {
                    Some(x) => lanes::scatter(&lanes, x),
                    None => {
                        let mut padded = [[0.0; BLOCK]; 8];
                        lanes::scatter(&lanes, &mut padded);
                        for (x, padded) in x.iter_mut().zip(padded) {
                            *x = padded;
                        }
                    }
                }
            }
        }
    }
    counters::add(F::SPEC, Op::Decode, Isa::Avx2, slot, blocks.len());
}

/// `bytes` and `q` hold the same number of whole blocks.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn dot<F: Layout>(bytes: &[u8], q: &[f32], slot: u32) -> f32 {
    let blocks = F::blocks(bytes);
    let mut sum = _mm256_setzero_ps();
    for (blocks, q) in blocks.chunks(8).zip(q.as_chunks::<BLOCK>().0.chunks(8)) {
        // A short last group repeats a block, times zeros.
        let mut padded = [[0.0; BLOCK]; 8];
        for (padded, q) in padded.iter_mut().zip(q) {
            *padded = *q;
        }
        let mut q = lanes::gather(&padded);
        lanes::rotate(F::NEGATIVE, &mut q);
        let mut part = _mm256_setzero_ps();
        decode_lanes::<F>(Codebook::of::<F>(), fill_up(blocks), |i, k| {
            part = _mm256_fmadd_ps(q[i], k, part);
        });
        sum = _mm256_add_ps(sum, part);
    }
    let mut sums = [0.0; 8];
    lanes::store(&mut sums, sum);
    counters::add(F::SPEC, Op::Dot, Isa::Avx2, slot, blocks.len());
    sums.iter().sum()
}

/// A group of eight; a short one (never empty) repeats its first block.
fn fill_up<B>(blocks: &[B]) -> [&B; 8] {
    array::from_fn(|i| blocks.get(i).unwrap_or(&blocks[0]))
}

/// The rotated values of one block, in order. Zeros may be negative here.
#[target_feature(enable = "avx2,f16c")]
#[inline]
pub(super) fn decode_block<F: Layout>(codebook: Codebook, block: &F::Block) -> [__m256; 4] {
    let scale = _mm256_cvtph_ps(_mm_set1_epi16(F::scale(block) as i16));
    // SAFETY: this function has AVX2.
    let codes = unsafe { F::unpack(block) };
    codes.map(|codes| _mm256_mul_ps(scale, codebook.look_up::<F>(codes)))
}

/// Calls `each` with every `i` below 32 once and rotated value `i` of all eight
/// blocks. Zeros may be negative here.
#[target_feature(enable = "avx2,f16c")]
#[inline]
pub(super) fn decode_lanes<F: Layout>(
    codebook: Codebook,
    blocks: [&F::Block; 8],
    mut each: impl FnMut(usize, __m256),
) {
    let scale = scales::<F>(blocks);
    // SAFETY: this function has AVX2.
    unsafe {
        F::unpack_lanes(blocks, |i, codes| {
            each(i, _mm256_mul_ps(scale, codebook.look_up::<F>(codes)));
        });
    }
}

#[target_feature(enable = "avx2,f16c")]
#[inline]
fn scales<F: Layout>(blocks: [&F::Block; 8]) -> __m256 {
    let [a, b, c, d, e, f, g, h] = blocks.map(|block| F::scale(block) as i16);
    _mm256_cvtph_ps(_mm_setr_epi16(a, b, c, d, e, f, g, h))
}

#[target_feature(enable = "avx2,f16c")]
fn decode_original<F: Layout>(blocks: [&F::Block; 8]) -> Lanes {
    let mut lanes = [_mm256_setzero_ps(); BLOCK];
    // The reference's zeros are positive before they are turned: add one.
    let zero = _mm256_setzero_ps();
    decode_lanes::<F>(Codebook::of::<F>(), blocks, |i, v| {
        lanes[i] = _mm256_add_ps(v, zero);
    });
    lanes::unrotate(F::NEGATIVE, &mut lanes);
    lanes
}

/// As [`Kernels::keys`](crate::kernels::Kernels::keys): eight keys in eight lanes
/// come out as columns by themselves.
#[target_feature(enable = "avx2,f16c")]
pub(super) fn keys<F: Layout>(keys: Span<'_>, tile: &mut [f32]) {
    let codebook = Codebook::of::<F>();
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
        for (b, columns) in columns.as_chunks_mut::<BLOCK>().0.iter_mut().enumerate() {
            let Some(blocks) = lanes::each_ref(&rows, b) else {
                break;
            };
            decode_lanes::<F>(codebook, blocks, |i, v| {
                lanes::store(&mut columns[i][eight % (TILE / 8)], v);
            });
        }
    }
}

/// As [`Kernels::values`](crate::kernels::Kernels::values). Rows of blocks fill
/// the pitch, so nothing is padded.
#[target_feature(enable = "avx2,f16c")]
pub(super) fn values<F: Layout>(values: Span<'_>, seen: u64, tile: &mut [f32], pitch: usize) {
    let codebook = Codebook::of::<F>();
    for (t, out) in tile.chunks_exact_mut(pitch).enumerate().take(values.len()) {
        lanes::prefetch(values, t);
        if seen >> t & 1 == 0 {
            out.fill(0.0);
            continue;
        }
        let blocks = F::blocks(values.row(t));
        for (block, out) in blocks.iter().zip(out.as_chunks_mut::<BLOCK>().0) {
            let values = decode_block::<F>(codebook, block);
            for (out, v) in out.as_chunks_mut().0.iter_mut().zip(values) {
                lanes::store(out, v);
            }
        }
    }
}
