//! Attention against the f64 oracle, on every instruction set.

mod common;

use common::problem::*;
use common::{Random, isas};
use kvforge_formats::oracle::{self, Problem, Tensor, Type};
use proptest::prelude::*;

/// All pairs of types by some lengths around the tile size, the other axes drawn at
/// random but often.
#[test]
fn attention_is_the_oracles() {
    let mut random = Random::new(1);
    for k in key_types() {
        let mut largest = 0f64;
        for v in value_types() {
            let mut lengths = vec![1, 31, 32, 33, 63, 64, 65, 127, 300];
            for case in 0..4 {
                let n_kv = match case {
                    0 => 0,
                    _ => lengths.swap_remove(random.below(lengths.len())),
                };
                let group = [1, 2, 3, 4, 6, 7, 8, 9][random.below(8)];
                // The oracle is slow: not all axes may be long at once.
                let most = 20_000 / (group * n_kv.max(1));
                let n_q = [1, 2, 7, 64, 65][random.below(5)].min(most.max(1));
                let mask_type = [Type::F16, Type::F32][random.below(2)];
                let mut dim = |ty: Type| {
                    let dims = [128, 256, 32, 64, 96, 192];
                    let any = if ty.block_len() == 128 { 2 } else { 6 };
                    dims[random.below(any)]
                };
                let recipe = Recipe {
                    head_dim_k: dim(k),
                    head_dim_v: dim(v),
                    group,
                    n_kv_heads: 1 + random.below(2),
                    n_q,
                    segments: vec![(k, v, n_kv)],
                    mask: match random.below(6) {
                        0 => MaskRecipe::None,
                        1 => MaskRecipe::Random(mask_type, group.min(3), 0.3),
                        2 => MaskRecipe::Random(mask_type, 1, 0.97),
                        _ => MaskRecipe::Random(mask_type, 1, 0.3),
                    },
                    causal: random.below(3) == 0,
                    softcap: random.below(3) == 0,
                    slopes: random.below(3) == 0,
                    sinks: random.below(3) == 0,
                };
                largest = largest.max(check(&recipe.make(&mut random), &recipe));
            }
        }
        println!("largest error with keys of {}: {largest:e}", k.name());
    }
}

#[test]
fn every_head_size_works() {
    let mut random = Random::new(2);
    let sizes = [
        (32, 32),
        (64, 96),
        (128, 128),
        (192, 128),
        (256, 128),
        (384, 256),
        (576, 512),
        (1024, 1024),
    ];
    for (k_dim, v_dim) in sizes {
        let fits = |dim: usize| move |ty: &Type| dim.is_multiple_of(ty.block_len());
        let fitting = pairs()
            .into_iter()
            .filter(|(k, v)| fits(k_dim)(k) && fits(v_dim)(v));
        for (k, v) in fitting {
            let recipe = Recipe {
                head_dim_k: k_dim,
                head_dim_v: v_dim,
                n_kv_heads: 1,
                ..Recipe::plain(k, v, 70)
            };
            check(&recipe.make(&mut random), &recipe);
        }
    }
    for (k_dim, v_dim) in [(1, 1), (5, 7), (40, 80), (80, 80), (112, 96), (71, 33)] {
        for ty in [Type::F16, Type::F32] {
            let recipe = Recipe {
                head_dim_k: k_dim,
                head_dim_v: v_dim,
                ..Recipe::plain(ty, ty, 70)
            };
            check(&recipe.make(&mut random), &recipe);
        }
    }
}

/// The rows of a block are some positions of all heads: groups around and above
/// its size, positions around it.
#[test]
fn every_block_size_works() {
    let mut random = Random::new(3);
    let ty = of_name("tbq4_0");
    for (group, n_q) in [
        (1, 127),
        (1, 128),
        (1, 129),
        (5, 51),
        (64, 3),
        (127, 2),
        (128, 2),
        (130, 2),
    ] {
        let recipe = Recipe {
            head_dim_k: 32,
            head_dim_v: 32,
            group,
            n_kv_heads: 1,
            n_q,
            causal: true,
            ..Recipe::plain(ty, ty, 67)
        };
        check(&recipe.make(&mut random), &recipe);
    }
}

