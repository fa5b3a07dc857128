//! Codecs, scores, counters and facts through the C ABI: every bad argument has
//! its status and writes nothing; good ones do what the Rust functions behind
//! them do.

mod common;

use std::ffi::{CStr, c_void};
use std::ptr::{null, null_mut};

use common::*;
use kvforge_capi::*;
use kvforge_formats::FORMATS;

const DIM: usize = 64;
const KV_HEADS: usize = 2;
const HEADS: usize = 6;
const N_Q: usize = 3;
const N_KV: usize = 70;

#[test]
fn codecs_check_their_arguments() {
    let x = random(96, 6);
    for isa in isas() {
        for spec in FORMATS {
            let good = encoded(spec.id, &x);
            let mut bytes = vec![0xee_u8; good.len() + 1];
            let mut bad = usize::MAX;
            let p: *mut c_void = bytes.as_mut_ptr().cast();
            // SAFETY: pointers are null, misaligned, or lead to enough memory.
            unsafe {
                let misaligned = floats(&x).wrapping_byte_add(1);
                for (ty, isa, x, p, n, status) in [
                    (77, isa, floats(&x), p, 96, KVF_BAD_TYPE),
                    (KVF_F16, isa, floats(&x), p, 96, KVF_BAD_TYPE),
                    (spec.id, 9, floats(&x), p, 96, KVF_UNSUPPORTED),
                    (spec.id, isa, null(), p, 96, KVF_NULL),
                    (spec.id, isa, floats(&x), null_mut(), 96, KVF_NULL),
                    (spec.id, isa, floats(&x), p, 95, KVF_BAD_SHAPE),
                    (spec.id, isa, floats(&x), p, usize::MAX - 31, KVF_BAD_SHAPE),
                    (spec.id, isa, misaligned, p, 64, KVF_BAD_SHAPE),
                ] {
                    assert_eq!(kvf_encode(ty, isa, x, p, n, 0, &mut bad), status);
                }
                assert_eq!(kvf_poison(77, p, 96), KVF_BAD_TYPE);
                assert_eq!(kvf_poison(spec.id, null_mut(), 96), KVF_NULL);
                assert_eq!(kvf_poison(spec.id, p, 95), KVF_BAD_SHAPE);
                assert!(bytes.iter().all(|b| *b == 0xee));
                assert_eq!(bad, usize::MAX);

                let mut y = vec![RUBBISH; 96];
                let y_ptr = y.as_mut_ptr();
                let b: *const c_void = good.as_ptr().cast();
                for (ty, isa, domain, b, y, n, status) in [
                    (0, isa, KVF_ORIGINAL, b, y_ptr, 96, KVF_BAD_TYPE),
                    (spec.id, 3, KVF_ORIGINAL, b, y_ptr, 96, KVF_UNSUPPORTED),
                    (spec.id, isa, 2, b, y_ptr, 96, KVF_BAD_TYPE),
                    (spec.id, isa, KVF_ROTATED, null(), y_ptr, 96, KVF_NULL),
                    (spec.id, isa, KVF_ROTATED, b, null_mut(), 96, KVF_NULL),
                    (spec.id, isa, KVF_ROTATED, b, y_ptr, 33, KVF_BAD_SHAPE),
                    (KVF_Q8_0, isa, KVF_ROTATED, b, y_ptr, 33, KVF_BAD_SHAPE),
                    (
                        KVF_F16,
                        isa,
                        KVF_ORIGINAL,
                        b,
                        y_ptr,
                        usize::MAX / 2,
                        KVF_BAD_SHAPE,
                    ),
                    (
                        spec.id,
                        isa,
                        KVF_ROTATED,
                        b,
                        y_ptr.wrapping_byte_add(3),
                        32,
                        KVF_BAD_SHAPE,
                    ),
                ] {
                    assert_eq!(kvf_decode(ty, isa, domain, b, y, n, 0), status);
                }
                let (out, q) = (&mut y[0] as *mut f32, floats(&x));
                for (ty, isa, b, q, n, out, status) in [
                    (KVF_Q8_0, isa, b, q, 96, out, KVF_BAD_TYPE),
                    (spec.id, 4, b, q, 96, out, KVF_UNSUPPORTED),
                    (spec.id, isa, null(), q, 96, out, KVF_NULL),
                    (spec.id, isa, b, null(), 96, out, KVF_NULL),
                    (spec.id, isa, b, q, 96, null_mut(), KVF_NULL),
                    (spec.id, isa, b, q, 40, out, KVF_BAD_SHAPE),
                    (spec.id, isa, b, misaligned, 64, out, KVF_BAD_SHAPE),
                ] {
                    assert_eq!(kvf_dot(ty, isa, b, q, n, out, 0), status);
                }
                assert!(y.iter().all(|v| *v == RUBBISH));
            }
        }
    }
}

