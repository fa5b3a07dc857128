//! qjl1_256 in AVX2: 34 bytes = 256 sign bits, least significant first, then a bf16
//! scale. Eight signs are a byte.

use core::arch::x86_64::*;

use kvforge_formats::qjl1_256::{ROUNDS, SPEC, from_bf16, to_bf16};
use kvforge_formats::{COLUMN_SQUARES, Code, FormatSpec, PROJECTION, PROJECTION_TRANSPOSED};

use super::lanes::{load, store};
use super::row::{self, BLOCK, Row, VECTORS};
use super::wide::Wide;
use crate::Encoder;

pub(super) struct Qjl1_256;

/// Projections of a block.
pub(super) const OUTPUTS: usize = PROJECTION[0].len();

/// Bytes of their signs; the scale stands behind them.
const SIGNS: usize = OUTPUTS / 8;

/// Signs of the projections: eight in a byte.
type Signs = [u8; SIGNS];

/// Factor that is not stored.
const UNIT: f32 = match SPEC.code {
    Code::Signs { unit } => unit,
    _ => panic!("not a code of signs"),
};

impl Wide for Qjl1_256 {
    const SPEC: &'static FormatSpec = &SPEC;

    type Block = [u8; SPEC.block_bytes];

    fn blocks(bytes: &[u8]) -> &[Self::Block] {
        bytes.as_chunks().0
    }

    #[target_feature(enable = "avx2")]
    unsafe fn encode(encoder: Encoder, x: &[f32; BLOCK], out: &mut [u8]) -> Option<()> {
        let (plus, scale) = match encoder {
            Encoder::Reference => (plus(x), row::length(x)),
            Encoder::Best => best(x),
        };
        let stored = to_bf16(scale)?;
        let (signs, scale) = out.split_at_mut(SIGNS);
        signs.copy_from_slice(&plus);
        scale.copy_from_slice(&stored.to_le_bytes());
        Some(())
    }

    #[target_feature(enable = "avx2")]
    #[inline]
    unsafe fn scale(block: &Self::Block) -> __m256 {
        _mm256_set1_ps(scale(block))
    }

    #[target_feature(enable = "avx2")]
    #[inline]
    unsafe fn coded(block: &Self::Block, scale: __m256, i: usize) -> __m256 {
        _mm256_xor_ps(scale, row::signs(!block[i % SIGNS]))
    }

    #[target_feature(enable = "avx2")]
    unsafe fn original(block: &Self::Block, x: &mut [f32; BLOCK]) {
        let [plus @ .., _, _] = block;
        let mut sum = columns(plus);
        row::scale(&mut sum, scale(block));
        row::write(&sum, x);
    }
}

fn scale(block: &[u8; SPEC.block_bytes]) -> f32 {
    UNIT * from_bf16(u16::from_le_bytes([block[SIGNS], block[SIGNS + 1]]))
}

/// Projections of a block, every sum in the order of the reference.
#[target_feature(enable = "avx2")]
pub(super) fn project(x: &[f32; BLOCK], coded: &mut [f32; OUTPUTS]) {
    /// Projections whose sums fit into registers.
    const PART: usize = 64;
    for (part, coded) in coded.as_chunks_mut::<PART>().0.iter_mut().enumerate() {
        let mut sums = [_mm256_setzero_ps(); PART / 8];
        for (x, row) in x.iter().zip(&PROJECTION) {
            let row = row.as_chunks::<PART>().0[part].as_chunks().0;
            for (sum, p) in sums.iter_mut().zip(row) {
                *sum = _mm256_add_ps(*sum, _mm256_mul_ps(_mm256_set1_ps(*x), load(p)));
            }
        }
        for (sum, coded) in sums.into_iter().zip(coded.as_chunks_mut().0) {
            store(coded, sum);
        }
    }
}

/// The reference's signs: which projections are above zero.
#[target_feature(enable = "avx2")]
fn plus(x: &[f32; BLOCK]) -> Signs {
    let mut coded = [0.0; OUTPUTS];
    project(x, &mut coded);
    let mut plus = [0; SIGNS];
    for (plus, coded) in plus.iter_mut().zip(coded.as_chunks().0) {
        let above = _mm256_cmp_ps::<_CMP_GT_OQ>(load(coded), _mm256_setzero_ps());
        *plus = _mm256_movemask_ps(above) as u8;
    }
    plus
}

/// The best encoder's signs and scale, as the reference finds them.
#[target_feature(enable = "avx2")]
fn best(x: &[f32; BLOCK]) -> (Signs, f32) {
    let mut r = row::read(x);
    let norm = row::root(row::dot(&r, &r));
    if norm == 0.0 {
        return ([0; SIGNS], 0.0);
    }
    row::scale(&mut r, 1.0 / norm);
    let mut unit = [0.0; BLOCK];
    row::write(&r, &mut unit);
    let mut signs = plus(&unit);
    for _ in 0..ROUNDS {
        improve(&r, &mut signs);
    }
    let (step, _) = fit(&r, &signs);
    (signs, norm * (step / UNIT))
}

/// One round over all signs.
#[target_feature(enable = "avx2")]
fn improve(x: &Row, plus: &mut Signs) {
    let (step, mut error) = fit(x, plus);
    for (error, x) in error.iter_mut().zip(x) {
        *error = _mm256_sub_ps(*x, _mm256_mul_ps(_mm256_set1_ps(step), *error));
    }
    let columns = PROJECTION_TRANSPOSED.iter().zip(&COLUMN_SQUARES);
    for (j, (column, square)) in columns.enumerate() {
        let (byte, bit) = (&mut plus[j / 8], 1 << (j % 8));
        let was = *byte & bit != 0;
        let old = if was { step } else { -step };
        // What the column would have to explain if it had no sign yet.
        let column = row::read(column);
        if (row::dot(&error, &column) + old * square > 0.0) != was {
            for (error, p) in error.iter_mut().zip(column) {
                *error = _mm256_add_ps(*error, _mm256_mul_ps(_mm256_set1_ps(2.0 * old), p));
            }
            *byte ^= bit;
        }
    }
}

/// The step with which the columns' sum is nearest to `x`, and the sum.
#[target_feature(enable = "avx2")]
fn fit(x: &Row, plus: &Signs) -> (f32, Row) {
    let sum = columns(plus);
    (row::dot(x, &sum) / row::dot(&sum, &sum), sum)
}

/// Sum of the columns of the projection, each with its sign, in their order.
#[target_feature(enable = "avx2")]
fn columns(plus: &Signs) -> Row {
    /// Vectors whose sums fit into registers.
    const PART: usize = 8;
    let mut sums = [_mm256_setzero_ps(); VECTORS];
    for (part, sums) in sums.as_chunks_mut::<PART>().0.iter_mut().enumerate() {
        for (j, column) in PROJECTION_TRANSPOSED.iter().enumerate() {
            let minus = u32::from(!plus[j / 8] >> (j % 8) & 1) << 31;
            let minus = _mm256_castsi256_ps(_mm256_set1_epi32(minus as i32));
            let column = column.as_chunks::<{ 8 * PART }>().0[part].as_chunks().0;
            for (sum, p) in sums.iter_mut().zip(column) {
                *sum = _mm256_add_ps(*sum, _mm256_xor_ps(load(p), minus));
            }
        }
    }
    sums
}