#[test]
fn segments_of_different_types_are_one_softmax() {
    let mut random = Random::new(4);
    let [t3, t4, tcq, qjl, polar] =
        ["tbq3_0", "tbq4_0", "tbq3_tcq", "qjl1_256", "q4_polar"].map(of_name);
    let (f16, q8, f32) = (Type::F16, Type::Q8_0, Type::F32);
    for segments in [
        vec![(t4, t3, 100), (f16, f16, 40)],
        vec![(f16, t4, 3), (t3, f32, 65), (q8, q8, 64), (t4, t4, 1)],
        // Sketches are longer than what stands beside them, on either side.
        vec![(f16, tcq, 70), (qjl, t3, 65), (polar, polar, 30)],
        vec![(qjl, polar, 10), (tcq, t4, 66), (qjl, tcq, 64)],
        vec![(t3, t3, 0), (t4, t4, 130), (f32, t3, 0)],
        vec![],
    ] {
        for mask in [MaskRecipe::None, MaskRecipe::Random(Type::F16, 2, 0.5)] {
            let recipe = Recipe {
                segments: segments.clone(),
                mask,
                causal: true,
                sinks: true,
                ..Recipe::plain(t3, t3, 0)
            };
            check(&recipe.make(&mut random), &recipe);
        }
    }
}

/// Large scores: weights far below the largest, and a maximum that moves late.
#[test]
fn softmax_keeps_up_with_a_rising_maximum() {
    let mut random = Random::new(5);
    for (k, v) in pairs() {
        let recipe = Recipe::plain(k, v, 300);
        let mut p = recipe.make(&mut random);
        // Keys grow along the cache.
        let values: Vec<f32> = (0..300 * 2 * DIM)
            .map(|i| random.normal() * (i / (2 * DIM)) as f32 * 0.05)
            .collect();
        p.segments[0].k = tensor(k, &values, DIM, 2);
        let expected = oracle::attention(&p);
        for isa in isas() {
            // Scores reach about 50, and an error of 50 * 2^-24 in a score is one
            // of as much in a weight: allow that on top.
            let error = worst_error(largest_value(&p), &attend(&p, isa), &expected);
            assert!(
                error <= 5.0 * tolerance(&p),
                "{} {}: {error:e}",
                k.name(),
                isa.name()
            );
        }
    }
}

#[test]
fn a_query_that_sees_nothing_gives_zeros() {
    let mut random = Random::new(6);
    for (k, v) in pairs() {
        for sinks in [false, true] {
            for (mask, n_kv) in [
                (MaskRecipe::All(Type::F16), 70),
                (MaskRecipe::All(Type::F32), 64),
                (MaskRecipe::None, 0),
            ] {
                let recipe = Recipe {
                    mask,
                    sinks,
                    ..Recipe::plain(k, v, n_kv)
                };
                let p = recipe.make(&mut random);
                for isa in isas() {
                    assert!(attend(&p, isa).iter().all(|v| *v == 0.0), "{recipe:?}");
                }
            }
            // Causal, and the first query stands before the first key.
            let recipe = Recipe {
                causal: true,
                sinks,
                ..Recipe::plain(k, v, 1)
            };
            let p = recipe.make(&mut random);
            check(&p, &recipe);
            for isa in isas() {
                assert!(attend(&p, isa)[..4 * DIM].iter().all(|v| *v == 0.0));
            }
        }
    }
}

/// Overwrites a token's bytes with what decodes to NaN.
fn poison(x: &mut Tensor, token: usize) {
    let row = token * x.row_stride;
    x.bytes[row..row + x.row_stride].fill(0xff);
}

fn set_mask(p: &mut Problem, position: usize, key: usize, value: f32) {
    let mask = &mut p.segments[0].mask.as_mut().unwrap().values;
    let size = mask.ty.row_bytes(1);
    let at = position * mask.row_stride + key * size;
    mask.bytes[at..at + size].copy_from_slice(&mask.ty.encode(&[value]));
}

