//! `r = H_32 (s . x) / sqrt(32)` and its inverse, in plain loops.

use core::f32::consts::FRAC_1_SQRT_2;

use kvforge_formats::Rotation;

const N: usize = 32;

/// 1/sqrt(32), correctly rounded: a quarter is exact.
const INV_SQRT_32: f32 = FRAC_1_SQRT_2 / 4.0;

/// Rotates every 32 values of `x`, whose length is a multiple of 32.
pub(super) fn rotate(rotation: Rotation, x: &mut [f32]) {
    let Rotation::SignedHadamard32 { negative } = rotation;
    for block in x.as_chunks_mut().0 {
        flip_signs(negative, block);
        hadamard(block);
    }
}

/// The inverse of [`rotate`].
pub(super) fn unrotate(rotation: Rotation, x: &mut [f32]) {
    let Rotation::SignedHadamard32 { negative } = rotation;
    for block in x.as_chunks_mut().0 {
        hadamard(block);
        flip_signs(negative, block);
    }
}

fn flip_signs(negative: u32, x: &mut [f32; N]) {
    for (i, v) in x.iter_mut().enumerate() {
        if negative >> i & 1 == 1 {
            *v = -*v;
        }
    }
}

fn hadamard(x: &mut [f32; N]) {
    for half in [1, 2, 4, 8, 16] {
        for pair in x.chunks_exact_mut(2 * half) {
            let (low, high) = pair.split_at_mut(half);
            for (a, b) in low.iter_mut().zip(high) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
    }
    for v in x {
        *v *= INV_SQRT_32;
    }
}
