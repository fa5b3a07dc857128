//! A compressed KV cache whose newest tokens stay exact.
//!
//! A [`KvCache`] holds the keys and values of one layer, for any number of
//! sequences; a model has one cache a layer. Position `p` of a sequence is the token
//! that was appended as its `p`-th, counted from 0.
//!
//! **Write-through.** Every token is coded at once. It is also copied, rounded to
//! f16, into a ring of its sequence's newest tokens, and into another run if its
//! position is below [`sinks`](KvCacheOptions::sinks). A query at position `p` reads
//! the keys at positions above `p - window` from the copies, and all others from the
//! code, each exactly once: both are segments of one attention. Since the window
//! counts from each query, a prompt gives the same result in one batch as token by
//! token, but for rounding.
//!
//! **A better copy, no more.** What is not in the ring is read from the code: after
//! [`KvCache::drop_window`], a rollback over more than [`SLACK`] tokens, or for queries
//! of long ago. That costs accuracy until the ring is full again, and never makes anything
//! wrong.
//!
//! **Memory** of a sequence: its tokens as coded, and at 2 bytes a value the first
//! `sinks` ones, the newest `window` with at most twice [`SLACK`] more, and the last batch,
//! which stays as it is until the next [`append`](KvCache::append), so that its first
//! queries find their windows. Beside f32, copies are f32. [`KvCache::bytes`] says what it is.
//!
//! **Centred keys.** Keys code better without what all keys of a head have in common.
//! Softmax does not see a constant subtracted from all keys of a head, so nothing is
//! added back. Hand in keys that are centred already, or give the cache a
//! [`centre`](KvCacheOptions::centre), which it subtracts before it stores or copies
//! them. A soft-cap would see it: with a centre, it is refused, and who centres keys
//! himself must not use one.
//!
//! ```
//! use kvforge::cache::{AttendOptions, CacheType, KvCache, KvCacheOptions};
//!
//! // Two kv heads of 64 values, four query heads.
//! let format = CacheType::Format(kvforge::rows::format("tbq4_0")?);
//! let mut cache = KvCache::new(KvCacheOptions::new(2, 64, format, format))?;
//! let numbers = |n: usize, step: f32| (0..n).map(|i| (i as f32 * step).sin()).collect::<Vec<_>>();
//! let (keys, values) = (numbers(100 * 2 * 64, 0.1), numbers(100 * 2 * 64, 0.7));
//! cache.append(0, &keys, &values)?;
//!
//! // The query of the last token.
//! let options = AttendOptions::new(4, 1.0 / 8.0);
//! let out = cache.attend(0, &numbers(4 * 64, 0.3), 99, &options)?;
//! assert_eq!(out.len(), 4 * 64);
//! assert_eq!(cache.bytes().cache, 100 * 2 * 2 * 36);
//! # Ok::<(), kvforge::Error>(())
//! ```

mod attend;
mod options;
mod plane;
mod run;
mod sequence;

use std::borrow::Cow;

pub use attend::AttendOptions;
pub use kvforge_cpu::{CacheType, Encoder};
pub use options::{DEFAULT_WINDOW, KvCacheOptions};
pub use sequence::SLACK;

use crate::Error;
use plane::Plane;
use sequence::Sequence;

/// Keys and values of one layer: see [the module](self).
#[derive(Clone, Debug)]
pub struct KvCache {
    options: KvCacheOptions,
    planes: [Plane; 2],
    sequences: Vec<Sequence>,
}

/// Memory that tokens take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheBytes {
    /// Coded tokens.
    pub cache: usize,
    /// Exact copies.
    pub exact: usize,
}

