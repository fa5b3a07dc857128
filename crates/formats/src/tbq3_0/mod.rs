#![doc = include_str!("README.md")]
#![doc = include_str!("../scalar_code.md")]

use crate::scalar_code::{self, BLOCK, NEGATIVE};
use crate::{Code, FormatSpec, Packing, Role, Rotation, Scale, Tolerance, Transform};

/// 3-bit codes, 14 bytes for 32 values.
pub static SPEC: FormatSpec = FormatSpec {
    name: "tbq3_0",
    id: 1,
    summary: "3-bit Lloyd-Max codes after a signed 32-point Hadamard rotation",
    role: Role::KeysAndValues,
    block_len: BLOCK,
    block_bytes: 14,
    transform: Transform::Rotation(Rotation::SignedHadamard32 { negative: NEGATIVE }),
    code: Code::Scalar {
        bits: 3,
        packing: Packing::Stream,
        #[rustfmt::skip]
        codebook: &[
            -2.1519457, -1.3439093, -0.7560053, -0.2450942,
             0.2450942,  0.7560053,  1.3439093,  2.1519457,
        ],
        unit: 1.0,
    },
    scale: Scale::Rms,
    tolerance: Tolerance {
        gaussian_mse: 0.03247,
        gaussian_mse_best: 0.0255,
        gaussian_mse_margin: 0.03,
        score: 8e-7,
        attention: 2e-6,
    },
    encode: |x, bytes| scalar_code::encode(&SPEC, x, bytes),
    encode_best: |x, bytes| scalar_code::encode_best::<BLOCK>(&SPEC, x, bytes, |_, _, _| ()),
    decode: |bytes, x, domain| scalar_code::decode(&SPEC, bytes, x, domain),
};

const _: () = scalar_code::check(&SPEC);
