//! The reference codec of formats that rotate 32 values, scale them to unit
//! variance and code each by the nearest entry of a small codebook. What differs
//! between them is constants of their [`FormatSpec`].

use crate::{CodecError, Domain, FormatSpec, f16_to_f32, f32_to_f16, sqrt_f32};

/// Values in a block of this family.
pub(crate) const BLOCK: usize = 32;

/// Signs applied before the butterfly: bit `i` set where `s_i = -1`. They
/// spread inputs that are themselves Walsh functions (constant, alternating).
pub(crate) const NEGATIVE: u32 = 0x5a69_b4d2;

/// fp16 scale first, then the packed codes.
const SCALE_BYTES: usize = 2;

/// Refuses, at compile time, constants that this codec cannot work with.
pub(crate) const fn check(spec: &FormatSpec) {
    assert!(spec.block_len == BLOCK);
    // The scale and the codes fill the block: no padding.
    assert!(spec.block_bytes == SCALE_BYTES + BLOCK * spec.code_bits / 8);
    assert!(spec.codebook.len() == 1 << spec.code_bits);
}

pub(crate) fn encode(spec: &FormatSpec, x: &[f32], bytes: &mut [u8]) -> Result<(), CodecError> {
    spec.check_row(x.len(), bytes.len())?;
    let blocks = bytes.chunks_exact_mut(spec.block_bytes);
    for (block, (x, out)) in x.as_chunks::<BLOCK>().0.iter().zip(blocks).enumerate() {
        if let Some(i) = x.iter().position(|v| !v.is_finite()) {
            let index = block * BLOCK + i;
            return Err(CodecError::NonFinite { index });
        }
        let mut r = *x;
        spec.rotation.rotate(&mut r);
        // Sequential fp32 sum and the *unrounded* scale for the division: both
        // are part of the byte-exact contract.
        let mut sum = 0.0f32;
        for v in r {
            sum += v * v;
        }
        let scale = sqrt_f32(sum / BLOCK as f32);
        let stored = f32_to_f16(scale);
        if !f16_to_f32(stored).is_finite() {
            return Err(CodecError::ScaleOverflow { block });
        }
        let mut codes = [0u8; BLOCK];
        if scale != 0.0 {
            let inverse = 1.0 / scale;
            for (code, v) in codes.iter_mut().zip(r) {
                *code = nearest(spec.codebook, v * inverse);
            }
        }
        let (head, tail) = out.split_at_mut(SCALE_BYTES);
        head.copy_from_slice(&stored.to_le_bytes());
        spec.packing.pack(spec.code_bits, &codes, tail);
    }
    Ok(())
}

pub(crate) fn decode(
    spec: &FormatSpec,
    bytes: &[u8],
    x: &mut [f32],
    domain: Domain,
) -> Result<(), CodecError> {
    spec.check_row(x.len(), bytes.len())?;
    let blocks = bytes.chunks_exact(spec.block_bytes);
    for (x, block) in x.as_chunks_mut::<BLOCK>().0.iter_mut().zip(blocks) {
        let (head, tail) = block.split_at(SCALE_BYTES);
        let scale = f16_to_f32(u16::from_le_bytes([head[0], head[1]]));
        if scale == 0.0 {
            *x = [0.0; BLOCK];
            continue;
        }
        let mut codes = [0u8; BLOCK];
        spec.packing.unpack(spec.code_bits, tail, &mut codes);
        *x = codes.map(|code| scale * spec.codebook[code as usize]);
        if domain == Domain::Original {
            spec.rotation.unrotate(x);
        }
    }
    Ok(())
}

/// Index of the codebook entry nearest to `x`; the lower one on a tie.
fn nearest(codebook: &[f32], x: f32) -> u8 {
    // The first entry not below x, so that x lies between it and the one before.
    let high = codebook.partition_point(|&c| c < x);
    if high == 0 {
        return 0;
    }
    if high == codebook.len() {
        return (codebook.len() - 1) as u8;
    }
    let low = high - 1;
    // Compared as distances, not with a midpoint: their fp32 rounding decides ties.
    if x - codebook[low] <= codebook[high] - x {
        low as u8
    } else {
        high as u8
    }
}

#[cfg(test)]
mod mutants;
