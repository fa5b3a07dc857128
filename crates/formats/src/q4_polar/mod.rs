#![doc = include_str!("README.md")]

use crate::rotation::hadamard;
use crate::scalar_code::{self, Scalar};
use crate::{
    Code, CodecError, Domain, FormatSpec, Packing, Role, Rotation, Scale, Tolerance, Transform,
};
use crate::{f16_to_f32, sqrt_f64};

/// 4-bit codes and a sign of the residual, 82 bytes for 128 values.
pub static SPEC: FormatSpec = FormatSpec {
    name: "q4_polar",
    id: 5,
    summary: "4-bit Lloyd-Max codes after a 128-point Hadamard rotation, one sign of the residual",
    role: Role::KeysAndValues,
    block_len: BLOCK,
    block_bytes: BYTES,
    transform: Transform::Rotation(Rotation::SignedHadamard128 {
        before: 0,
        after: 0,
    }),
    code: Code::Scalar {
        bits: 4,
        packing: Packing::Stream,
        #[rustfmt::skip]
        codebook: &[
            -2.754_354_7, -2.093_562_6, -1.643_041_5, -1.279_739_7, -0.962_641, -0.672_392_13, -0.397_897_1, -0.131_757_78,
             0.131_757_78, 0.397_897_1, 0.672_392_13, 0.962_641, 1.279_739_7, 1.643_041_5, 2.093_562_6, 2.754_354_7,
        ],
        unit: crate::rotation::INV_SQRT_128,
    },
    scale: Scale::Length,
    tolerance: Tolerance {
        gaussian_mse: 0.009343,
        gaussian_mse_best: 0.0078,
        gaussian_mse_margin: 0.03,
        score: 8e-7,
        attention: 2e-6,
    },
    encode,
    encode_best,
    decode: |bytes, x, domain| decode(bytes, x, domain, Residual::Ignored),
};

const _: () = scalar_code::check(&SPEC);

const BLOCK: usize = 128;

/// Scale, codes, and 16 bytes of which one bit is used.
const BYTES: usize = 82;

/// The byte whose lowest bit is the sign of the residual.
pub const RESIDUAL: usize = 66;

/// Whether a reader adds the residual.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residual {
    /// `use_qjl = 0`: what the cache does. It is also more exact; see the README.
    Ignored,
    /// `use_qjl = 1`.
    Added,
}

/// Length of the residual that a reader adds to every value, in units of the
/// codebook: `0.5 / sqrt(128)`.
pub const RESIDUAL_STEP: f32 = 0.5 * crate::rotation::INV_SQRT_128;

/// Relative mean squared error on Gaussian values of the best encoder's blocks, the
/// residual added: it makes them worse.
pub const RESIDUAL_MSE: f64 = 0.0098;

/// Signs of the residual, bit `i` set where the sign of value `i` is minus.
pub const RESIDUAL_NEGATIVE: u128 = 0x68da_d94e_2586_ef0a_5c34_17ab_c5cb_34fb;

/// Borders between the reference encoder's codes, as published: the middle one is
/// what an iteration left of zero. A value on a border goes down.
pub const BORDERS: [f32; 15] = [
    -2.423_958_8,
    -1.868_302_1,
    -1.461_390_6,
    -1.121_190_3,
    -0.817_516_57,
    -0.535_144_6,
    -0.264_827_43,
    4.9960036e-16,
    0.264_827_43,
    0.535_144_6,
    0.817_516_57,
    1.121_190_3,
    1.461_390_6,
    1.868_302_1,
    2.423_958_8,
];

/// 1 / 128: what the butterfly leaves to divide by when it is applied twice.
const INV_128: f32 = 1.0 / BLOCK as f32;

fn encode(x: &[f32], bytes: &mut [u8]) -> Result<(), CodecError> {
    encode_with(&SPEC, x, bytes)
}

