//! What an instruction set implements for the attention engine: work on tiles,
//! each call large enough that choosing it costs nothing.

use kvforge_formats::Rotation;

use crate::view::Span;
use crate::{CacheType, Isa};

/// Keys that are decoded together. A bit set of a tile's keys fits a `u64`.
pub(crate) const TILE: usize = 64;

/// Rows and columns of tiles are padded to a multiple of this: two vectors of
/// eight floats, or one cache line.
pub(crate) const LINE: usize = 16;

/// Element type of a mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaskType {
    /// Native-endian fp32.
    F32,
    /// Native-endian IEEE binary16.
    F16,
}

impl MaskType {
    /// Bytes of an element.
    pub const fn bytes(self) -> usize {
        match self {
            MaskType::F32 => 4,
            MaskType::F16 => 2,
        }
    }
}

/// A matrix product `c = a b` or `c += a b`, all row-major; a pitch is the floats
/// from one row to the next.
pub(crate) struct Product<'a> {
    /// Rows of `a` and `c`.
    pub rows: usize,
    /// Columns of `b` and `c`: a multiple of [`LINE`].
    pub cols: usize,
    /// Columns of `a` and rows of `b`.
    pub depth: usize,
    pub a: &'a [f32],
    pub a_pitch: usize,
    pub b: &'a [f32],
    pub b_pitch: usize,
    pub c: &'a mut [f32],
    pub c_pitch: usize,
    /// Whether to add to what `c` holds.
    pub add: bool,
}

impl Product<'_> {
    /// Whether all three matrices lie within their slices.
    pub(crate) fn fits(&self) -> bool {
        let fits = |rows: usize, cols: usize, pitch: usize, len: usize| {
            rows == 0 || cols <= pitch && (rows - 1) * pitch + cols <= len
        };
        fits(self.rows, self.depth, self.a_pitch, self.a.len())
            && fits(self.depth, self.cols, self.b_pitch, self.b.len())
            && fits(self.rows, self.cols, self.c_pitch, self.c.len())
    }
}

/// What happens to a row of dot products before the softmax.
#[derive(Clone, Copy)]
pub(crate) struct Terms<'a> {
    /// Soft-cap; 0 for none.
    pub softcap: f32,
    /// Added to every score; minus infinity hides the key whatever its score is.
    /// Without it, all keys of the tile are visible.
    pub bias: Option<&'a [f32; TILE]>,
    /// Factor on the bias.
    pub slope: f32,
}

/// Softmax so far of one query row.
#[derive(Clone, Copy)]
pub(crate) struct Softmax {
    /// Largest score; minus infinity before the first one.
    pub max: f32,
    /// Sum of `exp(score - max)`.
    pub sum: f32,
}

/// The kernels of one instruction set.
pub(crate) trait Kernels: Copy {
    const ISA: Isa;

    /// Decodes keys, still transformed, into columns: `tile[d * TILE + t]` is
    /// coded value `d` of key `t`. Columns up to the next multiple of [`LINE`] are
    /// filled with something. The tile has room for a key's coded values,
    /// rounded up to a multiple of 8.
    fn keys(self, kind: CacheType, keys: Span<'_>, tile: &mut [f32]);

    /// Decodes values, still rotated, into rows: `tile[t * pitch + d]` is value
    /// `d` of token `t`, zero from the row's length up to `pitch`. A token whose
    /// bit in `seen` is clear becomes zeros without being looked at.
    fn values(self, kind: CacheType, values: Span<'_>, seen: u64, tile: &mut [f32], pitch: usize);

    /// Converts a mask row of at most [`TILE`] elements. Returns the set of keys
    /// that it does not hide; bits and elements behind the row mean nothing.
    fn mask(self, kind: MaskType, bytes: &[u8], row: &mut [f32; TILE]) -> u64;

    /// Applies a format's rotation to every block of `x`.
    fn rotate(self, rotation: Rotation, x: &mut [f32]);

    /// Undoes it.
    fn unrotate(self, rotation: Rotation, x: &mut [f32]);

    /// Matrix product.
    fn matmul(self, product: Product<'_>);

    /// Turns the first `cols` dot products of a row, a multiple of [`LINE`], into
    /// softmax weights relative to the new maximum, which it records. Returns
    /// the factor by which what was accumulated before must shrink.
    fn softmax(
        self,
        scores: &mut [f32; TILE],
        cols: usize,
        terms: Terms<'_>,
        softmax: &mut Softmax,
    ) -> f32;

    /// `x *= factor`.
    fn scale(self, x: &mut [f32], factor: f32);

    /// `x += factor * y`.
    fn add_scaled(self, x: &mut [f32], factor: f32, y: &[f32]);
}
