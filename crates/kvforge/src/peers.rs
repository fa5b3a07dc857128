//! The cache types that llama.cpp has, as yardsticks.
//!
//! Only what they do to values: coded and decoded again, in place, as ggml's reference
//! quantisers do it. All have blocks of 32 values with one fp16 scale.

use kvforge_formats::{f16_to_f32, f32_to_f16};

/// Values in a block of every peer.
const BLOCK: usize = 32;

/// The narrowest Hadamard rotation that the host applies.
const MIN_ROTATION: usize = 64;

/// What the values are to the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Keys.
    K,
    /// Values that the attention weights mix.
    V,
}

/// A cache type of the host.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// Name that people type; `_rot` where the host's own rotation comes first.
    pub name: &'static str,
    /// Bits of one code.
    code_bits: usize,
    rotated: bool,
    block: fn(&mut [f32; BLOCK]),
}

/// Every peer.
pub static PEERS: &[Peer] = &[
    Peer {
        name: "q8_0",
        code_bits: 8,
        rotated: false,
        block: q8_0,
    },
    Peer {
        name: "q4_0",
        code_bits: 4,
        rotated: false,
        block: q4_0,
    },
    Peer {
        name: "q4_0_rot",
        code_bits: 4,
        rotated: true,
        block: q4_0,
    },
    Peer {
        name: "iq4_nl",
        code_bits: 4,
        rotated: false,
        block: iq4_nl,
    },
];

impl Peer {
    /// The peer called `name`, if there is one.
    pub fn by_name(name: &str) -> Option<&'static Peer> {
        PEERS.iter().find(|p| p.name == name)
    }

    /// Bits per value, scale included.
    pub fn bits_per_value(&self) -> f64 {
        self.code_bits as f64 + 16.0 / BLOCK as f64
    }

    /// What a row of a head has to be a multiple of.
    pub fn multiple(&self) -> usize {
        if self.rotated { MIN_ROTATION } else { BLOCK }
    }

    /// Codes and decodes the vectors of `head_dim` values in `x`, in place.
    ///
    /// # Panics
    /// If `head_dim` is not a multiple of [`multiple`](Peer::multiple), or does not
    /// divide `x`.
    pub fn simulate(&self, x: &mut [f32], head_dim: usize, role: Role) {
        assert!(head_dim.is_multiple_of(self.multiple()) && x.len().is_multiple_of(head_dim));
        let width = match role {
            // As wide as the head allows: the largest power of two that divides it.
            Role::K => 1 << head_dim.trailing_zeros(),
            Role::V => MIN_ROTATION,
        };
        let rotate = |x: &mut [f32]| {
            if self.rotated {
                x.chunks_exact_mut(width).for_each(hadamard);
            }
        };
        rotate(x);
        x.as_chunks_mut().0.iter_mut().for_each(self.block);
        rotate(x);
    }
}

