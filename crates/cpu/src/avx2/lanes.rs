//! Eight blocks of 32 values in eight lanes: vector `i` holds value `i` of
//! every block, so whatever is sequential in a block stays so, bit for bit.

use core::arch::x86_64::*;
use core::f32::consts::FRAC_1_SQRT_2;

use crate::view::Span;

/// Values in a block.
pub(super) const BLOCK: usize = 32;

/// Value `i` of eight blocks in vector `i`.
pub(super) type Lanes = [__m256; BLOCK];

/// 1/sqrt(32), correctly rounded: a quarter is exact.
const INV_SQRT_32: f32 = FRAC_1_SQRT_2 / 4.0;

#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn load(x: &[f32; 8]) -> __m256 {
    // SAFETY: reads the 32 bytes of `x`; the load needs no alignment.
    unsafe { _mm256_loadu_ps(x.as_ptr()) }
}

#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn store(x: &mut [f32; 8], v: __m256) {
    // SAFETY: writes the 32 bytes of `x`; the store needs no alignment.
    unsafe { _mm256_storeu_ps(x.as_mut_ptr(), v) }
}

/// Element `j` of vector `i` becomes element `i` of vector `j`.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn transpose(r: [__m256; 8]) -> [__m256; 8] {
    // 2x2 within pairs of vectors, 4x4 within fours, then the 128-bit halves.
    let a = [
        _mm256_unpacklo_ps(r[0], r[1]),
        _mm256_unpackhi_ps(r[0], r[1]),
        _mm256_unpacklo_ps(r[2], r[3]),
        _mm256_unpackhi_ps(r[2], r[3]),
        _mm256_unpacklo_ps(r[4], r[5]),
        _mm256_unpackhi_ps(r[4], r[5]),
        _mm256_unpacklo_ps(r[6], r[7]),
        _mm256_unpackhi_ps(r[6], r[7]),
    ];
    const LOW: i32 = 0b01_00_01_00;
    const HIGH: i32 = 0b11_10_11_10;
    let b = [
        _mm256_shuffle_ps::<LOW>(a[0], a[2]),
        _mm256_shuffle_ps::<HIGH>(a[0], a[2]),
        _mm256_shuffle_ps::<LOW>(a[1], a[3]),
        _mm256_shuffle_ps::<HIGH>(a[1], a[3]),
        _mm256_shuffle_ps::<LOW>(a[4], a[6]),
        _mm256_shuffle_ps::<HIGH>(a[4], a[6]),
        _mm256_shuffle_ps::<LOW>(a[5], a[7]),
        _mm256_shuffle_ps::<HIGH>(a[5], a[7]),
    ];
    [
        _mm256_permute2f128_ps::<0x20>(b[0], b[4]),
        _mm256_permute2f128_ps::<0x20>(b[1], b[5]),
        _mm256_permute2f128_ps::<0x20>(b[2], b[6]),
        _mm256_permute2f128_ps::<0x20>(b[3], b[7]),
        _mm256_permute2f128_ps::<0x31>(b[0], b[4]),
        _mm256_permute2f128_ps::<0x31>(b[1], b[5]),
        _mm256_permute2f128_ps::<0x31>(b[2], b[6]),
        _mm256_permute2f128_ps::<0x31>(b[3], b[7]),
    ]
}

/// Eight blocks in memory into lanes.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn gather(blocks: &[[f32; BLOCK]; 8]) -> Lanes {
    let mut lanes = [_mm256_setzero_ps(); BLOCK];
    for (j, lanes) in lanes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let mut rows = [_mm256_setzero_ps(); 8];
        for (row, block) in rows.iter_mut().zip(blocks) {
            *row = load(&block.as_chunks().0[j]);
        }
        *lanes = transpose(rows);
    }
    lanes
}

/// The inverse of [`gather`].
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn scatter(lanes: &Lanes, blocks: &mut [[f32; BLOCK]; 8]) {
    for (j, lanes) in lanes.as_chunks::<8>().0.iter().enumerate() {
        for (row, block) in transpose(*lanes).into_iter().zip(blocks.iter_mut()) {
            store(&mut block.as_chunks_mut().0[j], row);
        }
    }
}