#[test]
fn hidden_cells_may_hold_anything() {
    let mut random = Random::new(7);
    for (k, v) in pairs() {
        for softcap in [false, true] {
            let recipe = Recipe {
                mask: MaskRecipe::Random(Type::F16, 1, 0.0),
                softcap,
                n_q: 5,
                ..Recipe::plain(k, v, 150)
            };
            let mut p = recipe.make(&mut random);
            let hidden: Vec<usize> = (0..150).filter(|_| random.below(3) == 0).collect();
            for &key in &hidden {
                (0..5).for_each(|q| set_mask(&mut p, q, key, f32::NEG_INFINITY));
            }
            let expected = oracle::attention(&p);
            let largest = largest_value(&p);
            for key in hidden {
                poison(&mut p.segments[0].k, key);
                poison(&mut p.segments[0].v, key);
            }
            for isa in isas() {
                let error = worst_error(largest, &attend(&p, isa), &expected);
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

/// A NaN cell that some queries see makes those NaN, and leaves alone the ones
/// that do not see it, in the same block and tile.
#[test]
fn visible_nan_cells_spoil_only_who_sees_them() {
    let mut random = Random::new(8);
    for (k, v) in pairs() {
        for spoil_keys in [false, true] {
            let recipe = Recipe {
                mask: MaskRecipe::Random(Type::F32, 1, 0.2),
                n_q: 6,
                ..Recipe::plain(k, v, 100)
            };
            let mut p = recipe.make(&mut random);
            // Query 0 of 6 hides key 70, query 1 sees it.
            set_mask(&mut p, 0, 70, f32::NEG_INFINITY);
            set_mask(&mut p, 1, 70, 0.0);
            let s = &mut p.segments[0];
            poison(if spoil_keys { &mut s.k } else { &mut s.v }, 70);
            let expected = oracle::attention(&p);
            let row = 4 * DIM;
            assert!(expected[..row].iter().all(|v| v.is_finite()));
            assert!(expected[row..2 * row].iter().all(|v| v.is_nan()));
            check(&p, &recipe);
        }
    }
}

#[test]
fn infinite_scores_do_not_pass_for_a_result() {
    let mut random = Random::new(9);
    let ty = of_name("tbq4_0");
    let mut p = Recipe::plain(ty, ty, 70).make(&mut random);
    p.scale = f32::MAX;
    for isa in isas() {
        assert!(attend(&p, isa).iter().any(|v| v.is_nan()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..Default::default() })]

    /// Any shape whatever.
    #[test]
    fn attention_is_the_oracles_for_any_shape(
        seed: u64,
        (k, v) in (0..key_types().len(), 0..value_types().len()),
        (k_blocks, v_blocks) in (1..5usize, 1..5usize),
        group in 1..11usize,
        n_kv_heads in 1..4usize,
        n_q in 1..40usize,
        n_kv in 0..200usize,
        (causal, softcap, slopes, sinks) in any::<(bool, bool, bool, bool)>(),
        mask in 0..4usize,
    ) {
        let (k, v) = (key_types()[k], value_types()[v]);
        // One to four of 32, one or two of 128.
        let dim = |ty: Type, n: usize| match ty.block_len() {
            128 => 128 * n.div_ceil(2),
            _ => 32 * n,
        };
        let recipe = Recipe {
            head_dim_k: dim(k, k_blocks),
            head_dim_v: dim(v, v_blocks),
            group,
            n_kv_heads,
            n_q: n_q.min(1 + 400 / (group * n_kv_heads)),
            segments: vec![(k, v, n_kv)],
            mask: [
                MaskRecipe::None,
                MaskRecipe::Random(Type::F16, 1, 0.5),
                MaskRecipe::Random(Type::F32, 2, 0.5),
                MaskRecipe::Random(Type::F16, 3, 0.99),
            ][mask],
            causal,
            softcap,
            slopes,
            sinks,
        };
        check(&recipe.make(&mut Random::new(seed)), &recipe);
    }
}
