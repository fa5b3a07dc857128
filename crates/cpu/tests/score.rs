//! Scores against the f64 oracle, on every instruction set.

mod common;

use common::problem::{Out, cache_type, format, rows, tensor, types};
use common::{Aligned, Random, isas};
use kvforge_cpu::attention::{Scores, score, score_scratch};
use kvforge_cpu::view::RowsMut;
use kvforge_cpu::{Error, Isa, Op, counters};
use kvforge_formats::oracle::{self, Tensor, Type};
use kvforge_formats::{Domain, FORMATS, q4_polar, qjl1_256, tbq4_0};

fn problem(
    random: &mut Random,
    ty: Type,
    head_dim: usize,
    [n_heads, n_kv_heads, n_q, n_kv]: [usize; 4],
) -> oracle::Scores {
    let q = random.normals(n_q * n_heads * head_dim);
    let k = random.normals(n_kv * n_kv_heads * head_dim);
    oracle::Scores {
        head_dim,
        n_heads,
        n_kv_heads,
        n_q,
        n_kv,
        q: Tensor::by_row(Type::F32, &q, head_dim, n_heads),
        k: tensor(ty, &k, head_dim, n_kv_heads),
    }
}

fn scores(p: &oracle::Scores, isa: Isa, slot: u32) -> Scores<'_> {
    Scores {
        head_dim: p.head_dim,
        n_heads: p.n_heads,
        n_kv_heads: p.n_kv_heads,
        n_q: p.n_q,
        n_kv: p.n_kv,
        q: rows(&p.q, p.n_q, p.n_heads, p.head_dim),
        q_domain: Domain::Original,
        scale: 1.0,
        k_type: cache_type(p.k.ty),
        k: rows(&p.k, p.n_kv, p.n_kv_heads, p.head_dim),
        isa,
        slot,
    }
}

/// Scores `s` and compares with the oracle's for `p`, each in units of the lengths of
/// its query and key. Returns the largest error.
fn worst_error(p: &oracle::Scores, expected: &[f64], s: &Scores<'_>) -> f64 {
    let norm = |x: Vec<f64>| x.iter().map(|v| v * v).sum::<f64>().sqrt();
    let lengths = |x: &Tensor, n: usize, heads: usize| -> Vec<f64> {
        let row = |i: usize| norm(x.row(i % heads, i / heads, p.head_dim));
        (0..n * heads).map(row).collect()
    };
    let (q, k) = (
        lengths(&p.q, p.n_q, p.n_heads),
        lengths(&p.k, p.n_kv, p.n_kv_heads),
    );
    let mut out = Out::new(p.n_q, p.n_heads, p.n_kv);
    let mut scratch = Aligned::new(score_scratch(s).unwrap());
    scratch.get().fill(f32::NAN);
    score(s, &mut out.rows(), scratch.get()).unwrap();
    let mut worst = 0f64;
    for (i, (found, expected)) in out.values().iter().zip(expected).enumerate() {
        let (row, key) = (i / p.n_kv, i % p.n_kv);
        let kv_head = row % p.n_heads / (p.n_heads / p.n_kv_heads);
        let error = (f64::from(*found) - expected).abs() / q[row] / k[key * p.n_kv_heads + kv_head];
        // Not `max`, which a NaN would pass.
        worst = if error <= worst { worst } else { error };
    }
    worst
}

fn limit(ty: Type) -> f64 {
    format(ty).unwrap_or(&tbq4_0::SPEC).tolerance.score
}

#[test]
fn scores_keep_the_tolerance() {
    let mut random = Random::new(1);
    for ty in types(FORMATS.iter()) {
        let mut worst = 0f64;
        let sizes: [(usize, _); 7] = [
            (128, [4, 2, 2, 8]),
            (32, [1, 1, 1, 1]),
            (64, [9, 3, 3, 65]),
            (96, [12, 2, 30, 63]),
            (256, [7, 1, 1, 130]),
            (576, [2, 2, 2, 64]),
            (384, [6, 1, 30, 67]),
        ];
        for (head_dim, sizes) in sizes {
            if !head_dim.is_multiple_of(ty.block_len()) {
                continue;
            }
            let p = problem(&mut random, ty, head_dim, sizes);
            let expected = oracle::scores(&p);
            for isa in isas() {
                let error = worst_error(&p, &expected, &scores(&p, isa, 0));
                assert!(error <= limit(ty), "{ty:?} {}: {error:e}", isa.name());
                worst = worst.max(error);
            }
        }
        println!("largest error of scores of {}: {worst:e}", ty.name());
    }
}

