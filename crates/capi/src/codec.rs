//! Rows of fp32 into blocks and back.

use core::ffi::c_void;

use kvforge_cpu::{Encoder, Error};
use kvforge_formats::CodecError;

use crate::memory::{input, output};
use crate::status::{KVF_BAD_SHAPE, finish, status_of};
use crate::types;

/// Encodes `n_values` values, a multiple of the block length, into their blocks, as
/// the public encoder of the format does, byte for byte. The same bytes on every
/// instruction set. Counts blocks under `slot`.
///
/// `KVF_NON_FINITE` sets `*bad_index` (if not null) to the index of the first
/// value that is infinite or NaN, `KVF_SCALE_OVERFLOW` to the index of the first
/// value of the block. Blocks before the bad one are written, it and later ones
/// are untouched. Other errors write nothing.
///
/// # Safety
/// `x` is null or readable for `n_values` values, `bytes` null or writable for
/// their blocks, `bad_index` null or writable; they do not overlap, and nobody
/// else writes them or reads `bytes` meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvf_encode(
    r#type: u32,
    isa: u32,
    x: *const f32,
    bytes: *mut c_void,
    n_values: usize,
    slot: u32,
    bad_index: *mut usize,
) -> i32 {
    let encoder = Encoder::Reference;
    // SAFETY: the caller's word is the same.
    unsafe { encode(encoder, r#type, isa, x, bytes, n_values, slot, bad_index) }
}

/// As `kvf_encode`, but takes more time to find blocks that decode to less error,
/// by the same decoder: see the formats' READMEs. The same bytes on every
/// instruction set.
///
/// # Safety
/// As `kvf_encode`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvf_encode_best(
    r#type: u32,
    isa: u32,
    x: *const f32,
    bytes: *mut c_void,
    n_values: usize,
    slot: u32,
    bad_index: *mut usize,
) -> i32 {
    let encoder = Encoder::Best;
    // SAFETY: the caller's word is the same.
    unsafe { encode(encoder, r#type, isa, x, bytes, n_values, slot, bad_index) }
}

/// # Safety
/// As `kvf_encode`.
#[expect(clippy::too_many_arguments, reason = "those of `kvf_encode` and one")]
unsafe fn encode(
    encoder: Encoder,
    r#type: u32,
    isa: u32,
    x: *const f32,
    bytes: *mut c_void,
    n_values: usize,
    slot: u32,
    bad_index: *mut usize,
) -> i32 {
    finish((|| {
        let spec = types::format(r#type)?;
        let isa = types::isa(isa)?;
        let len = spec.row_bytes(n_values).map_err(|_| KVF_BAD_SHAPE)?;
        // SAFETY: the caller's word for `x` and `bytes`.
        let (x, bytes) = unsafe { (input(x, n_values)?, output(bytes.cast(), len)?) };
        kvforge_cpu::encode(spec, isa, encoder, x, bytes, slot).map_err(|error| {
            let bad = match error {
                Error::Codec(CodecError::NonFinite { index }) => Some(index),
                Error::Codec(CodecError::ScaleOverflow { block }) => Some(block * spec.block_len),
                _ => None,
            };
            if let (Some(bad), false) = (bad, bad_index.is_null()) {
                // SAFETY: the caller says that `bad_index` is writable.
                unsafe { bad_index.write_unaligned(bad) };
            }
            status_of(error)
        })
    })())
}

/// Fills the blocks of `n_values` values with what decodes to NaN everywhere: for
/// hosts that cannot report a row that could not be encoded. Its use then fails
/// as visibly as a NaN in an f16 cache.
///
/// # Safety
/// `bytes` is null or writable for the blocks, and nobody else uses them
/// meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvf_poison(r#type: u32, bytes: *mut c_void, n_values: usize) -> i32 {
    finish((|| {
        let spec = types::format(r#type)?;
        let len = spec.row_bytes(n_values).map_err(|_| KVF_BAD_SHAPE)?;
        // SAFETY: the caller's word for `bytes`.
        let bytes: &mut [u8] = unsafe { output(bytes.cast(), len)? };
        kvforge_cpu::poison(spec, bytes).map_err(status_of)
    })())
}

/// Decodes blocks into `domain` (`KVF_ORIGINAL` or `KVF_ROTATED`): all that give
/// `n_values` values in it, which is `coded_len` (see `kvf_format_info`) a block in
/// the rotated one. `type` may also be `KVF_Q4_POLAR_RESIDUAL`, and `KVF_F32`,
/// `KVF_F16` or `KVF_Q8_0`, which know no domain. The same values on every instruction set. Counts blocks of
/// compressed formats under `slot`.
///
/// # Safety
/// `bytes` is null or readable for the blocks, `x` null or writable for
/// `n_values` values; they do not overlap, and nobody else writes them or reads
/// `x` meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvf_decode(
    r#type: u32,
    isa: u32,
    domain: u32,
    bytes: *const c_void,
    x: *mut f32,
    n_values: usize,
    slot: u32,
) -> i32 {
    finish((|| {
        let kind = types::cache_type(r#type)?;
        let isa = types::isa(isa)?;
        let domain = types::domain(domain)?;
        let len = kind.row_bytes_in(domain, n_values).ok_or(KVF_BAD_SHAPE)?;
        // SAFETY: the caller's word for `bytes` and `x`.
        let (bytes, x) = unsafe { (input(bytes.cast(), len)?, output(x, n_values)?) };
        kvforge_cpu::decode(kind, isa, domain, bytes, x, slot).map_err(status_of)
    })())
}

/// `*out` = dot product of one stored row, decoded into its original domain, and
/// the plain row `q`. Counts blocks under `slot`.
///
/// # Safety
/// `bytes` is null or readable for the blocks, `q` null or readable for
/// `n_values` values, `out` null or writable; nobody else writes them meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvf_dot(
    r#type: u32,
    isa: u32,
    bytes: *const c_void,
    q: *const f32,
    n_values: usize,
    out: *mut f32,
    slot: u32,
) -> i32 {
    finish((|| {
        let spec = types::format(r#type)?;
        let isa = types::isa(isa)?;
        let len = spec.row_bytes(n_values).map_err(|_| KVF_BAD_SHAPE)?;
        // SAFETY: the caller's word for `bytes`, `q` and `out`.
        let (bytes, q, out) = unsafe {
            (
                input(bytes.cast(), len)?,
                input(q, n_values)?,
                output(out, 1)?,
            )
        };
        out[0] = kvforge_cpu::dot(spec, isa, bytes, q, slot).map_err(status_of)?;
        Ok(())
    })())
}
