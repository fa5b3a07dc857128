//! Encode, decode and dot on any machine: the reference codec, counted.

use kvforge_formats::q4_polar::{self, Residual};
use kvforge_formats::{CodecError, Domain, FORMATS, FormatSpec, f16_to_f32};

use crate::{CacheType, Encoder, Error, Isa, Op, counters};

/// Values of the longest block of any type in any domain.
pub(super) const LONGEST: usize = {
    let (mut longest, mut i) = (CacheType::Q8_0.block_len(), 0);
    while i < FORMATS.len() {
        let (original, coded) = (
            FORMATS[i].len_in(Domain::Original),
            FORMATS[i].len_in(Domain::Rotated),
        );
        let longer = if original > coded { original } else { coded };
        longest = if longer > longest { longer } else { longest };
        i += 1;
    }
    longest
};

pub(crate) fn encode(
    spec: &FormatSpec,
    encoder: Encoder,
    x: &[f32],
    bytes: &mut [u8],
    slot: u32,
) -> Result<(), CodecError> {
    let result = encoder.of(spec)(x, bytes);
    let blocks = blocks_written(spec, x.len(), &result);
    counters::add(spec, Op::Encode, Isa::Scalar, slot, blocks);
    result
}

/// How many blocks of a row of `n` values an encoder has written.
pub(crate) fn blocks_written(
    spec: &FormatSpec,
    n: usize,
    result: &Result<(), CodecError>,
) -> usize {
    match result {
        Ok(()) => n / spec.block_len,
        Err(CodecError::NonFinite { index }) => index / spec.block_len,
        Err(CodecError::ScaleOverflow { block }) => *block,
        Err(_) => 0,
    }
}

pub(crate) fn decode(
    kind: CacheType,
    domain: Domain,
    bytes: &[u8],
    x: &mut [f32],
    slot: u32,
) -> Result<(), Error> {
    row(kind, domain, bytes, x)?;
    if let Some(spec) = kind.format() {
        let blocks = bytes.len() / spec.block_bytes;
        counters::add(spec, Op::Decode, Isa::Scalar, slot, blocks);
    }
    Ok(())
}

/// Decodes a row of any type, uncounted.
pub(super) fn row(
    kind: CacheType,
    domain: Domain,
    bytes: &[u8],
    x: &mut [f32],
) -> Result<(), CodecError> {
    match kind {
        CacheType::F32 => {
            for (x, b) in x.iter_mut().zip(bytes.as_chunks().0) {
                *x = f32::from_ne_bytes(*b);
            }
        }
        CacheType::F16 => {
            for (x, b) in x.iter_mut().zip(bytes.as_chunks().0) {
                *x = f16_to_f32(u16::from_ne_bytes(*b));
            }
        }
        CacheType::Q8_0 => {
            const BLOCK: usize = CacheType::Q8_0.block_len();
            let blocks = bytes.as_chunks::<{ CacheType::Q8_0.block_bytes() }>().0;
            for (x, [s0, s1, codes @ ..]) in x.as_chunks_mut::<BLOCK>().0.iter_mut().zip(blocks) {
                let scale = f16_to_f32(u16::from_ne_bytes([*s0, *s1]));
                for (x, code) in x.iter_mut().zip(codes) {
                    *x = scale * f32::from(*code as i8);
                }
            }
        }
        CacheType::Format(spec) => (spec.decode)(bytes, x, domain)?,
        CacheType::PolarResidual => q4_polar::decode(bytes, x, domain, Residual::Added)?,
    }
    Ok(())
}

pub(crate) fn dot(
    spec: &FormatSpec,
    bytes: &[u8],
    q: &[f32],
    slot: u32,
) -> Result<f32, CodecError> {
    let mut sum = 0.0;
    let blocks = bytes.chunks_exact(spec.block_bytes);
    for (q, bytes) in q.chunks_exact(spec.block_len).zip(blocks) {
        let mut x = [0.0; LONGEST];
        let x = &mut x[..spec.block_len];
        (spec.decode)(bytes, x, Domain::Original)?;
        sum += q.iter().zip(x).map(|(q, x)| q * *x).sum::<f32>();
    }
    let blocks = bytes.len() / spec.block_bytes;
    counters::add(spec, Op::Dot, Isa::Scalar, slot, blocks);
    Ok(sum)
}
