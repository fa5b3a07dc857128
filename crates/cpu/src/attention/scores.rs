//! Plain dot products of queries and keys.

use core::ops::Range;

use kvforge_formats::Domain;

use super::engine::{load_queries, transform_queries};
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
    /// fp32 queries, `[n_q, n_heads, head_dim]`; if they are of the rotated domain,
    /// as many values as a key has there.
    pub q: Rows<'a>,
    /// Whether queries are as the model has them, or what
    /// [`Transform::forward`](kvforge_formats::Transform::forward) of the keys'
    /// format has made of them.
    pub q_domain: Domain,
    /// Factor on every dot product.
    pub scale: f32,
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
        let group = self.n_heads / self.n_kv_heads;
        Plan::new(group, self.head_dim, [self.k_type].into_iter(), 0)
    }

    /// Values of a key in its rotated domain; 0 for more than can be counted.
    pub fn coded_len(&self) -> usize {
        self.k_type.coded_len(self.head_dim).unwrap_or(0)
    }

    fn check(&self, out: Shape) -> Result<(), Error> {
        let (q, k, dim) = (self.q.shape(), self.k.shape(), self.head_dim);
        check_kernel(self.k_type, Op::Score, self.isa)?;
        check_rows(k, self.n_kv, self.n_kv_heads, self.k_type, dim)?;
        let q_len = match self.q_domain {
            Domain::Original => dim,
            Domain::Rotated => self.coded_len(),
        };
        check_rows(q, self.n_q, self.n_heads, CacheType::F32, q_len)?;
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

/// Every query head times every key of its kv head, scaled, not masked:
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
    let pitch = plan.q_pitch;
    load_queries(s.q, s.scale, heads.clone(), q.clone(), pitch, scratch.q)?;
    if let (Domain::Original, Some(transform)) = (s.q_domain, s.k_type.transform()) {
        transform_queries(k, transform, s.head_dim, pitch, scratch.q);
    }
    let mut start = 0;
    while start < s.n_kv {
        let end = start.saturating_add(TILE).min(s.n_kv);
        let keys =
            s.k.span(kv_head, start..end)
                .ok_or(Error::Shape("no such keys"))?;
        k.keys(s.k_type, keys, scratch.keys);
        k.matmul(Product {
            rows,
            cols: (end - start).next_multiple_of(LINE),
            depth: s.coded_len(),
            a: scratch.q,
            a_pitch: pitch,
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
