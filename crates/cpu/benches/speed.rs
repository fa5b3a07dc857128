//! How fast the kernels are, one thread: `cargo bench -p kvforge-cpu`.
//!
//! Arguments are words that a line must contain, for instance
//! `cargo bench -p kvforge-cpu -- prefill avx2`. Every line is the best of some
//! repetitions; numbers are only good relative to each other in one run.

use std::hint::black_box;
use std::time::{Duration, Instant};

use kvforge_cpu::attention::{
    Attention, Mask, MaskType, Scores, Segment, attend, attend_scratch, score, score_scratch,
};
use kvforge_cpu::view::{Rows, RowsMut, Shape};
use kvforge_cpu::{CacheType, Encoder, Isa, decode, dot, encode};
use kvforge_formats::{Domain, FORMATS, by_name, f32_to_f16, q4_polar};

fn main() {
    let wanted: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| a != "--bench")
        .collect();
    let wanted = |line: &str| wanted.iter().all(|w| line.contains(w.as_str()));
    for isa in Isa::ALL {
        if !isa.is_available() {
            println!("not run: {}: this machine does not have it", isa.name());
            continue;
        }
        codecs(isa, &wanted);
        scores(isa, &wanted);
        attentions(isa, &wanted);
    }
}

/// Shortest time of a call, over at least 5 calls and 0.3 s.
fn best(mut f: impl FnMut()) -> Duration {
    let start = Instant::now();
    let mut best = Duration::MAX;
    let mut calls = 0;
    while calls < 5 || start.elapsed() < Duration::from_millis(300) {
        let start = Instant::now();
        f();
        best = best.min(start.elapsed());
        calls += 1;
    }
    best
}

/// Normal enough: a sum of four uniform numbers.
fn random(n: usize) -> Vec<f32> {
    let mut state = 1u64;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..n)
        .map(|_| (0..4).map(|_| next()).sum::<f32>() * 1.7)
        .collect()
}

fn codecs(isa: Isa, wanted: &dyn Fn(&str) -> bool) {
    // Tokens of two heads of 128; they stay in the second-level cache.
    const ROWS: usize = 256;
    const LEN: usize = 256;
    let x = random(ROWS * LEN);
    let mut y = x.clone();
    for spec in FORMATS {
        let report = |op: &str, f: &mut dyn FnMut()| {
            let line = format!("{}/{op}/{}", spec.name, isa.name());
            if wanted(&line) {
                let ns = best(f).as_secs_f64() * 1e9 / ROWS as f64;
                let rate = LEN as f64 * 4.0 / ns;
                println!("{line:28} {ns:8.1} ns a row of {LEN} {rate:8.2} GB/s of fp32");
            }
        };
        let kind = CacheType::Format(spec);
        let row_bytes = spec.row_bytes(LEN).expect("whole blocks");
        let mut bytes = cache(kind, ROWS, 1, LEN);
        for encoder in Encoder::ALL {
            let op = match encoder {
                Encoder::Reference => "encode",
                Encoder::Best => "encode best",
            };
            report(op, &mut || {
                for (x, bytes) in x.chunks(LEN).zip(bytes.chunks_mut(row_bytes)) {
                    encode(spec, isa, encoder, x, bytes, 0).expect("finite values");
                }
            });
        }
        for (op, domain) in [
            ("decode", Domain::Original),
            ("decode rotated", Domain::Rotated),
        ] {
            let len = LEN / spec.block_len * spec.len_in(domain);
            y.resize(ROWS * len, 0.0);
            report(op, &mut || {
                for (bytes, y) in bytes.chunks(row_bytes).zip(y.chunks_mut(len)) {
                    decode(kind, isa, domain, bytes, y, 0).expect("whole blocks");
                }
            });
        }
        report("dot", &mut || {
            for (bytes, x) in bytes.chunks(row_bytes).zip(x.chunks(LEN)) {
                black_box(dot(spec, isa, bytes, x, 0).expect("whole blocks"));
            }
        });
    }
}

/// Values of a head.
const DIM: usize = 128;

/// Query heads, kv heads, query positions, tokens.
const SHAPES: [[usize; 4]; 6] = [
    [12, 2, 1, 4096],
    [32, 8, 1, 4096],
    [8, 8, 1, 4096],
    [32, 8, 1, 32768],
    [12, 2, 512, 1024],
    [12, 2, 512, 4096],
];

