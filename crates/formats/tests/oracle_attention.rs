//! Attention and scores of the oracle against results that can be worked out by
//! hand.

use kvforge_formats::FORMATS;
use kvforge_formats::oracle::{self, Mask, Problem, Scores, Segment, Tensor, Type};

const EXACT: f64 = 1e-12;

// Queries and keys of one number make logits plain: q is 1, keys are
// the logits.

/// One head, one query, keys that are `logits`, values 1, 10, 100 ...
fn problem(logits: &[f32]) -> Problem {
    let values: Vec<f32> = (0..logits.len()).map(|t| 10f32.powi(t as i32)).collect();
    Problem {
        head_dim_k: 1,
        head_dim_v: 1,
        n_heads: 1,
        n_kv_heads: 1,
        n_q: 1,
        q: Tensor::by_row(Type::F32, &[1.0], 1, 1),
        segments: vec![segment(logits, &values)],
        ..Problem::default()
    }
}

fn segment(keys: &[f32], values: &[f32]) -> Segment {
    Segment {
        n_kv: keys.len(),
        k: Tensor::by_row(Type::F32, keys, 1, 1),
        v: Tensor::by_row(Type::F32, values, 1, 1),
        ..Segment::default()
    }
}

/// A mask for one head, `[n_q, n_kv]`.
fn mask(values: &[f32], n_kv: usize) -> Option<Mask> {
    Some(Mask {
        values: Tensor::by_row(Type::F32, values, n_kv, 1),
        heads: 1,
    })
}

fn close(out: &[f64], expected: &[f64]) {
    assert_eq!(out.len(), expected.len());
    for (a, b) in out.iter().zip(expected) {
        // Logits such as ln 3 are rounded to fp32.
        assert!(
            (a - b).abs() <= 1e-6 * b.abs().max(1.0),
            "{out:?} {expected:?}"
        );
    }
}

const LN_3: f32 = 1.098_612_3;

#[test]
fn weights_are_a_softmax() {
    close(&oracle::attention(&problem(&[5.0])), &[1.0]);
    close(&oracle::attention(&problem(&[0.0, LN_3])), &[0.25 + 7.5]);
    // The same above every exp that f64 holds.
    close(&oracle::attention(&problem(&[2000.0, 2000.0])), &[5.5]);
    close(&oracle::attention(&problem(&[-2000.0, -2000.0])), &[5.5]);
}

#[test]
fn scale_multiplies_the_dot() {
    let scaled = Problem {
        scale: 0.5,
        ..problem(&[0.0, 2.0 * LN_3])
    };
    close(&oracle::attention(&scaled), &[0.25 + 7.5]);
}

/// tanh(x) of a logit far above the cap is 1: both weigh e^cap.
#[test]
fn softcap_bounds_the_scaled_score() {
    let capped = |logits, scale| Problem {
        softcap: Some(LN_3),
        scale,
        ..problem(logits)
    };
    close(&oracle::attention(&capped(&[0.0, 1e4], 1.0)), &[0.25 + 7.5]);
    let weight = (f64::from(LN_3) * (1.0 / f64::from(LN_3)).tanh()).exp();
    let expected = (1.0 + 10.0 * weight) / (1.0 + weight);
    close(&oracle::attention(&capped(&[0.0, 2.0], 0.5)), &[expected]);
}

#[test]
fn mask_is_added_after_the_cap_times_the_slope() {
    let mut masked = problem(&[0.0, 1e4]);
    masked.softcap = Some(1.0);
    masked.slopes = Some(vec![0.5]);
    masked.segments[0].mask = mask(&[0.0, -2.0 + 2.0 * LN_3], 2);
    // 0 against 1 + 0.5 * (-2 + 2 ln 3) = ln 3.
    close(&oracle::attention(&masked), &[0.25 + 7.5]);
    // A slope is a factor on the mask: without one it does nothing.
    let unmasked = Problem {
        slopes: Some(vec![0.5]),
        ..problem(&[0.0, LN_3])
    };
    close(&oracle::attention(&unmasked), &[0.25 + 7.5]);
}

