//! Runs fused attention on a compressed cache through ggml's public functions,
//! in a program that has a Rust runtime of its own, and checks that exactly the
//! expected kernel did exactly the work. With one key, the answer is its value.
//!
//! Usage: `kvforge-link-test TYPE ID [FOLDER]`; ID is the number that the type
//! has in this ggml, FOLDER is where backends are, if they are loaded at run time.

mod ggml;

use std::ffi::{CStr, CString, c_int};
use std::mem::MaybeUninit;
use std::{env, panic, ptr, thread};

use ggml::*;

const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const DIM: usize = 128;
const N_Q: usize = 5;

fn main() {
    let mut args = env::args().skip(1);
    let usage = "usage: kvforge-link-test TYPE ID [FOLDER]";
    let format = args.next().expect(usage);
    let kind: c_int = args.next().and_then(|id| id.parse().ok()).expect(usage);
    let folder = args.next();

    // The program's own runtime: unwinding, threads, allocation.
    panic::set_hook(Box::new(|_| {}));
    let caught = panic::catch_unwind(|| panic!("on purpose")).is_err();
    let _ = panic::take_hook();
    assert!(caught, "this program cannot unwind");
    let joined = thread::spawn(|| vec![1; 1000].iter().sum::<i32>()).join();
    assert_eq!(joined.expect("the thread ran"), 1000);

    // SAFETY: the calls and their order are those of ggml's own examples; every
    // pointer comes from ggml, and nothing is used after it is freed.
    let (worst, rows) = unsafe { attend(&format, kind, folder.as_deref()) };
    println!("worst error {worst:e}");
    // fp32 rounding of rotations and one softmax weight of 1
    assert!(
        worst <= 1e-5,
        "attention over one key is not that key's value: off by {worst}"
    );

    let kernel = format!("{format}/attend/{}", best_isa());
    println!("kernels: {rows:?}");
    assert_eq!(
        rows,
        [(kernel, (N_Q * HEADS) as u64)],
        "another kernel ran, or it ran another number of times"
    );
    println!("3 checks passed, 0 checks failed");
}

/// Attention over one key: the largest difference from its value, relative to
/// the largest value, and what each attention kernel counted.
unsafe fn attend(format: &str, kind: c_int, folder: Option<&str>) -> (f32, Vec<(String, u64)>) {
    unsafe {
        if let Some(folder) = folder {
            let folder = CString::new(folder).expect("a path without NUL");
            ggml_backend_load_all_from_path(folder.as_ptr());
        }
        assert_eq!(
            CStr::from_ptr(ggml_type_name(kind)).to_str(),
            Ok(format),
            "type {kind} is another one"
        );
        let api = &*ggml_kvforge_api();
        assert_eq!(
            (api.version, api.struct_size),
            (API_VERSION, size_of::<Api>()),
            "another version of the kernel table"
        );
        let v_kind = if holds_values(api, format) {
            kind
        } else {
            TYPE_F16
        };
        let backend = ggml_backend_init_by_type(DEVICE_CPU, ptr::null());
        assert!(!backend.is_null(), "no CPU backend");
        let mem_size = 16 * ggml_tensor_overhead() + ggml_graph_overhead();
        let ctx = ggml_init(InitParams {
            mem_size,
            mem_buffer: ptr::null_mut(),
            no_alloc: true,
        });
        let q = ggml_new_tensor_3d(ctx, TYPE_F32, DIM as i64, N_Q as i64, HEADS as i64);
        let k = ggml_new_tensor_3d(ctx, kind, DIM as i64, 1, KV_HEADS as i64);
        let v = ggml_new_tensor_3d(ctx, v_kind, DIM as i64, 1, KV_HEADS as i64);
        let out = ggml_flash_attn_ext(ctx, q, k, v, ptr::null_mut(), 0.125, 0.0, 0.0);
        let decoded = ggml_cpy(
            ctx,
            v,
            ggml_new_tensor_3d(ctx, TYPE_F32, DIM as i64, 1, KV_HEADS as i64),
        );
        let graph = ggml_new_graph(ctx);
        ggml_build_forward_expand(graph, out);
        ggml_build_forward_expand(graph, decoded);
        assert!(
            ggml_backend_supports_op(backend, out),
            "the backend does not support attention on {format}"
        );
        let buffer = ggml_backend_alloc_ctx_tensors(ctx, backend);

        let queries = wave(N_Q * HEADS * DIM, 0.3);
        ggml_backend_tensor_set(q, queries.as_ptr().cast(), 0, ggml_nbytes(q));
        let values = wave(KV_HEADS * DIM, 0.7);
        for (tensor, kind) in [(k, kind), (v, v_kind)] {
            let mut bytes = vec![0_u8; ggml_nbytes(tensor)];
            let (rows, columns) = (KV_HEADS as i64, DIM as i64);
            ggml_quantize_chunk(
                kind,
                values.as_ptr(),
                bytes.as_mut_ptr().cast(),
                0,
                rows,
                columns,
                ptr::null(),
            );
            ggml_backend_tensor_set(tensor, bytes.as_ptr().cast(), 0, bytes.len());
        }

        (api.counters_reset)();
        assert_eq!(ggml_backend_graph_compute(backend, graph), STATUS_SUCCESS);
        let counts = attention_counts(api);
        let result = floats(out);
        let decoded = floats(decoded);
        ggml_backend_buffer_free(buffer);
        ggml_free(ctx);
        ggml_backend_free(backend);
        (worst_error(&result, &decoded), counts)
    }
}