/// Orthonormal Walsh-Hadamard transform, its own inverse.
fn hadamard(x: &mut [f32]) {
    let mut half = 1;
    while half < x.len() {
        for pair in x.chunks_exact_mut(2 * half) {
            let (low, high) = pair.split_at_mut(half);
            for (a, b) in low.iter_mut().zip(high) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        half *= 2;
    }
    let scale = 1.0 / (x.len() as f32).sqrt();
    x.iter_mut().for_each(|v| *v *= scale);
}

fn as_fp16(x: f32) -> f32 {
    f16_to_f32(f32_to_f16(x))
}

fn inverse(x: f32) -> f32 {
    if x == 0.0 { 0.0 } else { 1.0 / x }
}

/// The value of largest magnitude, with its sign; the first of equals.
fn extreme(x: &[f32; BLOCK]) -> f32 {
    x.iter().fold(
        0.0,
        |max: f32, v| if v.abs() > max.abs() { *v } else { max },
    )
}

/// Codes -127..=127, the largest magnitude at 127.
fn q8_0(x: &mut [f32; BLOCK]) {
    let d = extreme(x).abs() / 127.0;
    let (id, d) = (inverse(d), as_fp16(d));
    for v in x {
        *v = (*v * id).round() * d;
    }
}

/// Codes -8..=7, the largest magnitude at -8 whatever its sign.
fn q4_0(x: &mut [f32; BLOCK]) {
    let d = extreme(x) / -8.0;
    let (id, d) = (inverse(d), as_fp16(d));
    for v in x {
        *v = ((*v * id + 8.5).floor().min(15.0) - 8.0) * d;
    }
}

const IQ4_NL: [f32; 16] = [
    -127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0,
    89.0, 113.0,
];

/// How many scales to either side of the first one are tried.
const IQ4_NL_TRIES: i32 = 7;

/// Below this the block is zero.
const IQ4_NL_EPSILON: f32 = 1e-15;

/// A fixed codebook of 16 values, and the scale that fits best by least squares
/// weighted with x^2, out of 15 that put the largest magnitude near the end of it.
///
/// The search is that of ggml's offline quantiser. A cache write takes the first scale
/// only, and has 4 % more error on Gaussian values: the peer here is the stronger one.
fn iq4_nl(x: &mut [f32; BLOCK]) {
    let max = extreme(x);
    if max.abs() < IQ4_NL_EPSILON {
        x.fill(0.0);
        return;
    }
    // Sums of w q x and of w q q for the codes that the inverse scale `id` selects.
    let sums = |id: f32| {
        x.iter().fold((0.0, 0.0), |(qx, qq): (f32, f32), v| {
            let (q, w) = (nearest(id * v), v * v);
            (qx + w * q * v, qq + w * q * q)
        })
    };
    let (qx, qq) = sums(1.0 / (-max / IQ4_NL[0]));
    let mut d = if qq > 0.0 { qx / qq } else { 0.0 };
    let mut best = d * qx;
    for step in -IQ4_NL_TRIES..=IQ4_NL_TRIES {
        let (qx, qq) = sums((step as f32 + IQ4_NL[0]) / max);
        if qq > 0.0 && qx * qx > best * qq {
            d = qx / qq;
            best = d * qx;
        }
    }
    let (id, d) = (inverse(d), as_fp16(d));
    for v in x {
        *v = nearest(id * *v) * d;
    }
}

/// The codebook value nearest to `x`; of two, the upper one.
fn nearest(x: f32) -> f32 {
    let above = IQ4_NL
        .partition_point(|c| *c < x)
        .clamp(1, IQ4_NL.len() - 1);
    let (low, high) = (IQ4_NL[above - 1], IQ4_NL[above]);
    if x - low < high - x { low } else { high }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(name: &str) -> &'static Peer {
        Peer::by_name(name).unwrap()
    }

    fn relative_mse(peer: &Peer, x: &[f32], head_dim: usize, role: Role) -> f64 {
        let mut y = x.to_vec();
        peer.simulate(&mut y, head_dim, role);
        let error: f64 = x
            .iter()
            .zip(&y)
            .map(|(a, b)| ((a - b) as f64).powi(2))
            .sum();
        error / x.iter().map(|a| (*a as f64).powi(2)).sum::<f64>()
    }

    #[test]
    fn known_blocks() {
        // Largest magnitude -8: scale 1, so that whole numbers stay, but +8 has no code.
        let mut x: [f32; BLOCK] = std::array::from_fn(|i| (i % 16) as f32 - 8.0);
        let whole = x;
        q4_0(&mut x);
        assert_eq!(x, whole);
        x[0] = 8.0;
        q4_0(&mut x);
        assert_eq!((x[0], x[15], x[1]), (8.0, 7.0, -7.0));
        x[16] = 7.5;
        x[0] = -8.0;
        x[17] = 8.0;
        q4_0(&mut x);
        assert_eq!((x[0], x[16], x[17]), (-8.0, 7.0, 7.0), "clamped at 15");

        let mut x: [f32; BLOCK] = std::array::from_fn(|i| i as f32 * 4.0 - 127.0);
        let whole = x;
        q8_0(&mut x);
        assert_eq!(x, whole);
        x[3] = 0.5;
        x[4] = -0.5;
        q8_0(&mut x);
        assert_eq!((x[3], x[4]), (1.0, -1.0), "halves go away from zero");

        let mut x: [f32; BLOCK] = std::array::from_fn(|i| IQ4_NL[i % 16] / 64.0);
        let codebook = x;
        iq4_nl(&mut x);
        assert_eq!(x, codebook);
        assert_eq!(
            [nearest(-128.0), nearest(-4.5), nearest(7.0), nearest(200.0)],
            [-127.0, 1.0, 13.0, 113.0]
        );

        for peer in PEERS {
            let mut zero = [0.0; 64];
            peer.simulate(&mut zero, 64, Role::K);
            assert_eq!(zero, [0.0; 64], "{}", peer.name);
        }
    }

    /// Rows whose rotation of the right width, and no other, is a row of exact codes.
    #[test]
    fn rotation_is_as_wide_as_the_role_says() {
        for (role, head_dim, width) in [
            (Role::K, 64, 64),
            (Role::K, 128, 128),
            (Role::K, 192, 64),
            (Role::K, 256, 256),
            (Role::V, 256, 64),
        ] {
            let mut x: Vec<f32> = (0..head_dim)
                .map(|i| (i * i % 61 % 16) as f32 - 8.0)
                .collect();
            x.iter_mut().step_by(BLOCK).for_each(|v| *v = -8.0);
            x.chunks_exact_mut(width).for_each(hadamard);
            let found = relative_mse(peer("q4_0_rot"), &x, head_dim, role);
            assert!(found < 1e-12, "{role:?} {head_dim}: {found}");
        }
    }
}
