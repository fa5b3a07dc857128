//! Plain dot products of queries and stored keys.

use core::ffi::c_void;

use kvforge_cpu::attention::{self, Scores};
use kvforge_cpu::view::Rows;
use kvforge_cpu::{CacheType, Isa};
use kvforge_formats::Domain;

use crate::memory::{self, bytes_of, read, row_bytes, rows, rows_mut, shape};
use crate::status::{finish, status_of};
use crate::types::{cache_type, domain, isa};

/// Plain dot products of queries and keys: `out[q][h][t] = scale * dot(q, k)`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvf_scores {
    /// `sizeof(struct kvf_scores)`.
    pub struct_size: usize,
    /// Type of the keys.
    pub k_type: u32,
    /// `KVF_ISA_...`.
    pub isa: u32,
    /// Slot that the work is counted under.
    pub slot: u32,
    /// `KVF_ORIGINAL` for queries as they are, `KVF_ROTATED` for what the transform
    /// of the keys' format has made of them.
    pub q_domain: u32,
    /// Factor on every score.
    pub scale: f32,
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
    /// Queries, `[n_q, n_heads, head_dim]` by the strides below; in the rotated
    /// domain as long as keys are there.
    pub q: *const f32,
    /// Bytes from query position to query position in `q`.
    pub q_row_stride: usize,
    /// Bytes from head to head in `q`.
    pub q_head_stride: usize,
    /// Keys, `[n_kv, n_kv_heads, head_dim]` by the strides below.
    pub k: *const c_void,
    /// Bytes from token to token in `k`.
    pub k_row_stride: usize,
    /// Bytes from kv head to kv head in `k`.
    pub k_head_stride: usize,
    /// Scores, `[n_q, n_heads, n_kv]` by the strides below.
    pub out: *mut f32,
    /// Bytes from query position to query position in `out`.
    pub out_row_stride: usize,
    /// Bytes from head to head in `out`.
    pub out_head_stride: usize,
    /// Working memory, 64-byte aligned, of `kvf_score_scratch` bytes.
    pub scratch: *mut c_void,
    /// Bytes of `scratch`.
    pub scratch_bytes: usize,
}

/// The numbers of a `kvf_scores`, without what its pointers lead to.
fn without_tensors(s: &kvf_scores) -> Result<Scores<'static>, i32> {
    Ok(Scores {
        head_dim: s.head_dim,
        n_heads: s.n_heads,
        n_kv_heads: s.n_kv_heads,
        n_q: s.n_q,
        n_kv: s.n_kv,
        q: Rows::default(),
        k_type: cache_type(s.k_type)?,
        k: Rows::default(),
        isa: Isa::Scalar,
        slot: s.slot,
        q_domain: domain(s.q_domain)?,
        scale: s.scale,
    })
}

/// Bytes of 64-byte aligned scratch that `kvf_score` needs. Only looks at head
/// counts and sizes: pointers may still be null. 0 if those are bad.
///
/// # Safety
/// `s` is null, or readable as the size it starts with.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvf_score_scratch(s: *const kvf_scores) -> usize {
    // SAFETY: by the caller's word.
    let s = unsafe { read(s) };
    let scores = s.and_then(|s| without_tensors(&s));
    bytes_of(scores.and_then(|s| attention::score_scratch(&s).map_err(status_of)))
}

/// Every query head times every key of its kv head, not masked. A
/// key is decoded once for all heads that share it. Counts the dot products under
/// `slot`, if the keys are of a compressed format.
///
/// Anything but `KVF_OK` has written nothing.
///
/// # Safety
/// `s` is null, or readable as the size it starts with. Its tensors are null, or
/// readable (`out`: writable) at every row that their lengths and strides
/// describe, and nobody writes them (`out`: uses them) meanwhile. `scratch` is
/// null, or writable for `scratch_bytes` and used by nobody else meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvf_score(s: *const kvf_scores) -> i32 {
    finish((|| {
        // SAFETY: by the caller's word.
        let s = unsafe { read(s)? };
        let none = without_tensors(&s)?;
        let q = match none.q_domain {
            Domain::Original => s.head_dim,
            Domain::Rotated => none.coded_len(),
        };
        let q = row_bytes(CacheType::F32, q)?;
        let q = shape(s.n_q, s.n_heads, q, s.q_row_stride, s.q_head_stride);
        let k = row_bytes(none.k_type, s.head_dim)?;
        let k = shape(s.n_kv, s.n_kv_heads, k, s.k_row_stride, s.k_head_stride);
        let scores = Scores {
            // SAFETY: by the caller's word.
            q: unsafe { rows(s.q, q)? },
            // SAFETY: by the caller's word.
            k: unsafe { rows(s.k, k)? },
            isa: isa(s.isa)?,
            ..none
        };
        let out = row_bytes(CacheType::F32, s.n_kv)?;
        let out = shape(s.n_q, s.n_heads, out, s.out_row_stride, s.out_head_stride);
        // SAFETY: by the caller's word.
        let mut out = unsafe { rows_mut(s.out, out)? };
        // SAFETY: by the caller's word.
        let scratch = unsafe { memory::scratch(s.scratch, s.scratch_bytes)? };
        attention::score(&scores, &mut out, scratch).map_err(status_of)
    })())
}
