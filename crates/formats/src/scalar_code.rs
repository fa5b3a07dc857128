//! Codecs that store, for every transformed value, the index of the nearest
//! entry of a small codebook: the parts that such formats share, and the
//! reference codec of those that rotate 32 values and scale them to unit
//! variance.

use crate::{Code, CodecError, Domain, FormatSpec, Packing, Transform, sums};
use crate::{f16_to_f32, f32_to_f16, sqrt_f32};

/// Values in a block of the 32-value family.
pub(crate) const BLOCK: usize = 32;

/// Signs applied before its butterfly: bit `i` set where `s_i = -1`. They
/// spread inputs that are themselves Walsh functions (constant, alternating).
pub(crate) const NEGATIVE: u32 = 0x5a69_b4d2;

/// Values in the largest block.
const MOST: usize = 128;

/// What [`Code::Scalar`] says.
#[derive(Clone, Copy)]
pub(crate) struct Scalar {
    pub bits: usize,
    pub packing: Packing,
    pub codebook: &'static [f32],
    pub unit: f32,
}

impl Scalar {
    /// # Panics
    /// At compile time, for a format with another kind of code.
    pub(crate) const fn of(spec: &FormatSpec) -> Scalar {
        match spec.code {
            Code::Scalar {
                bits,
                packing,
                codebook,
                unit,
            } => Scalar {
                bits,
                packing,
                codebook,
                unit,
            },
            _ => panic!("not a scalar code"),
        }
    }
}

/// Refuses, at compile time, constants that the codecs here cannot work with.
pub(crate) const fn check(spec: &FormatSpec) {
    let code = Scalar::of(spec);
    assert!(spec.block_len <= MOST && spec.block_len == spec.transform.width());
    assert!(matches!(spec.transform, Transform::Rotation(_)));
    assert!(code.codebook.len() == 1 << code.bits);
    // A scale, the codes, and no padding but what a format gives a meaning to.
    assert!(spec.block_bytes >= 2 + spec.block_len * code.bits / 8);
}

/// Calls `block` with every block of a row, `N` values and their bytes, after
/// checking lengths and that the values are finite: the frame of every encoder.
///
/// # Errors
/// [`CodecError`] for lengths that do not fit together, for the first value that is
/// not finite, and a scale overflow for the first block that gives `None`.
pub fn for_blocks<const N: usize>(
    spec: &FormatSpec,
    x: &[f32],
    bytes: &mut [u8],
    mut block: impl FnMut(&[f32; N], &mut [u8]) -> Option<()>,
) -> Result<(), CodecError> {
    spec.check_row(x.len(), bytes.len())?;
    let blocks = bytes.chunks_exact_mut(spec.block_bytes);
    for (index, (x, out)) in x.as_chunks::<N>().0.iter().zip(blocks).enumerate() {
        if let Some(i) = x.iter().position(|v| !v.is_finite()) {
            let index = index * N + i;
            return Err(CodecError::NonFinite { index });
        }
        block(x, out).ok_or(CodecError::ScaleOverflow { block: index })?;
    }
    Ok(())
}

/// `scale` in fp16, if it is finite there.
pub fn to_half(scale: f32) -> Option<u16> {
    let half = f32_to_f16(scale);
    f16_to_f32(half).is_finite().then_some(half)
}

/// Reference encoder of the 32-value family.
pub(crate) fn encode(spec: &FormatSpec, x: &[f32], bytes: &mut [u8]) -> Result<(), CodecError> {
    let code = Scalar::of(spec);
    for_blocks::<BLOCK>(spec, x, bytes, |x, out| {
        let mut r = *x;
        rotate(spec, &mut r);
        // Sequential fp32 sum and the *unrounded* scale for the division: both
        // are part of the byte-exact contract.
        let scale = sqrt_f32(sums::squares(&r) / BLOCK as f32);
        let stored = to_half(scale)?;
        let mut codes = [0u8; BLOCK];
        if scale != 0.0 {
            let inverse = 1.0 / scale;
            for (out, v) in codes.iter_mut().zip(r) {
                *out = nearest(code.codebook, v * inverse);
            }
        }
        code.packing.pack(code.bits, stored, &codes, out);
        Some(())
    })
}

