//! How much is done at a time, and the scratch memory for it.

use core::ops::Range;

use kvforge_formats::FORMATS;

use super::Attention;
use crate::kernels::{LINE, TILE};
use crate::{CacheType, Error};

/// Query rows that a decoded tile is shared by, where there are as many: enough
/// to make decoding cheap, few enough to stay in a second-level cache.
const ROWS: usize = 128;

/// Alignment of scratch memory in bytes: a cache line.
const ALIGNMENT: usize = 64;

/// Sizes of the blocks of query rows that one attention is done in. A block is
/// some positions of all query heads of a kv head, heads innermost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    /// Query heads of a kv head.
    pub group: usize,
    /// Positions of a block; the last one may have fewer.
    pub positions: usize,
    /// Floats from row to row of the queries.
    pub q_pitch: usize,
    /// Floats from row to row of the accumulators and decoded values.
    pub v_pitch: usize,
    /// Rows of a tile of decoded keys.
    pub key_rows: usize,
}

impl Plan {
    /// For these keys and values.
    pub(super) fn of(a: &Attention<'_>) -> Result<Plan, Error> {
        let keys = a.segments.iter().map(|s| s.k_type);
        Plan::new(a.group(), a.head_dim_k, keys, a.head_dim_v)
    }

    /// For keys of any type.
    pub(super) fn of_any(a: &Attention<'_>) -> Result<Plan, Error> {
        let keys = FORMATS.iter().map(|&spec| CacheType::Format(spec));
        Plan::new(a.group(), a.head_dim_k, keys, a.head_dim_v)
    }

    /// `v_dim` is 0 where there are only scores. Types that have no heads of
    /// `k_dim` values do not matter.
    pub(super) fn new(
        group: usize,
        k_dim: usize,
        keys: impl Iterator<Item = CacheType>,
        v_dim: usize,
    ) -> Result<Plan, Error> {
        let too_long = Error::Shape("a head is too long");
        let pad = |dim: usize| dim.checked_next_multiple_of(LINE).ok_or(too_long);
        let mut coded = k_dim;
        for kind in keys.filter(|kind| k_dim.is_multiple_of(kind.block_len())) {
            coded = coded.max(kind.coded_len(k_dim).ok_or(too_long)?);
        }
        Ok(Plan {
            group,
            positions: (ROWS / group).max(1),
            q_pitch: pad(coded)?,
            v_pitch: pad(v_dim)?,
            key_rows: pad(coded)?,
        })
    }

    /// Floats of scratch that `n_q` positions need.
    pub(super) fn floats(&self, n_q: usize) -> Result<usize, Error> {
        let sizes = self
            .group
            .checked_mul(n_q.min(self.positions))
            .and_then(|n| self.sizes(n));
        sizes
            .and_then(|sizes| sizes.iter().try_fold(0usize, |sum, n| sum.checked_add(*n)))
            .ok_or(Error::Shape(
                "scratch would be larger than the address space",
            ))
    }

    /// Floats of the parts of [`Scratch`] for `rows` query rows, in order: whole
    /// cache lines each.
    fn sizes(&self, rows: usize) -> Option<[usize; 8]> {
        let per_row = rows.checked_next_multiple_of(LINE)?;
        Some([
            rows.checked_mul(self.q_pitch)?,
            self.key_rows.checked_mul(TILE)?,
            self.v_pitch.checked_mul(TILE)?,
            rows.checked_mul(TILE)?,
            rows.checked_mul(TILE)?,
            rows.checked_mul(self.v_pitch)?,
            per_row,
            per_row,
        ])
    }

    /// Whether `scratch` suits a call over `n_q` positions.
    pub(super) fn check(&self, n_q: usize, scratch: &[f32]) -> Result<(), Error> {
        let needed = self.floats(n_q)?;
        if scratch.len() < needed {
            return Err(Error::Scratch {
                found: scratch.len(),
                needed,
            });
        }
        if !scratch.as_ptr().addr().is_multiple_of(ALIGNMENT) {
            return Err(Error::ScratchAlignment);
        }
        Ok(())
    }

    /// Calls `f` with the positions of every block.
    pub(super) fn for_blocks(
        &self,
        q: Range<usize>,
        mut f: impl FnMut(Range<usize>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut start = q.start;
        while start < q.end {
            let end = start.saturating_add(self.positions).min(q.end);
            f(start..end)?;
            start = end;
        }
        Ok(())
    }
}

/// The parts of scratch memory. Rows are query rows of a block.
pub(super) struct Scratch<'s> {
    /// `[rows, q_pitch]`: queries, scaled and rotated as the keys are.
    pub q: &'s mut [f32],
    /// `[key_rows, TILE]`: decoded keys as columns.
    pub keys: &'s mut [f32],
    /// `[TILE, v_pitch]`: decoded values as rows.
    pub values: &'s mut [f32],
    /// `[rows, TILE]`: scores, then weights.
    pub scores: &'s mut [f32],
    /// `[rows, TILE]` or `[positions, TILE]`: what is added to the scores.
    pub bias: &'s mut [f32],
    /// `[rows, v_pitch]`: sums of weight times value.
    pub acc: &'s mut [f32],
    /// `[rows]`: largest score so far.
    pub max: &'s mut [f32],
    /// `[rows]`: sum of weights so far.
    pub sum: &'s mut [f32],
}

impl<'s> Scratch<'s> {
    /// Cuts scratch that [`Plan::check`] has found large enough.
    pub(super) fn cut(plan: &Plan, rows: usize, mut memory: &'s mut [f32]) -> Result<Self, Error> {
        let found = memory.len();
        let sizes = plan.sizes(rows).ok_or(Error::Shape("too many rows"))?;
        let mut next = |size: usize| -> Result<&mut [f32], Error> {
            let (part, rest) = core::mem::take(&mut memory)
                .split_at_mut_checked(size)
                .ok_or(Error::Scratch {
                    found,
                    needed: found.saturating_add(size),
                })?;
            memory = rest;
            Ok(part)
        };
        let [q, keys, values, scores, bias, acc, max, sum] = sizes;
        Ok(Scratch {
            q: next(q)?,
            keys: next(keys)?,
            values: next(values)?,
            scores: next(scores)?,
            bias: next(bias)?,
            acc: next(acc)?,
            max: next(max)?,
            sum: next(sum)?,
        })
    }
}