#[test]
fn codecs_do_what_the_reference_does() {
    let x = random(96, 7);
    for isa in isas() {
        for spec in FORMATS {
            let good = encoded(spec.id, &x);
            let n = good.len();
            // An odd address: bytes need no alignment.
            let mut bytes = vec![0xee_u8; n + 1];
            let mut y = vec![0.0; 96];
            let mut expected = vec![0.0; 96];
            let mut dot = 0.0;
            (spec.decode)(&good, &mut expected, kvforge_formats::Domain::Original).unwrap();
            // SAFETY: pointers lead to enough memory.
            unsafe {
                let p: *mut c_void = bytes[1..].as_mut_ptr().cast();
                assert_eq!(
                    kvf_encode(spec.id, isa, floats(&x), p, 96, 0, null_mut()),
                    KVF_OK
                );
                assert_eq!(bytes[1..], good);
                let y_ptr = y.as_mut_ptr();
                assert_eq!(
                    kvf_decode(spec.id, isa, KVF_ORIGINAL, p, y_ptr, 96, 0),
                    KVF_OK
                );
                assert_eq!(y, expected);
                assert_eq!(
                    kvf_dot(spec.id, isa, p, floats(&x), 96, &mut dot, 0),
                    KVF_OK
                );
                let exact: f64 = x.iter().zip(&y).map(|(a, b)| f64::from(a * b)).sum();
                assert!((f64::from(dot) - exact).abs() < 1e-5, "{dot} {exact}");

                // Blocks before a bad one are written, it and later ones are not.
                let mut x = x.clone();
                let mut bad = 0;
                for (value, index, status) in [
                    (f32::NAN, 70, KVF_NON_FINITE),
                    (f32::INFINITY, 70, KVF_NON_FINITE),
                    (1e20, 64, KVF_SCALE_OVERFLOW),
                ] {
                    x[70] = value;
                    bytes.fill(0xee);
                    let p: *mut c_void = bytes[1..].as_mut_ptr().cast();
                    let found = kvf_encode(spec.id, isa, floats(&x), p, 96, 0, &mut bad);
                    assert_eq!((found, bad), (status, index));
                    assert_eq!(
                        kvf_encode(spec.id, isa, floats(&x), p, 96, 0, null_mut()),
                        status
                    );
                    let written = 2 * spec.block_bytes;
                    assert_eq!(bytes[1..=written], good[..written]);
                    assert!(bytes[written + 1..].iter().all(|b| *b == 0xee));
                }

                let p: *mut c_void = bytes[1..].as_mut_ptr().cast();
                assert_eq!(kvf_poison(spec.id, p, 96), KVF_OK);
                assert_eq!(
                    kvf_decode(spec.id, isa, KVF_ROTATED, p, y_ptr, 96, 0),
                    KVF_OK
                );
                assert!(y.iter().all(|v| v.is_nan()));
            }
        }
    }
}

