//! Fused attention over a list of cache segments.

use core::ffi::c_void;
use core::ops::Range;

use kvforge_cpu::attention::{self, Attention, Mask, MaskType, Segment};
use kvforge_cpu::view::{Rows, RowsMut};
use kvforge_cpu::{CacheType, Isa};

use crate::memory;
use crate::memory::{bytes_of, input, output, read, row_bytes, rows, rows_mut, shape};
use crate::status::{KVF_BAD_SHAPE, KVF_BAD_TYPE, KVF_NULL, finish, status_of};
use crate::types::{KVF_F16, KVF_F32, cache_type, isa};

/// A run of keys and values of the same two types.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvf_segment {
    /// Type of the keys.
    pub k_type: u32,
    /// Type of the values.
    pub v_type: u32,
    /// Keys, `[n_kv, n_kv_heads, head_dim_k]` by the strides below.
    pub k: *const c_void,
    /// Values, `[n_kv, n_kv_heads, head_dim_v]` by the strides below.
    pub v: *const c_void,
    /// Tokens in the segment.
    pub n_kv: usize,
    /// Bytes from token to token in `k`.
    pub k_row_stride: usize,
    /// Bytes from kv head to kv head in `k`.
    pub k_head_stride: usize,
    /// Bytes from token to token in `v`.
    pub v_row_stride: usize,
    /// Bytes from kv head to kv head in `v`.
    pub v_head_stride: usize,
    /// Added to the scores, `[n_q, mask_heads, n_kv]`; null for none. Minus
    /// infinity hides a key, whatever its bytes are.
    pub mask: *const c_void,
    /// `KVF_F16` or `KVF_F32`; ignored without a mask.
    pub mask_type: u32,
    /// Bytes from query position to query position in `mask`.
    pub mask_row_stride: usize,
    /// Bytes from head to head in `mask`; 0 if all heads share it.
    pub mask_head_stride: usize,
    /// Heads of the mask: query head `h` reads `h % mask_heads`. 0 counts as 1.
    pub mask_heads: usize,
    /// Position of the first key, for causal attention.
    pub pos0: i64,
}

/// One attention over the keys and values of all segments together.
///
/// For query position `q`, head `h` and a key of `h`'s kv head
/// `h / (n_heads / n_kv_heads)`:
/// `s = dot(q, k) * scale`; with a soft-cap `s = softcap * tanh(s / softcap)`;
/// with a mask `s += slopes[h] * mask[q][key]`. A key is hidden if its mask is
/// minus infinity, or if `causal` and it stands after the query. The output is
/// the softmax-weighted sum of the visible values, `exp(sinks[h])` added to the
/// denominator; zeros for a query that sees no key.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvf_attention {
    /// `sizeof(struct kvf_attention)`.
    pub struct_size: usize,
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
    /// Queries, `[n_q, n_heads, head_dim_k]` by the strides below.
    pub q: *const f32,
    /// Bytes from query position to query position in `q`.
    pub q_row_stride: usize,
    /// Bytes from head to head in `q`.
    pub q_head_stride: usize,
    /// Outputs, `[n_q, n_heads, head_dim_v]` by the strides below.
    pub out: *mut f32,
    /// Bytes from query position to query position in `out`.
    pub out_row_stride: usize,
    /// Bytes from head to head in `out`.
    pub out_head_stride: usize,
    /// Factor on every dot product.
    pub scale: f32,
    /// Soft-cap of the scores; 0 for none.
    pub softcap: f32,
    /// ALiBi slopes, `[n_heads]`, factors on the mask; null for 1.
    pub slopes: *const f32,
    /// Logits of keys without a value, `[n_heads]`; null for none.
    pub sinks: *const f32,
    /// Not 0 if keys after the query are hidden.
    pub causal: u32,
    /// Position of the first query, for causal attention.
    pub q_pos0: i64,
    /// The cache, in parts.
    pub segments: *const kvf_segment,
    /// Parts of the cache, at most `KVF_MAX_SEGMENTS`.
    pub n_segments: usize,
    /// `KVF_ISA_...`.
    pub isa: u32,
    /// Slot that the work is counted under.
    pub slot: u32,
}

/// Most segments that one attention may have.
pub const KVF_MAX_SEGMENTS: usize = 16;

/// What a `kvf_attention` says, in the engine's terms.
struct Problem<'a> {
    attention: Attention<'a>,
    segments: [Segment<'a>; KVF_MAX_SEGMENTS],
    n_segments: usize,
}

impl Problem<'_> {
    /// The attention, with its segments.
    fn attention(&self) -> Attention<'_> {
        Attention {
            segments: self.segments.get(..self.n_segments).unwrap_or_default(),
            ..self.attention
        }
    }
}

/// The numbers of a `kvf_attention`, without what its pointers lead to.
fn without_tensors(a: &kvf_attention) -> Attention<'static> {
    Attention {
        head_dim_k: a.head_dim_k,
        head_dim_v: a.head_dim_v,
        n_heads: a.n_heads,
        n_kv_heads: a.n_kv_heads,
        n_q: a.n_q,
        q: Rows::default(),
        scale: a.scale,
        softcap: a.softcap,
        slopes: None,
        sinks: None,
        causal: (a.causal != 0).then_some(a.q_pos0),
        segments: &[],
        isa: Isa::Scalar,
        slot: a.slot,
    }
}