/// [`encode`] with the constants of `spec`, so that a test can change them.
pub(crate) fn encode_with(
    spec: &FormatSpec,
    x: &[f32],
    bytes: &mut [u8],
) -> Result<(), CodecError> {
    let scalar = Scalar::of(spec);
    scalar_code::for_blocks::<BLOCK>(spec, x, bytes, |x, out| {
        // The length is the only sum here that is taken in fp64.
        let square = x
            .iter()
            .fold(0.0, |sum, v| sum + f64::from(*v) * f64::from(*v));
        let norm = sqrt_f64(square) as f32;
        let stored = scalar_code::to_half(norm)?;
        let inverse = if norm > 1e-10 { 1.0 / norm } else { 0.0 };
        let mut y = x.map(|v| v * inverse);
        hadamard(&mut y);
        let codes = y.map(|v| BORDERS.partition_point(|border| *border < v) as u8);
        scalar.packing.pack(scalar.bits, stored, &codes, out);
        write_residual_with(scalar.codebook, &y, &codes, out);
        Some(())
    })
}

fn encode_best(x: &[f32], bytes: &mut [u8]) -> Result<(), CodecError> {
    scalar_code::encode_best::<BLOCK>(&SPEC, x, bytes, write_residual)
}

/// Stores on which side of the coded block the block `y` lies, along the signs; `y`
/// is in units of the codebook.
pub fn write_residual(y: &[f32; BLOCK], codes: &[u8; BLOCK], block: &mut [u8]) {
    write_residual_with(Scalar::of(&SPEC).codebook, y, codes, block);
}

fn write_residual_with(codebook: &[f32], y: &[f32; BLOCK], codes: &[u8; BLOCK], block: &mut [u8]) {
    let along = y
        .iter()
        .zip(codes)
        .enumerate()
        .fold(0.0f32, |sum, (i, (y, c))| {
            sum + (y - codebook[*c as usize]) * sign(i)
        });
    block[RESIDUAL..].fill(0);
    block[RESIDUAL] = u8::from(along >= 0.0);
}

fn sign(i: usize) -> f32 {
    match RESIDUAL_NEGATIVE >> i & 1 {
        1 => -1.0,
        _ => 1.0,
    }
}

/// Decodes a row, with the residual or without it.
///
/// # Errors
/// [`CodecError`] for lengths that do not fit together.
pub fn decode(
    bytes: &[u8],
    x: &mut [f32],
    domain: Domain,
    residual: Residual,
) -> Result<(), CodecError> {
    decode_with(&SPEC, bytes, x, domain, residual)
}

/// [`decode`] with the constants of `spec`.
pub(crate) fn decode_with(
    spec: &FormatSpec,
    bytes: &[u8],
    x: &mut [f32],
    domain: Domain,
    residual: Residual,
) -> Result<(), CodecError> {
    spec.check_row_in(domain, x.len(), bytes.len())?;
    let scalar = Scalar::of(spec);
    let blocks = bytes.as_chunks::<BYTES>().0;
    for (x, block) in x.as_chunks_mut::<BLOCK>().0.iter_mut().zip(blocks) {
        let scale = f16_to_f32(u16::from_le_bytes([block[0], block[1]]));
        let mut codes = [0; BLOCK];
        scalar.packing.unpack(scalar.bits, block, &mut codes);
        *x = codes.map(|code| scalar.codebook[code as usize]);
        if residual == Residual::Added {
            let step = match block[RESIDUAL] & 1 {
                1 => RESIDUAL_STEP,
                _ => -RESIDUAL_STEP,
            };
            for (i, x) in x.iter_mut().enumerate() {
                *x += step * sign(i);
            }
        }
        match domain {
            // In the order of the public decoder, which fixes the rounding.
            Domain::Original => {
                hadamard(x);
                *x = x.map(|v| v * INV_128 * scale);
            }
            Domain::Rotated => {
                let scale = scale * scalar.unit;
                *x = x.map(|v| v * scale);
            }
        }
    }
    Ok(())
}
