//! Plain dot products of queries and keys.

use core::ops::Range;

use super::engine::load_queries;
use super::scratch::{Plan, Scratch};
use super::{check_heads, check_kernel, check_rows, with_kernels};
use crate::kernels::{Kernels, LINE, Product, TILE};
use crate::view::{Rows, RowsMut, Shape};
use crate::{CacheType, Error, Isa, Op, counters, scalar};

/// Queries and keys of [`score`].
#[derive(Clone, Copy, Debug)]
pub struct Scores<'a> {
    /// Values of a query and of a key.
    pub head_dim: usize,
    /// Query heads, a multiple of `n_kv_heads`.
    pub n_heads: usize,
    /// Heads of K.
    pub n_kv_heads: usize,
    /// Query positions.
    pub n_q: usize,
    /// Keys.
    pub n_kv: usize,
    /// fp32 queries, `[n_q, n_heads, head_dim]`.
    pub q: Rows<'a>,
    /// Type of the keys.
    pub k_type: CacheType,
    /// `[n_kv, n_kv_heads, head_dim]`.
    pub k: Rows<'a>,
    /// Instruction set to use.
    pub isa: Isa,
    /// Slot that the work is counted under.
    pub slot: u32,
}

impl Scores<'_> {
    fn plan(&self) -> Result<Plan, Error> {
        check_heads(self.n_heads, self.n_kv_heads)?;
        if self.head_dim == 0 {
            return Err(Error::Shape("a head has no values"));
        }
        Plan::new(self.n_heads / self.n_kv_heads, self.head_dim, 0)
    }

    fn check(&self, out: Shape) -> Result<(), Error> {
        let (q, k, dim) = (self.q.shape(), self.k.shape(), self.head_dim);
        check_kernel(self.k_type, Op::Score, self.isa)?;
        check_rows(q, self.n_q, self.n_heads, CacheType::F32, dim)?;
        check_rows(k, self.n_kv, self.n_kv_heads, self.k_type, dim)?;
        check_rows(out, self.n_q, self.n_heads, CacheType::F32, self.n_kv)
    }
}

/// Floats of scratch, 64-byte aligned, that [`score`] needs. Only looks at head
/// counts and sizes, so tensors may still be missing.
///
/// # Errors
/// [`Error::Shape`] if those do not fit together.
pub fn score_scratch(s: &Scores<'_>) -> Result<usize, Error> {
    s.plan()?.floats(s.n_q)
}

/// Every query head times every key of its kv head, neither scaled nor masked:
/// `out` is `[n_q, n_heads, n_kv]` of fp32. Each key is decoded once for a block
/// of queries of all its heads.
///
/// Counts dot products, if the keys are of one of kvforge's formats.
///
/// # Errors
/// As [`attend`](super::attend).
pub fn score(s: &Scores<'_>, out: &mut RowsMut<'_>, scratch: &mut [f32]) -> Result<(), Error> {
    let plan = s.plan()?;
    s.check(out.shape())?;
    plan.check(s.n_q, scratch)?;
    with_kernels!(s.isa, k => {
        for kv_head in 0..s.n_kv_heads {
            plan.for_blocks(0..s.n_q, |q| block(k, s, &plan, kv_head, q, out, scratch))?;
        }
        Ok(())
    })
}

/// The scores of some positions of the heads of one kv head.
fn block<K: Kernels>(
    k: K,
    s: &Scores<'_>,
    plan: &Plan,
    kv_head: usize,
    q: Range<usize>,
    out: &mut RowsMut<'_>,
    memory: &mut [f32],
) -> Result<(), Error> {
    let rows = q.len() * plan.group;
    let heads = kv_head * plan.group..(kv_head + 1) * plan.group;
    let scratch = Scratch::cut(plan, rows, memory)?;
    load_queries(s.q, 1.0, heads.clone(), q.clone(), plan.q_pitch, scratch.q)?;
    if let Some(rotation) = s.k_type.rotation() {
        k.rotate(rotation, scratch.q);
    }
    let mut start = 0;
    while start < s.n_kv {
        let end = start.saturating_add(TILE).min(s.n_kv);
        let keys =
            s.k.span(kv_head, start..end)
                .ok_or(Error::Shape("no such keys"))?;
        k.keys(s.k_type, keys, s.head_dim, scratch.keys);
        k.matmul(Product {
            rows,
            cols: (end - start).next_multiple_of(LINE),
            depth: s.head_dim,
            a: scratch.q,
            a_pitch: plan.q_pitch,
            b: scratch.keys,
            b_pitch: TILE,
            c: scratch.scores,
            c_pitch: TILE,
            add: false,
        });
        for (i, scores) in scratch
            .scores
            .as_chunks::<TILE>()
            .0
            .iter()
            .enumerate()
            .take(rows)
        {
            let (head, position) = (heads.start + i % plan.group, q.start + i / plan.group);
            let row = out
                .row(head, position)
                .ok_or(Error::Shape("no such output row"))?;
            let row = row.as_chunks_mut().0.iter_mut().skip(start);
            for (out, score) in row.zip(scores) {
                *out = score.to_ne_bytes();
            }
        }
        start = end;
    }
    if let Some(spec) = s.k_type.format() {
        counters::add(spec, Op::Score, K::ISA, s.slot, rows.saturating_mul(s.n_kv));
    }
    Ok(())
}
