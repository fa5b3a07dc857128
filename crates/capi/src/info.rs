//! What a host may want to know about the formats.

use core::ffi::c_char;
use core::mem::size_of;

use kvforge_formats::{Domain, FORMATS};

use crate::status::{KVF_BAD_TYPE, KVF_NULL, KVF_OK};

/// Facts about a compressed format.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvf_format_info {
    /// Name, for instance `tbq4_0`, NUL-terminated.
    pub name: [c_char; 32],
    /// The number that stands for it as a type.
    pub id: u32,
    /// Values in a block.
    pub block_len: u32,
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Bits of one code.
    pub code_bits: u32,
    /// Values of a block in the rotated domain.
    pub coded_len: u32,
    /// 1 if a cache may hold keys in it, else 0.
    pub holds_keys: u32,
    /// 1 if a cache may hold values in it, else 0.
    pub holds_values: u32,
    /// The same number for the same meaning of bytes: beside the name in saved files.
    pub layout_hash: u64,
    /// Relative mean squared error of `kvf_encode` then decode on Gaussian values.
    pub gaussian_mse: f64,
    /// The same of `kvf_encode_best`.
    pub gaussian_mse_best: f64,
    /// Relative departure from it that a test allows.
    pub gaussian_mse_margin: f64,
    /// Largest `|score - exact| / (|q| |k|)` of a correct kernel.
    pub score_tolerance: f64,
    /// Largest `|out - exact| / max |V|` of a correct kernel.
    pub attention_tolerance: f64,
}

/// Hosts ask for facts while they compute; hashing a codebook anew would cost them.
static LAYOUT_HASHES: [u64; FORMATS.len()] = {
    let mut hashes = [0; FORMATS.len()];
    let mut i = 0;
    while i < hashes.len() {
        hashes[i] = FORMATS[i].layout_hash();
        i += 1;
    }
    hashes
};

/// Fills in the facts of format number `index`, counted from 0.
///
/// Returns `KVF_BAD_TYPE` past the last one, `KVF_NULL` if `out` is null.
///
/// # Safety
/// `out` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvf_format_info(index: u32, out: *mut kvf_format_info) -> i32 {
    if out.is_null() {
        return KVF_NULL;
    }
    let Some(spec) = FORMATS.get(index as usize) else {
        return KVF_BAD_TYPE;
    };
    let mut name = [0; size_of::<[c_char; 32]>()];
    for (to, from) in name.iter_mut().zip(spec.name.bytes()) {
        *to = from as c_char;
    }
    let info = kvf_format_info {
        name,
        id: spec.id,
        block_len: spec.block_len as u32,
        block_bytes: spec.block_bytes as u32,
        code_bits: spec.code.bits() as u32,
        coded_len: spec.len_in(Domain::Rotated) as u32,
        holds_keys: spec.holds_keys().into(),
        holds_values: spec.holds_values().into(),
        layout_hash: LAYOUT_HASHES.get(index as usize).copied().unwrap_or(0),
        gaussian_mse: spec.tolerance.gaussian_mse,
        gaussian_mse_best: spec.tolerance.gaussian_mse_best,
        gaussian_mse_margin: spec.tolerance.gaussian_mse_margin,
        score_tolerance: spec.tolerance.score,
        attention_tolerance: spec.tolerance.attention,
    };
    // SAFETY: the caller says that `out` is writable; it need not be aligned.
    unsafe { out.write_unaligned(info) };
    KVF_OK
}