/// `decode` or `prefill`, and the shape; `None` where it would take too long.
fn describe(isa: Isa, [n_heads, n_kv_heads, n_q, n_kv]: [usize; 4]) -> Option<String> {
    let what = if n_q == 1 { "decode" } else { "prefill" };
    (isa != Isa::Scalar || n_q * n_kv <= 1 << 12)
        .then(|| format!("{what} heads {n_heads}/{n_kv_heads} n_q {n_q} n_kv {n_kv}"))
}

/// Whole cache lines of scratch.
fn aligned(memory: &mut Vec<f32>, floats: usize) -> &mut [f32] {
    memory.resize(floats + 16, 0.0);
    let start = memory.as_ptr().align_offset(64);
    &mut memory[start..start + floats]
}

/// The first pair of types is what the others are compared with.
fn attentions(isa: Isa, wanted: &dyn Fn(&str) -> bool) {
    let of_name = |name| CacheType::Format(by_name(name).expect("a known format"));
    let [t3, t4, tcq, qjl, polar] =
        ["tbq3_0", "tbq4_0", "tbq3_tcq", "qjl1_256", "q4_polar"].map(of_name);
    let (f16, q8) = (CacheType::F16, CacheType::Q8_0);
    for shape in SHAPES {
        let [n_heads, n_kv_heads, n_q, n_kv] = shape;
        let Some(what) = describe(isa, shape) else {
            continue;
        };
        let mut first = None;
        for (k_type, v_type) in [
            (f16, f16),
            (q8, q8),
            (t3, t3),
            (t4, t4),
            (t4, t3),
            (f16, t4),
            (tcq, tcq),
            (polar, polar),
            (qjl, t3),
            (qjl, tcq),
        ] {
            let (k_name, v_name) = (name(k_type), name(v_type));
            let line = format!("{k_name}-{v_name}/attend/{} {what}", isa.name());
            if !wanted(&line) {
                continue;
            }
            let k = cache(k_type, n_kv, n_kv_heads, DIM);
            let v = cache(v_type, n_kv, n_kv_heads, DIM);
            let q = random(n_q * n_heads * DIM);
            let q: Vec<u8> = q.iter().flat_map(|v| v.to_ne_bytes()).collect();
            // As llama.cpp has it: an f16 mask, causal, the queries last.
            let hidden = |q: usize, t: usize| t > n_kv - n_q + q;
            let mask: Vec<u8> = (0..n_q * n_kv)
                .map(|i| match hidden(i / n_kv, i % n_kv) {
                    true => f32::NEG_INFINITY,
                    false => 0.0,
                })
                .flat_map(|v| f32_to_f16(v).to_ne_bytes())
                .collect();
            let segments = [Segment {
                n_kv,
                k_type,
                k: rows(&k, n_kv, n_kv_heads),
                v_type,
                v: rows(&v, n_kv, n_kv_heads),
                mask: Some(Mask {
                    kind: MaskType::F16,
                    rows: rows(&mask, n_q, 1),
                }),
                pos0: 0,
            }];
            let a = Attention {
                head_dim_k: DIM,
                head_dim_v: DIM,
                n_heads,
                n_kv_heads,
                n_q,
                q: rows(&q, n_q, n_heads),
                scale: 0.088,
                softcap: 0.0,
                slopes: None,
                sinks: None,
                causal: None,
                segments: &segments,
                isa,
                slot: 0,
            };
            let mut memory = vec![];
            let scratch = aligned(&mut memory, attend_scratch(&a, n_q).unwrap());
            let mut out = vec![0u8; q.len()];
            let shape = rows(&q, n_q, n_heads).shape();
            let mut out = RowsMut::new(&mut out, shape).unwrap();
            let time = best(|| {
                for kv_head in 0..n_kv_heads {
                    attend(&a, kv_head, 0..n_q, &mut out, scratch).unwrap();
                }
            });
            let pairs = (0..n_q).map(|q| n_kv - n_q + q + 1).sum::<usize>() * n_heads;
            report(&line, time, pairs, k.len() + v.len(), &mut first);
        }
    }
}

