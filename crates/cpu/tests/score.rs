//! Scores against the f64 oracle, on every instruction set.

mod common;

use common::problem::{Out, cache_type, rows};
use common::{Aligned, Random, isas};
use kvforge_cpu::attention::{Scores, score, score_scratch};
use kvforge_cpu::view::RowsMut;
use kvforge_cpu::{Error, Isa, Op, counters};
use kvforge_formats::oracle::{self, Tensor, Type};
use kvforge_formats::{FORMATS, tbq4_0};

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
        k: Tensor::by_row(ty, &k, head_dim, n_kv_heads),
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
        k_type: cache_type(p.k.ty),
        k: rows(&p.k, p.n_kv, p.n_kv_heads, p.head_dim),
        isa,
        slot,
    }
}

#[test]
fn scores_keep_the_tolerance() {
    let mut random = Random::new(1);
    let ours = FORMATS.iter().map(|&f| Type::Format(f));
    let mut worst = 0f64;
    for ty in ours.chain([Type::F16, Type::F32, Type::Q8_0]) {
        for (head_dim, sizes) in [
            (128, [4, 2, 2, 8]),
            (32, [1, 1, 1, 1]),
            (64, [9, 3, 3, 65]),
            (96, [12, 2, 30, 63]),
            (256, [7, 1, 1, 130]),
            (576, [2, 2, 2, 64]),
        ] {
            let p = problem(&mut random, ty, head_dim, sizes);
            let expected = oracle::scores(&p);
            let norm = |x: Vec<f64>| x.iter().map(|v| v * v).sum::<f64>().sqrt();
            for isa in isas() {
                let s = scores(&p, isa, 0);
                let mut out = Out::new(p.n_q, p.n_heads, p.n_kv);
                let mut scratch = Aligned::new(score_scratch(&s).unwrap());
                scratch.get().fill(f32::NAN);
                score(&s, &mut out.rows(), scratch.get()).unwrap();
                for (i, (found, expected)) in out.values().iter().zip(&expected).enumerate() {
                    let (row, key) = (i / p.n_kv, i % p.n_kv);
                    let (position, head) = (row / p.n_heads, row % p.n_heads);
                    let kv_head = head / (p.n_heads / p.n_kv_heads);
                    let error = (f64::from(*found) - expected).abs()
                        / norm(p.q.row(head, position, head_dim))
                        / norm(p.k.row(kv_head, key, head_dim));
                    let limit = tbq4_0::SPEC.tolerance.score;
                    assert!(error <= limit, "{} {}: {error:e}", ty.name(), isa.name());
                    worst = worst.max(error);
                }
            }
        }
    }
    println!("largest error of scores: {worst:e}");
}

#[test]
fn scores_count_dot_products() {
    const SLOT: u32 = 900;
    let mut random = Random::new(2);
    for isa in isas() {
        for spec in FORMATS {
            let p = problem(&mut random, Type::Format(spec), 64, [6, 2, 3, 70]);
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
