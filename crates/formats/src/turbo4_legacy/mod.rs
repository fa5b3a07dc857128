#![doc = include_str!("README.md")]

use crate::wht128::{self, BLOCK, ROTATION};
use crate::{
    Code, CodecError, FormatSpec, Packing, Role, Scale, Tolerance, Transform, scalar_code,
};

/// 4-bit codes, 66 bytes for 128 values.
pub static SPEC: FormatSpec = FormatSpec {
    name: "turbo4_legacy",
    id: 7,
    summary: "old 4-bit codes after a signed 128-point Hadamard rotation",
    role: Role::Legacy,
    block_len: BLOCK,
    block_bytes: 66,
    transform: Transform::Rotation(ROTATION),
    code: Code::Scalar {
        bits: 4,
        packing: Packing::Stream,
        #[rustfmt::skip]
        codebook: &[
            -0.241556, -0.182907, -0.143047, -0.111065, -0.083317, -0.058069, -0.034311, -0.011353,
             0.011353,  0.034311,  0.058069,  0.083317,  0.111065,  0.143047,  0.182907,  0.241556,
        ],
        unit: 1.0,
    },
    scale: Scale::KeepsLength,
    tolerance: Tolerance {
        gaussian_mse: 0.0092,
        gaussian_mse_best: 0.0092,
        gaussian_mse_margin: 0.03,
        score: 8e-7,
        attention: 2e-6,
    },
    encode,
    // Nobody should write these bytes any more: one encoder will do.
    encode_best: encode,
    decode: |bytes, x, domain| scalar_code::decode(&SPEC, bytes, x, domain),
};

fn encode(x: &[f32], bytes: &mut [u8]) -> Result<(), CodecError> {
    wht128::encode(&SPEC, x, bytes, |v| scalar_code::nearest(CODEBOOK, v))
}

const _: () = scalar_code::check(&SPEC);

const CODEBOOK: &[f32] = scalar_code::Scalar::of(&SPEC).codebook;