/// A float for every head, or none.
///
/// # Safety
/// `values` is null, or readable for `n_heads` floats that nobody writes for `'a`.
unsafe fn per_head<'a>(values: *const f32, n_heads: usize) -> Result<Option<&'a [f32]>, i32> {
    if values.is_null() {
        return Ok(None);
    }
    // SAFETY: by the caller's word.
    unsafe { input(values, n_heads) }.map(Some)
}

/// Reads a `kvf_attention`, and its output apart. Checks what pointers need to be
/// checked for; how the parts fit together is for the engine.
///
/// # Safety
/// `a` is null or what `kvf_attend` says.
unsafe fn problem<'a>(a: *const kvf_attention) -> Result<(Problem<'a>, RowsMut<'a>), i32> {
    // SAFETY: by the caller's word.
    let a = unsafe { read(a)? };
    if a.n_segments > KVF_MAX_SEGMENTS {
        return Err(KVF_BAD_SHAPE);
    }
    if a.n_segments > 0 && a.segments.is_null() {
        return Err(KVF_NULL);
    }
    let mut segments = [Segment {
        n_kv: 0,
        k_type: CacheType::F32,
        k: Rows::default(),
        v_type: CacheType::F32,
        v: Rows::default(),
        mask: None,
        pos0: 0,
    }; KVF_MAX_SEGMENTS];
    for (i, segment) in segments.iter_mut().enumerate().take(a.n_segments) {
        // SAFETY: by the caller's word, there are `n_segments` of them, and they
        // are what they say.
        *segment = unsafe { self::segment(&a, &a.segments.add(i).read_unaligned())? };
    }

    let q = row_bytes(CacheType::F32, a.head_dim_k)?;
    let out = row_bytes(CacheType::F32, a.head_dim_v)?;
    let q = shape(a.n_q, a.n_heads, q, a.q_row_stride, a.q_head_stride);
    let out = shape(a.n_q, a.n_heads, out, a.out_row_stride, a.out_head_stride);
    let attention = Attention {
        // SAFETY: by the caller's word.
        q: unsafe { rows(a.q, q)? },
        // SAFETY: by the caller's word.
        slopes: unsafe { per_head(a.slopes, a.n_heads)? },
        // SAFETY: by the caller's word.
        sinks: unsafe { per_head(a.sinks, a.n_heads)? },
        isa: isa(a.isa)?,
        ..without_tensors(&a)
    };
    let problem = Problem {
        attention,
        segments,
        n_segments: a.n_segments,
    };
    // SAFETY: by the caller's word.
    Ok((problem, unsafe { rows_mut(a.out, out)? }))
}

/// Reads a `kvf_segment`.
///
/// # Safety
/// Its pointers are null or what `kvf_attend` says.
unsafe fn segment<'a>(a: &kvf_attention, s: &kvf_segment) -> Result<Segment<'a>, i32> {
    let (k_type, v_type) = (cache_type(s.k_type)?, cache_type(s.v_type)?);
    let k = row_bytes(k_type, a.head_dim_k)?;
    let v = row_bytes(v_type, a.head_dim_v)?;
    let k = shape(s.n_kv, a.n_kv_heads, k, s.k_row_stride, s.k_head_stride);
    let v = shape(s.n_kv, a.n_kv_heads, v, s.v_row_stride, s.v_head_stride);
    let mask = if s.mask.is_null() {
        None
    } else {
        let kind = match s.mask_type {
            KVF_F16 => MaskType::F16,
            KVF_F32 => MaskType::F32,
            _ => return Err(KVF_BAD_TYPE),
        };
        let heads = match s.mask_head_stride {
            0 => 1,
            _ => s.mask_heads.max(1),
        };
        let row = s.n_kv.checked_mul(kind.bytes()).ok_or(KVF_BAD_SHAPE)?;
        let mask = shape(a.n_q, heads, row, s.mask_row_stride, s.mask_head_stride);
        // SAFETY: by the caller's word.
        let rows = unsafe { rows(s.mask, mask)? };
        Some(Mask { kind, rows })
    };
    Ok(Segment {
        n_kv: s.n_kv,
        k_type,
        // SAFETY: by the caller's word.
        k: unsafe { rows(s.k, k)? },
        v_type,
        // SAFETY: by the caller's word.
        v: unsafe { rows(s.v, v)? },
        mask,
        pos0: s.pos0,
    })
}

/// A range, if it is one.
fn range(begin: usize, end: usize) -> Result<Range<usize>, i32> {
    if begin <= end {
        Ok(begin..end)
    } else {
        Err(KVF_BAD_SHAPE)
    }
}

