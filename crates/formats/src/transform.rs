use crate::{Rotation, projection};

/// What a codec does to a block before it codes it, and what a reader must do to
/// a query before it meets the coded values. With `T` the transform, a block is
/// coded as some `c` near `T x` and decodes to `T^T c`, so that for every query
/// `<T^T c, q> = <c, T q>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transform {
    /// As many coded values as there were; `T^T` is the inverse.
    Rotation(Rotation),
    /// `T = P^T`, 256 projections of 128 values; see
    /// [`qjl1_256`](crate::qjl1_256). `T^T` is no inverse.
    Sketch,
}

impl Transform {
    /// Values that are transformed together.
    pub const fn width(self) -> usize {
        match self {
            Transform::Rotation(rotation) => rotation.width(),
            Transform::Sketch => projection::INPUTS,
        }
    }

    /// Coded values of `n` values, `n` a multiple of the width.
    pub const fn coded_len(self, n: usize) -> usize {
        match self {
            Transform::Rotation(_) => n,
            Transform::Sketch => n / projection::INPUTS * projection::OUTPUTS,
        }
    }

    /// The rotation, if it is one.
    pub const fn rotation(self) -> Option<Rotation> {
        match self {
            Transform::Rotation(rotation) => Some(rotation),
            Transform::Sketch => None,
        }
    }

    /// `coded = T x`, block by block. What a query goes through to meet values of
    /// [`Domain::Rotated`](crate::Domain::Rotated). Does nothing for what is not
    /// a whole block in both slices.
    pub fn forward(self, x: &[f32], coded: &mut [f32]) {
        match self {
            Transform::Rotation(rotation) => {
                let n = x.len().min(coded.len()) / rotation.width() * rotation.width();
                coded[..n].copy_from_slice(&x[..n]);
                rotation.rotate(&mut coded[..n]);
            }
            Transform::Sketch => {
                let blocks = coded.as_chunks_mut().0.iter_mut();
                for (x, coded) in x.as_chunks().0.iter().zip(blocks) {
                    projection::project(x, coded);
                }
            }
        }
    }
}
