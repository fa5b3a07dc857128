//! 128 values of one block in sixteen vectors, in their order.

use core::arch::x86_64::*;
use core::f32::consts::FRAC_1_SQRT_2;

use kvforge_formats::Rotation;

use super::lanes::{butterfly, load, store};

/// Values in a block.
pub(super) const BLOCK: usize = 128;

/// Vectors of a block.
pub(super) const VECTORS: usize = BLOCK / 8;

/// Values `8 * i .. 8 * i + 8` in vector `i`.
pub(super) type Row = [__m256; VECTORS];

/// 1/sqrt(128), correctly rounded: an eighth is exact.
const INV_SQRT_128: f32 = FRAC_1_SQRT_2 / 8.0;

#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn read(x: &[f32; BLOCK]) -> Row {
    let mut row = [_mm256_setzero_ps(); VECTORS];
    for (v, x) in row.iter_mut().zip(x.as_chunks().0) {
        *v = load(x);
    }
    row
}

#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn write(row: &Row, x: &mut [f32; BLOCK]) {
    for (v, x) in row.iter().zip(x.as_chunks_mut().0) {
        store(x, *v);
    }
}

/// `x *= factor`.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn scale(x: &mut Row, factor: f32) {
    for v in x {
        *v = _mm256_mul_ps(*v, _mm256_set1_ps(factor));
    }
}

/// Rotates, every operation as the reference does it. What is no rotation of 128
/// values does nothing.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn rotate(rotation: Rotation, x: &mut Row) {
    if let Rotation::SignedHadamard128 { before, after } = rotation {
        turn(before, after, x);
    }
}

/// The inverse of [`rotate`].
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn unrotate(rotation: Rotation, x: &mut Row) {
    if let Rotation::SignedHadamard128 { before, after } = rotation {
        turn(after, before, x);
    }
}

/// Signs, butterfly, factor, signs.
#[target_feature(enable = "avx2")]
#[inline]
fn turn(before: u128, after: u128, x: &mut Row) {
    flip_signs(before, x);
    hadamard(x);
    scale(x, INV_SQRT_128);
    flip_signs(after, x);
}

#[target_feature(enable = "avx2")]
#[inline]
fn flip_signs(negative: u128, x: &mut Row) {
    for (v, byte) in x.iter_mut().zip(negative.to_le_bytes()) {
        *v = _mm256_xor_ps(*v, signs(byte));
    }
}

/// The sign bit set in lane `j` where bit `j` is.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn signs(bits: u8) -> __m256 {
    let to_top = _mm256_setr_epi32(31, 30, 29, 28, 27, 26, 25, 24);
    let bits = _mm256_sllv_epi32(_mm256_set1_epi32(bits.into()), to_top);
    _mm256_and_ps(_mm256_castsi256_ps(bits), _mm256_set1_ps(-0.0))
}

/// Walsh-Hadamard butterfly, not scaled. Its stages run in their order on every
/// value: three within a vector, four across.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn hadamard(x: &mut Row) {
    for v in x.iter_mut() {
        // The upper value of a pair is subtracted from the lower: its own sign turns,
        // and the other one is added.
        let swapped = _mm256_permute_ps::<0b10_11_00_01>(*v);
        *v = _mm256_add_ps(swapped, _mm256_xor_ps(*v, signs(0b1010_1010)));
        let swapped = _mm256_permute_ps::<0b01_00_11_10>(*v);
        *v = _mm256_add_ps(swapped, _mm256_xor_ps(*v, signs(0b1100_1100)));
        let swapped = _mm256_permute2f128_ps::<0x01>(*v, *v);
        *v = _mm256_add_ps(swapped, _mm256_xor_ps(*v, signs(0b1111_0000)));
    }
    for half in [1, 2, 4, 8] {
        for low in 0..VECTORS {
            if low & half == 0 {
                (x[low], x[low + half]) = butterfly(x[low], x[low + half]);
            }
        }
    }
}

/// Rotates (`forward`) or un-rotates blocks in memory.
#[target_feature(enable = "avx2")]
pub(super) fn turn_all(rotation: Rotation, forward: bool, x: &mut [[f32; BLOCK]]) {
    for block in x {
        let mut row = read(block);
        if forward {
            rotate(rotation, &mut row);
        } else {
            unrotate(rotation, &mut row);
        }
        write(&row, block);
    }
}

/// Strands of a sum, one a lane, into their sum, in the order of the formats' best
/// encoders.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn total(strands: __m256) -> f32 {
    let (low, high) = (
        _mm256_castps256_ps128(strands),
        _mm256_extractf128_ps::<1>(strands),
    );
    let four = _mm_add_ps(low, high);
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
}

/// Dot product in eight strands.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn dot(a: &Row, b: &Row) -> f32 {
    let mut sum = _mm256_setzero_ps();
    for (a, b) in a.iter().zip(b) {
        sum = _mm256_add_ps(sum, _mm256_mul_ps(*a, *b));
    }
    total(sum)
}

/// Length of a block, its squares summed in order.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn length(x: &[f32; BLOCK]) -> f32 {
    root(x.iter().fold(0.0, |sum, v| sum + v * v))
}

/// Square root.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn root(x: f32) -> f32 {
    _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x)))
}