#[test]
fn scores_check_their_arguments() {
    let q = random(N_Q * HEADS * DIM, 8);
    let k = encoded(1, &random(N_KV * KV_HEADS * DIM, 9));
    let row = k.len() / N_KV;
    for isa in isas() {
        let mut out = vec![RUBBISH; N_Q * HEADS * N_KV];
        let mut s = kvf_scores {
            struct_size: size_of::<kvf_scores>(),
            k_type: 1,
            isa,
            slot: 0,
            head_dim: DIM,
            n_heads: HEADS,
            n_kv_heads: KV_HEADS,
            n_q: N_Q,
            n_kv: N_KV,
            q: floats(&q),
            q_row_stride: 4 * HEADS * DIM,
            q_head_stride: 4 * DIM,
            k: k.as_ptr().cast(),
            k_row_stride: row,
            k_head_stride: row / KV_HEADS,
            out: out.as_mut_ptr(),
            out_row_stride: 4 * HEADS * N_KV,
            out_head_stride: 4 * N_KV,
            scratch: null_mut(),
            scratch_bytes: 0,
        };
        // SAFETY: pointers are null or lead to the vectors above.
        unsafe {
            let bytes = kvf_score_scratch(&s);
            assert!(bytes > 0);
            let without = kvf_scores {
                q: null(),
                k: null(),
                out: null_mut(),
                ..s
            };
            assert_eq!(kvf_score_scratch(&without), bytes);
            assert_eq!(kvf_score_scratch(&kvf_scores { n_heads: 5, ..s }), 0);
            let mut scratch = lines(bytes);
            (s.scratch, s.scratch_bytes) = (scratch.as_mut_ptr().cast(), bytes);
            type Change = (i32, fn(&mut kvf_scores));
            let bad: [Change; 18] = [
                (KVF_UNSUPPORTED, |s| s.struct_size += 1),
                (KVF_UNSUPPORTED, |s| s.isa = 5),
                (KVF_BAD_TYPE, |s| s.k_type = 3),
                (KVF_NULL, |s| s.q = null()),
                (KVF_NULL, |s| s.k = null()),
                (KVF_NULL, |s| s.out = null_mut()),
                (KVF_NULL, |s| s.scratch = null_mut()),
                (KVF_BAD_SHAPE, |s| s.head_dim = 33),
                (KVF_BAD_SHAPE, |s| s.head_dim = 0),
                (KVF_BAD_SHAPE, |s| s.n_heads = 5),
                (KVF_BAD_SHAPE, |s| s.n_kv_heads = 0),
                (KVF_BAD_SHAPE, |s| s.n_kv = usize::MAX / 4),
                (KVF_BAD_SHAPE, |s| s.q_row_stride = 1),
                (KVF_BAD_SHAPE, |s| s.k_row_stride = 1),
                (KVF_BAD_SHAPE, |s| s.out_head_stride = 4 * N_KV - 1),
                (KVF_BAD_SHAPE, |s| s.out_row_stride = usize::MAX),
                (KVF_SCRATCH, |s| s.scratch_bytes -= 1),
                (KVF_SCRATCH, |s| s.scratch = s.scratch.wrapping_byte_add(8)),
            ];
            for (i, (status, change)) in bad.iter().enumerate() {
                let mut s = s;
                change(&mut s);
                assert_eq!(kvf_score(&s), *status, "change {i}");
            }
            assert_eq!(kvf_score(null()), KVF_NULL);
            assert_eq!(kvf_score_scratch(null()), 0);
            assert!(out.iter().all(|v| *v == RUBBISH));
            assert_eq!(kvf_score(&s), KVF_OK);
        }
        assert!(out.iter().all(|v| *v != RUBBISH));
    }
}

fn text(s: *const std::ffi::c_char) -> String {
    // SAFETY: the library's strings are static and NUL-terminated.
    unsafe { CStr::from_ptr(s) }.to_str().unwrap().to_owned()
}

