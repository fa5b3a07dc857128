//! tbq4_0 in AVX2: 18 bytes = fp16 scale, then byte `j` with code `j` in its low
//! and code `j + 16` in its high nibble.

use core::arch::x86_64::*;

use kvforge_formats::{FormatSpec, tbq4_0};

use super::lanes::BLOCK;
use super::layout::{Layout, store_words, words};
use super::scalar_code::ScalarCode;

pub(super) struct Tbq4_0;

impl ScalarCode for Tbq4_0 {
    const SPEC: &'static FormatSpec = &tbq4_0::SPEC;
}

impl Layout for Tbq4_0 {
    type Block = [u8; tbq4_0::SPEC.block_bytes];

    fn blocks(bytes: &[u8]) -> &[Self::Block] {
        bytes.as_chunks().0
    }

    fn blocks_mut(bytes: &mut [u8]) -> &mut [Self::Block] {
        bytes.as_chunks_mut().0
    }

    fn scale(block: &Self::Block) -> u16 {
        u16::from_le_bytes([block[0], block[1]])
    }

    #[target_feature(enable = "avx2")]
    #[inline]
    unsafe fn pack(scales: &[u16; 8], codes: &[__m256i; BLOCK], out: &mut [Self::Block]) {
        let mut words = [_mm256_setzero_si256(); 4];
        for (w, word) in words.iter_mut().enumerate() {
            // From the top byte down, each shift makes room for the next nibble.
            for j in [4 * w + 3, 4 * w + 2, 4 * w + 1, 4 * w] {
                *word = _mm256_or_si256(_mm256_slli_epi32::<4>(*word), codes[j + 16]);
                *word = _mm256_or_si256(_mm256_slli_epi32::<4>(*word), codes[j]);
            }
        }
        let words = store_words(words);
        for (b, (block, scale)) in out.iter_mut().zip(scales).enumerate() {
            let [s0, s1, codes @ ..] = block;
            [*s0, *s1] = scale.to_le_bytes();
            for (bytes, word) in codes.as_chunks_mut().0.iter_mut().zip(&words) {
                *bytes = word[b].to_le_bytes();
            }
        }
    }

    #[target_feature(enable = "avx2")]
    #[inline]
    unsafe fn unpack(block: &Self::Block) -> [__m256i; 4] {
        let [_, _, codes @ ..] = block;
        // SAFETY: reads the 16 bytes of `codes`; the load needs no alignment.
        let bytes = unsafe { _mm_loadu_si128(codes.as_ptr().cast()) };
        let first = _mm256_cvtepu8_epi32(bytes);
        let second = _mm256_cvtepu8_epi32(_mm_srli_si128::<8>(bytes));
        [
            first,
            second,
            _mm256_srli_epi32::<4>(first),
            _mm256_srli_epi32::<4>(second),
        ]
    }

    #[target_feature(enable = "avx2")]
    #[inline]
    unsafe fn unpack_lanes(blocks: [&Self::Block; 8], mut each: impl FnMut(usize, __m256i)) {
        let mut codes = [_mm_setzero_si128(); 8];
        for (codes, [_, _, bytes @ ..]) in codes.iter_mut().zip(blocks) {
            // SAFETY: reads the 16 bytes of `bytes`; the load needs no alignment.
            *codes = unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) };
        }
        for (w, mut word) in words(codes).into_iter().enumerate() {
            for j in 4 * w..4 * w + 4 {
                each(j, word);
                word = _mm256_srli_epi32::<4>(word);
                each(j + 16, word);
                word = _mm256_srli_epi32::<4>(word);
            }
        }
    }
}
