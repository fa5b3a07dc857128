//! Attention in parts: split keys, rows anywhere in memory, what is counted, what is
//! refused.

mod common;

use common::problem::*;
use common::{Aligned, Random, isas};
use kvforge_cpu::attention::{self, attend_partial, attend_scratch, merge, partial_row_floats};
use kvforge_cpu::view::{Rows, Shape};
use kvforge_cpu::{Error, Op, counters};
use kvforge_formats::FORMATS;
use kvforge_formats::oracle::{self, Problem, Tensor, Type};

/// Splits the keys of every segment at `cuts` and merges the partials.
fn attend_in_parts(p: &Problem, isa: kvforge_cpu::Isa, random: &mut Random) -> Vec<f32> {
    let segments = segments(p);
    let a = attention(p, &segments, isa);
    let mut out = Out::new(p.n_q, p.n_heads, p.head_dim_v);
    let mut spans = vec![];
    for (i, s) in segments.iter().enumerate() {
        let mut start = 0;
        while start < s.n_kv {
            let end = (start + 1 + random.below(90)).min(s.n_kv);
            spans.push((i, start..end));
            start = end;
        }
        // Empty spans are partials like any other.
        spans.push((i, s.n_kv..s.n_kv));
    }
    for kv_head in 0..p.n_kv_heads {
        let half = p.n_q / 2;
        for q in [0..half, half..p.n_q] {
            let rows = q.len() * p.n_heads / p.n_kv_heads;
            let stride = rows * partial_row_floats(&a) + 3;
            let mut partials = vec![f32::NAN; stride * spans.len()];
            let mut scratch = Aligned::new(attend_scratch(&a, q.len()).unwrap());
            for ((segment, kv), partial) in spans.iter().zip(partials.chunks_mut(stride)) {
                let partial = &mut partial[..stride - 3];
                let (q, kv) = (q.clone(), kv.clone());
                attend_partial(&a, kv_head, q, *segment, kv, partial, scratch.get()).unwrap();
            }
            merge(
                &a,
                kv_head,
                q,
                &partials,
                spans.len(),
                stride,
                &mut out.rows(),
            )
            .unwrap();
        }
    }
    out.values()
}

#[test]
fn merged_partials_are_the_whole() {
    let mut random = Random::new(10);
    let [t3, t4, tcq, qjl] = ["tbq3_0", "tbq4_0", "tbq3_tcq", "qjl1_256"].map(of_name);
    let f16 = Type::F16;
    for segments in [
        vec![(t4, t4, 300)],
        vec![(t3, t4, 129), (f16, f16, 70)],
        vec![(qjl, tcq, 80), (t4, f16, 70)],
        vec![(t3, t3, 0)],
    ] {
        for (mask, causal, sinks) in [
            (MaskRecipe::None, false, false),
            (MaskRecipe::Random(Type::F16, 1, 0.9), false, true),
            (MaskRecipe::None, true, true),
            (MaskRecipe::All(Type::F32), false, true),
        ] {
            let recipe = Recipe {
                segments: segments.clone(),
                mask,
                causal,
                sinks,
                n_q: 9,
                ..Recipe::plain(t3, t3, 0)
            };
            let p = recipe.make(&mut random);
            let expected = oracle::attention(&p);
            for isa in isas() {
                let found = attend_in_parts(&p, isa, &mut random);
                let error = worst_error(largest_value(&p), &found, &expected);
                assert!(
                    error <= tolerance(&p),
                    "{}: {error:e} for {recipe:?}",
                    isa.name()
                );
            }
        }
    }
}

/// Every kv head as many times as query heads read it.
fn ungrouped(p: &Problem) -> Problem {
    let group = p.n_heads / p.n_kv_heads;
    let repeated = |x: &Tensor, len: usize| {
        let row = x.ty.row_bytes(len);
        let heads = x.bytes.chunks(row);
        Tensor {
            bytes: heads.flat_map(|head| head.repeat(group)).collect(),
            row_stride: x.row_stride * group,
            ..x.clone()
        }
    };
    let mut alone = p.clone();
    alone.n_kv_heads = p.n_heads;
    for s in &mut alone.segments {
        s.k = repeated(&s.k, p.head_dim_k);
        s.v = repeated(&s.v, p.head_dim_v);
    }
    alone
}

