//! The few functions of ggml and of the kernel table that the test calls.

use std::ffi::{c_char, c_int, c_void};

/// An object of ggml that is only passed around.
#[repr(C)]
pub struct Opaque {
    _private: [u8; 0],
}

#[repr(C)]
pub struct InitParams {
    pub mem_size: usize,
    pub mem_buffer: *mut c_void,
    pub no_alloc: bool,
}

/// `struct kvf_count`.
#[repr(C)]
#[derive(Default)]
pub struct Count {
    pub format: u32,
    pub op: u32,
    pub isa: u32,
    pub slot: u32,
    pub count: u64,
}

/// `struct kvf_format_info`.
#[repr(C)]
pub struct FormatInfo {
    pub name: [c_char; 32],
    pub id: u32,
    pub block_len: u32,
    pub block_bytes: u32,
    pub code_bits: u32,
    pub coded_len: u32,
    pub holds_keys: u32,
    pub holds_values: u32,
    pub layout_hash: u64,
    pub gaussian_mse: f64,
    pub gaussian_mse_best: f64,
    pub gaussian_mse_margin: f64,
    pub score_tolerance: f64,
    pub attention_tolerance: f64,
}

/// The version of the table that is described here.
pub const API_VERSION: u32 = 3;

/// `struct kvf_api`; functions that are not called have no types.
#[repr(C)]
pub struct Api {
    pub struct_size: usize,
    pub version: u32,
    _status_text: *const c_void,
    _isa_name: *const c_void,
    _isa_resolve: *const c_void,
    pub kernel_name: extern "C" fn(format: u32, op: u32, isa: u32) -> *const c_char,
    pub format_info: unsafe extern "C" fn(index: u32, out: *mut FormatInfo) -> i32,
    _encode: *const c_void,
    _encode_best: *const c_void,
    _poison: *const c_void,
    _decode: *const c_void,
    _dot: *const c_void,
    _attend_scratch: *const c_void,
    _partial_floats: *const c_void,
    _attend: *const c_void,
    _attend_partial: *const c_void,
    _attend_merge: *const c_void,
    _score_scratch: *const c_void,
    _score: *const c_void,
    pub counters_reset: extern "C" fn(),
    _counter: *const c_void,
    pub counter_next: unsafe extern "C" fn(cursor: *mut usize, out: *mut Count) -> i32,
    _calibration_read: *const c_void,
    _calibration_layer: *const c_void,
    _static_centre: *const c_void,
}

pub const TYPE_F32: c_int = 0;
pub const TYPE_F16: c_int = 1;
pub const DEVICE_CPU: c_int = 0;
pub const STATUS_SUCCESS: c_int = 0;
/// `KVF_OP_ATTEND`.
pub const OP_ATTEND: u32 = 3;

unsafe extern "C" {
    pub fn ggml_backend_load_all_from_path(folder: *const c_char);
    pub fn ggml_backend_init_by_type(kind: c_int, params: *const c_char) -> *mut Opaque;
    pub fn ggml_backend_alloc_ctx_tensors(ctx: *mut Opaque, backend: *mut Opaque) -> *mut Opaque;
    pub fn ggml_backend_supports_op(backend: *mut Opaque, op: *const Opaque) -> bool;
    pub fn ggml_backend_graph_compute(backend: *mut Opaque, graph: *mut Opaque) -> c_int;
    pub fn ggml_backend_tensor_set(
        tensor: *mut Opaque,
        data: *const c_void,
        offset: usize,
        size: usize,
    );
    pub fn ggml_backend_tensor_get(
        tensor: *const Opaque,
        data: *mut c_void,
        offset: usize,
        size: usize,
    );
    pub fn ggml_backend_buffer_free(buffer: *mut Opaque);
    pub fn ggml_backend_free(backend: *mut Opaque);
    pub fn ggml_tensor_overhead() -> usize;
    pub fn ggml_graph_overhead() -> usize;
    pub fn ggml_init(params: InitParams) -> *mut Opaque;
    pub fn ggml_free(ctx: *mut Opaque);
    pub fn ggml_type_name(kind: c_int) -> *const c_char;
    pub fn ggml_nbytes(tensor: *const Opaque) -> usize;
    pub fn ggml_new_tensor_3d(ctx: *mut Opaque, kind: c_int, a: i64, b: i64, c: i64)
    -> *mut Opaque;
    pub fn ggml_flash_attn_ext(
        ctx: *mut Opaque,
        q: *mut Opaque,
        k: *mut Opaque,
        v: *mut Opaque,
        mask: *mut Opaque,
        scale: f32,
        max_bias: f32,
        softcap: f32,
    ) -> *mut Opaque;
    pub fn ggml_cpy(ctx: *mut Opaque, from: *mut Opaque, to: *mut Opaque) -> *mut Opaque;
    pub fn ggml_new_graph(ctx: *mut Opaque) -> *mut Opaque;
    pub fn ggml_build_forward_expand(graph: *mut Opaque, tensor: *mut Opaque);
    pub fn ggml_quantize_chunk(
        kind: c_int,
        src: *const f32,
        dst: *mut c_void,
        start: i64,
        n_rows: i64,
        n_per_row: i64,
        weights: *const f32,
    ) -> usize;
    pub fn ggml_kvforge_api() -> *const Api;
}