/// Whether a cache may hold values in that format.
unsafe fn holds_values(api: &Api, format: &str) -> bool {
    let mut info = MaybeUninit::<FormatInfo>::uninit();
    let mut index = 0;
    // SAFETY: `info` is writable, and written where the call succeeds.
    while unsafe { (api.format_info)(index, info.as_mut_ptr()) } == 0 {
        let info = unsafe { info.assume_init_ref() };
        let name = unsafe { CStr::from_ptr(info.name.as_ptr()) };
        if name.to_str() == Ok(format) {
            return info.holds_values == 1;
        }
        index += 1;
    }
    panic!("the kernels know no format {format}");
}

/// The values of an fp32 tensor.
unsafe fn floats(tensor: *const Opaque) -> Vec<f32> {
    unsafe {
        let bytes = ggml_nbytes(tensor);
        let mut values = vec![0_f32; bytes / size_of::<f32>()];
        ggml_backend_tensor_get(tensor, values.as_mut_ptr().cast(), 0, bytes);
        values
    }
}

unsafe fn attention_counts(api: &Api) -> Vec<(String, u64)> {
    let (mut cursor, mut count, mut counts) = (0, Count::default(), Vec::new());
    while unsafe { (api.counter_next)(&mut cursor, &mut count) } == 0 {
        if count.op == OP_ATTEND {
            let name = (api.kernel_name)(count.format, count.op, count.isa);
            let name = unsafe { CStr::from_ptr(name) }
                .to_string_lossy()
                .into_owned();
            counts.push((name, count.count));
        }
    }
    counts
}

/// `result` is `[N_Q, HEADS, DIM]`, `values` is `[KV_HEADS, DIM]`.
fn worst_error(result: &[f32], values: &[f32]) -> f32 {
    let largest = values.iter().fold(0_f32, |a, v| a.max(v.abs()));
    let expected = |i: usize| values[i / DIM % HEADS / (HEADS / KV_HEADS) * DIM + i % DIM];
    let errors = result
        .iter()
        .enumerate()
        .map(|(i, r)| (r - expected(i)).abs() / largest);
    // a NaN is the worst error there is
    errors.fold(
        0.0,
        |worst, e| if e > worst || e.is_nan() { e } else { worst },
    )
}

fn wave(n: usize, step: f32) -> Vec<f32> {
    (0..n).map(|i| (step * i as f32).sin() + 0.1).collect()
}

/// Whatever ggml was compiled for, its kvforge kernels are those of the machine.
fn best_isa() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c")
    {
        return "avx2";
    }
    "scalar"
}
