//! Every bad argument has its status and writes nothing; good ones do what the
//! Rust functions behind them do.

use std::ffi::{CStr, c_void};
use std::ptr::{null, null_mut};

use kvforge_capi::*;
use kvforge_formats::FORMATS;

const DIM: usize = 64;
const KV_HEADS: usize = 2;
const HEADS: usize = 6;
const N_Q: usize = 3;
const N_KV: usize = 70;
/// What outputs hold before a call, and after a refused one.
const RUBBISH: f32 = 12345.0;

const ISAS: [u32; 2] = [KVF_ISA_SCALAR, KVF_ISA_AVX2];

fn isas() -> impl Iterator<Item = u32> {
    ISAS.into_iter().filter(|&isa| {
        let present = kvf_isa_resolve(isa) == isa;
        if !present {
            eprintln!("not run: instruction set {isa}: this machine does not have it");
        }
        present
    })
}

/// Numbers in [-1, 1) without a pattern.
fn random(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    (0..n)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect()
}

fn encoded(id: u32, x: &[f32]) -> Vec<u8> {
    let spec = kvforge_formats::by_id(id).unwrap();
    let mut bytes = vec![0; spec.row_bytes(x.len()).unwrap()];
    (spec.encode)(x, &mut bytes).unwrap();
    bytes
}

fn floats(x: &[f32]) -> *const f32 {
    x.as_ptr()
}

