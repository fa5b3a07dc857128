//! Soft-cap, bias, online softmax, masks and row arithmetic.

use core::arch::x86_64::*;

use super::lanes::{load, store};
use super::plain::Plain;
use crate::kernels::{Softmax, TILE, Terms};
use crate::math::{self, EXP, EXP_UNDERFLOW, LN_2, LOG2_E, TANH, TANH_SMALL};

/// As [`Kernels::softmax`](crate::kernels::Kernels::softmax).
#[target_feature(enable = "avx2,fma")]
pub(super) fn softmax(
    scores: &mut [f32; TILE],
    cols: usize,
    terms: Terms<'_>,
    softmax: &mut Softmax,
) -> f32 {
    let scores = scores.as_chunks_mut().0;
    let scores = scores.split_at_mut_checked(cols / 8).unwrap_or_default().0;
    if terms.softcap != 0.0 {
        let cap = _mm256_set1_ps(terms.softcap);
        for s in scores.iter_mut() {
            let capped = tanh(_mm256_div_ps(load(s), cap));
            store(s, _mm256_mul_ps(cap, capped));
        }
    }

    let before = softmax.max;
    let mut max = _mm256_set1_ps(before);
    if let Some(bias) = terms.bias {
        let slope = _mm256_set1_ps(terms.slope);
        let hidden_bias = _mm256_set1_ps(f32::NEG_INFINITY);
        for (s, bias) in scores.iter_mut().zip(bias.as_chunks().0) {
            let bias = load(bias);
            let sum = _mm256_fmadd_ps(slope, bias, load(s));
            // Not by adding: the score of a hidden key may be NaN.
            let hidden = _mm256_cmp_ps::<_CMP_EQ_OQ>(bias, hidden_bias);
            let sum = _mm256_blendv_ps(sum, hidden_bias, hidden);
            store(s, sum);
            // The second operand wins against a NaN.
            max = _mm256_max_ps(sum, max);
        }
    } else {
        for s in scores.iter() {
            max = _mm256_max_ps(load(s), max);
        }
    }
    softmax.max = fold(max, |a, b| if a > b { a } else { b });

    // No visible key yet: any finite base gives weights of zero.
    let base = if softmax.max == f32::NEG_INFINITY {
        0.0
    } else {
        softmax.max
    };
    let mut sum = _mm256_setzero_ps();
    for s in scores {
        let weight = exp(_mm256_sub_ps(load(s), _mm256_set1_ps(base)));
        sum = _mm256_add_ps(sum, weight);
        store(s, weight);
    }
    let shrink = if before == base {
        1.0
    } else {
        math::exp(before - base)
    };
    softmax.sum = softmax.sum * shrink + fold(sum, |a, b| a + b);
    shrink
}

/// Folds the eight lanes.
#[target_feature(enable = "avx2")]
#[inline]
fn fold(v: __m256, f: impl Fn(f32, f32) -> f32) -> f32 {
    let mut x = [0.0; 8];
    store(&mut x, v);
    let [a, b, c, d, e, g, h, i] = x;
    f(f(f(a, b), f(c, d)), f(f(e, g), f(h, i)))
}

/// As [`math::exp`], and NaN for NaN.
#[target_feature(enable = "avx2,fma")]
#[inline]
fn exp(x: __m256) -> __m256 {
    const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    let lowest = _mm256_set1_ps(EXP_UNDERFLOW);
    let underflow = _mm256_cmp_ps::<_CMP_LT_OQ>(x, lowest);
    // The second operand wins against a NaN.
    let x = _mm256_max_ps(lowest, x);
    let n = _mm256_round_ps::<NEAREST>(_mm256_mul_ps(x, _mm256_set1_ps(LOG2_E)));
    let r = _mm256_fnmadd_ps(n, _mm256_set1_ps(LN_2[0]), x);
    let r = _mm256_fnmadd_ps(n, _mm256_set1_ps(LN_2[1]), r);
    let tail = _mm256_fmadd_ps(_mm256_mul_ps(r, r), horner(&EXP, r), r);
    let y = _mm256_add_ps(_mm256_set1_ps(1.0), tail);
    let exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    let power = _mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent));
    _mm256_andnot_ps(underflow, _mm256_mul_ps(y, power))
}

