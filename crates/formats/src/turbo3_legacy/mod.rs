#![doc = include_str!("README.md")]

use crate::wht128::{self, BLOCK, ROTATION};
use crate::{
    Code, CodecError, FormatSpec, Packing, Role, Scale, Tolerance, Transform, scalar_code,
};

/// 3-bit codes in split planes, 56 bytes for 128 values.
pub static SPEC: FormatSpec = FormatSpec {
    name: "turbo3_legacy",
    id: 6,
    summary: "old 3-bit codes in split planes after a signed 128-point Hadamard rotation",
    role: Role::Legacy,
    block_len: BLOCK,
    block_bytes: 56,
    transform: Transform::Rotation(ROTATION),
    code: Code::Scalar {
        bits: 3,
        packing: Packing::SplitPlanes,
        #[rustfmt::skip]
        codebook: &[
            -0.190685, -0.117832, -0.065717, -0.021460,
             0.021460,  0.065717,  0.117832,  0.190685,
        ],
        unit: 1.0,
    },
    scale: Scale::KeepsLength,
    tolerance: Tolerance {
        gaussian_mse: 0.0339,
        gaussian_mse_best: 0.0339,
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
    wht128::encode(&SPEC, x, bytes, code)
}

const _: () = scalar_code::check(&SPEC);

/// Borders between the codes, as published.
const BORDERS: [f32; 7] = [
    -0.154259, -0.091775, -0.043589, 0.0, 0.043589, 0.091775, 0.154259,
];

/// Code of a value of a block of length one; a value on a border goes up.
fn code(v: f32) -> u8 {
    BORDERS.partition_point(|border| *border <= v) as u8
}