/// Best encoder of scalar codes of unit variance: the scale and the codes that [`fit`] finds.
/// `finish` gets the rotated block in units of the scale, its codes and its
/// bytes.
pub(crate) fn encode_best<const N: usize>(
    spec: &FormatSpec,
    x: &[f32],
    bytes: &mut [u8],
    finish: impl Fn(&[f32; N], &[u8; N], &mut [u8]),
) -> Result<(), CodecError> {
    let code = Scalar::of(spec);
    for_blocks::<N>(spec, x, bytes, |x, out| {
        let mut r = *x;
        rotate(spec, &mut r);
        let mut codes = [0; N];
        let scale = fit(code.codebook, &mut r, &mut codes);
        let stored = to_half(scale / code.unit)?;
        code.packing.pack(code.bits, stored, &codes, out);
        finish(&r, &codes, out);
        Some(())
    })
}

/// Scales that best encoders of scalar codes try, as factors on the reciprocal of the RMS: from 0.75
/// times the RMS to 1.25 times, in even steps. The middle one is the scale of the
/// reference encoders, so that no block comes out worse than theirs. Nine of them
/// take all but 1 % of what a dense search would gain.
pub const SCALES: [f32; 9] = [
    1.0 / 0.75,
    1.0 / 0.8125,
    1.0 / 0.875,
    1.0 / 0.9375,
    1.0,
    1.0 / 1.0625,
    1.0 / 1.125,
    1.0 / 1.1875,
    1.0 / 1.25,
];

/// Finds a scale and codes with a small error `|r - scale * codebook[codes]|`:
/// for every scale of [`SCALES`] the nearest codes and the factor that least
/// squares gives them; of these the best; then codes and factor once more. `r`
/// becomes what was coded, in units of the scale.
///
/// All of it in fp32, sums by [`sums::strands`]: the order is part of the
/// byte-exact contract among instruction sets.
pub(crate) fn fit(codebook: &[f32], r: &mut [f32], codes: &mut [u8]) -> f32 {
    let rms = sqrt_f32(sums::dot(r, r) / r.len() as f32);
    if rms == 0.0 {
        codes.fill(0);
        return 0.0;
    }
    let inverse = 1.0 / rms;
    for v in r.iter_mut() {
        *v *= inverse;
    }
    let products = |factor: f32| {
        let entry = |v: &f32| codebook[nearest(codebook, v * factor) as usize];
        let along = sums::strands(r.iter().map(|v| v * entry(v)));
        let square = sums::strands(r.iter().map(|v| entry(v) * entry(v)));
        (along, square)
    };
    // The error is least where along^2 / square is largest.
    let (mut best, mut along, mut square) = (0.0, 0.0, 1.0);
    for factor in SCALES {
        let (a, s) = products(factor);
        let gain = a * a / s;
        if gain > best {
            (best, along, square) = (gain, a, s);
        }
    }
    let factor = square / along;
    let (along, square) = products(factor);
    for (code, v) in codes.iter_mut().zip(r.iter_mut()) {
        *v *= factor;
        *code = nearest(codebook, *v);
    }
    rms * (along / square)
}

/// Reference decoder of scalar codes: scale times entry, then un-rotated.
pub(crate) fn decode(
    spec: &FormatSpec,
    bytes: &[u8],
    x: &mut [f32],
    domain: Domain,
) -> Result<(), CodecError> {
    spec.check_row_in(domain, x.len(), bytes.len())?;
    let code = Scalar::of(spec);
    let blocks = bytes.chunks_exact(spec.block_bytes);
    for (x, block) in x.chunks_exact_mut(spec.block_len).zip(blocks) {
        let mut codes = [0; MOST];
        let codes = &mut codes[..spec.block_len];
        code.packing.unpack(code.bits, block, codes);
        for (i, (x, c)) in x.iter_mut().zip(codes).enumerate() {
            let scale = f16_to_f32(code.packing.scale(block, i)) * code.unit;
            // A block of scale zero is zero, whatever its codes are.
            *x = match scale == 0.0 {
                true => 0.0,
                false => scale * code.codebook[*c as usize],
            };
        }
        if domain == Domain::Original
            && let Some(rotation) = spec.transform.rotation()
        {
            rotation.unrotate(x);
        }
    }
    Ok(())
}

fn rotate(spec: &FormatSpec, x: &mut [f32]) {
    if let Some(rotation) = spec.transform.rotation() {
        rotation.rotate(x);
    }
}

/// Index of the codebook entry nearest to `x`; the lower one on a tie.
pub(crate) fn nearest(codebook: &[f32], x: f32) -> u8 {
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
