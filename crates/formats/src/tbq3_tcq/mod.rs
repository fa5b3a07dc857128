#![doc = include_str!("README.md")]

mod codebook;
mod viterbi;

use crate::wht128::{self, BLOCK, ROTATION};
use crate::{Code, CodecError, Domain, FormatSpec, Role, Scale, Tolerance, Transform};
use crate::{f16_to_f32, scalar_code, sums};
use codebook::CODEBOOK;

pub use crate::wht128::{SMALLEST, corrected};

/// 3-bit trellis codes, 52 bytes for 128 values.
pub static SPEC: FormatSpec = FormatSpec {
    name: "tbq3_tcq",
    id: 3,
    summary: "3-bit trellis codes of 512 states after a signed 128-point Hadamard rotation",
    role: Role::KeysAndValues,
    block_len: BLOCK,
    block_bytes: BYTES,
    transform: Transform::Rotation(ROTATION),
    code: Code::Trellis {
        codebook: &CODEBOOK,
    },
    scale: Scale::KeepsLength,
    tolerance: Tolerance {
        gaussian_mse: 0.0217,
        gaussian_mse_best: 0.0216,
        gaussian_mse_margin: 0.03,
        score: 8e-7,
        attention: 2e-6,
    },
    encode: |x, bytes| encode(x, bytes, wht128::corrected),
    encode_best: |x, bytes| encode_best(x, bytes),
    decode,
};

/// Scale, 49 bytes of bit string, a byte of padding.
const BYTES: usize = 52;

/// Where the bit string starts.
const STRING: usize = 2;

/// Bits of a symbol.
const WIDTH: usize = 3;

/// Bits of a state: its last three symbols.
const STATE: usize = 9;

/// Bits of the string that stand before the first symbol: of the initial state all
/// but the symbol that falls out at once.
const START: usize = STATE - WIDTH;

type Unit = [f32; BLOCK];

fn encode(
    x: &[f32],
    bytes: &mut [u8],
    scale: impl Fn(f32, &Unit) -> f32,
) -> Result<(), CodecError> {
    encode_with(x, bytes, |norm, _, coded| scale(norm, coded))
}

/// The same walk, which is the nearest one, and the scale of least squares.
fn encode_best(x: &[f32], bytes: &mut [u8]) -> Result<(), CodecError> {
    encode_with(x, bytes, |norm, r, coded| {
        norm * (sums::dot(r, coded) / sums::dot(coded, coded))
    })
}

/// Encodes a row; `scale` gets a block's length, the block as it was coded and what
/// it was coded as.
fn encode_with(
    x: &[f32],
    bytes: &mut [u8],
    scale: impl Fn(f32, &Unit, &Unit) -> f32,
) -> Result<(), CodecError> {
    scalar_code::for_blocks::<BLOCK>(&SPEC, x, bytes, |x, out| {
        let (norm, r) = wht128::unit(x);
        let (start, symbols) = viterbi::nearest_walk(&CODEBOOK, &r);
        let mut string = [0; BYTES - STRING];
        write(&mut string, 0, START, start >> WIDTH);
        for (t, symbol) in symbols.iter().enumerate() {
            write(&mut string, START + WIDTH * t, WIDTH, (*symbol).into());
        }
        let coded = core::array::from_fn(|t| CODEBOOK[window(&string, t)]);
        let stored = scalar_code::to_half(scale(norm, &r, &coded))?;
        out[..STRING].copy_from_slice(&stored.to_le_bytes());
        out[STRING..].copy_from_slice(&string);
        Some(())
    })
}

fn decode(bytes: &[u8], x: &mut [f32], domain: Domain) -> Result<(), CodecError> {
    SPEC.check_row_in(domain, x.len(), bytes.len())?;
    let blocks = bytes.as_chunks::<BYTES>().0;
    for (x, block) in x.as_chunks_mut::<BLOCK>().0.iter_mut().zip(blocks) {
        let scale = f16_to_f32(u16::from_le_bytes([block[0], block[1]]));
        for (t, x) in x.iter_mut().enumerate() {
            *x = scale * CODEBOOK[window(&block[STRING..], t)];
        }
    }
    wht128::to_domain(x, domain);
    Ok(())
}

/// State of value `t`: nine bits of the string.
fn window(string: &[u8], t: usize) -> usize {
    let (byte, bit) = (WIDTH * t / 8, WIDTH * t % 8);
    let two = u16::from_le_bytes([string[byte], string[byte + 1]]);
    usize::from(two >> bit) & ((1 << STATE) - 1)
}

/// Writes the low `width` bits of `value` at bit `at`.
fn write(string: &mut [u8], at: usize, width: usize, value: usize) {
    for b in 0..width {
        string[(at + b) / 8] |= ((value >> b & 1) as u8) << ((at + b) % 8);
    }
}