/// Query heads that share keys get what each would get with keys of its own.
#[test]
fn grouped_heads_are_the_heads_alone() {
    let mut random = Random::new(11);
    for (k, v) in pairs() {
        for group in [2, 6] {
            let recipe = Recipe {
                group,
                n_q: 5,
                mask: MaskRecipe::Random(Type::F16, 1, 0.3),
                ..Recipe::plain(k, v, 75)
            };
            let p = recipe.make(&mut random);
            let alone = ungrouped(&p);
            for isa in isas() {
                let apart: Vec<f64> = attend(&alone, isa).into_iter().map(f64::from).collect();
                let error = worst_error(largest_value(&p), &attend(&p, isa), &apart);
                assert!(
                    error <= tolerance(&p),
                    "{}: {error:e} for {recipe:?}",
                    isa.name()
                );
            }
        }
    }
}

/// The same rows elsewhere: odd start, odd gaps full of NaN, heads before rows.
fn scatter(x: &mut Tensor, rows: usize, heads: usize, len: usize, by_head: bool) -> usize {
    const START: usize = 3;
    let row = x.ty.row_bytes(len);
    let (row_stride, head_stride) = match by_head {
        true => (row + 5, rows * (row + 5) + 7),
        false => (heads * (row + 1) + 9, row + 1),
    };
    let mut bytes = vec![0xff; START + rows * row_stride + heads * head_stride + row];
    for head in 0..heads {
        for r in 0..rows {
            let from = head * x.head_stride + r * x.row_stride;
            let to = START + head * head_stride + r * row_stride;
            bytes[to..to + row].copy_from_slice(&x.bytes[from..from + row]);
        }
    }
    *x = Tensor {
        ty: x.ty,
        bytes,
        row_stride,
        head_stride,
    };
    START
}

#[test]
fn rows_may_be_anywhere() {
    let mut random = Random::new(11);
    for (k, v) in pairs() {
        for by_head in [false, true] {
            let recipe = Recipe {
                mask: MaskRecipe::Random(Type::F16, 2, 0.2),
                ..Recipe::plain(k, v, 75)
            };
            let mut p = recipe.make(&mut random);
            let expected = oracle::attention(&p);
            let largest = largest_value(&p);
            let (n_q, n_heads, kv_heads) = (p.n_q, p.n_heads, p.n_kv_heads);
            let start = scatter(&mut p.q, n_q, n_heads, DIM, by_head);
            let s = &mut p.segments[0];
            scatter(&mut s.k, 75, kv_heads, DIM, by_head);
            scatter(&mut s.v, 75, kv_heads, DIM, by_head);
            scatter(&mut s.mask.as_mut().unwrap().values, n_q, 2, 75, by_head);

            let rows = |x: &'_ Tensor, rows, heads, len| -> Shape {
                Shape {
                    rows,
                    heads,
                    row_bytes: x.ty.row_bytes(len),
                    row_stride: x.row_stride,
                    head_stride: x.head_stride,
                }
            };
            for isa in isas() {
                let mut segments = segments(&p);
                let s = &p.segments[0];
                let mask = &s.mask.as_ref().unwrap().values;
                segments[0].k =
                    Rows::new(&s.k.bytes[start..], rows(&s.k, 75, kv_heads, DIM)).unwrap();
                segments[0].v =
                    Rows::new(&s.v.bytes[start..], rows(&s.v, 75, kv_heads, DIM)).unwrap();
                segments[0].mask.as_mut().unwrap().rows =
                    Rows::new(&mask.bytes[start..], rows(mask, n_q, 2, 75)).unwrap();
                let mut a = attention(&p, &segments, isa);
                a.q = Rows::new(&p.q.bytes[start..], rows(&p.q, n_q, n_heads, DIM)).unwrap();
                let mut out = Out::new(n_q, n_heads, DIM);
                let mut scratch = Aligned::new(attend_scratch(&a, n_q).unwrap());
                for kv_head in 0..kv_heads {
                    attention::attend(&a, kv_head, 0..n_q, &mut out.rows(), scratch.get()).unwrap();
                }
                let error = worst_error(largest, &out.values(), &expected);
                assert!(
                    error <= tolerance(&p),
                    "{} {}: {error:e}",
                    k.name(),
                    isa.name()
                );
            }
        }
    }
}