#[test]
fn names_and_facts() {
    let texts: Vec<_> = (-1..=8)
        .map(|status| text(kvf_status_text(status)))
        .collect();
    for (i, a) in texts.iter().enumerate() {
        // -1 and 8 are no statuses and share their text.
        let twins = texts.iter().filter(|b| *b == a).count();
        assert_eq!(twins, if i == 0 || i == 9 { 2 } else { 1 }, "{a}");
    }
    assert_eq!(text(kvf_isa_name(KVF_ISA_SCALAR)), "scalar");
    assert_eq!(text(kvf_isa_name(KVF_ISA_AVX2)), "avx2");
    let auto = kvf_isa_resolve(KVF_ISA_AUTO);
    assert_eq!(text(kvf_isa_name(KVF_ISA_AUTO)), text(kvf_isa_name(auto)));
    assert!(kvf_isa_name(3).is_null());
    assert_eq!(kvf_isa_resolve(3), 0);
    assert_eq!(
        text(kvf_kernel_name(2, KVF_OP_ATTEND, KVF_ISA_SCALAR)),
        "tbq4_0/attend/scalar"
    );
    assert_eq!(
        text(kvf_kernel_name(1, KVF_OP_DOT, KVF_ISA_SCALAR)),
        "tbq3_0/dot/scalar"
    );
    for (ty, op, isa) in [(KVF_F16, 0, 1), (1, 5, 1), (1, 0, 3)] {
        assert!(kvf_kernel_name(ty, op, isa).is_null());
    }
    // SAFETY: null is an allowed argument.
    assert_eq!(unsafe { kvf_format_info(0, null_mut()) }, KVF_NULL);
    for (i, spec) in FORMATS.iter().enumerate() {
        let mut info = std::mem::MaybeUninit::<kvf_format_info>::uninit();
        // SAFETY: `info` is writable, and written where the call succeeds.
        let info = unsafe {
            assert_eq!(kvf_format_info(i as u32, info.as_mut_ptr()), KVF_OK);
            info.assume_init()
        };
        assert_eq!(text(info.name.as_ptr()), spec.name);
        let sizes = [info.id, info.block_len, info.block_bytes, info.code_bits];
        let expected = [spec.block_len, spec.block_bytes, spec.code_bits].map(|n| n as u32);
        assert_eq!((sizes[0], &sizes[1..]), (spec.id, &expected[..]));
        assert_eq!(info.attention_tolerance, spec.tolerance.attention);
        assert_eq!(info.score_tolerance, spec.tolerance.score);
        assert_eq!(info.gaussian_mse, spec.tolerance.gaussian_mse);
        assert_eq!(info.gaussian_mse_margin, spec.tolerance.gaussian_mse_margin);
    }
}

#[test]
fn counters_can_be_read_one_by_one_or_all() {
    // A slot of this test alone; tests run at the same time.
    const SLOT: u32 = 321;
    let x = random(64, 10);
    let mut bytes = [0u8; 36];
    for isa in isas() {
        let p: *mut c_void = bytes.as_mut_ptr().cast();
        // SAFETY: pointers lead to enough memory.
        let status = unsafe { kvf_encode(2, isa, floats(&x), p, 64, SLOT, null_mut()) };
        assert_eq!(status, KVF_OK);
        assert_eq!(kvf_counter(2, KVF_OP_ENCODE, isa, SLOT), 2);
        assert_eq!(kvf_counter(2, KVF_OP_DECODE, isa, SLOT), 0);
        let expected = kvf_count {
            r#type: 2,
            op: KVF_OP_ENCODE,
            isa,
            slot: SLOT,
            count: 2,
        };
        let mut found = expected;
        let (mut cursor, mut seen) = (0, 0);
        // SAFETY: both are writable.
        while unsafe { kvf_counter_next(&mut cursor, &mut found) } == KVF_OK {
            seen += usize::from(found == expected);
        }
        assert_eq!(seen, 1);
    }
    // SAFETY: null is an allowed argument.
    unsafe {
        assert_eq!(kvf_counter_next(null_mut(), null_mut()), KVF_NULL);
        assert_eq!(kvf_counter_next(&mut 0, null_mut()), KVF_NULL);
    }
    for (ty, op, isa) in [(9, 0, 1), (1, 9, 1), (1, 0, 9)] {
        assert_eq!(kvf_counter(ty, op, isa, 0), 0);
    }
}
