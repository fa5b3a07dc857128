//! Scores and fused attention over a list of cache segments.
//!
//! For query position `q`, head `h` and a key of `h`'s kv head
//! `h / (n_heads / n_kv_heads)`:
//!
//! ```text
//! s = dot(q, k) * scale
//! s = softcap * tanh(s / softcap)      with a soft-cap
//! s = s + slopes[h] * mask[q, key]     with a mask
//! ```
//!
//! A key is hidden if its mask is minus infinity, or if attention is causal and
//! the key stands after the query; what its bytes hold then does not matter. The
//! output is the softmax-weighted sum of visible values over all segments, with
//! `exp(sinks[h])` added to the denominator; zeros for a query that sees no key.
//!
//! Work is split by its caller: a call does one kv head and a range of query
//! positions ([`attend`]), or of keys as well ([`attend_partial`], then
//! [`merge()`]).

mod engine;
mod merge;
mod scores;
mod scratch;

use core::ops::Range;

pub use crate::kernels::MaskType;
pub use scores::{Scores, score, score_scratch};

use kvforge_formats::FORMATS;

use crate::kernels::Kernels;
use crate::view::{Rows, RowsMut, Shape};
use crate::{CacheType, Error, Isa, Op, counters, kernel_name, scalar};
use engine::Block;
use scratch::Plan;

/// One attention.
#[derive(Clone, Copy, Debug)]
pub struct Attention<'a> {
    /// Values of a query and of a key.
    pub head_dim_k: usize,
    /// Values of a value and of an output.
    pub head_dim_v: usize,
    /// Query heads, a multiple of `n_kv_heads`.
    pub n_heads: usize,
    /// Heads of K and V.
    pub n_kv_heads: usize,
    /// Query positions.
    pub n_q: usize,
    /// fp32 queries, `[n_q, n_heads, head_dim_k]`.
    pub q: Rows<'a>,
    /// Factor on every dot product.
    pub scale: f32,
    /// Soft-cap of the scores; 0 for none.
    pub softcap: f32,
    /// ALiBi slopes, `[n_heads]`: factors on the mask.
    pub slopes: Option<&'a [f32]>,
    /// Logits of keys that have no value, `[n_heads]`.
    pub sinks: Option<&'a [f32]>,
    /// Position of the first query, if keys after a query are hidden.
    pub causal: Option<i64>,
    /// The cache, in parts of any types.
    pub segments: &'a [Segment<'a>],
    /// Instruction set to use.
    pub isa: Isa,
    /// Slot that the work is counted under.
    pub slot: u32,
}

/// A run of keys and values of the same two types.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    /// Tokens.
    pub n_kv: usize,
    /// Type of the keys.
    pub k_type: CacheType,
    /// `[n_kv, n_kv_heads, head_dim_k]`.
    pub k: Rows<'a>,
    /// Type of the values.
    pub v_type: CacheType,
    /// `[n_kv, n_kv_heads, head_dim_v]`.
    pub v: Rows<'a>,
    /// Added to the scores.
    pub mask: Option<Mask<'a>>,
    /// Position of the first token, for causal attention.
    pub pos0: i64,
}

/// An additive mask.
#[derive(Clone, Copy, Debug)]
pub struct Mask<'a> {
    /// Element type.
    pub kind: MaskType,
    /// `[n_q, heads, n_kv]`; query head `h` reads mask head `h % heads`.
    pub rows: Rows<'a>,
}