impl KvCache {
    /// An empty cache.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if the options do not fit together: no heads, heads that are
    /// not whole blocks, a type that holds no keys or no values, a wrong centre.
    pub fn new(options: KvCacheOptions) -> Result<KvCache, Error> {
        let planes = options.check()?;
        let mut sequences = Vec::new();
        sequences
            .try_reserve_exact(options.sequences)
            .map_err(|_| {
                let found = options.sequences.to_string();
                Error::mismatch("as many sequences as memory can hold", found)
            })?;
        sequences.resize(options.sequences, Sequence::new(&planes));
        Ok(KvCache {
            options,
            planes,
            sequences,
        })
    }

    /// What it is made of.
    pub fn options(&self) -> &KvCacheOptions {
        &self.options
    }

    /// Appends tokens to a sequence: keys `[n, n_kv_heads, head_dim_k]`, values
    /// `[n, n_kv_heads, head_dim_v]`. On an error, none of them is in the cache.
    ///
    /// # Errors
    /// [`Error::Token`] for a key or value that cannot be coded, or copied as f16;
    /// [`Error::Mismatch`] if there is no such sequence, tokens are not whole or more
    /// than the capacity.
    pub fn append(&mut self, seq: usize, keys: &[f32], values: &[f32]) -> Result<(), Error> {
        let [n, n_values] = [self.planes[0].tokens(keys)?, self.planes[1].tokens(values)?];
        if n != n_values {
            return Err(Error::mismatch(
                format!("values of {n} tokens, as there are keys of"),
                n_values.to_string(),
            ));
        }
        let len = self.len(seq)?;
        if let Some(capacity) = self.options.capacity {
            if n > capacity.saturating_sub(len) {
                return Err(Error::mismatch(
                    format!(
                        "at most {capacity} tokens in a sequence, its capacity (truncate or \
                         clear it, or make a larger cache)"
                    ),
                    format!("{len}, and {n} more"),
                ));
            }
            self.sequences[seq].coded.reserve(capacity)?;
        }
        let keys = match &self.options.centre {
            None => Cow::Borrowed(keys),
            Some(centre) => {
                let centre = centre.iter().cycle();
                Cow::Owned(keys.iter().zip(centre).map(|(k, c)| k - c).collect())
            }
        };
        self.sequences[seq].append(
            &self.planes,
            self.options.exact(),
            (self.options.encoder, self.options.slot),
            n,
            [&keys, values],
        )
    }

    /// Attention of queries `[n_q, n_heads, head_dim_k]` at positions from `first` on
    /// over their sequence, as `[n_q, n_heads, head_dim_v]`. Their tokens have been
    /// appended before.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if there is no such sequence or position, queries are not
    /// finite or not whole, heads do not fit, or a soft-cap would see the centre.
    pub fn attend(
        &self,
        seq: usize,
        queries: &[f32],
        first: usize,
        options: &AttendOptions,
    ) -> Result<Vec<f32>, Error> {
        let len = self.len(seq)?;
        let n_q = self.check_queries(queries, options)?;
        if n_q > len.saturating_sub(first) {
            return Err(Error::mismatch(
                format!("queries at positions below {len} (append their tokens first)"),
                format!("{n_q} queries from position {first} on"),
            ));
        }
        if n_q == 0 {
            return Ok(vec![]);
        }
        let work = attend::Work {
            planes: &self.planes,
            n_kv_heads: self.options.n_kv_heads,
            exact: self.options.exact(),
            slot: self.options.slot,
            options,
            sequence: &self.sequences[seq],
            first,
        };
        Ok(work.run(queries)?)
    }

