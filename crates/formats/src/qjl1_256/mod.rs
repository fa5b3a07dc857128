#![doc = include_str!("README.md")]

use crate::projection::{COLUMN_SQUARES, INPUTS, OUTPUTS, PROJECTION_TRANSPOSED, project};
use crate::{Code, CodecError, Domain, FormatSpec, Role, Scale, Tolerance, Transform};
use crate::{scalar_code, sqrt_f32, sums};

/// 256 signs of projections, 34 bytes for 128 values.
pub static SPEC: FormatSpec = FormatSpec {
    name: "qjl1_256",
    id: 4,
    summary: "signs of 256 random projections and the length, for scores only",
    role: Role::Keys,
    block_len: INPUTS,
    block_bytes: BYTES,
    transform: Transform::Sketch,
    code: Code::Signs { unit: UNIT },
    scale: Scale::Length,
    tolerance: Tolerance {
        gaussian_mse: 0.782,
        gaussian_mse_best: 0.1704,
        gaussian_mse_margin: 0.03,
        score: 8e-7,
        attention: 2e-6,
    },
    encode,
    encode_best,
    decode,
};

/// Signs, then a bf16 scale.
const BYTES: usize = 34;

/// Where the scale stands.
const SCALE: usize = 32;

/// `sqrt(pi / 2) / 256`: makes the reference's scores unbiased over random `P`.
const UNIT: f32 = 1.253_314_1 / OUTPUTS as f32;

fn encode(x: &[f32], bytes: &mut [u8]) -> Result<(), CodecError> {
    scalar_code::for_blocks::<INPUTS>(&SPEC, x, bytes, |x, out| {
        let stored = to_bf16(sqrt_f32(sums::squares(x)))?;
        write(&plus(x), stored, out);
        Some(())
    })
}

/// The reference's signs: which projections are above zero.
fn plus(x: &[f32; INPUTS]) -> [bool; OUTPUTS] {
    let mut coded = [0.0; OUTPUTS];
    project(x, &mut coded);
    coded.map(|v| v > 0.0)
}

/// Rounds of the best encoder.
pub const ROUNDS: usize = 4;

/// Takes the block for what it decodes to, a sum of 256 columns of `P` with a
/// sign each: starting from the reference's signs, each in turn takes the value
/// that leaves the smaller error, for [`ROUNDS`] rounds, with the scale of least
/// squares before each and at the end.
fn encode_best(x: &[f32], bytes: &mut [u8]) -> Result<(), CodecError> {
    scalar_code::for_blocks::<INPUTS>(&SPEC, x, bytes, |x, out| {
        let norm = sqrt_f32(sums::dot(x, x));
        if norm == 0.0 {
            write(&[false; OUTPUTS], 0, out);
            return Some(());
        }
        let inverse = 1.0 / norm;
        let x = x.map(|v| v * inverse);
        let mut plus = plus(&x);
        for _ in 0..ROUNDS {
            improve(&x, &mut plus);
        }
        let (step, _) = fit(&x, &plus);
        write(&plus, to_bf16(norm * (step / UNIT))?, out);
        Some(())
    })
}

/// One round over all signs.
fn improve(x: &[f32; INPUTS], plus: &mut [bool; OUTPUTS]) {
    let (step, sum) = fit(x, plus);
    let mut error = *x;
    for (error, sum) in error.iter_mut().zip(sum) {
        *error -= step * sum;
    }
    for ((plus, column), square) in plus
        .iter_mut()
        .zip(&PROJECTION_TRANSPOSED)
        .zip(COLUMN_SQUARES)
    {
        let old = if *plus { step } else { -step };
        // What the column would have to explain if it had no sign yet.
        let better = sums::dot(&error, column) + old * square > 0.0;
        if better != *plus {
            for (error, p) in error.iter_mut().zip(column) {
                *error += (2.0 * old) * p;
            }
            *plus = better;
        }
    }
}

/// The step with which the columns' sum is nearest to `x`, and the sum.
fn fit(x: &[f32; INPUTS], plus: &[bool; OUTPUTS]) -> (f32, [f32; INPUTS]) {
    let sum = columns(plus);
    (sums::dot(x, &sum) / sums::dot(&sum, &sum), sum)
}

/// Sum of the columns of `P`, each with its sign, in their order.
fn columns(plus: &[bool; OUTPUTS]) -> [f32; INPUTS] {
    let mut sum = [0.0; INPUTS];
    for (plus, column) in plus.iter().zip(&PROJECTION_TRANSPOSED) {
        for (sum, p) in sum.iter_mut().zip(column) {
            *sum += if *plus { *p } else { -*p };
        }
    }
    sum
}

fn decode(bytes: &[u8], x: &mut [f32], domain: Domain) -> Result<(), CodecError> {
    SPEC.check_row_in(domain, x.len(), bytes.len())?;
    let rows = x.chunks_exact_mut(SPEC.len_in(domain));
    for (x, block) in rows.zip(bytes.as_chunks::<BYTES>().0) {
        let scale = UNIT * from_bf16(u16::from_le_bytes([block[SCALE], block[SCALE + 1]]));
        let plus = core::array::from_fn(|j| block[j / 8] >> (j % 8) & 1 == 1);
        match domain {
            Domain::Original => {
                for (x, sum) in x.iter_mut().zip(columns(&plus)) {
                    *x = scale * sum;
                }
            }
            Domain::Rotated => {
                for (x, plus) in x.iter_mut().zip(plus) {
                    *x = if plus { scale } else { -scale };
                }
            }
        }
    }
    Ok(())
}

fn write(plus: &[bool; OUTPUTS], scale: u16, block: &mut [u8]) {
    for (byte, plus) in block.iter_mut().zip(plus.as_chunks::<8>().0) {
        *byte = (0..8).fold(0, |byte, b| byte | u8::from(plus[b]) << b);
    }
    block[SCALE..].copy_from_slice(&scale.to_le_bytes());
}

/// fp32 to bfloat16, round to nearest even, if it is finite there.
pub fn to_bf16(x: f32) -> Option<u16> {
    let bits = x.to_bits();
    let rounded = bits.checked_add(0x7fff + (bits >> 16 & 1))? >> 16;
    from_bf16(rounded as u16)
        .is_finite()
        .then_some(rounded as u16)
}

/// bfloat16 to fp32, exact.
pub fn from_bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}
