//! What a cache is made of.

use kvforge_cpu::{CacheType, Encoder};
use kvforge_formats::FormatSpec;

use super::plane::Plane;
use super::sequence::Exact;
use crate::Error;

/// Newest tokens that stay exact beside a compressed cache, unless told otherwise:
/// attention leans on these most, and more of them add little.
pub const DEFAULT_WINDOW: usize = 32;

/// What a [`KvCache`](super::KvCache) is made of: start from
/// [`new`](KvCacheOptions::new), change what should differ.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct KvCacheOptions {
    /// Heads of K and V.
    pub n_kv_heads: usize,
    /// Values of a key, a multiple of the block of `k_type`.
    pub head_dim_k: usize,
    /// Values of a value, a multiple of the block of `v_type`.
    pub head_dim_v: usize,
    /// What keys are stored as: f16, f32, or a format that a cache holds keys in.
    pub k_type: CacheType,
    /// What values are stored as: f16, f32, or a format that a cache holds values in.
    pub v_type: CacheType,
    /// Which of a format's encoders.
    pub encoder: Encoder,
    /// Newest positions that a query reads from exact copies, its own included; 0 for
    /// none.
    pub window: usize,
    /// First positions that are read from exact copies as well; 0 unless asked for. Worth
    /// more than a longer window where attention rests on a model's first tokens: a shipped
    /// tree keeps 4 (figures: docs/quality.md).
    pub sinks: usize,
    /// Sequences that the cache has.
    pub sequences: usize,
    /// Most tokens of a sequence, all of whose memory is then taken when its first one
    /// comes. `None`: as many as memory holds, which is taken as they come.
    pub capacity: Option<usize>,
    /// `[n_kv_heads, head_dim_k]`, subtracted from every key before it is stored.
    pub centre: Option<Vec<f32>>,
    /// Slot that the kernels count their work under, for instance the layer.
    pub slot: u32,
}

impl KvCacheOptions {
    /// One sequence with K and V heads of the same size, and with the default window
    /// if either is compressed.
    pub fn new(
        n_kv_heads: usize,
        head_dim: usize,
        k_type: CacheType,
        v_type: CacheType,
    ) -> KvCacheOptions {
        let compressed = |kind| matches!(kind, CacheType::Format(_));
        let window = if compressed(k_type) || compressed(v_type) {
            DEFAULT_WINDOW
        } else {
            0
        };
        KvCacheOptions {
            n_kv_heads,
            head_dim_k: head_dim,
            head_dim_v: head_dim,
            k_type,
            v_type,
            encoder: Encoder::Best,
            window,
            sinks: 0,
            sequences: 1,
            capacity: None,
            centre: None,
            slot: 0,
        }
    }

    /// With values of another size than keys.
    pub fn head_dim_v(self, head_dim_v: usize) -> KvCacheOptions {
        KvCacheOptions { head_dim_v, ..self }
    }

    /// With this encoder.
    pub fn encoder(self, encoder: Encoder) -> KvCacheOptions {
        KvCacheOptions { encoder, ..self }
    }

    /// With a window of `n` tokens.
    pub fn window(self, n: usize) -> KvCacheOptions {
        KvCacheOptions { window: n, ..self }
    }

    /// With the first `n` tokens exact.
    pub fn sinks(self, n: usize) -> KvCacheOptions {
        KvCacheOptions { sinks: n, ..self }
    }

    /// With `n` sequences.
    pub fn sequences(self, n: usize) -> KvCacheOptions {
        KvCacheOptions {
            sequences: n,
            ..self
        }
    }

    /// With room for `n` tokens in every sequence.
    pub fn capacity(self, n: usize) -> KvCacheOptions {
        KvCacheOptions {
            capacity: Some(n),
            ..self
        }
    }

    /// With keys centred by `[n_kv_heads, head_dim_k]`.
    pub fn centre(self, centre: Vec<f32>) -> KvCacheOptions {
        KvCacheOptions {
            centre: Some(centre),
            ..self
        }
    }

    /// With kernels counted under `slot`.
    pub fn slot(self, slot: u32) -> KvCacheOptions {
        KvCacheOptions { slot, ..self }
    }

    pub(super) fn exact(&self) -> Exact {
        Exact {
            window: self.window,
            sinks: self.sinks,
        }
    }

    /// K and V, if they can be stored so.
    pub(super) fn check(&self) -> Result<[Plane; 2], Error> {
        if self.sequences == 0 {
            return Err(Error::mismatch("at least one sequence", "none"));
        }
        let copied = self.window > 0 || self.sinks > 0;
        let (heads, k_dim, v_dim) = (self.n_kv_heads, self.head_dim_k, self.head_dim_v);
        let (keys, values) = (FormatSpec::holds_keys, FormatSpec::holds_values);
        let planes = [
            Plane::new("key", keys, self.k_type, [heads, k_dim], copied)?,
            Plane::new("value", values, self.v_type, [heads, v_dim], copied)?,
        ];
        if let Some(centre) = &self.centre {
            if centre.len() != planes[0].values() {
                return Err(Error::mismatch(
                    format!("a centre of a key of every head, [{heads}, {k_dim}]"),
                    format!("{} numbers", centre.len()),
                ));
            }
            if let Some(i) = centre.iter().position(|x| !x.is_finite()) {
                return Err(Error::mismatch(
                    "a finite centre",
                    format!(
                        "{} in value {} of kv head {}",
                        centre[i],
                        i % k_dim,
                        i / k_dim
                    ),
                ));
            }
        }
        Ok(planes)
    }
}
