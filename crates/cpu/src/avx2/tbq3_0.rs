//! tbq3_0 in AVX2: 14 bytes = fp16 scale, then 32 codes of 3 bits as one 96-bit
//! string, least significant bit first. Eight codes are three whole bytes.

use core::arch::x86_64::*;

use kvforge_formats::{FormatSpec, tbq3_0};

use super::lanes::BLOCK;
use super::layout::{Layout, store_words, words};
use super::scalar_code::ScalarCode;

pub(super) struct Tbq3_0;

impl ScalarCode for Tbq3_0 {
    const SPEC: &'static FormatSpec = &tbq3_0::SPEC;
}

impl Layout for Tbq3_0 {
    type Block = [u8; tbq3_0::SPEC.block_bytes];

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
        // 24 bits of each run of eight codes, then 4 x 24 bits as 3 x 32.
        let mut runs = [_mm256_setzero_si256(); 4];
        for (run, codes) in runs.iter_mut().zip(codes.as_chunks::<8>().0) {
            for code in codes.iter().rev() {
                *run = _mm256_or_si256(_mm256_slli_epi32::<3>(*run), *code);
            }
        }
        let words = store_words([
            _mm256_or_si256(runs[0], _mm256_slli_epi32::<24>(runs[1])),
            _mm256_or_si256(
                _mm256_srli_epi32::<8>(runs[1]),
                _mm256_slli_epi32::<16>(runs[2]),
            ),
            _mm256_or_si256(
                _mm256_srli_epi32::<16>(runs[2]),
                _mm256_slli_epi32::<8>(runs[3]),
            ),
        ]);
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
        // Words that start at the scale's second byte hold a run in their upper
        // 24 bits, and none reaches past the block.
        let shifts = _mm256_setr_epi32(8, 11, 14, 17, 20, 23, 26, 29);
        let word = |at: usize| {
            let bytes = [block[at], block[at + 1], block[at + 2], block[at + 3]];
            _mm256_srlv_epi32(_mm256_set1_epi32(i32::from_le_bytes(bytes)), shifts)
        };
        [word(1), word(4), word(7), word(10)]
    }

    #[target_feature(enable = "avx2")]
    #[inline]
    unsafe fn unpack_lanes(blocks: [&Self::Block; 8], mut each: impl FnMut(usize, __m256i)) {
        let mut codes = [_mm_setzero_si128(); 8];
        for (codes, [_, _, bytes @ ..]) in codes.iter_mut().zip(blocks) {
            let [low @ .., a, b, c, d] = bytes;
            // SAFETY: reads the 8 bytes of `low`; the load needs no alignment.
            let low = unsafe { _mm_loadl_epi64(low.as_ptr().cast()) };
            *codes = _mm_insert_epi32::<2>(low, i32::from_le_bytes([*a, *b, *c, *d]));
        }
        let [a, b, c, _] = words(codes);
        let runs = [
            a,
            _mm256_or_si256(_mm256_srli_epi32::<24>(a), _mm256_slli_epi32::<8>(b)),
            _mm256_or_si256(_mm256_srli_epi32::<16>(b), _mm256_slli_epi32::<16>(c)),
            _mm256_srli_epi32::<8>(c),
        ];
        for (r, mut run) in runs.into_iter().enumerate() {
            for i in 8 * r..8 * r + 8 {
                each(i, run);
                run = _mm256_srli_epi32::<3>(run);
            }
        }
    }
}
