//! q4_polar in AVX2: 82 bytes = fp16 scale, then byte `j` with code `2 j` in its low
//! and code `2 j + 1` in its high nibble, then the sign of the residual. Eight codes
//! are 32 bits.

use core::arch::x86_64::*;

use kvforge_formats::q4_polar::{
    self, BORDERS, RESIDUAL_NEGATIVE, RESIDUAL_STEP, SPEC, write_residual,
};
use kvforge_formats::{Code, FormatSpec, Packing, SCALES, to_half};

use super::lanes::store;
use super::row::{self, BLOCK, Row, VECTORS};
use super::scalar_code::{Codebook, ScalarCode, count_below, nearest};
use super::wide::Wide;
use crate::Encoder;

/// Read with its residual, or without.
pub(super) struct Q4Polar<const RESIDUAL: bool>;

/// The format as caches read it.
pub(super) type Plain = Q4Polar<false>;

/// With its residual.
pub(super) type Residual = Q4Polar<true>;

/// Bits of a code.
const BITS: usize = SPEC.code.bits();

/// Where codes stand.
const PACKING: Packing = match SPEC.code {
    Code::Scalar { packing, .. } => packing,
    _ => panic!("not a scalar code"),
};

/// Factor that is not stored.
const UNIT: f32 = match SPEC.code {
    Code::Scalar { unit, .. } => unit,
    _ => panic!("not a scalar code"),
};

/// Bytes of the scale.
const SCALE: usize = 2;

impl<const RESIDUAL: bool> ScalarCode for Q4Polar<RESIDUAL> {
    const SPEC: &'static FormatSpec = &SPEC;
}

impl<const RESIDUAL: bool> Wide for Q4Polar<RESIDUAL> {
    const SPEC: &'static FormatSpec = &SPEC;

    type Block = [u8; SPEC.block_bytes];

    fn blocks(bytes: &[u8]) -> &[Self::Block] {
        bytes.as_chunks().0
    }

    #[target_feature(enable = "avx2")]
    unsafe fn encode(encoder: Encoder, x: &[f32; BLOCK], out: &mut [u8]) -> Option<()> {
        let mut y = row::read(x);
        let mut codes = [_mm256_setzero_si256(); VECTORS];
        let scale = match encoder {
            Encoder::Reference => {
                let norm = length(x);
                let inverse = if norm > 1e-10 { 1.0 / norm } else { 0.0 };
                row::scale(&mut y, inverse);
                row::hadamard(&mut y);
                for (code, y) in codes.iter_mut().zip(&y) {
                    *code = count_below(&BORDERS, *y);
                }
                norm
            }
            Encoder::Best => {
                if let Some(rotation) = SPEC.transform.rotation() {
                    row::rotate(rotation, &mut y);
                }
                fit::<Self>(&mut y, &mut codes) / UNIT
            }
        };
        let stored = to_half(scale)?;
        let (mut values, mut indices) = ([0.0; BLOCK], [0; BLOCK]);
        row::write(&y, &mut values);
        for (indices, codes) in indices.as_chunks_mut::<8>().0.iter_mut().zip(codes) {
            *indices = bytes(codes);
        }
        PACKING.pack(BITS, stored, &indices, out);
        write_residual(&values, &indices, out);
        Some(())
    }

    #[target_feature(enable = "avx2,f16c")]
    #[inline]
    unsafe fn scale(block: &Self::Block) -> __m256 {
        _mm256_mul_ps(length_of(block), _mm256_set1_ps(UNIT))
    }

    #[target_feature(enable = "avx2")]
    #[inline]
    unsafe fn coded(block: &Self::Block, scale: __m256, i: usize) -> __m256 {
        _mm256_mul_ps(values::<RESIDUAL>(block, i), scale)
    }

    #[target_feature(enable = "avx2,f16c")]
    #[inline]
    unsafe fn original(block: &Self::Block, x: &mut [f32; BLOCK]) {
        let mut r = [_mm256_setzero_ps(); VECTORS];
        for (i, r) in r.iter_mut().enumerate() {
            *r = values::<RESIDUAL>(block, i);
        }
        // In the order of the public decoder, which fixes the rounding.
        row::hadamard(&mut r);
        row::scale(&mut r, 1.0 / BLOCK as f32);
        for (r, x) in r.iter().zip(x.as_chunks_mut().0) {
            store(x, _mm256_mul_ps(*r, length_of(block)));
        }
    }
}

