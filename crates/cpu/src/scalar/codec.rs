//! Encode, decode and dot on any machine: the reference codec, counted.

use kvforge_formats::{CodecError, Domain, FORMATS, FormatSpec, f16_to_f32};

use crate::{CacheType, Error, Isa, Op, counters};

/// Values in a block of every format there is; a new one fails the build here.
const BLOCK: usize = 32;

const _: () = {
    let mut i = 0;
    while i < FORMATS.len() {
        assert!(FORMATS[i].block_len == BLOCK);
        i += 1;
    }
};

pub(crate) fn encode(
    spec: &FormatSpec,
    x: &[f32],
    bytes: &mut [u8],
    slot: u32,
) -> Result<(), CodecError> {
    let result = (spec.encode)(x, bytes);
    let written = match result {
        Ok(()) => x.len() / BLOCK,
        Err(CodecError::NonFinite { index }) => index / BLOCK,
        Err(CodecError::ScaleOverflow { block }) => block,
        Err(_) => 0,
    };
    counters::add(spec, Op::Encode, Isa::Scalar, slot, written);
    result
}

pub(crate) fn decode(
    kind: CacheType,
    domain: Domain,
    bytes: &[u8],
    x: &mut [f32],
    slot: u32,
) -> Result<(), Error> {
    row(kind, domain, bytes, x)?;
    if let CacheType::Format(spec) = kind {
        counters::add(spec, Op::Decode, Isa::Scalar, slot, x.len() / BLOCK);
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
            let blocks = bytes.as_chunks::<{ CacheType::Q8_0.block_bytes() }>().0;
            for (x, [s0, s1, codes @ ..]) in x.as_chunks_mut::<BLOCK>().0.iter_mut().zip(blocks) {
                let scale = f16_to_f32(u16::from_ne_bytes([*s0, *s1]));
                for (x, code) in x.iter_mut().zip(codes) {
                    *x = scale * f32::from(*code as i8);
                }
            }
        }
        CacheType::Format(spec) => (spec.decode)(bytes, x, domain)?,
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
    for (q, bytes) in q.as_chunks::<BLOCK>().0.iter().zip(blocks) {
        let mut x = [0.0; BLOCK];
        (spec.decode)(bytes, &mut x, Domain::Original)?;
        sum += q.iter().zip(x).map(|(q, x)| q * x).sum::<f32>();
    }
    counters::add(spec, Op::Dot, Isa::Scalar, slot, q.len() / BLOCK);
    Ok(sum)
}
