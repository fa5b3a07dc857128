//! Scores through the C ABI: every bad argument has its status and writes
//! nothing; good ones are dot products with the decoded keys, of plain queries as
//! of transformed ones.

mod common;

use std::ptr::{null, null_mut};

use common::*;
use kvforge_capi::*;
use kvforge_formats::{Domain, FORMATS, FormatSpec, q4_polar};

const DIM: usize = 128;
const KV_HEADS: usize = 2;
const HEADS: usize = 6;
const N_Q: usize = 3;
const N_KV: usize = 70;

/// Keys, and queries of `q_len` values each.
struct Call {
    s: kvf_scores,
    out: Vec<f32>,
    scratch: Vec<Line>,
    q: Vec<f32>,
    _k: Vec<u8>,
}

impl Call {
    fn new(isa: u32, k_type: u32, k: Vec<u8>, q: Vec<f32>) -> Call {
        let (row, q_len) = (k.len() / N_KV, q.len() / (N_Q * HEADS));
        let mut out = vec![RUBBISH; N_Q * HEADS * N_KV];
        let mut s = kvf_scores {
            struct_size: size_of::<kvf_scores>(),
            k_type,
            isa,
            slot: 0,
            q_domain: KVF_ORIGINAL,
            scale: 1.0,
            head_dim: DIM,
            n_heads: HEADS,
            n_kv_heads: KV_HEADS,
            n_q: N_Q,
            n_kv: N_KV,
            q: floats(&q),
            q_row_stride: 4 * HEADS * q_len,
            q_head_stride: 4 * q_len,
            k: k.as_ptr().cast(),
            k_row_stride: row,
            k_head_stride: row / KV_HEADS,
            out: out.as_mut_ptr(),
            out_row_stride: 4 * HEADS * N_KV,
            out_head_stride: 4 * N_KV,
            scratch: null_mut(),
            scratch_bytes: 0,
        };
        // SAFETY: `s` is readable.
        s.scratch_bytes = unsafe { kvf_score_scratch(&s) };
        assert!(s.scratch_bytes > 0);
        let mut scratch = lines(s.scratch_bytes);
        s.scratch = scratch.as_mut_ptr().cast();
        Call {
            s,
            out,
            scratch,
            q,
            _k: k,
        }
    }

    fn run(&mut self) -> i32 {
        assert!(64 * self.scratch.len() >= self.s.scratch_bytes);
        // SAFETY: the call keeps what its pointers lead to.
        unsafe { kvf_score(&self.s) }
    }
}

fn keys(spec: &FormatSpec) -> Vec<u8> {
    encoded(spec.id, &random(N_KV * KV_HEADS * DIM, 9))
}

fn queries() -> Vec<f32> {
    random(N_Q * HEADS * DIM, 8)
}

/// Whether `out` is `q`, `[N_Q, HEADS, DIM]`, times `k`, `[N_KV, KV_HEADS, DIM]`.
fn assert_scores(out: &[f32], q: &[f32], k: &[f32], tolerance: f64, what: &str) {
    let dot = |a: &[f32], b: &[f32]| -> f64 {
        let products = a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b));
        products.sum()
    };
    for (row, q) in q.chunks(DIM).enumerate() {
        let kv_head = row % HEADS / (HEADS / KV_HEADS);
        for token in 0..N_KV {
            let k = &k[(token * KV_HEADS + kv_head) * DIM..][..DIM];
            let error = (f64::from(out[row * N_KV + token]) - dot(q, k)).abs();
            let limit = tolerance * (dot(q, q) * dot(k, k)).sqrt();
            assert!(error <= limit, "{what}: {row} {token} off by {error}");
        }
    }
}

