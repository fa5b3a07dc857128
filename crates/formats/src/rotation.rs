/// An orthogonal transform that makes the values of a block look Gaussian:
/// signs, then the Walsh-Hadamard butterfly in natural (Sylvester) order scaled
/// to keep lengths, then signs again. A bit `i` of a sign mask is set where the
/// sign of value `i` is minus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rotation {
    /// `r = H_32 (s . x) / sqrt(32)` on every 32 values.
    SignedHadamard32 {
        /// Signs `s`, before the butterfly.
        negative: u32,
    },
    /// `r = t . H_128 (s . x) / sqrt(128)` on every 128 values.
    SignedHadamard128 {
        /// Signs `s`, before the butterfly.
        before: u128,
        /// Signs `t`, after it.
        after: u128,
    },
}

/// 1/sqrt(32), the fp32 number that public encoders multiply by.
const INV_SQRT_32: f32 = 0.176_776_69;

/// 1/sqrt(128), likewise.
pub(crate) const INV_SQRT_128: f32 = 0.088_388_346;

impl Rotation {
    /// Values that are rotated together.
    pub const fn width(self) -> usize {
        match self {
            Rotation::SignedHadamard32 { .. } => 32,
            Rotation::SignedHadamard128 { .. } => 128,
        }
    }

    /// Rotates every block of `x` in place: what the encoder does to a row, and
    /// what a reader of [`Domain::Rotated`](crate::Domain::Rotated) rows must do
    /// to its query. Values past the last whole block stay as they are.
    pub fn rotate(self, x: &mut [f32]) {
        match self {
            Rotation::SignedHadamard32 { negative } => {
                for block in x.as_chunks_mut::<32>().0 {
                    turn(block, negative.into(), INV_SQRT_32, 0);
                }
            }
            Rotation::SignedHadamard128 { before, after } => {
                for block in x.as_chunks_mut::<128>().0 {
                    turn(block, before, INV_SQRT_128, after);
                }
            }
        }
    }

    /// The inverse of [`rotate`](Rotation::rotate), in place.
    pub fn unrotate(self, r: &mut [f32]) {
        match self {
            Rotation::SignedHadamard32 { negative } => {
                for block in r.as_chunks_mut::<32>().0 {
                    turn(block, 0, INV_SQRT_32, negative.into());
                }
            }
            Rotation::SignedHadamard128 { before, after } => {
                for block in r.as_chunks_mut::<128>().0 {
                    turn(block, after, INV_SQRT_128, before);
                }
            }
        }
    }
}

/// Signs, butterfly, factor, signs.
fn turn<const N: usize>(x: &mut [f32; N], before: u128, factor: f32, after: u128) {
    apply_signs(x, before);
    hadamard(x);
    for v in x.iter_mut() {
        *v *= factor;
    }
    apply_signs(x, after);
}

fn apply_signs(x: &mut [f32], negative: u128) {
    for (i, v) in x.iter_mut().enumerate() {
        if negative >> i & 1 == 1 {
            *v = -*v;
        }
    }
}

/// Walsh-Hadamard butterfly in natural order, not scaled: half-lengths 1, 2, 4
/// and so on, each pair `(a, b)` becoming `(a + b, a - b)`.
pub(crate) fn hadamard<const N: usize>(x: &mut [f32; N]) {
    let mut half = 1;
    while half < N {
        for pair in x.chunks_exact_mut(2 * half) {
            let (low, high) = pair.split_at_mut(half);
            for (a, b) in low.iter_mut().zip(high) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        half *= 2;
    }
}