impl Attention<'_> {
    /// Query heads of one kv head.
    fn group(&self) -> usize {
        self.n_heads / self.n_kv_heads
    }

    fn check_heads(&self) -> Result<(), Error> {
        check_heads(self.n_heads, self.n_kv_heads)?;
        if self.head_dim_k == 0 || self.head_dim_v == 0 {
            return Err(Error::Shape("a head has no values"));
        }
        Ok(())
    }

    /// Whether all parts fit together; the engine relies on it.
    fn check(&self) -> Result<(), Error> {
        self.check_heads()?;
        check_rows(
            self.q.shape(),
            self.n_q,
            self.n_heads,
            CacheType::F32,
            self.head_dim_k,
        )?;
        for per_head in [self.slopes, self.sinks].into_iter().flatten() {
            if per_head.len() != self.n_heads {
                return Err(Error::Shape("slopes or sinks are not one per head"));
            }
        }
        for s in self.segments {
            if s.k_type.format().is_some_and(|spec| !spec.holds_keys()) {
                return Err(Error::Shape("keys are of a type that only old files hold"));
            }
            if s.v_type.format().is_some_and(|spec| !spec.holds_values()) {
                return Err(Error::Shape(
                    "values are of a type that holds none: it is for keys or for old files only",
                ));
            }
            check_kernel(s.k_type, Op::Attend, self.isa)?;
            check_kernel(s.v_type, Op::Attend, self.isa)?;
            check_rows(
                s.k.shape(),
                s.n_kv,
                self.n_kv_heads,
                s.k_type,
                self.head_dim_k,
            )?;
            check_rows(
                s.v.shape(),
                s.n_kv,
                self.n_kv_heads,
                s.v_type,
                self.head_dim_v,
            )?;
            if let Some(mask) = s.mask {
                let Shape {
                    rows,
                    heads,
                    row_bytes,
                    ..
                } = mask.rows.shape();
                let wanted = s.n_kv.checked_mul(mask.kind.bytes());
                if rows != self.n_q || heads == 0 || Some(row_bytes) != wanted {
                    return Err(Error::Shape("a mask is not [n_q, heads, n_kv]"));
                }
            }
        }
        Ok(())
    }

    /// The same for one call's part of it.
    fn check_call(&self, kv_head: usize, q: &Range<usize>) -> Result<(), Error> {
        self.check()?;
        if kv_head >= self.n_kv_heads || q.start > q.end || q.end > self.n_q {
            return Err(Error::Shape("no such kv head or query positions"));
        }
        Ok(())
    }

    fn check_out(&self, out: &RowsMut<'_>) -> Result<(), Error> {
        check_rows(
            out.shape(),
            self.n_q,
            self.n_heads,
            CacheType::F32,
            self.head_dim_v,
        )
    }
}

fn check_heads(n_heads: usize, n_kv_heads: usize) -> Result<(), Error> {
    if n_heads == 0 || n_kv_heads == 0 || !n_heads.is_multiple_of(n_kv_heads) {
        return Err(Error::Shape("query heads are not a multiple of kv heads"));
    }
    Ok(())
}

/// Whether there are kernels for a type.
fn check_kernel(kind: CacheType, op: Op, isa: Isa) -> Result<(), Error> {
    match kind.format() {
        Some(spec) if kernel_name(spec, op, isa).is_none() => Err(Error::Unsupported),
        _ => Ok(()),
    }
}

/// Whether a tensor is `[rows, heads, dim]` of that type.
fn check_rows(
    shape: Shape,
    rows: usize,
    heads: usize,
    kind: CacheType,
    dim: usize,
) -> Result<(), Error> {
    let row_bytes = kind
        .row_bytes(dim)
        .ok_or(Error::Shape("a head is not a whole number of blocks"))?;
    if (shape.rows, shape.heads, shape.row_bytes) != (rows, heads, row_bytes) {
        return Err(Error::Shape(
            "a tensor does not have the heads, rows or row size of the call",
        ));
    }
    Ok(())
}

