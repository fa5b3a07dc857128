/// An orthogonal transform that makes the values of a block look Gaussian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rotation {
    /// `r = H_32 (s . x) / sqrt(32)` on every 32 values: signs first, then the
    /// Walsh-Hadamard butterfly in natural order. Its inverse applies the same
    /// butterfly first and the signs last.
    SignedHadamard32 {
        /// Bit `i` is set where `s_i = -1`.
        negative: u32,
    },
}

/// Values that the butterfly mixes.
const WIDTH: usize = 32;

/// 1/sqrt(32), the fp32 number that public encoders multiply by.
const INV_SQRT_32: f32 = 0.176_776_69;

impl Rotation {
    /// Rotates every block of `x` in place: what the encoder does to a row, and
    /// what a reader of [`Domain::Rotated`](crate::Domain::Rotated) rows must do
    /// to its query. Values past the last whole block stay as they are.
    pub fn rotate(self, x: &mut [f32]) {
        let Rotation::SignedHadamard32 { negative } = self;
        for block in x.as_chunks_mut().0 {
            apply_signs(block, negative);
            hadamard(block);
        }
    }

    /// The inverse of [`rotate`](Rotation::rotate), in place.
    pub fn unrotate(self, r: &mut [f32]) {
        let Rotation::SignedHadamard32 { negative } = self;
        for block in r.as_chunks_mut().0 {
            hadamard(block);
            apply_signs(block, negative);
        }
    }
}

fn apply_signs(x: &mut [f32; WIDTH], negative: u32) {
    for (i, v) in x.iter_mut().enumerate() {
        if negative >> i & 1 == 1 {
            *v = -*v;
        }
    }
}

/// Orthonormal Walsh-Hadamard transform in natural (Sylvester) order.
fn hadamard(x: &mut [f32; WIDTH]) {
    let mut half = 1;
    while half < WIDTH {
        for pair in x.chunks_exact_mut(2 * half) {
            let (low, high) = pair.split_at_mut(half);
            for (a, b) in low.iter_mut().zip(high) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        half *= 2;
    }
    for v in x {
        *v *= INV_SQRT_32;
    }
}