#[repr(align(64))]
#[derive(Clone, Copy)]
struct Line(#[allow(dead_code, reason = "only its memory matters")] [u8; 64]);

fn lines(bytes: usize) -> Vec<Line> {
    vec![Line([0; 64]); bytes.div_ceil(64)]
}

/// A good attention call over memory of its own.
struct Call {
    a: kvf_attention,
    segment: Box<kvf_segment>,
    out: Vec<f32>,
    scratch: Vec<Line>,
    kv_head: usize,
    q: (usize, usize),
    _floats: [Vec<f32>; 3],
    _bytes: [Vec<u8>; 2],
}

impl Call {
    fn new(isa: u32) -> Call {
        let q = random(N_Q * HEADS * DIM, 1);
        let k = encoded(2, &random(N_KV * KV_HEADS * DIM, 2));
        let v = encoded(1, &random(N_KV * KV_HEADS * DIM, 3));
        let mask = random(N_Q * N_KV, 4);
        let per_head = random(2 * HEADS, 5);
        let mut out = vec![RUBBISH; N_Q * HEADS * DIM];
        let (k_row, v_row) = (k.len() / N_KV, v.len() / N_KV);
        let segment = Box::new(kvf_segment {
            k_type: 2,
            v_type: 1,
            k: k.as_ptr().cast(),
            v: v.as_ptr().cast(),
            n_kv: N_KV,
            k_row_stride: k_row,
            k_head_stride: k_row / KV_HEADS,
            v_row_stride: v_row,
            v_head_stride: v_row / KV_HEADS,
            mask: mask.as_ptr().cast(),
            mask_type: KVF_F32,
            mask_row_stride: 4 * N_KV,
            mask_head_stride: 0,
            mask_heads: 0,
            pos0: 0,
        });
        let a = kvf_attention {
            struct_size: size_of::<kvf_attention>(),
            head_dim_k: DIM,
            head_dim_v: DIM,
            n_heads: HEADS,
            n_kv_heads: KV_HEADS,
            n_q: N_Q,
            q: floats(&q),
            q_row_stride: 4 * HEADS * DIM,
            q_head_stride: 4 * DIM,
            out: out.as_mut_ptr(),
            out_row_stride: 4 * HEADS * DIM,
            out_head_stride: 4 * DIM,
            scale: 0.125,
            softcap: 0.0,
            slopes: floats(&per_head),
            sinks: floats(&per_head[HEADS..]),
            causal: 1,
            q_pos0: 60,
            segments: &*segment,
            n_segments: 1,
            isa,
            slot: 0,
        };
        // SAFETY: all pointers lead to the vectors above, which the call keeps.
        let bytes = unsafe { kvf_attend_scratch(&a, N_Q) };
        assert!(bytes > 0);
        Call {
            a,
            segment,
            out,
            scratch: lines(bytes),
            kv_head: 0,
            q: (0, N_Q),
            _floats: [q, mask, per_head],
            _bytes: [k, v],
        }
    }

    fn scratch(&mut self) -> (*mut c_void, usize) {
        (self.scratch.as_mut_ptr().cast(), 64 * self.scratch.len())
    }

    fn attend(&mut self) -> i32 {
        let (scratch, bytes) = self.scratch();
        // SAFETY: pointers are null or lead to memory that the call keeps.
        unsafe { kvf_attend(&self.a, self.kv_head, self.q.0, self.q.1, scratch, bytes) }
    }

    fn partial(&mut self, kv: (usize, usize), partials: *mut f32) -> i32 {
        let (scratch, bytes) = self.scratch();
        let (q0, q1) = self.q;
        // SAFETY: as above; tests pass null or enough memory.
        unsafe {
            kvf_attend_partial(
                &self.a,
                self.kv_head,
                q0,
                q1,
                0,
                kv.0,
                kv.1,
                partials,
                scratch,
                bytes,
            )
        }
    }

    fn merge(&mut self, partials: *const f32, n: usize, stride: usize) -> i32 {
        // SAFETY: as above.
        unsafe {
            kvf_attend_merge(
                &self.a,
                self.kv_head,
                self.q.0,
                self.q.1,
                partials,
                n,
                stride,
            )
        }
    }

    fn partial_floats(&self) -> usize {
        // SAFETY: `a` is readable.
        unsafe { kvf_partial_floats(&self.a) }
    }
}

type Change = (&'static str, i32, fn(&mut Call));

/// What can be wrong with a `kvf_attention` and its segment.
const BAD: &[Change] = &[
    ("older struct", KVF_UNSUPPORTED, |c| c.a.struct_size -= 8),
    ("no such isa", KVF_UNSUPPORTED, |c| c.a.isa = 77),
    ("k type", KVF_BAD_TYPE, |c| c.segment.k_type = 99),
    ("v type", KVF_BAD_TYPE, |c| c.segment.v_type = 0),
    ("mask type", KVF_BAD_TYPE, |c| {
        c.segment.mask_type = KVF_Q8_0
    }),
    ("null q", KVF_NULL, |c| c.a.q = null()),
    ("null out", KVF_NULL, |c| c.a.out = null_mut()),
    ("null segments", KVF_NULL, |c| c.a.segments = null()),
    ("null k", KVF_NULL, |c| c.segment.k = null()),
    ("null v", KVF_NULL, |c| c.segment.v = null()),
    ("too many segments", KVF_BAD_SHAPE, |c| {
        c.a.n_segments = KVF_MAX_SEGMENTS + 1
    }),
    ("no heads", KVF_BAD_SHAPE, |c| c.a.n_heads = 0),
    ("no kv heads", KVF_BAD_SHAPE, |c| c.a.n_kv_heads = 0),
    ("kv heads do not divide", KVF_BAD_SHAPE, |c| c.a.n_heads = 5),
    ("half a block of K", KVF_BAD_SHAPE, |c| c.a.head_dim_k = 48),
    ("half a block of V", KVF_BAD_SHAPE, |c| c.a.head_dim_v = 48),
    ("empty K heads", KVF_BAD_SHAPE, |c| c.a.head_dim_k = 0),
    ("empty V heads", KVF_BAD_SHAPE, |c| c.a.head_dim_v = 0),
    ("huge heads", KVF_BAD_SHAPE, |c| {
        c.a.head_dim_k = usize::MAX / 32 * 32
    }),
    ("q row stride", KVF_BAD_SHAPE, |c| {
        c.a.q_row_stride = 4 * DIM - 1
    }),
    ("q head stride", KVF_BAD_SHAPE, |c| c.a.q_head_stride = 0),
    ("out row stride", KVF_BAD_SHAPE, |c| c.a.out_row_stride = 3),
    ("out head stride", KVF_BAD_SHAPE, |c| {
        c.a.out_head_stride = 4 * DIM - 4
    }),
    ("k row stride", KVF_BAD_SHAPE, |c| {
        c.segment.k_row_stride = 35
    }),
    ("k head stride", KVF_BAD_SHAPE, |c| {
        c.segment.k_head_stride = 35
    }),
    ("v row stride", KVF_BAD_SHAPE, |c| {
        c.segment.v_row_stride = 27
    }),
    ("v head stride", KVF_BAD_SHAPE, |c| {
        c.segment.v_head_stride = 1
    }),
    ("mask row stride", KVF_BAD_SHAPE, |c| {
        c.segment.mask_row_stride = 4 * N_KV - 1
    }),
    ("mask head stride", KVF_BAD_SHAPE, |c| {
        (c.segment.mask_heads, c.segment.mask_head_stride) = (2, 4);
    }),
    ("stride overflows", KVF_BAD_SHAPE, |c| {
        c.segment.k_row_stride = usize::MAX / 2
    }),
    ("extent overflows", KVF_BAD_SHAPE, |c| {
        c.a.q_row_stride = isize::MAX as usize / 2 + 1
    }),
    ("tokens overflow", KVF_BAD_SHAPE, |c| {
        c.segment.n_kv = usize::MAX / 2
    }),
    ("positions overflow", KVF_BAD_SHAPE, |c| {
        c.a.n_q = usize::MAX
    }),
    ("no such kv head", KVF_BAD_SHAPE, |c| c.kv_head = KV_HEADS),
    ("positions past the end", KVF_BAD_SHAPE, |c| {
        c.q = (0, N_Q + 1)
    }),
    ("positions backwards", KVF_BAD_SHAPE, |c| c.q = (2, 1)),
    ("misaligned slopes", KVF_BAD_SHAPE, |c| {
        c.a.slopes = c.a.slopes.wrapping_byte_add(1)
    }),
    ("misaligned sinks", KVF_BAD_SHAPE, |c| {
        c.a.sinks = c.a.sinks.wrapping_byte_add(2)
    }),
];

#[test]
fn bad_attention_is_refused_and_writes_nothing() {
    for isa in isas() {
        for (what, status, change) in BAD {
            let mut call = Call::new(isa);
            change(&mut call);
            assert_eq!(call.attend(), *status, "attend, {what}");
            let mut partials = vec![RUBBISH; N_Q * HEADS / KV_HEADS * (DIM + 2)];
            assert_eq!(
                call.partial((0, N_KV), partials.as_mut_ptr()),
                *status,
                "partial, {what}"
            );
            assert_eq!(
                call.merge(partials.as_ptr(), 1, 0),
                *status,
                "merge, {what}"
            );
            assert!(
                call.out.iter().chain(&partials).all(|v| *v == RUBBISH),
                "{what}"
            );
        }
        let mut call = Call::new(isa);
        assert_eq!(call.attend(), KVF_OK);
        assert!(call.out.iter().any(|v| *v != RUBBISH));
    }
}

#[test]
fn scratch_is_checked() {
    for isa in isas() {
        let mut call = Call::new(isa);
        let partials = &mut vec![RUBBISH; N_Q * HEADS / KV_HEADS * (DIM + 2)];
        let (good, bytes) = call.scratch();
        // SAFETY: `a` is readable.
        let needed = unsafe { kvf_attend_scratch(&call.a, N_Q) };
        let misaligned = good.wrapping_byte_add(4);
        for (scratch, bytes, status) in [
            (null_mut(), bytes, KVF_NULL),
            (good, needed - 1, KVF_SCRATCH),
            (good, 0, KVF_SCRATCH),
            (misaligned, bytes - 4, KVF_SCRATCH),
            (good.wrapping_byte_add(1), bytes - 1, KVF_SCRATCH),
        ] {
            // SAFETY: pointers lead to memory that the call keeps, or are null.
            unsafe {
                assert_eq!(kvf_attend(&call.a, 0, 0, N_Q, scratch, bytes), status);
                let partials = partials.as_mut_ptr();
                let found =
                    kvf_attend_partial(&call.a, 0, 0, N_Q, 0, 0, N_KV, partials, scratch, bytes);
                assert_eq!(found, status);
            }
        }
        assert!(call.out.iter().chain(&*partials).all(|v| *v == RUBBISH));
        // Exactly enough is enough, and a shorter range needs less.
        // SAFETY: as above.
        unsafe {
            assert_eq!(kvf_attend(&call.a, 0, 0, N_Q, good, needed), KVF_OK);
            assert!(kvf_attend_scratch(&call.a, 1) < needed);
            // Sizes can be had before there are tensors, not of bad arguments.
            (call.a.q, call.a.out, call.a.segments) = (null(), null_mut(), null());
            assert_eq!(kvf_attend_scratch(&call.a, N_Q), needed);
            call.a.n_heads = 5;
            assert_eq!(kvf_attend_scratch(&call.a, N_Q), 0);
            assert_eq!(kvf_attend_scratch(null(), N_Q), 0);
            assert_eq!(kvf_partial_floats(null()), 0);
        }
    }
}

#[test]
fn null_structs_and_ranges_are_refused() {
    let mut call = Call::new(KVF_ISA_AUTO);
    let (scratch, bytes) = call.scratch();
    let floats = call.partial_floats();
    assert_eq!(floats, DIM + 2);
    let mut partials = vec![RUBBISH; N_Q * HEADS / KV_HEADS * floats];
    // SAFETY: null is an allowed argument.
    unsafe {
        assert_eq!(kvf_attend(null(), 0, 0, 1, scratch, bytes), KVF_NULL);
        let p = partials.as_mut_ptr();
        assert_eq!(
            kvf_attend_partial(null(), 0, 0, 1, 0, 0, 1, p, scratch, bytes),
            KVF_NULL
        );
        assert_eq!(kvf_attend_merge(null(), 0, 0, 1, p, 1, 0), KVF_NULL);
        // No such segment.
        assert_eq!(
            kvf_attend_partial(&call.a, 0, 0, 1, 1, 0, 1, p, scratch, bytes),
            KVF_BAD_SHAPE
        );
    }
    assert_eq!(call.partial((0, N_KV), null_mut()), KVF_NULL);
    assert_eq!(
        call.partial((0, N_KV + 1), partials.as_mut_ptr()),
        KVF_BAD_SHAPE
    );
    assert_eq!(call.partial((2, 1), partials.as_mut_ptr()), KVF_BAD_SHAPE);
    let misaligned = partials.as_mut_ptr().wrapping_byte_add(2);
    assert_eq!(call.partial((0, N_KV), misaligned), KVF_BAD_SHAPE);
    assert_eq!(call.merge(null(), 1, 0), KVF_NULL);
    assert_eq!(call.merge(misaligned, 1, 0), KVF_BAD_SHAPE);
    // Partials that overlap, or would not fit an address space.
    assert_eq!(call.merge(partials.as_ptr(), 2, floats), KVF_BAD_SHAPE);
    assert_eq!(
        call.merge(partials.as_ptr(), usize::MAX, usize::MAX),
        KVF_BAD_SHAPE
    );
    assert!(call.out.iter().chain(&partials).all(|v| *v == RUBBISH));
}

#[test]
fn merged_partials_are_the_whole() {
    for isa in isas() {
        let mut call = Call::new(isa);
        assert_eq!(call.attend(), KVF_OK);
        let whole = call.out.clone();
        let stride = N_Q * HEADS / KV_HEADS * call.partial_floats();
        let mut partials = vec![0.0; 2 * stride];
        assert_eq!(call.partial((0, 33), partials.as_mut_ptr()), KVF_OK);
        assert_eq!(
            call.partial((33, N_KV), partials[stride..].as_mut_ptr()),
            KVF_OK
        );
        call.out.fill(RUBBISH);
        assert_eq!(call.merge(partials.as_ptr(), 2, stride), KVF_OK);
        for (a, b) in call.out.iter().zip(&whole) {
            assert!((a - b).abs() <= 1e-6, "{a} {b}");
        }
        // Without a partial, no key was seen.
        assert_eq!(call.merge(null(), 0, 0), KVF_OK);
        let group = HEADS / KV_HEADS * DIM;
        for row in call.out.chunks(HEADS * DIM) {
            assert!(row[..group].iter().all(|v| *v == 0.0));
            assert!(row[group..].iter().all(|v| *v == RUBBISH));
        }
    }
}

#[test]
fn empty_segments_may_be_null() {
    for isa in isas() {
        let mut call = Call::new(isa);
        (call.segment.n_kv, call.segment.k, call.segment.v) = (0, null(), null());
        (call.segment.mask, call.segment.k_row_stride) = (null(), 0);
        assert_eq!(call.attend(), KVF_OK);
        assert!(call.out[..DIM].iter().all(|v| *v == 0.0));
        let mut call = Call::new(isa);
        (call.a.segments, call.a.n_segments) = (null(), 0);
        assert_eq!(call.attend(), KVF_OK);
        assert!(call.out[..DIM].iter().all(|v| *v == 0.0));
    }
}

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
fn the_table_holds_the_functions() {
    assert!(kvf_api(0).is_null() && kvf_api(KVF_API_VERSION + 1).is_null());
    // SAFETY: the table is static.
    let api = unsafe { &*kvf_api(KVF_API_VERSION) };
    assert_eq!(api.struct_size, size_of::<kvf_api>());
    assert_eq!(api.version, KVF_API_VERSION);
    assert_eq!((api.isa_resolve)(KVF_ISA_SCALAR), KVF_ISA_SCALAR);
    let mut call = Call::new(KVF_ISA_AUTO);
    let (scratch, bytes) = call.scratch();
    // SAFETY: as for the function itself.
    let status = unsafe { (api.attend)(&call.a, 0, 0, N_Q, scratch, bytes) };
    assert_eq!(status, KVF_OK);
}