/// Bytes of 64-byte aligned scratch that `kvf_attend` and `kvf_attend_partial`
/// need for a range of `n_q` query positions. Only looks at head counts and sizes:
/// pointers may still be null. 0 if those are bad.
///
/// # Safety
/// `a` is null, or readable as the size it starts with.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvf_attend_scratch(a: *const kvf_attention, n_q: usize) -> usize {
    // SAFETY: by the caller's word.
    let a = unsafe { read(a) };
    bytes_of(
        a.and_then(|a| attention::attend_scratch(&without_tensors(&a), n_q).map_err(status_of)),
    )
}

/// Floats of one row of partials: `head_dim_v` accumulated values in the original
/// domain, not divided; the largest score; the sum of `exp(score - largest)`. 0
/// for bad arguments.
///
/// # Safety
/// As `kvf_attend_scratch`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvf_partial_floats(a: *const kvf_attention) -> usize {
    // SAFETY: by the caller's word.
    unsafe { read(a) }.map_or(0, |a| a.head_dim_v.saturating_add(2))
}

/// Attention of all query heads of one kv head at the positions
/// `q_begin .. q_end`, over all segments; writes those rows of `out`.
///
/// Counts the finished rows under `slot`, for every compressed format among the
/// segments. Threads may work on different heads or positions of one
/// `kvf_attention` at the same time, each with its own scratch.
///
/// Anything but `KVF_OK` has written nothing.
///
/// # Safety
/// `a` is null, or readable as the size it starts with; its `segments` are null or
/// readable. Tensors are null, or readable (`out`: writable) at every row that
/// their lengths and strides describe, and nobody writes them (`out`: uses the
/// rows of this call) meanwhile. `slopes` and `sinks` are null or readable.
/// `scratch` is null, or writable for `scratch_bytes` and used by nobody else
/// meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvf_attend(
    a: *const kvf_attention,
    kv_head: usize,
    q_begin: usize,
    q_end: usize,
    scratch: *mut c_void,
    scratch_bytes: usize,
) -> i32 {
    finish((|| {
        // SAFETY: by the caller's word.
        let (p, mut out) = unsafe { problem(a)? };
        // SAFETY: by the caller's word.
        let scratch = unsafe { memory::scratch(scratch, scratch_bytes)? };
        let (q, a) = (range(q_begin, q_end)?, p.attention());
        attention::attend(&a, kv_head, q, &mut out, scratch).map_err(status_of)
    })())
}

/// As `kvf_attend`, but over the keys `kv_begin .. kv_end` of one segment only,
/// and unfinished: writes rows of partials,
/// `[(q - q_begin) * (n_heads / n_kv_heads) + head in group][kvf_partial_floats]`,
/// for `kvf_attend_merge`.
///
/// # Safety
/// As `kvf_attend`; `partials` is null, or writable for those rows and used by
/// nobody else meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvf_attend_partial(
    a: *const kvf_attention,
    kv_head: usize,
    q_begin: usize,
    q_end: usize,
    segment: usize,
    kv_begin: usize,
    kv_end: usize,
    partials: *mut f32,
    scratch: *mut c_void,
    scratch_bytes: usize,
) -> i32 {
    finish((|| {
        // SAFETY: by the caller's word.
        let (p, _) = unsafe { problem(a)? };
        let a = p.attention();
        let (q, kv) = (range(q_begin, q_end)?, range(kv_begin, kv_end)?);
        let floats = attention::partial_floats(&a, q.len()).map_err(status_of)?;
        // SAFETY: by the caller's word.
        let partials = unsafe { output(partials, floats)? };
        // SAFETY: by the caller's word.
        let scratch = unsafe { memory::scratch(scratch, scratch_bytes)? };
        attention::attend_partial(&a, kv_head, q, segment, kv, partials, scratch).map_err(status_of)
    })())
}

/// Merges `n_partials` partials of the same kv head and positions, the start of
/// each `partial_stride_floats` floats behind the one before; adds the sinks,
/// divides, and writes the rows of `out`. Counts as `kvf_attend` does.
///
/// # Safety
/// As `kvf_attend`; `partials` is null, or readable for those rows and written by
/// nobody meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvf_attend_merge(
    a: *const kvf_attention,
    kv_head: usize,
    q_begin: usize,
    q_end: usize,
    partials: *const f32,
    n_partials: usize,
    partial_stride_floats: usize,
) -> i32 {
    finish((|| {
        // SAFETY: by the caller's word.
        let (p, mut out) = unsafe { problem(a)? };
        let (q, a) = (range(q_begin, q_end)?, p.attention());
        let one = attention::partial_floats(&a, q.len()).map_err(status_of)?;
        let floats = match n_partials {
            0 => Some(0),
            n => (n - 1)
                .checked_mul(partial_stride_floats)
                .and_then(|n| n.checked_add(one)),
        };
        let floats = floats.ok_or(KVF_BAD_SHAPE)?;
        let partials = match n_partials {
            0 => &[],
            // SAFETY: by the caller's word.
            _ => unsafe { input(partials, floats)? },
        };
        attention::merge(
            &a,
            kv_head,
            q,
            partials,
            n_partials,
            partial_stride_floats,
            &mut out,
        )
        .map_err(status_of)
    })())
}
