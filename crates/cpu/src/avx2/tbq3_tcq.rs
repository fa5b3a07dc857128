//! tbq3_tcq in AVX2: 52 bytes = fp16 scale, then a string of bits whose nine bits
//! from bit `3 t` on are the state of value `t`. Eight states are 30 bits from a
//! byte on.

use core::arch::x86_64::*;

use kvforge_formats::tbq3_tcq::{SMALLEST, SPEC, corrected};
use kvforge_formats::{FormatSpec, Rotation, Transform, to_half};

use super::row::{self, BLOCK, VECTORS};
use super::viterbi::{self, CODEBOOK, Walk};
use super::wide::Wide;
use crate::Encoder;

pub(super) struct Tbq3Tcq;

/// Bytes of the scale.
const SCALE: usize = 2;

const ROTATION: Rotation = match SPEC.transform {
    Transform::Rotation(rotation) => rotation,
    Transform::Sketch => panic!("not a rotation"),
};

impl Wide for Tbq3Tcq {
    const SPEC: &'static FormatSpec = &SPEC;

    type Block = [u8; SPEC.block_bytes];

    fn blocks(bytes: &[u8]) -> &[Self::Block] {
        bytes.as_chunks().0
    }

    #[target_feature(enable = "avx2")]
    unsafe fn encode(encoder: Encoder, x: &[f32; BLOCK], out: &mut [u8]) -> Option<()> {
        let norm = row::length(x);
        let inverse = if norm > SMALLEST { 1.0 / norm } else { 0.0 };
        let mut r = row::read(x);
        row::scale(&mut r, inverse);
        row::rotate(ROTATION, &mut r);
        let mut unit = [0.0; BLOCK];
        row::write(&r, &mut unit);
        let walk = viterbi::nearest_walk(&unit);
        let coded = walk.states.map(|s| CODEBOOK[s as usize % CODEBOOK.len()]);
        let scale = match encoder {
            Encoder::Reference => corrected(norm, &coded),
            Encoder::Best => {
                let coded = row::read(&coded);
                norm * (row::dot(&r, &coded) / row::dot(&coded, &coded))
            }
        };
        write(to_half(scale)?, &walk, out);
        Some(())
    }

    #[target_feature(enable = "avx2,f16c")]
    #[inline]
    unsafe fn scale(block: &Self::Block) -> __m256 {
        _mm256_cvtph_ps(_mm_set1_epi16(i16::from_le_bytes([block[0], block[1]])))
    }

    #[target_feature(enable = "avx2")]
    #[inline]
    unsafe fn coded(block: &Self::Block, scale: __m256, i: usize) -> __m256 {
        let at = SCALE + 3 * (i % VECTORS);
        let bytes = [block[at], block[at + 1], block[at + 2], block[at + 3]];
        let word = _mm256_set1_epi32(i32::from_le_bytes(bytes));
        let windows = _mm256_srlv_epi32(word, _mm256_setr_epi32(0, 3, 6, 9, 12, 15, 18, 21));
        let states = _mm256_and_si256(windows, _mm256_set1_epi32(CODEBOOK.len() as i32 - 1));
        // SAFETY: every state is below the length of the codebook, 512.
        let values = unsafe { _mm256_i32gather_ps::<4>(CODEBOOK.as_ptr(), states) };
        _mm256_mul_ps(scale, values)
    }

    #[target_feature(enable = "avx2,f16c")]
    #[inline]
    unsafe fn original(block: &Self::Block, x: &mut [f32; BLOCK]) {
        let mut r = [_mm256_setzero_ps(); VECTORS];
        // SAFETY: this function has the instruction sets.
        let scale = unsafe { Self::scale(block) };
        for (i, r) in r.iter_mut().enumerate() {
            // SAFETY: as above.
            *r = unsafe { Self::coded(block, scale, i) };
        }
        row::unrotate(ROTATION, &mut r);
        row::write(&r, x);
    }
}

/// Scale, the upper six bits of the start, every state's newest three bits.
fn write(scale: u16, walk: &Walk, out: &mut [u8]) {
    let (head, string) = out.split_at_mut(SCALE);
    head.copy_from_slice(&scale.to_le_bytes());
    let mut states = walk.states.iter();
    // Bits that are not written yet, and how many.
    let (mut bits, mut n) = (walk.start as u32 >> 3, 6u32);
    for byte in string {
        while n < 8
            && let Some(state) = states.next()
        {
            bits |= u32::from(state >> 6) << n;
            n += 3;
        }
        *byte = bits as u8;
        bits >>= 8;
        n = n.saturating_sub(8);
    }
}