/// The stored scale.
#[target_feature(enable = "avx2,f16c")]
#[inline]
fn length_of(block: &[u8; SPEC.block_bytes]) -> __m256 {
    _mm256_cvtph_ps(_mm_set1_epi16(i16::from_le_bytes([block[0], block[1]])))
}

/// Entries `8 * i .. 8 * i + 8` of the codebook that a block names, with the residual
/// or without.
#[target_feature(enable = "avx2")]
#[inline]
fn values<const RESIDUAL: bool>(block: &[u8; SPEC.block_bytes], i: usize) -> __m256 {
    let i = i % VECTORS;
    let at = SCALE + 4 * i;
    let bytes = [block[at], block[at + 1], block[at + 2], block[at + 3]];
    let word = _mm256_set1_epi32(i32::from_le_bytes(bytes));
    let codes = _mm256_srlv_epi32(word, _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
    let values = Codebook::of::<Q4Polar<RESIDUAL>>().look_up::<Q4Polar<RESIDUAL>>(codes);
    if !RESIDUAL {
        return values;
    }
    let step = match block[q4_polar::RESIDUAL] & 1 {
        1 => RESIDUAL_STEP,
        _ => -RESIDUAL_STEP,
    };
    let signs = row::signs(RESIDUAL_NEGATIVE.to_le_bytes()[i]);
    _mm256_add_ps(values, _mm256_xor_ps(_mm256_set1_ps(step), signs))
}

/// Length of a block, its squares summed in order in fp64.
#[target_feature(enable = "avx2")]
#[inline]
fn length(x: &[f32; BLOCK]) -> f32 {
    let square = x
        .iter()
        .fold(0.0, |sum, v| sum + f64::from(*v) * f64::from(*v));
    let zero = _mm_setzero_pd();
    _mm_cvtsd_f64(_mm_sqrt_sd(zero, _mm_set_sd(square))) as f32
}

/// Codes of eight values as bytes.
#[target_feature(enable = "avx2")]
#[inline]
fn bytes(codes: __m256i) -> [u8; 8] {
    let mut words = [0u32; 8];
    // SAFETY: writes the 32 bytes of `words`; the store needs no alignment.
    unsafe { _mm256_storeu_si256(words.as_mut_ptr().cast(), codes) };
    words.map(|code| code as u8)
}

/// The best encoder's scale and codes, which the formats' `fit` describes. Lanes are
/// the strands of its sums.
#[target_feature(enable = "avx2")]
fn fit<F: ScalarCode>(r: &mut Row, codes: &mut [__m256i; VECTORS]) -> f32 {
    let rms = row::root(row::dot(r, r) / BLOCK as f32);
    if rms == 0.0 {
        return 0.0;
    }
    row::scale(r, 1.0 / rms);
    // The error is least where along^2 / square is largest.
    let (mut best, mut along, mut square) = (0.0, 0.0, 1.0);
    for factor in SCALES {
        let (a, s) = products::<F>(r, factor);
        let gain = a * a / s;
        if gain > best {
            (best, along, square) = (gain, a, s);
        }
    }
    let factor = square / along;
    let (along, square) = products::<F>(r, factor);
    row::scale(r, factor);
    for (code, r) in codes.iter_mut().zip(r.iter()) {
        *code = nearest::<F>(*r);
    }
    rms * (along / square)
}

/// What least squares needs of the codes that a factor gives: the entries' product
/// with the values, and with themselves.
#[target_feature(enable = "avx2")]
#[inline]
fn products<F: ScalarCode>(r: &Row, factor: f32) -> (f32, f32) {
    let codebook = Codebook::of::<F>();
    let mut along = _mm256_setzero_ps();
    let mut square = along;
    for r in r {
        let code = nearest::<F>(_mm256_mul_ps(*r, _mm256_set1_ps(factor)));
        let entry = codebook.look_up::<F>(code);
        along = _mm256_add_ps(along, _mm256_mul_ps(*r, entry));
        square = _mm256_add_ps(square, _mm256_mul_ps(entry, entry));
    }
    (row::total(along), row::total(square))
}
