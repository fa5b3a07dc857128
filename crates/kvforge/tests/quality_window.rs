//! Attention with a window of exact keys and values.

mod common;

use std::collections::HashMap;
use std::fs;

use common::{Model, SCALE, Tensor, dot, file, softmax};
use kvforge::capture::Capture;
use kvforge::quality::{Center, Figures, Outcome, Window, measure};
use kvforge::rows::Encoder;
use kvforge_formats::{Domain, by_name, f16_to_f32, f32_to_f16};
use safetensors::Dtype;

const FORMATS: [&str; 3] = ["tbq3_0", "q4_polar", "q4_0_rot"];

fn read(bytes: &[u8]) -> Capture {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kv.safetensors");
    fs::write(&path, bytes).unwrap();
    Capture::read(&path).unwrap()
}

fn figures(
    capture: &Capture,
    format: &str,
    center: Center,
    newest: usize,
    first: usize,
) -> Figures {
    let window = Window { newest, first };
    let report = measure(capture, &[format], center, window, Encoder::Reference).unwrap();
    assert_eq!(report.window, window);
    match report.formats.into_iter().next().unwrap().outcome {
        Outcome::Measured { figures, .. } => figures,
        Outcome::NotRun { not_run } => panic!("{format}: {not_run}"),
    }
}

fn half(x: &[f32]) -> Vec<f32> {
    x.iter().map(|x| f16_to_f32(f32_to_f16(*x))).collect()
}

#[test]
fn a_longer_window_is_no_worse_and_a_full_one_only_rounds() {
    let shifted = Model {
        constant: 20.0,
        ..Model::small()
    };
    let (plain, shifted) = (read(&Model::small().bytes()), read(&shifted.bytes()));
    for (capture, center) in [(&plain, Center::None), (&shifted, Center::Own)] {
        for format in FORMATS {
            let errors = |newest, first| {
                let f = figures(capture, format, center, newest, first);
                let v = f.output_rel_error_v.unwrap();
                [f.attention_kl_mean, f.output_rel_error_k, v]
            };
            let mut before = errors(0, 0);
            for newest in [2, 8, 16, 32, 40] {
                let now = errors(newest, 0);
                let is_no_worse = now.iter().zip(before).all(|(now, before)| *now <= before);
                assert!(is_no_worse, "{format}, {newest}: {now:?} after {before:?}");
                before = now;
            }
            assert!(before[0] < 1e-6, "{format}: {before:?}");
            assert!(
                before[1..].iter().all(|e| (1e-6..1e-3).contains(e)),
                "{before:?}"
            );
            // All there is, whatever the format, and whichever way it is said.
            assert_eq!(before, errors(usize::MAX, usize::MAX));
            assert_eq!(before, errors(0, 40));
            let mixed = errors(8, 4);
            assert!(mixed[2] < errors(8, 0)[2] && mixed[2] < errors(0, 4)[2]);
        }
    }
    // The rows themselves are coded as ever.
    let [none, full] = [0, 40].map(|n| figures(&plain, "tbq3_0", Center::None, n, 0));
    assert_eq!(
        (none.k_rel_mse, none.v_rel_mse),
        (full.k_rel_mse, full.v_rel_mse)
    );
}

/// One query at position 1, on two tokens.
#[test]
fn of_two_tokens_the_window_chooses_one() {
    let [q, k, v] = [1, 2, 3].map(|seed| common::gaussian(seed, 64 * 32));
    let (q, k, v) = (&q[..32], &k[..64], &v[..64]);
    let tensor = |part: &str, rows: usize, values: &[f32]| Tensor {
        name: format!("blk.0.{part}"),
        dtype: Dtype::F32,
        shape: vec![1, rows, 32],
        bytes: values.iter().flat_map(|v| v.to_le_bytes()).collect(),
    };
    let mut metadata: HashMap<String, String> = Model::small().metadata();
    for (key, value) in [
        ("head_dim", "32"),
        ("n_heads", "1"),
        ("n_kv_heads", "1"),
        ("n_tokens", "2"),
        ("q_positions", "1"),
    ] {
        metadata.insert(key.into(), value.into());
    }
    let tensors = vec![tensor("q", 1, q), tensor("k", 2, k), tensor("v", 2, v)];
    let capture = read(&file(tensors, metadata));

    let spec = by_name("tbq3_0").unwrap();
    let coded = |x: &[f32]| {
        let mut bytes = vec![0; spec.row_bytes(x.len()).unwrap()];
        (spec.encode)(x, &mut bytes).unwrap();
        let mut y = vec![0.0; x.len()];
        (spec.decode)(&bytes, &mut y, Domain::Original).unwrap();
        y
    };
    let weights = |k: &[f32]| softmax(&[0, 32].map(|at| SCALE * dot(q, &k[at..][..32])));
    let mixed = |weights: &[f64], v: &[f32]| -> Vec<f64> {
        let of = |i| weights[0] * f64::from(v[i]) + weights[1] * f64::from(v[32 + i]);
        (0..32).map(of).collect()
    };
    let square = |a: &[f64]| a.iter().map(|a| a * a).sum::<f64>();
    let error = |a: &[f64], b: &[f64]| {
        let difference: Vec<f64> = a.iter().zip(b).map(|(a, b)| a - b).collect();
        (square(&difference) / square(b)).sqrt()
    };
    let exact = (weights(k), mixed(&weights(k), v));
    let second = |x: &[f32]| [&coded(&x[..32])[..], &half(&x[32..])].concat();
    let first = |x: &[f32]| [&half(&x[..32])[..], &coded(&x[32..])].concat();
    let (both, none) = (half, coded);
    type Stored<'a> = &'a dyn Fn(&[f32]) -> Vec<f32>;
    let cases: [(usize, usize, Stored); 5] = [
        (0, 0, &none),
        (1, 0, &second),
        (0, 1, &first),
        (2, 0, &both),
        (1, 1, &both),
    ];
    for (newest, n_first, stored) in cases {
        let found = figures(&capture, "tbq3_0", Center::None, newest, n_first);
        let other = weights(&stored(k));
        let terms = exact.0.iter().zip(&other).map(|(p, q)| p * (p / q).ln());
        let kl: f64 = terms.sum();
        let output_k = error(&mixed(&other, v), &exact.1);
        let output_v = error(&mixed(&exact.0, &stored(v)), &exact.1);
        let near = |found: f64, expected: f64| (found - expected).abs() < 1e-9 * expected + 1e-13;
        assert!(
            near(found.attention_kl_mean, kl)
                && near(found.output_rel_error_k, output_k)
                && near(found.output_rel_error_v.unwrap(), output_v),
            "{newest}, {n_first}: {found:?}, expected {kl}, {output_k}, {output_v}"
        );
    }
}
