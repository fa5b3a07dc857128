//! What differs between formats of 32-value blocks: where codes sit in bytes.

use core::arch::x86_64::*;

use kvforge_formats::{Rotation, Transform};

use super::lanes::BLOCK;
use super::scalar_code::ScalarCode;

/// Where a format keeps its scale and its codes.
///
/// # Safety
/// All `unsafe` methods need AVX2 and ask for nothing else; they are `unsafe`
/// only because a trait method cannot be safe and need an instruction set.
pub(super) trait Layout: ScalarCode {
    /// The signs of its rotation.
    const NEGATIVE: u32 = match Self::SPEC.transform {
        Transform::Rotation(Rotation::SignedHadamard32 { negative }) => negative,
        _ => panic!("the lanes are written for a rotation of 32 values"),
    };

    /// The bytes of a block.
    type Block: Copy;

    /// The whole blocks of a row.
    fn blocks(bytes: &[u8]) -> &[Self::Block];

    /// The whole blocks of a row, to be written.
    fn blocks_mut(bytes: &mut [u8]) -> &mut [Self::Block];

    /// The fp16 bits of a block's scale.
    fn scale(block: &Self::Block) -> u16;

    /// Writes lane `b` of `scales` and `codes` as block `b`, for as many blocks
    /// as `out` has (at most 8). Every code is below the codebook's length.
    ///
    /// # Safety
    /// AVX2 is available.
    unsafe fn pack(scales: &[u16; 8], codes: &[__m256i; BLOCK], out: &mut [Self::Block]);

    /// The codes of one block, in order. Bits above a code are arbitrary.
    ///
    /// # Safety
    /// AVX2 is available.
    unsafe fn unpack(block: &Self::Block) -> [__m256i; 4];

    /// Calls `each` with every `i` below 32 once and code `i` of all eight
    /// blocks. Bits above a code are arbitrary.
    ///
    /// # Safety
    /// AVX2 is available.
    unsafe fn unpack_lanes(blocks: [&Self::Block; 8], each: impl FnMut(usize, __m256i));
}

/// 32-bit word `w` of eight blocks' codes in vector `w`, from the 16 bytes of
/// each.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn words(codes: [__m128i; 8]) -> [__m256i; 4] {
    // Block k beside block k + 4, then 4x4 within each half.
    let mut pair = [_mm256_setzero_si256(); 4];
    for (k, pair) in pair.iter_mut().enumerate() {
        *pair = _mm256_set_m128i(codes[k + 4], codes[k]);
    }
    let a = _mm256_unpacklo_epi32(pair[0], pair[1]);
    let b = _mm256_unpackhi_epi32(pair[0], pair[1]);
    let c = _mm256_unpacklo_epi32(pair[2], pair[3]);
    let d = _mm256_unpackhi_epi32(pair[2], pair[3]);
    [
        _mm256_unpacklo_epi64(a, c),
        _mm256_unpackhi_epi64(a, c),
        _mm256_unpacklo_epi64(b, d),
        _mm256_unpackhi_epi64(b, d),
    ]
}

/// The words of [`words`] in memory: `[word][block]`.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn store_words<const W: usize>(words: [__m256i; W]) -> [[u32; 8]; W] {
    let mut out = [[0u32; 8]; W];
    for (out, word) in out.iter_mut().zip(words) {
        // SAFETY: writes the 32 bytes of `out`; the store needs no alignment.
        unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), word) };
    }
    out
}
