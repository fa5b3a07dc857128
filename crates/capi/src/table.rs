//! All functions in one table, so that a host links one symbol.

use core::ffi::{c_char, c_void};
use core::mem::size_of;
use core::ptr;

use crate::*;

/// Version of `kvf_api`'s table and of every struct here. A host asks for the
/// version of the header that it was built with, and gets that one or none.
pub const KVF_API_VERSION: u32 = 3;

/// Every function of this library under its own name.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvf_api {
    /// `sizeof(struct kvf_api)` as this library was built.
    pub struct_size: usize,
    /// Version of this table.
    pub version: u32,
    /// See `kvf_status_text`.
    pub status_text: extern "C" fn(status: i32) -> *const c_char,
    /// See `kvf_isa_name`.
    pub isa_name: extern "C" fn(isa: u32) -> *const c_char,
    /// See `kvf_isa_resolve`.
    pub isa_resolve: extern "C" fn(isa: u32) -> u32,
    /// See `kvf_kernel_name`.
    pub kernel_name: extern "C" fn(r#type: u32, op: u32, isa: u32) -> *const c_char,
    /// See `kvf_format_info`.
    pub format_info: unsafe extern "C" fn(index: u32, out: *mut kvf_format_info) -> i32,
    /// See `kvf_encode`.
    pub encode: unsafe extern "C" fn(
        r#type: u32,
        isa: u32,
        x: *const f32,
        bytes: *mut c_void,
        n_values: usize,
        slot: u32,
        bad_index: *mut usize,
    ) -> i32,
    /// See `kvf_encode_best`.
    pub encode_best: unsafe extern "C" fn(
        r#type: u32,
        isa: u32,
        x: *const f32,
        bytes: *mut c_void,
        n_values: usize,
        slot: u32,
        bad_index: *mut usize,
    ) -> i32,
    /// See `kvf_poison`.
    pub poison: unsafe extern "C" fn(r#type: u32, bytes: *mut c_void, n_values: usize) -> i32,
    /// See `kvf_decode`.
    pub decode: unsafe extern "C" fn(
        r#type: u32,
        isa: u32,
        domain: u32,
        bytes: *const c_void,
        x: *mut f32,
        n_values: usize,
        slot: u32,
    ) -> i32,
    /// See `kvf_dot`.
    pub dot: unsafe extern "C" fn(
        r#type: u32,
        isa: u32,
        bytes: *const c_void,
        q: *const f32,
        n_values: usize,
        out: *mut f32,
        slot: u32,
    ) -> i32,
    /// See `kvf_attend_scratch`.
    pub attend_scratch: unsafe extern "C" fn(a: *const kvf_attention, n_q: usize) -> usize,
    /// See `kvf_partial_floats`.
    pub partial_floats: unsafe extern "C" fn(a: *const kvf_attention) -> usize,
    /// See `kvf_attend`.
    pub attend: unsafe extern "C" fn(
        a: *const kvf_attention,
        kv_head: usize,
        q_begin: usize,
        q_end: usize,
        scratch: *mut c_void,
        scratch_bytes: usize,
    ) -> i32,
    /// See `kvf_attend_partial`.
    pub attend_partial: unsafe extern "C" fn(
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
    ) -> i32,
    /// See `kvf_attend_merge`.
    pub attend_merge: unsafe extern "C" fn(
        a: *const kvf_attention,
        kv_head: usize,
        q_begin: usize,
        q_end: usize,
        partials: *const f32,
        n_partials: usize,
        partial_stride_floats: usize,
    ) -> i32,
    /// See `kvf_score_scratch`.
    pub score_scratch: unsafe extern "C" fn(s: *const kvf_scores) -> usize,
    /// See `kvf_score`.
    pub score: unsafe extern "C" fn(s: *const kvf_scores) -> i32,
    /// See `kvf_counters_reset`.
    pub counters_reset: extern "C" fn(),
    /// See `kvf_counter`.
    pub counter: extern "C" fn(r#type: u32, op: u32, isa: u32, slot: u32) -> u64,
    /// See `kvf_counter_next`.
    pub counter_next: unsafe extern "C" fn(cursor: *mut usize, out: *mut kvf_count) -> i32,
    /// See `kvf_calibration_read`.
    pub calibration_read:
        unsafe extern "C" fn(bytes: *const c_void, n: usize, out: *mut kvf_calibration) -> i32,
    /// See `kvf_calibration_layer`.
    pub calibration_layer: unsafe extern "C" fn(
        bytes: *const c_void,
        n: usize,
        index: u32,
        out: *mut kvf_calibrated_layer,
    ) -> i32,
    /// See `kvf_static_centre`.
    pub static_centre: unsafe extern "C" fn(
        bytes: *const c_void,
        n: usize,
        index: u32,
        step: *const f32,
        n_positions: u64,
        centre: *mut f32,
    ) -> i32,
}

static API: kvf_api = kvf_api {
    struct_size: size_of::<kvf_api>(),
    version: KVF_API_VERSION,
    status_text: kvf_status_text,
    isa_name: kvf_isa_name,
    isa_resolve: kvf_isa_resolve,
    kernel_name: kvf_kernel_name,
    format_info: kvf_format_info,
    encode: kvf_encode,
    encode_best: kvf_encode_best,
    poison: kvf_poison,
    decode: kvf_decode,
    dot: kvf_dot,
    attend_scratch: kvf_attend_scratch,
    partial_floats: kvf_partial_floats,
    attend: kvf_attend,
    attend_partial: kvf_attend_partial,
    attend_merge: kvf_attend_merge,
    score_scratch: kvf_score_scratch,
    score: kvf_score,
    counters_reset: kvf_counters_reset,
    counter: kvf_counter,
    counter_next: kvf_counter_next,
    calibration_read: kvf_calibration_read,
    calibration_layer: kvf_calibration_layer,
    static_centre: kvf_static_centre,
};

/// The table of `version`; null if this library has no such version. Static.
#[unsafe(no_mangle)]
pub extern "C" fn kvf_api(version: u32) -> *const kvf_api {
    if version == KVF_API_VERSION {
        &API
    } else {
        ptr::null()
    }
}
