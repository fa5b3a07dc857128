#![doc = include_str!("README.md")]
#![doc = include_str!("../scalar_code.md")]

use crate::scalar_code::{self, BLOCK, NEGATIVE};
use crate::{FormatSpec, Packing, Rotation, Tolerance};

/// 4-bit codes, 18 bytes for 32 values.
pub static SPEC: FormatSpec = FormatSpec {
    name: "tbq4_0",
    id: 2,
    summary: "4-bit Lloyd-Max codes after a signed 32-point Hadamard rotation",
    block_len: BLOCK,
    block_bytes: 18,
    code_bits: 4,
    rotation: Rotation::SignedHadamard32 { negative: NEGATIVE },
    packing: Packing::SplitNibbles,
    #[rustfmt::skip]
    codebook: &[
        -2.7321365, -2.0685055, -1.6175243, -1.2557391, -0.9419147, -0.6564307, -0.3878412, -0.1283243,
         0.1283243,  0.3878412,  0.6564307,  0.9419147,  1.2557391,  1.6175243,  2.0685055,  2.7321365,
    ],
    tolerance: Tolerance {
        gaussian_mse: 0.008926,
        gaussian_mse_margin: 0.03,
        score: 8e-7,
        attention: 2e-6,
    },
    encode: |x, bytes| scalar_code::encode(&SPEC, x, bytes),
    decode: |bytes, x, domain| scalar_code::decode(&SPEC, bytes, x, domain),
};

const _: () = scalar_code::check(&SPEC);
