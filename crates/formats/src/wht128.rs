//! What the formats share that scale 128 values to length one and rotate them
//! together: `tbq3_tcq`, `turbo3_legacy`, `turbo4_legacy`.

use crate::{CodecError, Domain, FormatSpec, Rotation, scalar_code, sqrt_f32, sums};

/// Values in a block.
pub(crate) const BLOCK: usize = 128;

/// The published signs around the butterfly.
pub(crate) const ROTATION: Rotation = Rotation::SignedHadamard128 {
    before: 0x49f2_50a9_a4c6_3bbb_42f8_5949_e46a_0359,
    after: 0xbea5_6562_b7a5_357a_3f62_8fdc_16ac_ee90,
};

/// Lengths up to here count as zero.
pub const SMALLEST: f32 = 1e-10;

/// The length of a block and the block scaled to length one, rotated. A block
/// that counts as zero becomes zeros.
pub(crate) fn unit(x: &[f32; BLOCK]) -> (f32, [f32; BLOCK]) {
    let norm = sqrt_f32(sums::squares(x));
    let inverse = if norm > SMALLEST { 1.0 / norm } else { 0.0 };
    let mut r = x.map(|v| v * inverse);
    ROTATION.rotate(&mut r);
    (norm, r)
}

/// The scale that gives the coded block the length of the one it came from.
pub fn corrected(norm: f32, coded: &[f32; BLOCK]) -> f32 {
    let length = sqrt_f32(sums::squares(coded));
    if length > SMALLEST {
        norm / length
    } else {
        norm
    }
}

/// Reference encoder of the two legacy codecs; `code` finds the code of a value.
pub(crate) fn encode(
    spec: &FormatSpec,
    x: &[f32],
    bytes: &mut [u8],
    code: impl Fn(f32) -> u8,
) -> Result<(), CodecError> {
    let scalar = scalar_code::Scalar::of(spec);
    scalar_code::for_blocks::<BLOCK>(spec, x, bytes, |x, out| {
        let (norm, r) = unit(x);
        let codes = r.map(&code);
        let coded = codes.map(|code| scalar.codebook[code as usize]);
        let stored = scalar_code::to_half(corrected(norm, &coded))?;
        scalar.packing.pack(scalar.bits, stored, &codes, out);
        Some(())
    })
}

/// Un-rotates a decoded row if it is wanted in its original domain.
pub(crate) fn to_domain(x: &mut [f32], domain: Domain) {
    if domain == Domain::Original {
        ROTATION.unrotate(x);
    }
}
