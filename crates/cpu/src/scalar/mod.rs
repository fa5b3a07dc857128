//! Kernels in plain Rust, for any machine: the ones to read.

pub(crate) mod codec;

use kvforge_formats::{Domain, Rotation, f16_to_f32};

use crate::kernels::{Kernels, MaskType, Product, Softmax, TILE, Terms};
use crate::math::{exp, tanh};
use crate::view::Span;
use crate::{CacheType, Isa};

/// The kernels of [`Isa::Scalar`].
#[derive(Clone, Copy)]
pub(crate) struct Scalar;

impl Kernels for Scalar {
    const ISA: Isa = Isa::Scalar;

    fn keys(self, kind: CacheType, keys: Span<'_>, tile: &mut [f32]) {
        // As many whole blocks as fit at a time.
        let part = codec::LONGEST / kind.len_in(Domain::Rotated) * kind.block_bytes();
        for t in 0..keys.len().min(TILE) {
            let mut columns = tile.as_chunks_mut::<TILE>().0.iter_mut();
            for blocks in keys.row(t).chunks(part) {
                let mut values = [0.0; codec::LONGEST];
                let values = &mut values[..coded_values(kind, blocks)];
                decode(kind, blocks, values);
                for (value, column) in values.iter().zip(&mut columns) {
                    column[t] = *value;
                }
            }
        }
    }

    fn values(self, kind: CacheType, values: Span<'_>, seen: u64, tile: &mut [f32], pitch: usize) {
        let len = coded_values(kind, values.row(0));
        for (t, out) in tile.chunks_exact_mut(pitch).enumerate().take(values.len()) {
            let (out, padding) = out.split_at_mut(len);
            if seen >> t & 1 == 1 {
                decode(kind, values.row(t), out);
            } else {
                out.fill(0.0);
            }
            padding.fill(0.0);
        }
    }

    fn mask(self, kind: MaskType, bytes: &[u8], row: &mut [f32; TILE]) -> u64 {
        match kind {
            MaskType::F32 => {
                for (x, b) in row.iter_mut().zip(bytes.as_chunks().0) {
                    *x = f32::from_ne_bytes(*b);
                }
            }
            MaskType::F16 => {
                for (x, b) in row.iter_mut().zip(bytes.as_chunks().0) {
                    *x = f16_to_f32(u16::from_ne_bytes(*b));
                }
            }
        }
        let visible = |x: &f32| u64::from(*x != f32::NEG_INFINITY);
        row.iter().rev().fold(0, |set, x| set << 1 | visible(x))
    }

    fn rotate(self, rotation: Rotation, x: &mut [f32]) {
        rotation.rotate(x);
    }

    fn unrotate(self, rotation: Rotation, x: &mut [f32]) {
        rotation.unrotate(x);
    }

    fn matmul(self, p: Product<'_>) {
        debug_assert!(p.fits());
        let rows = p.a.chunks(p.a_pitch).zip(p.c.chunks_mut(p.c_pitch));
        for (a, c) in rows.take(p.rows) {
            if !p.add {
                c[..p.cols].fill(0.0);
            }
            for (a, b) in a[..p.depth].iter().zip(p.b.chunks(p.b_pitch)) {
                for (c, b) in c[..p.cols].iter_mut().zip(b) {
                    *c += a * b;
                }
            }
        }
    }

    fn softmax(
        self,
        scores: &mut [f32; TILE],
        cols: usize,
        terms: Terms<'_>,
        softmax: &mut Softmax,
    ) -> f32 {
        let scores = &mut scores[..cols];
        if terms.softcap != 0.0 {
            for s in scores.iter_mut() {
                *s = terms.softcap * tanh(*s / terms.softcap);
            }
        }
        if let Some(bias) = terms.bias {
            for (s, bias) in scores.iter_mut().zip(bias) {
                // Not by adding: the score of a hidden key may be NaN.
                *s = if *bias == f32::NEG_INFINITY {
                    f32::NEG_INFINITY
                } else {
                    *s + terms.slope * bias
                };
            }
        }
        let before = softmax.max;
        softmax.max = scores.iter().fold(before, |max, s| max.max(*s));
        // No visible key yet: any finite base gives weights of zero.
        let base = if softmax.max == f32::NEG_INFINITY {
            0.0
        } else {
            softmax.max
        };
        let shrink = exp(before - base);
        let mut sum = 0.0;
        for s in scores {
            *s = exp(*s - base);
            sum += *s;
        }
        softmax.sum = softmax.sum * shrink + sum;
        shrink
    }

    fn scale(self, x: &mut [f32], factor: f32) {
        for x in x {
            *x *= factor;
        }
    }

    fn add_scaled(self, x: &mut [f32], factor: f32, y: &[f32]) {
        for (x, y) in x.iter_mut().zip(y) {
            *x += factor * y;
        }
    }
}

/// Decodes bytes and values that the engine has checked to fit each other.
fn decode(kind: CacheType, bytes: &[u8], x: &mut [f32]) {
    let decoded = codec::row(kind, Domain::Rotated, bytes, x);
    debug_assert!(decoded.is_ok());
}

/// How many coded values whole blocks hold.
fn coded_values(kind: CacheType, blocks: &[u8]) -> usize {
    blocks.len() / kind.block_bytes() * kind.len_in(Domain::Rotated)
}