/// Calls a function that is generic over [`Kernels`] with those of an `Isa`.
macro_rules! with_kernels {
    ($isa:expr, $k:ident => $call:expr) => {
        match $isa {
            Isa::Scalar => {
                let $k = scalar::Scalar;
                $call
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => {
                let $k = crate::isa::Avx2::detect().ok_or(Error::Unsupported)?;
                $call
            }
            #[cfg(not(target_arch = "x86_64"))]
            Isa::Avx2 => Err(Error::Unsupported),
        }
    };
}
use with_kernels;

/// Floats of scratch, 64-byte aligned, that a call over `n_q` query positions
/// needs. Only looks at head counts and sizes, so tensors may still be missing.
///
/// # Errors
/// [`Error::Shape`] if those do not fit together.
pub fn attend_scratch(a: &Attention<'_>, n_q: usize) -> Result<usize, Error> {
    a.check_heads()?;
    Plan::of_any(a)?.floats(n_q)
}

/// Attention of the query heads of one kv head at the positions `q`, over all
/// segments; writes those rows of `out`, `[n_q, n_heads, head_dim_v]` of fp32.
///
/// Counts the finished rows under every format among the segments.
///
/// # Errors
/// [`Error::Shape`] if arguments do not fit together, [`Error::Scratch`] and
/// [`Error::ScratchAlignment`] for scratch that does not suit,
/// [`Error::Unsupported`] if the machine lacks the instruction set. Nothing is
/// written then.
pub fn attend(
    a: &Attention<'_>,
    kv_head: usize,
    q: Range<usize>,
    out: &mut RowsMut<'_>,
    scratch: &mut [f32],
) -> Result<(), Error> {
    a.check_call(kv_head, &q)?;
    a.check_out(out)?;
    let plan = Plan::of(a)?;
    plan.check(q.len(), scratch)?;
    with_kernels!(a.isa, k => {
        plan.for_blocks(q, |q| {
            let mut block = Block::new(k, a, &plan, kv_head, q, scratch)?;
            for segment in a.segments {
                block.add(segment, 0..segment.n_kv)?;
            }
            block.finish(out)
        })
    })
}

/// Floats of one row of partials: `head_dim_v` accumulated values in the original
/// domain, not divided; the largest score; the sum of `exp(score - largest)`.
pub fn partial_row_floats(a: &Attention<'_>) -> usize {
    a.head_dim_v + 2
}

/// Floats of the partials of `n_q` positions of the query heads of one kv head.
///
/// # Errors
/// [`Error::Shape`] if head counts and sizes do not fit together.
pub fn partial_floats(a: &Attention<'_>, n_q: usize) -> Result<usize, Error> {
    a.check_heads()?;
    n_q.checked_mul(a.group())
        .and_then(|rows| rows.checked_mul(a.head_dim_v.checked_add(2)?))
        .ok_or(Error::Shape(
            "partials would be larger than the address space",
        ))
}

/// As [`attend`], but over the keys `kv` of one segment only, and unfinished:
/// writes partials, `[q.len(), n_heads / n_kv_heads, partial_row_floats(a)]`, for
/// [`merge()`].
///
/// # Errors
/// As [`attend`].
pub fn attend_partial(
    a: &Attention<'_>,
    kv_head: usize,
    q: Range<usize>,
    segment: usize,
    kv: Range<usize>,
    partials: &mut [f32],
    scratch: &mut [f32],
) -> Result<(), Error> {
    a.check_call(kv_head, &q)?;
    let segment = a
        .segments
        .get(segment)
        .ok_or(Error::Shape("no such segment"))?;
    if kv.start > kv.end || kv.end > segment.n_kv {
        return Err(Error::Shape("no such keys in the segment"));
    }
    if partials.len() != partial_floats(a, q.len())? {
        return Err(Error::Shape(
            "partials are not one row for every position and head",
        ));
    }
    let plan = Plan::of(a)?;
    plan.check(q.len(), scratch)?;
    let mut rows = partials.chunks_exact_mut(partial_row_floats(a));
    with_kernels!(a.isa, k => {
        plan.for_blocks(q, |q| {
            let mut block = Block::new(k, a, &plan, kv_head, q, scratch)?;
            block.add(segment, kv.clone())?;
            block.store(&mut rows)
        })
    })
}

/// Merges `n` partials of the same kv head and positions into finished rows of
/// `out`. Partial `i` starts at float `i * stride` of `partials`.
///
/// Counts rows as [`attend`] does.
///
/// # Errors
/// [`Error::Shape`] if arguments do not fit together, [`Error::Unsupported`] if
/// the machine lacks the instruction set. Nothing is written then.
pub fn merge(
    a: &Attention<'_>,
    kv_head: usize,
    q: Range<usize>,
    partials: &[f32],
    n: usize,
    stride: usize,
    out: &mut RowsMut<'_>,
) -> Result<(), Error> {
    a.check_call(kv_head, &q)?;
    a.check_out(out)?;
    let floats = partial_floats(a, q.len())?;
    let extent = match n {
        0 => Some(0),
        n => (n - 1)
            .checked_mul(stride)
            .and_then(|start| start.checked_add(floats)),
    };
    if n > 1 && stride < floats || extent.is_none_or(|extent| extent > partials.len()) {
        return Err(Error::Shape("partials overlap or reach past their memory"));
    }
    with_kernels!(a.isa, k => merge::merge(k, a, kv_head, q, partials, n, stride, out))
}

/// Counts finished rows under every format among the segments.
fn count_rows<K: Kernels>(_: K, a: &Attention<'_>, rows: usize) {
    for spec in FORMATS {
        let used = |s: &Segment<'_>| {
            let formats = [s.k_type.format(), s.v_type.format()];
            formats.contains(&Some(*spec))
        };
        if a.segments.iter().any(used) {
            counters::add(spec, Op::Attend, K::ISA, a.slot, rows);
        }
    }
}
