//! What chooses keys.

use kvforge::Error;
use kvforge::npy::Array;
use kvforge::peers::{Peer, Role};
use kvforge::rows::{self, Encoder};
use kvforge_formats::{Domain, f16_to_f32, f32_to_f16, qjl1_256, tbq3_tcq};

/// Values of a key that QJL takes together.
pub const BLOCK: usize = qjl1_256::SPEC.block_len;

/// A way to choose keys.
pub struct Selector {
    pub name: &'static str,
    pub by: By,
}

/// By what keys are ranked.
pub enum By {
    /// Their exact scores.
    Exact,
    /// Their age: the newest first.
    Age,
    /// Scores of what a format keeps of them.
    Format(&'static str, Encoder),
    /// Scores of what a cache type of llama.cpp keeps of them.
    Peer(&'static str),
    /// Scores of plain codes after a rotation of 128 values: the upper half of a
    /// symmetric codebook for normal values, and one fp16 scale of least squares.
    Scalar(&'static [f32]),
}

/// Lloyd and Max for one bit: the mean of half a normal distribution.
const ONE_BIT: &[f32] = &[0.797_884_6];

/// Lloyd and Max for two bits.
const TWO_BITS: &[f32] = &[0.452_780_1, 1.510_417_6];

pub static SELECTORS: &[Selector] = &[
    Selector {
        name: "exact scores",
        by: By::Exact,
    },
    Selector {
        name: "newest",
        by: By::Age,
    },
    Selector {
        name: "qjl1_256, reference",
        by: By::Format("qjl1_256", Encoder::Reference),
    },
    Selector {
        name: "qjl1_256, best",
        by: By::Format("qjl1_256", Encoder::Best),
    },
    Selector {
        name: "plain 1 bit",
        by: By::Scalar(ONE_BIT),
    },
    Selector {
        name: "plain 2 bits",
        by: By::Scalar(TWO_BITS),
    },
    Selector {
        name: "tbq3_0, best",
        by: By::Format("tbq3_0", Encoder::Best),
    },
    Selector {
        name: "tbq4_0, best",
        by: By::Format("tbq4_0", Encoder::Best),
    },
    Selector {
        name: "q4_0_rot",
        by: By::Peer("q4_0_rot"),
    },
];

impl Selector {
    /// Bits a value of what it stores; none if it stores nothing of its own.
    pub fn bits(&self) -> Option<f64> {
        match self.by {
            By::Exact | By::Age => None,
            By::Format(name, _) => kvforge_formats::by_name(name).map(|f| f.bits_per_value()),
            By::Peer(name) => Peer::by_name(name).map(Peer::bits_per_value),
            By::Scalar(half) => Some((2.0 * half.len() as f64).log2() + 16.0 / BLOCK as f64),
        }
    }

    /// What it stores of `keys`, `[n, head_dim]`, decoded.
    pub fn simulate(&self, keys: &[f32], head_dim: usize) -> Result<Vec<f32>, Error> {
        let mut keys = keys.to_vec();
        match self.by {
            By::Exact | By::Age => {}
            By::Format(name, encoder) => {
                let format = rows::format(name)?;
                let bytes = rows::encode(format, encoder, &Array::new(head_dim, keys)?)?;
                let decoded = rows::decode(format, Domain::Original, &bytes, head_dim)?;
                return Ok(decoded.into_data());
            }
            By::Peer(name) => match Peer::by_name(name) {
                Some(peer) => peer.simulate(&mut keys, head_dim, Role::K),
                None => {
                    return Err(Error::UnknownFormat {
                        name: name.into(),
                        known: "those of kvforge::peers".into(),
                    });
                }
            },
            By::Scalar(half) => keys
                .as_chunks_mut::<BLOCK>()
                .0
                .iter_mut()
                .for_each(|block| scalar(block, half)),
        }
        Ok(keys)
    }
}

/// Codes and decodes a block in place.
fn scalar(block: &mut [f32; BLOCK], half: &[f32]) {
    let rotation = tbq3_tcq::SPEC.transform.rotation();
    if let Some(rotation) = rotation {
        rotation.rotate(block);
    }
    let rms = (block.iter().map(|v| v * v).sum::<f32>() / BLOCK as f32).sqrt();
    let nearest = |v: f32| {
        let size = half
            .iter()
            .copied()
            .min_by(|a, b| (a - v.abs()).abs().total_cmp(&(b - v.abs()).abs()));
        size.unwrap_or_default().copysign(v)
    };
    let codes = block.map(|v| if rms > 0.0 { nearest(v / rms) } else { 0.0 });
    let (rc, cc) = block
        .iter()
        .zip(codes)
        .fold((0.0, 0.0), |(rc, cc), (r, c)| (rc + r * c, cc + c * c));
    let scale = if cc > 0.0 { rc / cc } else { 0.0 };
    let scale = f16_to_f32(f32_to_f16(scale));
    *block = codes.map(|c| scale * c);
    if let Some(rotation) = rotation {
        rotation.unrotate(block);
    }
}
