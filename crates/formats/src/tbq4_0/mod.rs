#![doc = include_str!("README.md")]
#![doc = include_str!("../scalar_code.md")]

use crate::scalar_code::{self, BLOCK, NEGATIVE};
use crate::{Code, FormatSpec, Packing, Role, Rotation, Scale, Tolerance, Transform};

/// 4-bit codes, 18 bytes for 32 values.
pub static SPEC: FormatSpec = FormatSpec {
    name: "tbq4_0",
    id: 2,
    summary: "4-bit Lloyd-Max codes after a signed 32-point Hadamard rotation",
    role: Role::KeysAndValues,
    block_len: BLOCK,
    block_bytes: 18,
    transform: Transform::Rotation(Rotation::SignedHadamard32 { negative: NEGATIVE }),
    code: Code::Scalar {
        bits: 4,
        packing: Packing::SplitNibbles,
        #[rustfmt::skip]
        codebook: &[
            -2.7321365, -2.0685055, -1.6175243, -1.2557391, -0.9419147, -0.6564307, -0.3878412, -0.1283243,
             0.1283243,  0.3878412,  0.6564307,  0.9419147,  1.2557391,  1.6175243,  2.0685055,  2.7321365,
        ],
        unit: 1.0,
    },
    scale: Scale::Rms,
    tolerance: Tolerance {
        gaussian_mse: 0.008926,
        gaussian_mse_best: 0.0059,
        gaussian_mse_margin: 0.03,
        score: 8e-7,
        attention: 2e-6,
    },
    encode: |x, bytes| scalar_code::encode(&SPEC, x, bytes),
    encode_best: |x, bytes| scalar_code::encode_best::<BLOCK>(&SPEC, x, bytes, |_, _, _| ()),
    decode: |bytes, x, domain| scalar_code::decode(&SPEC, bytes, x, domain),
};

const _: () = scalar_code::check(&SPEC);