/// A call writes the rows it was asked for, whatever the scratch held before.
#[test]
fn other_rows_are_left_alone() {
    let mut random = Random::new(12);
    let ty = of_name("tbq3_0");
    let p = Recipe {
        n_q: 5,
        ..Recipe::plain(ty, ty, 33)
    }
    .make(&mut random);
    for isa in isas() {
        let whole = attend(&p, isa);
        let segments = segments(&p);
        let a = attention(&p, &segments, isa);
        let mut out = Out::new(5, 4, DIM);
        let mut scratch = Aligned::new(attend_scratch(&a, 2).unwrap());
        scratch.get().fill(f32::NAN);
        attention::attend(&a, 1, 2..4, &mut out.rows(), scratch.get()).unwrap();
        for (i, (found, whole)) in out.values().chunks(DIM).zip(whole.chunks(DIM)).enumerate() {
            let (position, head) = (i / 4, i % 4);
            if (2..4).contains(&position) && head >= 2 {
                assert_eq!(found, whole);
            } else {
                assert!(found.iter().all(|v| v.is_nan()), "row {i} was written");
            }
        }
    }
}

#[test]
fn attention_counts_finished_rows() {
    const SLOT: u32 = 800;
    let mut random = Random::new(13);
    let [t3, t4, tcq, qjl] = ["tbq3_0", "tbq4_0", "tbq3_tcq", "qjl1_256"].map(of_name);
    let f16 = Type::F16;
    for isa in isas() {
        let mut expected = [0; FORMATS.len()];
        for (k, v) in [
            (t4, t4),
            (t3, t4),
            (f16, t3),
            (f16, f16),
            (qjl, tcq),
            (qjl, Type::PolarResidual),
        ] {
            let p = Recipe::plain(k, v, 70).make(&mut random);
            let segments = segments(&p);
            let mut a = attention(&p, &segments, isa);
            a.slot = SLOT;
            let mut scratch = Aligned::new(attend_scratch(&a, 3).unwrap());
            let mut out = Out::new(3, 4, DIM);
            let mut check = |more: u64| {
                for (spec, expected) in FORMATS.iter().zip(&mut expected) {
                    if [k, v].map(format).contains(&Some(*spec)) {
                        *expected += more;
                    }
                    let count = counters::get(spec, Op::Attend, isa, SLOT);
                    assert_eq!(count, *expected, "{}", spec.name);
                }
            };
            attention::attend(&a, 0, 1..3, &mut out.rows(), scratch.get()).unwrap();
            // Two positions, two heads of the group.
            check(4);
            // A partial finishes nothing; its merge does.
            let mut partials = vec![0.0; 4 * partial_row_floats(&a)];
            attend_partial(&a, 0, 1..3, 0, 0..70, &mut partials, scratch.get()).unwrap();
            check(0);
            merge(&a, 0, 1..3, &partials, 1, 0, &mut out.rows()).unwrap();
            check(4);
        }
    }
}

#[test]
fn types_that_hold_no_keys_or_values_are_refused() {
    let mut random = Random::new(14);
    for &spec in FORMATS {
        let (ours, f16) = (Type::Format(spec), Type::F16);
        for (k, v, held) in [
            (ours, f16, spec.holds_keys()),
            (f16, ours, spec.holds_values()),
        ] {
            let p = Recipe::plain(k, v, 3).make(&mut random);
            for isa in isas() {
                let segments = segments(&p);
                let a = attention(&p, &segments, isa);
                let mut scratch = Aligned::new(attend_scratch(&a, p.n_q).unwrap());
                let mut out = Out::new(p.n_q, p.n_heads, DIM);
                let result = attention::attend(&a, 0, 0..1, &mut out.rows(), scratch.get());
                match result {
                    Ok(()) => assert!(held, "{} is not for that", spec.name),
                    Err(Error::Shape(_)) => assert!(!held, "{} is for that", spec.name),
                    Err(e) => panic!("{}: {e}", spec.name),
                }
            }
        }
    }
}