/// Queries that somebody else has transformed give the scores of the raw ones.
/// A cache that stores keys without their mean gives scores that lack one number for
/// each query and head, the query's dot product with that mean; and it gives better ones.
#[test]
fn scores_of_centred_keys_lack_one_dot_product() {
    let (head_dim, n_q, n_kv) = (128, 3, 65);
    let mut random = Random::new(11);
    for ty in types(FORMATS.iter()) {
        let Some(format) = format(ty).filter(|f| f.holds_keys()) else {
            continue;
        };
        let mut p = problem(&mut random, Type::F32, head_dim, [1, 1, n_q, n_kv]);
        let mean: Vec<f32> = random.normals(head_dim).iter().map(|m| 8.0 * m).collect();
        let centred = random.normals(n_kv * head_dim);
        let whole: Vec<f32> = (0..centred.len())
            .map(|i| centred[i] + mean[i % head_dim])
            .collect();
        p.k = Tensor::by_row(Type::F32, &whole, head_dim, 1);
        let truth = oracle::scores(&p);
        let error = |keys: &[f32], lack: &[f32]| -> f64 {
            let mut p = p.clone();
            p.k = tensor(ty, keys, head_dim, 1);
            let s = scores(&p, isas()[0], 0);
            let mut out = Out::new(n_q, 1, n_kv);
            let mut scratch = Aligned::new(score_scratch(&s).unwrap());
            score(&s, &mut out.rows(), scratch.get()).unwrap();
            let squares = out.values().into_iter().zip(&truth).enumerate();
            let squares = squares.map(|(i, (found, truth))| {
                let q = p.q.row(0, i / n_kv, head_dim);
                let lack: f64 = q.iter().zip(lack).map(|(q, m)| q * f64::from(*m)).sum();
                (f64::from(found) + lack - truth).powi(2)
            });
            squares.sum::<f64>().sqrt()
        };
        let as_they_are = error(&whole, &vec![0.0; head_dim]);
        let without = error(&centred, &mean);
        assert!(
            without < as_they_are / 3.0,
            "{}: {without} centred, {as_they_are} as they are",
            format.name
        );
    }
}

#[test]
fn transformed_queries_score_alike() {
    let mut random = Random::new(4);
    for ty in types(FORMATS.iter()) {
        for head_dim in [128, 256] {
            let p = problem(&mut random, ty, head_dim, [6, 2, 3, 70]);
            let expected = oracle::scores(&p);
            let values = |t: &Tensor| -> Vec<f32> {
                t.bytes
                    .as_chunks()
                    .0
                    .iter()
                    .map(|b| f32::from_le_bytes(*b))
                    .collect()
            };
            let mut coded = values(&p.q);
            if let Some(spec) = format(ty) {
                coded = vec![0.0; spec.transform.coded_len(coded.len())];
                spec.transform.forward(&values(&p.q), &mut coded);
            }
            let len = coded.len() / (p.n_q * p.n_heads);
            let q = Tensor::by_row(Type::F32, &coded, len, p.n_heads);
            for isa in isas() {
                let s = Scores {
                    q: rows(&q, p.n_q, p.n_heads, len),
                    q_domain: Domain::Rotated,
                    ..scores(&p, isa, 0)
                };
                let error = worst_error(&p, &expected, &s);
                assert!(error <= limit(ty), "{ty:?} {}: {error:e}", isa.name());
            }
        }
    }
}