#[test]
fn hidden_keys_take_no_part_whatever_they_hold() {
    let mut p = problem(&[0.0, f32::NAN, LN_3]);
    p.segments[0].v = Tensor::by_row(Type::F32, &[1.0, f32::NAN, 10.0], 1, 1);
    assert!(oracle::attention(&p)[0].is_nan());
    p.segments[0].mask = mask(&[0.0, f32::NEG_INFINITY, 0.0], 3);
    for slope in [None, Some(vec![0.0]), Some(vec![-1.0])] {
        p.slopes = slope;
        close(&oracle::attention(&p), &[0.25 + 7.5]);
    }
}

#[test]
fn a_query_that_sees_nothing_gives_zeros() {
    let mut p = problem(&[0.0, 1.0]);
    p.segments[0].mask = mask(&[f32::NEG_INFINITY; 2], 2);
    assert_eq!(oracle::attention(&p), [0.0]);
    p.sinks = Some(vec![3.0]);
    assert_eq!(oracle::attention(&p), [0.0]);
    assert_eq!(oracle::attention(&problem(&[])), [0.0]);
    p.segments.clear();
    assert_eq!(oracle::attention(&p), [0.0]);
}

#[test]
fn a_sink_is_a_key_without_value() {
    let with_sink = |logits, sink| Problem {
        sinks: Some(vec![sink]),
        ..problem(logits)
    };
    close(&oracle::attention(&with_sink(&[0.0], LN_3)), &[0.25]);
    close(
        &oracle::attention(&with_sink(&[0.0, LN_3], f32::NEG_INFINITY)),
        &[7.75],
    );
    // Far above all keys, beyond every exp.
    close(&oracle::attention(&with_sink(&[0.0], 5000.0)), &[0.0]);
    close(&oracle::attention(&with_sink(&[5000.0], 0.0)), &[1.0]);
}

/// Three queries at positions 4, 5, 6 over keys at 3 .. 7: they see 2, 3 and 4.
#[test]
fn causal_hides_later_positions() {
    let mut p = Problem {
        n_q: 3,
        q: Tensor::by_row(Type::F32, &[1.0; 3], 1, 1),
        causal: Some(4),
        ..problem(&[0.0; 5])
    };
    p.segments[0].pos0 = 3;
    close(
        &oracle::attention(&p),
        &[11.0 / 2.0, 111.0 / 3.0, 1111.0 / 4.0],
    );
    p.causal = None;
    close(&oracle::attention(&p), &[11111.0 / 5.0; 3]);
    p.causal = Some(-9);
    assert_eq!(oracle::attention(&p), [0.0; 3]);
}

/// Four query heads on two kv heads; positions outermost in the output.
#[test]
fn heads_share_kv_heads_in_order() {
    let mut p = Problem {
        n_heads: 4,
        n_kv_heads: 2,
        n_q: 2,
        q: Tensor::by_row(Type::F32, &[0.0; 8], 1, 4),
        ..problem(&[])
    };
    p.segments[0] = Segment {
        n_kv: 1,
        k: Tensor::by_row(Type::F32, &[0.0; 2], 1, 2),
        v: Tensor::by_row(Type::F32, &[7.0, 9.0], 1, 2),
        ..Segment::default()
    };
    assert_eq!(
        oracle::attention(&p),
        [7.0, 7.0, 9.0, 9.0, 7.0, 7.0, 9.0, 9.0]
    );
    // One slope, sink and mask a head.
    p.sinks = Some(vec![f32::NEG_INFINITY, 0.0, LN_3, 0.0]);
    close(&oracle::attention(&p)[..4], &[7.0, 3.5, 2.25, 4.5]);
    p.slopes = Some(vec![1.0, 1.0, 1.0, 0.0]);
    p.segments[0].mask = Some(Mask {
        // [n_q, heads, n_kv]; head h reads h % 2.
        values: Tensor::by_row(Type::F16, &[0.0, f32::NEG_INFINITY, LN_3, LN_3], 1, 2),
        heads: 2,
    });
    let out = oracle::attention(&p);
    close(&out[..4], &[7.0, 0.0, 2.25, 0.0]);
    // The mask's fp16 keeps ln 3 to three digits.
    for (o, e) in out[4..].iter().zip([7.0, 5.25, 4.5, 4.5]) {
        assert!((o - e).abs() < 1e-2, "{out:?}");
    }
}

