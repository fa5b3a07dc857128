//! The two functions of softmax, without `std`. Polynomials were fitted at
//! Chebyshev nodes; vector kernels use the same constants.

/// Below this, `exp` is less than the smallest normal number and counts as 0.
pub(crate) const EXP_UNDERFLOW: f32 = -87.336_55;
/// 1 / ln 2.
pub(crate) const LOG2_E: f32 = core::f32::consts::LOG2_E;
/// ln 2 in two parts; the first has 9 bits, so that small multiples are exact.
pub(crate) const LN_2: [f32; 2] = [0.691_406_25, 0.001_740_930_6];
/// `(e^r - 1 - r) / r^2` for `|r| <= ln 2 / 2`, lowest power first. Relative
/// error of the `e^r` made from it: 1.1e-8 before rounding.
pub(crate) const EXP: [f32; 5] = [
    0.5,
    0.166_665_76,
    0.041_666_556,
    0.008_363_179,
    0.001_392_618_4,
];

/// `tanh` is an odd polynomial below this, and made from `exp` above.
pub(crate) const TANH_SMALL: f32 = 0.625;
/// `(tanh(x) / x - 1) / x^2` in powers of `x^2`, lowest first. Relative error of
/// the `tanh` made from it: 1.7e-8 before rounding.
pub(crate) const TANH: [f32; 5] = [
    -0.333_333_28,
    0.133_327_7,
    -0.053_850_908,
    0.020_997_18,
    -0.006_096_714,
];

/// `e^x` for `x <= 88` with a relative error below 1.5e-7; 0 where the result would
/// be below 2^-126, NaN for NaN. Softmax only asks for `x <= 0`.
pub(crate) fn exp(x: f32) -> f32 {
    // Adding and taking away 1.5 * 2^23 rounds to an integer.
    const ROUND: f32 = 12_582_912.0;
    if x < EXP_UNDERFLOW {
        return 0.0;
    }
    let n = (x * LOG2_E + ROUND) - ROUND;
    let r = x - n * LN_2[0] - n * LN_2[1];
    let y = 1.0 + (r + r * r * horner(&EXP, r));
    y * f32::from_bits(((n as i32).wrapping_add(127) as u32) << 23)
}

/// Hyperbolic tangent with a relative error below 2.5e-7, NaN for NaN.
pub(crate) fn tanh(x: f32) -> f32 {
    let a = x.abs();
    if a < TANH_SMALL {
        return x + x * (x * x) * horner(&TANH, x * x);
    }
    let e = exp(-2.0 * a);
    ((1.0 - e) / (1.0 + e)).copysign(x)
}

fn horner(coefficients: &[f32], x: f32) -> f32 {
    coefficients.iter().rev().fold(0.0, |sum, c| sum * x + c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_and_tanh_keep_their_bounds() {
        let mut worst = [0.0f64; 2];
        // Every 97th number of either sign.
        for bits in (0..=0x7f80_0000u32).step_by(97) {
            for x in [f32::from_bits(bits), -f32::from_bits(bits)] {
                let exact = f64::from(x).exp();
                if x <= 88.0 {
                    let found = f64::from(exp(x));
                    if exact < f64::from(f32::MIN_POSITIVE) {
                        assert!(found <= 1.2e-38, "exp({x:e}) = {found:e}");
                    } else {
                        worst[0] = worst[0].max((found / exact - 1.0).abs());
                    }
                }
                let exact = f64::from(x).tanh();
                let found = f64::from(tanh(x));
                if x.is_normal() {
                    worst[1] = worst[1].max((found / exact - 1.0).abs());
                } else {
                    assert_eq!(found, exact);
                }
            }
        }
        std::println!("largest relative errors of exp and tanh: {worst:?}");
        assert!(worst[0] < 1.5e-7 && worst[1] < 2.5e-7);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(f32::NAN).is_nan() && tanh(f32::NAN).is_nan());
        assert_eq!([tanh(f32::INFINITY), tanh(f32::NEG_INFINITY)], [1.0, -1.0]);
    }
}