fn scores(isa: Isa, wanted: &dyn Fn(&str) -> bool) {
    let ours = FORMATS.iter().map(|&spec| CacheType::Format(spec));
    for shape in [SHAPES[1], SHAPES[4]] {
        let [n_heads, n_kv_heads, n_q, n_kv] = shape;
        let Some(what) = describe(isa, shape) else {
            continue;
        };
        let mut first = None;
        for k_type in [CacheType::F16, CacheType::Q8_0, CacheType::PolarResidual]
            .into_iter()
            .chain(ours.clone())
        {
            let line = format!("{}/score/{} {what}", name(k_type), isa.name());
            if !wanted(&line) {
                continue;
            }
            let k = cache(k_type, n_kv, n_kv_heads, DIM);
            let q = random(n_q * n_heads * DIM);
            let q: Vec<u8> = q.iter().flat_map(|v| v.to_ne_bytes()).collect();
            let s = Scores {
                head_dim: DIM,
                n_heads,
                n_kv_heads,
                n_q,
                n_kv,
                q: rows(&q, n_q, n_heads),
                q_domain: Domain::Original,
                scale: 1.0,
                k_type,
                k: rows(&k, n_kv, n_kv_heads),
                isa,
                slot: 0,
            };
            let mut memory = vec![];
            let scratch = aligned(&mut memory, score_scratch(&s).unwrap());
            let mut out = vec![0u8; n_q * n_heads * n_kv * 4];
            let shape = rows(&out, n_q, n_heads).shape();
            let mut out = RowsMut::new(&mut out, shape).unwrap();
            let time = best(|| score(&s, &mut out, scratch).unwrap());
            report(&line, time, n_q * n_heads * n_kv, k.len(), &mut first);
        }
    }
}

/// Prints a line, with the ratio to the `first` of its kind.
fn report(line: &str, time: Duration, pairs: usize, bytes: usize, first: &mut Option<f64>) {
    let ns = time.as_secs_f64() * 1e9;
    println!(
        "{line:76} {:7.2} ns a pair {:8.2} ms {:6.2} GB/s of cache {:6.2} x the first",
        ns / pairs as f64,
        ns / 1e6,
        bytes as f64 / ns,
        ns / *first.get_or_insert(ns),
    );
}

fn name(kind: CacheType) -> &'static str {
    match kind {
        CacheType::F32 => "f32",
        CacheType::F16 => "f16",
        CacheType::Q8_0 => "q8_0",
        CacheType::Format(spec) => spec.name,
        CacheType::PolarResidual => "q4_polar+residual",
    }
}

/// Rows as llama.cpp lays them out, `[n_kv, heads, dim]`.
fn cache(kind: CacheType, n_kv: usize, heads: usize, dim: usize) -> Vec<u8> {
    let x = random(n_kv * heads * dim);
    match kind {
        CacheType::F32 => x.iter().flat_map(|v| v.to_ne_bytes()).collect(),
        CacheType::F16 => x
            .iter()
            .flat_map(|v| f32_to_f16(*v).to_ne_bytes())
            .collect(),
        CacheType::Q8_0 => x
            .as_chunks::<32>()
            .0
            .iter()
            .flat_map(|block| {
                let scale = block.iter().fold(0f32, |m, v| m.max(v.abs())) / 127.0;
                let codes = block.map(|v| (v / scale).round() as i8 as u8);
                f32_to_f16(scale).to_ne_bytes().into_iter().chain(codes)
            })
            .collect(),
        CacheType::Format(spec) => {
            let mut bytes = vec![0; spec.row_bytes(x.len()).expect("whole blocks")];
            let isa = Isa::best();
            encode(spec, isa, Encoder::Reference, &x, &mut bytes, 0).expect("finite values");
            bytes
        }
        CacheType::PolarResidual => cache(CacheType::Format(&q4_polar::SPEC), n_kv, heads, dim),
    }
}

/// Dense `[n, heads]` rows that fill `bytes`.
fn rows(bytes: &[u8], n: usize, heads: usize) -> Rows<'_> {
    let row_bytes = bytes.len() / (n * heads);
    let shape = Shape {
        rows: n,
        heads,
        row_bytes,
        row_stride: heads * row_bytes,
        head_stride: row_bytes,
    };
    Rows::new(bytes, shape).expect("dense rows")
}