    /// How many queries there are, if the options suit them and the cache.
    fn check_queries(&self, queries: &[f32], options: &AttendOptions) -> Result<usize, Error> {
        let (n_heads, n_kv_heads) = (options.n_heads, self.options.n_kv_heads);
        if n_heads == 0 || !n_heads.is_multiple_of(n_kv_heads) {
            return Err(Error::mismatch(
                format!("query heads in a multiple of the {n_kv_heads} kv heads"),
                n_heads.to_string(),
            ));
        }
        let dim = self.planes[0].dim();
        let values = n_heads.saturating_mul(dim);
        if !queries.len().is_multiple_of(values) {
            return Err(Error::mismatch(
                format!("whole queries, [n_q, {n_heads}, {dim}]"),
                format!("{} numbers", queries.len()),
            ));
        }
        if let Some(i) = queries.iter().position(|x| !x.is_finite()) {
            let (query, head) = (i / values, i % values / dim);
            return Err(Error::mismatch(
                "finite queries",
                format!("{} in query {query}, head {head}", queries[i]),
            ));
        }
        if !options.scale.is_finite() || !(0.0..f32::INFINITY).contains(&options.softcap) {
            return Err(Error::mismatch(
                "a finite scale, and a softcap of 0 (none) or more",
                format!("scale {}, softcap {}", options.scale, options.softcap),
            ));
        }
        if self.options.centre.is_some() && options.softcap > 0.0 {
            return Err(Error::mismatch(
                "no softcap with a centre: it sees what was subtracted from the keys, as \
                 softmax does not (make the cache without centre)",
                format!("softcap {}", options.softcap),
            ));
        }
        Ok(queries.len() / values)
    }

    /// Tokens of a sequence.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if there is no such sequence.
    pub fn len(&self, seq: usize) -> Result<usize, Error> {
        match self.sequences.get(seq) {
            Some(sequence) => Ok(sequence.len()),
            None => Err(Error::mismatch(
                format!("a sequence below {}", self.sequences.len()),
                seq.to_string(),
            )),
        }
    }

    /// Removes the tokens of a sequence from position `n` on, copies included. A rollback
    /// to at most [`SLACK`] tokens below its longest length leaves no gap in the window.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if the sequence does not exist or is shorter.
    pub fn truncate(&mut self, seq: usize, n: usize) -> Result<(), Error> {
        let len = self.len(seq)?;
        if n > len {
            return Err(Error::mismatch(
                format!("a length of at most {len}, which sequence {seq} has"),
                n.to_string(),
            ));
        }
        self.sequences[seq].truncate(n);
        Ok(())
    }

    /// Makes sequence `to` a copy of sequence `from`, exact tokens included.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if one of them does not exist.
    pub fn copy(&mut self, from: usize, to: usize) -> Result<(), Error> {
        self.len(from)?;
        self.len(to)?;
        if from != to {
            self.sequences[to] = self.sequences[from].clone();
        }
        Ok(())
    }

    /// Removes all tokens of a sequence, and gives their memory back.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if there is no such sequence.
    pub fn clear(&mut self, seq: usize) -> Result<(), Error> {
        self.len(seq)?;
        self.sequences[seq] = Sequence::new(&self.planes);
        Ok(())
    }

    /// Forgets the exact copies of a sequence, the first tokens' included. Attention reads
    /// the code instead, which is coarser; tokens to come are copied again.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if there is no such sequence.
    pub fn drop_window(&mut self, seq: usize) -> Result<(), Error> {
        self.len(seq)?;
        self.sequences[seq].drop_copies();
        Ok(())
    }

    /// Memory that the tokens of all sequences take. A growing cache without a capacity
    /// may have asked for up to twice as much.
    pub fn bytes(&self) -> CacheBytes {
        let mut bytes = CacheBytes::default();
        for sequence in &self.sequences {
            bytes.cache += sequence.coded.size();
            bytes.exact += sequence.first.size() + sequence.ring.size();
        }
        bytes
    }

    /// Bits that a value takes in effect, exact copies included; `None` if there are no
    /// tokens.
    pub fn bits_per_value(&self) -> Option<f64> {
        let tokens: usize = self.sequences.iter().map(Sequence::len).sum();
        let values = tokens * (self.planes[0].values() + self.planes[1].values());
        let CacheBytes { cache, exact } = self.bytes();
        (values > 0).then(|| (cache + exact) as f64 * 8.0 / values as f64)
    }
}