/// One softmax over everything: cut points, order and layout change nothing.
#[test]
fn segments_and_strides_do_not_matter() {
    let (dim_k, dim_v, heads, n_kv) = (128, 32, 2, 10);
    let numbers = |n: usize, at: usize| (at..at + n).map(wave).collect::<Vec<_>>();
    let (k, v) = (
        numbers(n_kv * heads * dim_k, 0),
        numbers(n_kv * heads * dim_v, 9999),
    );
    let formats = FORMATS.iter().copied().map(Type::Format);
    for ty in formats.chain([Type::F32, Type::Q8_0, Type::PolarResidual]) {
        let part = |from: usize, to: usize| Segment {
            n_kv: to - from,
            k: Tensor::by_row(
                ty,
                &k[from * heads * dim_k..to * heads * dim_k],
                dim_k,
                heads,
            ),
            v: Tensor::by_row(
                Type::F16,
                &v[from * heads * dim_v..to * heads * dim_v],
                dim_v,
                heads,
            ),
            pos0: from as i64,
            ..Segment::default()
        };
        let whole = Problem {
            head_dim_k: dim_k,
            head_dim_v: dim_v,
            n_heads: 4,
            n_kv_heads: heads,
            n_q: 3,
            q: Tensor::by_row(Type::F32, &numbers(3 * 4 * dim_k, 5000), dim_k, 4),
            segments: vec![part(0, n_kv)],
            causal: Some(6),
            ..Problem::default()
        };
        let expected = oracle::attention(&whole);
        let mut cut = whole.clone();
        cut.segments = vec![part(4, 9), part(0, 4), part(9, 9), part(9, 10)];
        let mut turned = whole.clone();
        turned.segments[0].k = by_head(&whole.segments[0].k, n_kv, heads);
        turned.segments[0].v = by_head(&whole.segments[0].v, n_kv, heads);
        for other in [cut, turned] {
            for (a, b) in oracle::attention(&other).iter().zip(&expected) {
                assert!((a - b).abs() < EXACT);
            }
        }
    }
}

/// The same rows in the other order, heads outermost, with a gap after each.
fn by_head(x: &Tensor, rows: usize, heads: usize) -> Tensor {
    const GAP: usize = 3;
    let row_stride = x.head_stride + GAP;
    let mut bytes = vec![];
    for head in 0..heads {
        for row in 0..rows {
            let start = row * x.row_stride + head * x.head_stride;
            bytes.extend(&x.bytes[start..start + x.head_stride]);
            bytes.extend([0xff; GAP]);
        }
    }
    Tensor {
        ty: x.ty,
        bytes,
        row_stride,
        head_stride: rows * row_stride,
    }
}

#[test]
fn by_head_and_by_row_hold_the_same_rows() {
    // [2 rows, 3 heads, 2 values] and the same [3 heads, 2 rows, 2 values].
    let row_major = [0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11.];
    let head_major = [0., 1., 6., 7., 2., 3., 8., 9., 4., 5., 10., 11.];
    let a = Tensor::by_row(Type::F32, &row_major, 2, 3);
    let b = Tensor::by_head(Type::F32, &head_major, 2, 2);
    for head in 0..3 {
        for row in 0..2 {
            let first = (row * 6 + head * 2) as f64;
            assert_eq!(a.row(head, row, 2), [first, first + 1.0]);
            assert_eq!(b.row(head, row, 2), [first, first + 1.0]);
        }
    }
}

#[test]
fn scores_are_plain_dots() {
    let s = Scores {
        head_dim: 2,
        n_heads: 2,
        n_kv_heads: 1,
        n_q: 2,
        n_kv: 3,
        q: Tensor::by_row(Type::F32, &[1., 0., 0., 1., 1., 1., 2., -1.], 2, 2),
        k: Tensor::by_row(Type::F16, &[1., 2., 3., 4., 5., 6.], 2, 1),
    };
    // [n_q, n_heads, n_kv]
    let expected = [1., 3., 5., 2., 4., 6., 3., 7., 11., 0., 2., 4.];
    assert_eq!(oracle::scores(&s), expected);
}

/// Numbers between -2 and 2 without a pattern that a rotation would meet.
fn wave(i: usize) -> f32 {
    let i = i as f32;
    (i * 0.731).sin() + (i * i * 0.0137).cos()
}