/// As [`math::tanh`].
#[target_feature(enable = "avx2,fma")]
#[inline]
fn tanh(x: __m256) -> __m256 {
    let sign_bit = _mm256_set1_ps(-0.0);
    let one = _mm256_set1_ps(1.0);
    let a = _mm256_andnot_ps(sign_bit, x);
    let square = _mm256_mul_ps(x, x);
    let cube = _mm256_mul_ps(x, square);
    let small = _mm256_fmadd_ps(cube, horner(&TANH, square), x);
    let e = exp(_mm256_mul_ps(_mm256_set1_ps(-2.0), a));
    let large = _mm256_div_ps(_mm256_sub_ps(one, e), _mm256_add_ps(one, e));
    let large = _mm256_or_ps(large, _mm256_and_ps(sign_bit, x));
    let is_small = _mm256_cmp_ps::<_CMP_LT_OQ>(a, _mm256_set1_ps(TANH_SMALL));
    _mm256_blendv_ps(large, small, is_small)
}

#[target_feature(enable = "avx2,fma")]
#[inline]
fn horner<const N: usize>(coefficients: &[f32; N], x: __m256) -> __m256 {
    let mut sum = _mm256_setzero_ps();
    for c in coefficients.iter().rev() {
        sum = _mm256_fmadd_ps(sum, x, _mm256_set1_ps(*c));
    }
    sum
}

/// As [`Kernels::mask`](crate::kernels::Kernels::mask), for rows of type `T`.
#[target_feature(enable = "avx2,f16c")]
pub(super) fn mask<T: Plain>(bytes: &[u8], row: &mut [f32; TILE]) -> u64 {
    let hidden = _mm256_set1_ps(f32::NEG_INFINITY);
    let mut visible = 0;
    for (i, row) in row.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        // SAFETY: this function has AVX2 and F16C.
        store(row, unsafe { T::load(bytes, i) });
        let seen = _mm256_cmp_ps::<_CMP_NEQ_UQ>(load(row), hidden);
        visible |= (_mm256_movemask_ps(seen) as u64) << (8 * i);
    }
    visible
}

/// As [`Kernels::scale`](crate::kernels::Kernels::scale).
#[target_feature(enable = "avx2")]
pub(super) fn scale(x: &mut [f32], factor: f32) {
    for x in x {
        *x *= factor;
    }
}

/// As [`Kernels::add_scaled`](crate::kernels::Kernels::add_scaled).
#[target_feature(enable = "avx2,fma")]
pub(super) fn add_scaled(x: &mut [f32], factor: f32, y: &[f32]) {
    for (x, y) in x.iter_mut().zip(y) {
        *x += factor * y;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Avx2;

    #[target_feature(enable = "avx2,fma")]
    fn both(x: f32) -> [f32; 2] {
        let x = _mm256_set1_ps(x);
        [exp(x), tanh(x)].map(|v| fold(v, |a, b| if a.to_bits() == b.to_bits() { a } else { 7.0 }))
    }

    #[test]
    fn vector_exp_and_tanh_keep_the_scalar_bounds() {
        if Avx2::detect().is_none() {
            std::eprintln!("not run: avx2: this machine does not have it");
            return;
        }
        // SAFETY: the machine has AVX2 and FMA.
        let both = |x| unsafe { both(x) };
        let mut worst = [0.0f64; 2];
        for bits in (0..=0x7f80_0000u32).step_by(997) {
            for x in [f32::from_bits(bits), -f32::from_bits(bits)] {
                let [e, t] = both(x).map(f64::from);
                let exact = f64::from(x).exp();
                if x <= 88.0 {
                    if exact < f64::from(f32::MIN_POSITIVE) {
                        assert!((0.0..=1.2e-38).contains(&e), "exp({x:e}) = {e:e}");
                    } else {
                        worst[0] = worst[0].max((e / exact - 1.0).abs());
                    }
                }
                if x.is_normal() {
                    worst[1] = worst[1].max((t / f64::from(x).tanh() - 1.0).abs());
                }
            }
        }
        std::println!("largest relative errors of exp and tanh: {worst:?}");
        assert!(worst[0] < 1.5e-7 && worst[1] < 2.5e-7);
        assert_eq!(both(f32::NEG_INFINITY), [0.0, -1.0]);
        assert_eq!(both(0.0), [1.0, 0.0]);
        assert!(both(f32::NAN).iter().all(|v| v.is_nan()));
    }
}