/// Rotates all eight blocks, every operation as the reference does it.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn rotate(negative: u32, x: &mut Lanes) {
    flip_signs(negative, x);
    hadamard(x);
}

/// The inverse of [`rotate`].
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn unrotate(negative: u32, x: &mut Lanes) {
    hadamard(x);
    flip_signs(negative, x);
}

#[target_feature(enable = "avx2")]
#[inline]
fn flip_signs(negative: u32, x: &mut Lanes) {
    for (i, v) in x.iter_mut().enumerate() {
        let sign = _mm256_set1_epi32(((negative >> i) << 31) as i32);
        *v = _mm256_xor_ps(*v, _mm256_castsi256_ps(sign));
    }
}

/// Orthonormal 32-point butterfly. Its five stages run in their order on every
/// value; three on runs of eight vectors, two on columns of four, so that each
/// half of the work stays in registers.
#[target_feature(enable = "avx2")]
#[inline]
fn hadamard(x: &mut Lanes) {
    for run in x.as_chunks_mut::<8>().0 {
        let mut r = *run;
        for half in [1, 2, 4] {
            for low in [0, 1, 2, 3, 4, 5, 6, 7] {
                if low & half == 0 {
                    (r[low], r[low + half]) = butterfly(r[low], r[low + half]);
                }
            }
        }
        *run = r;
    }
    let scale = _mm256_set1_ps(INV_SQRT_32);
    for i in 0..8 {
        let (a, b) = butterfly(x[i], x[i + 8]);
        let (c, d) = butterfly(x[i + 16], x[i + 24]);
        let (a, c) = butterfly(a, c);
        let (b, d) = butterfly(b, d);
        x[i] = _mm256_mul_ps(a, scale);
        x[i + 8] = _mm256_mul_ps(b, scale);
        x[i + 16] = _mm256_mul_ps(c, scale);
        x[i + 24] = _mm256_mul_ps(d, scale);
    }
}

#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn butterfly(a: __m256, b: __m256) -> (__m256, __m256) {
    (_mm256_add_ps(a, b), _mm256_sub_ps(a, b))
}

/// Rotates (`forward`) or un-rotates rows in memory, eight blocks at a time; a
/// last group is filled up with zero blocks, which stay outside.
#[target_feature(enable = "avx2")]
pub(super) fn turn(negative: u32, forward: bool, x: &mut [[f32; BLOCK]]) {
    let (groups, rest) = x.as_chunks_mut();
    for blocks in groups {
        turn_eight(negative, forward, blocks);
    }
    if !rest.is_empty() {
        let mut blocks = [[0.0; BLOCK]; 8];
        for (block, x) in blocks.iter_mut().zip(rest.iter()) {
            *block = *x;
        }
        turn_eight(negative, forward, &mut blocks);
        for (x, block) in rest.iter_mut().zip(blocks) {
            *x = block;
        }
    }
}

#[target_feature(enable = "avx2")]
fn turn_eight(negative: u32, forward: bool, blocks: &mut [[f32; BLOCK]; 8]) {
    let mut lanes = gather(blocks);
    if forward {
        rotate(negative, &mut lanes);
    } else {
        unrotate(negative, &mut lanes);
    }
    scatter(&lanes, blocks);
}

/// How many rows ahead of their use memory is asked for.
const AHEAD: usize = 16;

/// Asks for the bytes of the row [`AHEAD`] of row `i`: rows of one head are apart
/// in memory, too far for the hardware to see the pattern. A prefetch of memory
/// that is not there does nothing.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn prefetch(rows: Span<'_>, i: usize) {
    for line in rows.lines(i + AHEAD) {
        _mm_prefetch::<_MM_HINT_T0>(line.cast());
    }
}

/// Element `b` of all eight.
#[inline]
pub(super) fn each_ref<'a, B>(rows: &[&'a [B]; 8], b: usize) -> Option<[&'a B; 8]> {
    let [p, q, r, s, t, u, v, w] = rows.map(|row| row.get(b));
    Some([p?, q?, r?, s?, t?, u?, v?, w?])
}
