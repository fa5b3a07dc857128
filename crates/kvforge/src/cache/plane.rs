//! What the rows of K, or those of V, are.

use kvforge_cpu::view::{Rows, Shape};
use kvforge_cpu::{CacheType, Encoder, Isa};
use kvforge_formats::{CodecError, FormatSpec, f32_to_f16};
use rayon::prelude::*;

use crate::Error;

/// Keys or values of a layer: `heads` rows of `dim` values a token.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plane {
    /// `key` or `value`.
    name: &'static str,
    kind: CacheType,
    heads: usize,
    dim: usize,
    /// Whether there are exact copies.
    copied: bool,
}

impl Plane {
    /// `name` is what a row is called, `holds` says whether a format may hold it.
    ///
    /// # Errors
    /// [`Error::Mismatch`] for a type that does not hold them, and for heads that are
    /// not a whole number of blocks.
    pub(super) fn new(
        name: &'static str,
        holds: impl Fn(&FormatSpec) -> bool,
        kind: CacheType,
        [heads, dim]: [usize; 2],
        copied: bool,
    ) -> Result<Plane, Error> {
        if heads == 0 || dim == 0 {
            return Err(Error::mismatch(
                format!("at least one kv head and one value in a {name}"),
                format!("{heads} heads of {dim}"),
            ));
        }
        let holds = match kind {
            CacheType::F32 | CacheType::F16 => true,
            CacheType::Format(spec) => holds(spec),
            CacheType::Q8_0 | CacheType::PolarResidual => false,
        };
        if !holds {
            return Err(Error::mismatch(
                format!("{name}s in f16, f32 or a format that a cache holds {name}s in"),
                match kind {
                    CacheType::Format(spec) => {
                        format!("{}, which is for {}", spec.name, spec.role.in_words())
                    }
                    other => format!("{other:?}"),
                },
            ));
        }
        let floats = heads.checked_mul(dim).and_then(|n| n.checked_mul(4));
        if kind.row_bytes(dim).is_none() || floats.is_none() {
            return Err(Error::mismatch(
                format!(
                    "{name}s of a multiple of {} values, the block of their type (choose \
                     another type for this head size)",
                    kind.block_len()
                ),
                format!("{heads} heads of {dim}"),
            ));
        }
        Ok(Plane {
            name,
            kind,
            heads,
            dim,
            copied,
        })
    }

    /// Values of a head.
    pub(super) fn dim(&self) -> usize {
        self.dim
    }

    /// Values of a token.
    pub(super) fn values(&self) -> usize {
        self.heads * self.dim
    }

    /// What the cache holds.
    pub(super) fn kind(&self) -> CacheType {
        self.kind
    }

    /// What the exact copies are: f16, but nothing coarser than the cache.
    pub(super) fn copy_kind(&self) -> CacheType {
        match self.kind {
            CacheType::F32 => CacheType::F32,
            _ => CacheType::F16,
        }
    }

    /// Bytes of a token in that type.
    pub(super) fn token_bytes(&self, kind: CacheType) -> usize {
        self.heads * self.row_bytes(kind)
    }

    fn row_bytes(&self, kind: CacheType) -> usize {
        // Whole blocks, as `new` has found; plain numbers always are.
        self.dim / kind.block_len() * kind.block_bytes()
    }

    /// How many tokens `x` is.
    pub(super) fn tokens(&self, x: &[f32]) -> Result<usize, Error> {
        if !x.len().is_multiple_of(self.values()) {
            let (heads, dim) = (self.heads, self.dim);
            return Err(Error::mismatch(
                format!("{}s of whole tokens, [n, {heads}, {dim}]", self.name),
                format!("{} numbers", x.len()),
            ));
        }
        Ok(x.len() / self.values())
    }

    /// Codes tokens as the cache holds them.
    ///
    /// # Errors
    /// [`Error::Token`] for the first row that cannot be coded, or not be copied.
    pub(super) fn encode(
        &self,
        encoder: Encoder,
        slot: u32,
        x: &[f32],
        bytes: &mut [u8],
    ) -> Result<(), Error> {
        let half = self.kind == CacheType::F16 || self.copied && self.kind != CacheType::F32;
        let row = |(x, bytes): (&[f32], &mut [u8])| -> Result<(), kvforge_cpu::Error> {
            match self.kind {
                CacheType::Format(spec) => {
                    kvforge_cpu::encode(spec, Isa::best(), encoder, x, bytes, slot)?;
                }
                kind => copy(kind, x, bytes),
            }
            if let Some(index) = x.iter().position(|v| !v.is_finite()) {
                return Err(CodecError::NonFinite { index }.into());
            }
            let overflows = |v: &f32| f32_to_f16(*v) & 0x7fff == 0x7c00;
            match x.iter().position(overflows) {
                Some(index) if half => {
                    let block = index / self.kind.block_len();
                    Err(CodecError::ScaleOverflow { block }.into())
                }
                _ => Ok(()),
            }
        };
        let rows = x.par_chunks_exact(self.dim);
        let rows = rows.zip(bytes.par_chunks_exact_mut(self.row_bytes(self.kind)));
        let failed = rows.map(row).enumerate();
        let failed = failed.find_map_first(|(row, done)| Some((row, done.err()?)));
        match failed {
            None => Ok(()),
            Some((row, kvforge_cpu::Error::Codec(cause))) => Err(Error::Token {
                what: self.name,
                token: row / self.heads,
                head: row % self.heads,
                cause,
            }),
            Some((_, other)) => Err(other.into()),
        }
    }

    /// Copies tokens as exactly as copies are.
    pub(super) fn copy(&self, x: &[f32], bytes: &mut [u8]) {
        copy(self.copy_kind(), x, bytes);
    }

    /// The rows of one head and `n` tokens, from token `from` of `bytes` on.
    pub(super) fn rows<'a>(
        &self,
        kind: CacheType,
        bytes: &'a [u8],
        from: usize,
        n: usize,
        head: usize,
    ) -> Result<Rows<'a>, kvforge_cpu::Error> {
        let row_bytes = self.row_bytes(kind);
        let row_stride = self.token_bytes(kind);
        let start = from * row_stride + head * row_bytes;
        let shape = Shape {
            rows: n,
            heads: 1,
            row_bytes,
            row_stride,
            head_stride: row_bytes,
        };
        Rows::new(bytes.get(start..).unwrap_or_default(), shape)
    }
}

/// Plain numbers.
fn copy(kind: CacheType, x: &[f32], bytes: &mut [u8]) {
    match kind {
        CacheType::F32 => {
            for (to, x) in bytes.as_chunks_mut().0.iter_mut().zip(x) {
                *to = x.to_ne_bytes();
            }
        }
        _ => {
            for (to, x) in bytes.as_chunks_mut().0.iter_mut().zip(x) {
                *to = f32_to_f16(*x).to_ne_bytes();
            }
        }
    }
}
