//! The types that a cache may hold beside kvforge's formats: f32, f16, q8_0.

use core::arch::x86_64::*;
use core::array;

use super::lanes::{prefetch, store, transpose};
use crate::CacheType;
use crate::kernels::{LINE, TILE};
use crate::view::Span;

/// How to read eight values of a row.
pub(super) trait Plain {
    /// The type.
    const TYPE: CacheType;

    /// Values `8 * i .. 8 * i + 8` of a row; zeros behind its end.
    ///
    /// # Safety
    /// AVX2 and F16C are available.
    unsafe fn load(row: &[u8], i: usize) -> __m256;
}

pub(super) struct F32;

impl Plain for F32 {
    const TYPE: CacheType = CacheType::F32;

    #[target_feature(enable = "avx2")]
    #[inline]
    unsafe fn load(row: &[u8], i: usize) -> __m256 {
        let bytes = eight::<32>(row, i);
        // SAFETY: reads the 32 bytes of `bytes`; the load needs no alignment.
        unsafe { _mm256_loadu_ps(bytes.as_ptr().cast()) }
    }
}

pub(super) struct F16;

impl Plain for F16 {
    const TYPE: CacheType = CacheType::F16;

    #[target_feature(enable = "avx2,f16c")]
    #[inline]
    unsafe fn load(row: &[u8], i: usize) -> __m256 {
        let bytes = eight::<16>(row, i);
        // SAFETY: reads the 16 bytes of `bytes`; the load needs no alignment.
        _mm256_cvtph_ps(unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) })
    }
}

pub(super) struct Q8_0;

impl Plain for Q8_0 {
    const TYPE: CacheType = CacheType::Q8_0;

    #[target_feature(enable = "avx2,f16c")]
    #[inline]
    unsafe fn load(row: &[u8], i: usize) -> __m256 {
        let blocks = row.as_chunks::<{ CacheType::Q8_0.block_bytes() }>().0;
        let Some([s0, s1, codes @ ..]) = blocks.get(i / 4) else {
            return _mm256_setzero_ps();
        };
        let scale = _mm256_cvtph_ps(_mm_set1_epi16(i16::from_le_bytes([*s0, *s1])));
        let codes = &codes.as_chunks::<8>().0[i % 4];
        // SAFETY: reads the 8 bytes of `codes`; the load needs no alignment.
        let codes = unsafe { _mm_loadl_epi64(codes.as_ptr().cast()) };
        _mm256_mul_ps(scale, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes)))
    }
}

/// Chunk `i` of `N` bytes of a row; zeros behind its end.
#[inline]
fn eight<const N: usize>(row: &[u8], i: usize) -> [u8; N] {
    let (chunks, rest) = row.as_chunks();
    if let Some(chunk) = chunks.get(i) {
        return *chunk;
    }
    let mut last = [0; N];
    if i == chunks.len() {
        for (last, byte) in last.iter_mut().zip(rest) {
            *last = *byte;
        }
    }
    last
}

/// Decodes a row.
#[target_feature(enable = "avx2,f16c")]
pub(super) fn decode<T: Plain>(row: &[u8], x: &mut [f32]) {
    let (eights, rest) = x.as_chunks_mut();
    let n = eights.len();
    for (i, x) in eights.iter_mut().enumerate() {
        // SAFETY: this function has AVX2 and F16C.
        store(x, unsafe { T::load(row, i) });
    }
    if !rest.is_empty() {
        let mut last = [0.0; 8];
        // SAFETY: this function has AVX2 and F16C.
        store(&mut last, unsafe { T::load(row, n) });
        for (x, last) in rest.iter_mut().zip(last) {
            *x = last;
        }
    }
}

/// As [`Kernels::keys`](crate::kernels::Kernels::keys): eight keys by eight values
/// at a time, transposed in registers.
#[target_feature(enable = "avx2,f16c")]
pub(super) fn keys<T: Plain>(keys: Span<'_>, tile: &mut [f32]) {
    let columns = tile
        .as_chunks_mut::<8>()
        .0
        .as_chunks_mut::<{ TILE / 8 }>()
        .0;
    let last = keys.len().saturating_sub(1);
    let dim = keys.row(0).len() / T::TYPE.block_bytes() * T::TYPE.block_len();
    for eight in 0..keys.len().next_multiple_of(LINE) / 8 {
        for i in 8 * eight..8 * eight + 8 {
            prefetch(keys, i);
        }
        // Behind the last key it is repeated.
        let rows: [&[u8]; 8] = array::from_fn(|i| keys.row((8 * eight + i).min(last)));
        let columns = columns.as_chunks_mut::<8>().0.iter_mut();
        for (i, columns) in columns.enumerate().take(dim.div_ceil(8)) {
            // SAFETY: this function has AVX2 and F16C.
            let values = rows.map(|row| unsafe { T::load(row, i) });
            for (column, v) in columns.iter_mut().zip(transpose(values)) {
                store(&mut column[eight % (TILE / 8)], v);
            }
        }
    }
}

/// As [`Kernels::values`](crate::kernels::Kernels::values).
#[target_feature(enable = "avx2,f16c")]
pub(super) fn values<T: Plain>(values: Span<'_>, seen: u64, tile: &mut [f32], pitch: usize) {
    for (t, out) in tile.chunks_exact_mut(pitch).enumerate().take(values.len()) {
        prefetch(values, t);
        if seen >> t & 1 == 0 {
            out.fill(0.0);
            continue;
        }
        let row = values.row(t);
        for (i, out) in out.as_chunks_mut().0.iter_mut().enumerate() {
            // SAFETY: this function has AVX2 and F16C.
            store(out, unsafe { T::load(row, i) });
        }
    }
}
