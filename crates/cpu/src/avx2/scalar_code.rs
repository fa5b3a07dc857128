//! Codes that are indices into a small codebook: nearest entries, look-ups.

use core::arch::x86_64::*;

use kvforge_formats::{Code, FormatSpec};

use super::lanes::load;

/// A format of such codes.
pub(super) trait ScalarCode {
    /// The format.
    const SPEC: &'static FormatSpec;

    /// Its reconstruction values.
    const CODEBOOK: &'static [f32] = match Self::SPEC.code {
        Code::Scalar { codebook, .. } => codebook,
        _ => panic!("not a scalar code"),
    };
}

/// A codebook of 8 or 16 entries in registers.
#[derive(Clone, Copy)]
pub(super) struct Codebook {
    low: __m256,
    high: __m256,
}

impl Codebook {
    #[target_feature(enable = "avx2")]
    #[inline]
    pub(super) fn of<F: ScalarCode>() -> Codebook {
        const {
            let n = F::CODEBOOK.len();
            assert!(n == 8 || n == 16, "look-ups are written for 3 and 4 bits");
        }
        let entries = F::CODEBOOK.as_chunks().0;
        Codebook {
            low: load(&entries[0]),
            high: load(&entries[entries.len() - 1]),
        }
    }

    /// The entry of every code; bits above a code do not matter.
    #[target_feature(enable = "avx2")]
    #[inline]
    pub(super) fn look_up<F: ScalarCode>(self, codes: __m256i) -> __m256 {
        // vpermps looks at the three low bits.
        let low = _mm256_permutevar8x32_ps(self.low, codes);
        if const { F::CODEBOOK.len() == 8 } {
            return low;
        }
        let high = _mm256_permutevar8x32_ps(self.high, codes);
        // vblendvps looks at the sign: move the fourth bit there.
        let fourth = _mm256_castsi256_ps(_mm256_slli_epi32::<28>(codes));
        _mm256_blendv_ps(low, high, fourth)
    }
}

/// Entries of the largest codebook.
const MAX_CODES: usize = 16;

/// Code of the codebook entry nearest to `x`, as the reference finds it: how many
/// thresholds are below `x`.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn nearest<F: ScalarCode>(x: __m256) -> __m256i {
    count_below(
        &const { thresholds(F::CODEBOOK) }[..F::CODEBOOK.len() - 1],
        x,
    )
}

/// How many of some numbers are below `x`.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn count_below(thresholds: &[f32], x: __m256) -> __m256i {
    let mut count = _mm256_setzero_si256();
    for threshold in thresholds {
        // All ones, that is -1, where `x` is above.
        let above = _mm256_cmp_ps::<_CMP_GT_OQ>(x, _mm256_set1_ps(*threshold));
        count = _mm256_sub_epi32(count, _mm256_castps_si256(above));
    }
    count
}

/// For every entry but the last, the largest fp32 number that is coded by it or
/// one before.
const fn thresholds(codebook: &[f32]) -> [f32; MAX_CODES - 1] {
    let mut thresholds = [f32::INFINITY; MAX_CODES - 1];
    let mut i = 0;
    while i + 1 < codebook.len() {
        thresholds[i] = threshold(codebook[i], codebook[i + 1]);
        i += 1;
    }
    thresholds
}

/// The largest `x` for which `x - low <= high - x` holds as fp32 computes it. The
/// reference compares these distances, and their rounding decides ties; as
/// both sides are monotonic in `x`, one number says the same.
const fn threshold(low: f32, high: f32) -> f32 {
    let (mut nearer_low, mut nearer_high) = (rank(low), rank(high));
    while nearer_low + 1 < nearer_high {
        let middle = (nearer_low + nearer_high) / 2;
        let x = of_rank(middle);
        if x - low <= high - x {
            nearer_low = middle;
        } else {
            nearer_high = middle;
        }
    }
    of_rank(nearer_low)
}

/// Consecutive integers for consecutive fp32 numbers.
const fn rank(x: f32) -> i64 {
    let magnitude = (x.to_bits() & 0x7fff_ffff) as i64;
    if x.is_sign_negative() {
        -magnitude
    } else {
        magnitude
    }
}

const fn of_rank(rank: i64) -> f32 {
    let magnitude = f32::from_bits(rank.unsigned_abs() as u32);
    if rank < 0 { -magnitude } else { magnitude }
}