#[test]
fn scores_check_their_arguments() {
    type Change = (i32, fn(&mut kvf_scores));
    const BAD: &[Change] = &[
        (KVF_UNSUPPORTED, |s| s.struct_size += 1),
        (KVF_UNSUPPORTED, |s| s.isa = 5),
        (KVF_BAD_TYPE, |s| s.k_type = 99),
        (KVF_BAD_TYPE, |s| s.q_domain = 2),
        (KVF_NULL, |s| s.q = null()),
        (KVF_NULL, |s| s.k = null()),
        (KVF_NULL, |s| s.out = null_mut()),
        (KVF_NULL, |s| s.scratch = null_mut()),
        (KVF_BAD_SHAPE, |s| s.head_dim = 33),
        (KVF_BAD_SHAPE, |s| s.head_dim = 0),
        (KVF_BAD_SHAPE, |s| s.head_dim = usize::MAX / 128 * 128),
        (KVF_BAD_SHAPE, |s| s.n_heads = 5),
        (KVF_BAD_SHAPE, |s| s.n_kv_heads = 0),
        (KVF_BAD_SHAPE, |s| s.n_kv = usize::MAX / 4),
        (KVF_BAD_SHAPE, |s| s.q_row_stride = 1),
        (KVF_BAD_SHAPE, |s| s.q_head_stride = 4 * DIM - 1),
        (KVF_BAD_SHAPE, |s| s.k_row_stride = 1),
        (KVF_BAD_SHAPE, |s| s.out_head_stride = 4 * N_KV - 1),
        (KVF_BAD_SHAPE, |s| s.out_row_stride = usize::MAX),
        (KVF_SCRATCH, |s| s.scratch_bytes -= 1),
        (KVF_SCRATCH, |s| s.scratch = s.scratch.wrapping_byte_add(8)),
    ];
    for isa in isas() {
        for spec in FORMATS {
            let mut call = Call::new(isa, spec.id, keys(spec), queries());
            let good = call.s;
            for (i, (status, change)) in BAD.iter().enumerate() {
                change(&mut call.s);
                assert_eq!(call.run(), *status, "{}, change {i}", spec.name);
                call.s = good;
            }
            // SAFETY: null is an allowed argument, and so are null tensors here.
            unsafe {
                assert_eq!(kvf_score(null()), KVF_NULL);
                assert_eq!(kvf_score_scratch(null()), 0);
                let without = kvf_scores {
                    q: null(),
                    k: null(),
                    out: null_mut(),
                    ..good
                };
                assert_eq!(kvf_score_scratch(&without), good.scratch_bytes);
                assert_eq!(kvf_score_scratch(&kvf_scores { n_heads: 5, ..good }), 0);
            }
            assert!(call.out.iter().all(|v| *v == RUBBISH));
            assert_eq!(call.run(), KVF_OK);
            assert!(call.out.iter().all(|v| *v != RUBBISH));
        }
    }
}

#[test]
fn plain_and_transformed_queries_score_alike() {
    for isa in isas() {
        for spec in FORMATS {
            let tolerance = spec.tolerance.score;
            let k = keys(spec);
            let decoded = decoded(spec.id, &k, Domain::Original);
            let mut call = Call::new(isa, spec.id, k.clone(), queries());
            assert_eq!(call.run(), KVF_OK);
            assert_scores(&call.out, &call.q, &decoded, tolerance, spec.name);

            let coded = spec.transform.coded_len(DIM);
            let mut transformed = vec![0.0; N_Q * HEADS * coded];
            spec.transform.forward(&call.q, &mut transformed);
            // By a Hadamard matrix of ones, for instance: too long by a factor that
            // the scale takes back.
            let factor = 128_f32.sqrt();
            transformed.iter_mut().for_each(|v| *v *= factor);
            let mut other = Call::new(isa, spec.id, k, transformed);
            (other.s.q_domain, other.s.scale) = (KVF_ROTATED, 1.0 / factor);
            assert_eq!(other.run(), KVF_OK);
            let name = format!("{} transformed", spec.name);
            assert_scores(&other.out, &call.q, &decoded, tolerance, &name);
            // Rows of a sketch are longer than heads: plain queries do not pass.
            if coded != DIM {
                call.s.q_domain = KVF_ROTATED;
                assert_eq!(call.run(), KVF_BAD_SHAPE);
            }
        }
    }
}

#[test]
fn polar_is_also_scored_with_its_residual() {
    let spec = &q4_polar::SPEC;
    let k = keys(spec);
    let residual = decoded_residual(&k, Domain::Original);
    assert_ne!(residual, decoded(spec.id, &k, Domain::Original));
    for isa in isas() {
        let mut call = Call::new(isa, KVF_Q4_POLAR_RESIDUAL, k.clone(), queries());
        call.s.slot = 77;
        assert_eq!(call.run(), KVF_OK);
        let tolerance = spec.tolerance.score;
        assert_scores(&call.out, &call.q, &residual, tolerance, "with residual");
        let products = (N_Q * HEADS * N_KV) as u64;
        assert_eq!(kvf_counter(spec.id, KVF_OP_SCORE, isa, 77), products);
    }
}