/// The query that Polar's scores are known for: a Hadamard butterfly that nobody has
/// scaled, so that a factor is left.
#[test]
fn queries_before_their_scale_score_alike() {
    let mut random = Random::new(5);
    for ty in [Type::Format(&q4_polar::SPEC), Type::PolarResidual] {
        let p = problem(&mut random, ty, 128, [4, 2, 3, 70]);
        let expected = oracle::scores(&p);
        let mut q = vec![];
        for i in 0..p.n_q * p.n_heads {
            let raw = p.q.row(i % p.n_heads, i / p.n_heads, 128);
            q.extend((0..128usize).map(|row| {
                let signed = raw.iter().enumerate().map(|(column, v)| {
                    if (row & column).count_ones() % 2 == 0 {
                        *v
                    } else {
                        -v
                    }
                });
                signed.sum::<f64>() as f32
            }));
        }
        let q = Tensor::by_row(Type::F32, &q, 128, p.n_heads);
        for isa in isas() {
            let s = Scores {
                q: rows(&q, p.n_q, p.n_heads, 128),
                q_domain: Domain::Rotated,
                scale: 128f32.sqrt().recip(),
                ..scores(&p, isa, 0)
            };
            let error = worst_error(&p, &expected, &s);
            assert!(error <= limit(ty), "{ty:?} {}: {error:e}", isa.name());
        }
    }
}

#[test]
fn scores_count_dot_products() {
    const SLOT: u32 = 900;
    let mut random = Random::new(2);
    for isa in isas() {
        for spec in FORMATS {
            let p = problem(&mut random, Type::Format(spec), 128, [6, 2, 3, 70]);
            let s = scores(&p, isa, SLOT);
            let mut out = Out::new(3, 6, 70);
            let mut scratch = Aligned::new(score_scratch(&s).unwrap());
            score(&s, &mut out.rows(), scratch.get()).unwrap();
            assert_eq!(counters::get(spec, Op::Score, isa, SLOT), 3 * 6 * 70);
        }
    }
}

#[test]
fn bad_arguments_are_refused() {
    let mut random = Random::new(3);
    let p = problem(&mut random, Type::Format(&tbq4_0::SPEC), 64, [4, 2, 2, 8]);
    let s = scores(&p, Isa::Scalar, 0);
    let mut scratch = Aligned::new(score_scratch(&s).unwrap());
    let mut out = Out::new(2, 4, 8);
    let refused = |s: &Scores<'_>, out: &mut RowsMut<'_>, scratch: &mut [f32]| {
        let result = score(s, out, scratch);
        result.unwrap_err()
    };
    let shape = |e| assert!(matches!(e, Error::Shape(_)), "{e:?}");
    shape(refused(
        &Scores { n_heads: 3, ..s },
        &mut out.rows(),
        scratch.get(),
    ));
    shape(refused(
        &Scores { n_kv_heads: 0, ..s },
        &mut out.rows(),
        scratch.get(),
    ));
    shape(refused(
        &Scores { head_dim: 48, ..s },
        &mut out.rows(),
        scratch.get(),
    ));
    shape(refused(
        &Scores { n_kv: 9, ..s },
        &mut out.rows(),
        scratch.get(),
    ));
    // A sketch has twice as many values as its query.
    let sketch = problem(
        &mut random,
        Type::Format(&qjl1_256::SPEC),
        128,
        [4, 2, 2, 8],
    );
    let sketch = Scores {
        q_domain: Domain::Rotated,
        ..scores(&sketch, Isa::Scalar, 0)
    };
    let mut enough = Aligned::new(score_scratch(&sketch).unwrap());
    shape(refused(&sketch, &mut out.rows(), enough.get()));
    shape(refused(&s, &mut Out::new(2, 4, 9).rows(), scratch.get()));
    let needed = scratch.get().len();
    let short = &mut scratch.get()[..needed - 1];
    let found = needed - 1;
    assert_eq!(
        refused(&s, &mut out.rows(), short),
        Error::Scratch { found, needed }
    );
    let mut larger = Aligned::new(needed + 1);
    let off = &mut larger.get()[1..];
    assert_eq!(refused(&s, &mut out.rows(), off), Error::ScratchAlignment);
    assert!(
        out.values().iter().all(|v| v.is_nan()),
        "a refused call has written"
    );
}
