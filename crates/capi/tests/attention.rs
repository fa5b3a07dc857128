//! Attention through the C ABI: every bad argument has its status and writes
//! nothing; good ones do what the Rust functions behind them do.

mod common;

use std::ffi::c_void;
use std::ptr::{null, null_mut};

use common::*;
use kvforge_capi::*;
use kvforge_formats::{Domain, FORMATS};

const DIM: usize = 64;
const KV_HEADS: usize = 2;
const HEADS: usize = 6;
const N_Q: usize = 3;
const N_KV: usize = 70;

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
    /// Keys of `tbq4_0` and values of `tbq3_0`.
    fn new(isa: u32) -> Call {
        Call::of(isa, 2, 1, DIM)
    }

    /// Of any types and head size.
    fn of(isa: u32, k_type: u32, v_type: u32, dim: usize) -> Call {
        let q = random(N_Q * HEADS * dim, 1);
        let k = stored(k_type, &random(N_KV * KV_HEADS * dim, 2));
        let v = stored(v_type, &random(N_KV * KV_HEADS * dim, 3));
        let mask = random(N_Q * N_KV, 4);
        let per_head = random(2 * HEADS, 5);
        let mut out = vec![RUBBISH; N_Q * HEADS * dim];
        let (k_row, v_row) = (k.len() / N_KV, v.len() / N_KV);
        let segment = Box::new(kvf_segment {
            k_type,
            v_type,
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
            head_dim_k: dim,
            head_dim_v: dim,
            n_heads: HEADS,
            n_kv_heads: KV_HEADS,
            n_q: N_Q,
            q: floats(&q),
            q_row_stride: 4 * HEADS * dim,
            q_head_stride: 4 * dim,
            out: out.as_mut_ptr(),
            out_row_stride: 4 * HEADS * dim,
            out_head_stride: 4 * dim,
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

/// Values as a tensor of fp32 or of a format holds them.
fn stored(kind: u32, x: &[f32]) -> Vec<u8> {
    match kind {
        KVF_F32 => x.iter().flat_map(|v| v.to_ne_bytes()).collect(),
        id => encoded(id, x),
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

/// Every format as K and as V beside fp32, with a head size that fits all.
fn pairs() -> impl Iterator<Item = (u32, u32, bool)> {
    let keys = FORMATS.iter().map(|s| (s.id, KVF_F32, s.holds_keys()));
    let values = FORMATS.iter().map(|s| (KVF_F32, s.id, s.holds_values()));
    keys.chain(values)
}

#[test]
fn attention_takes_what_a_format_may_hold() {
    for isa in isas() {
        for (k_type, v_type, fits) in pairs() {
            let mut call = Call::of(isa, k_type, v_type, 128);
            let status = if fits { KVF_OK } else { KVF_BAD_SHAPE };
            assert_eq!(call.attend(), status, "K {k_type:#x}, V {v_type:#x}");
            assert_eq!(call.out.iter().any(|v| *v != RUBBISH), fits);
            if !fits {
                continue;
            }
            // The same keys and values in fp32, which no kernel of a format reads.
            let [k, v] = [(k_type, 2), (v_type, 3)].map(|(kind, seed)| {
                let x = random(N_KV * KV_HEADS * 128, seed);
                match kind {
                    KVF_F32 => x,
                    id => decoded(id, &encoded(id, &x), Domain::Original),
                }
            });
            let mut plain = Call::of(isa, KVF_F32, KVF_F32, 128);
            (plain.segment.k, plain.segment.v) = (k.as_ptr().cast(), v.as_ptr().cast());
            assert_eq!(plain.attend(), KVF_OK);
            let largest = v.iter().fold(0_f32, |a, v| a.max(v.abs()));
            for (a, b) in call.out.iter().zip(&plain.out) {
                assert!(
                    (a - b).abs() <= 5e-6 * largest,
                    "{a} {b}: K {k_type:#x}, V {v_type:#x}"
                );
            }
        }
    }
}

#[test]
fn merged_partials_are_the_whole() {
    const DIM: usize = 128;
    for isa in isas() {
        for (k_type, v_type, _) in pairs().filter(|(_, _, fits)| *fits) {
            let mut call = Call::of(isa, k_type, v_type, DIM);
            assert_eq!(call.attend(), KVF_OK);
            let whole = call.out.clone();
            let stride = N_Q * HEADS / KV_HEADS * call.partial_floats();
            let mut partials = vec![0.0; 2 * stride];
            assert_eq!(call.partial((0, 33), partials.as_mut_ptr()), KVF_OK);
            let second = partials[stride..].as_mut_ptr();
            assert_eq!(call.partial((33, N_KV), second), KVF_OK);
            call.out.fill(RUBBISH);
            assert_eq!(call.merge(partials.as_ptr(), 2, stride), KVF_OK);
            for (a, b) in call.out.iter().zip(&whole) {
                assert!((a - b).abs() <= 2e-6, "{a} {b}");
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
