//! Calibrations built from keys that RoPE has turned, and what they do to a capture.

mod common;

use common::{Model, gaussian};
use kvforge::Error;
use kvforge::calibration::{Builder, Calibration, Rope, SINKS, Turning};
use kvforge::capture::Capture;
use kvforge::quality::{Center, Outcome, Window, measure};
use kvforge::rows::Encoder;

const DIM: usize = 8;
const KV: usize = 2;
const HEADS: usize = 4;
const FAR: u32 = 700;

/// Pairs of split halves, the last pair not turned; stretched by a factor.
const THETA: [f64; 3] = [1.0, 0.05, 2e-4];
const SCALE: f64 = 1.25;

fn rope() -> Rope {
    Rope {
        mode: 2,
        n_dims: 6,
        freq_base: 1e4,
        ..Rope::NONE
    }
}

/// `R(p) x`, the plain way.
fn turned(x: &[f64], position: u64) -> Vec<f64> {
    let mut y = x.to_vec();
    for (a, theta) in THETA.iter().enumerate() {
        let b = a + DIM / 2;
        let (sin, cos) = (position as f64 * theta).sin_cos();
        y[a] = SCALE * (x[a] * cos - x[b] * sin);
        y[b] = SCALE * (x[a] * sin + x[b] * cos);
    }
    y
}

fn matrix(position: u64) -> Vec<f32> {
    let unit = |i| {
        (0..DIM)
            .map(move |j| f64::from(u8::from(i == j)))
            .collect::<Vec<_>>()
    };
    (0..DIM)
        .flat_map(|i| turned(&unit(i), position))
        .map(|x| x as f32)
        .collect()
}

fn announce(builder: &mut Builder, layer: u32, step: &[f32], check: &[f32]) {
    let turning = Turning {
        rope: rope(),
        step,
        check_position: FAR,
        check,
    };
    builder.layer(layer, DIM, turning);
}

/// Vectors of some heads before RoPE, `[n_tokens, n_heads, DIM]`.
fn plain(n_heads: usize, n_tokens: usize, seed: u64) -> Vec<f64> {
    let noise = gaussian(seed, n_tokens * n_heads * DIM);
    let mean = |at: usize| 1.0 + (at % (n_heads * DIM)) as f64 / 4.0;
    (0..noise.len())
        .map(|at| mean(at) + 0.1 * f64::from(noise[at]))
        .collect()
}

fn after_rope(plain: &[f64], n_heads: usize) -> Vec<f32> {
    let vectors = plain.chunks(DIM).enumerate();
    vectors
        .flat_map(|(i, x)| turned(x, (i / n_heads) as u64))
        .map(|x| x as f32)
        .collect()
}

/// Two sequences of a layer, whose first positions are like nothing else.
fn built() -> (Calibration, [Vec<f64>; 2]) {
    let mut builder = Builder::new(42, "synthetic\0\n");
    announce(&mut builder, 3, &matrix(1), &matrix(FAR.into()));
    let without = Turning {
        rope: Rope::NONE,
        step: &[],
        check_position: 0,
        check: &[],
    };
    builder.layer(5, DIM, without);
    let mut all = [vec![], vec![]];
    for seed in [1, 2] {
        for (n_heads, all) in [KV, HEADS].into_iter().zip(&mut all) {
            let mut vectors = plain(n_heads, 100, seed);
            vectors[..SINKS as usize * n_heads * DIM].fill(1e3);
            all.extend_from_slice(&vectors[SINKS as usize * n_heads * DIM..]);
            let (values, as_they_are) = (after_rope(&vectors, n_heads), vectors.iter());
            let as_they_are: Vec<f32> = as_they_are.map(|x| *x as f32).collect();
            // In two parts, as a batch that is too large comes.
            let cut = 30 * n_heads * DIM;
            for (layer, values) in [(3, &values), (5, &as_they_are)] {
                for (first, part) in [(0, &values[..cut]), (30, &values[cut..])] {
                    match n_heads {
                        KV => builder.keys(layer, KV, first, part).unwrap(),
                        _ => builder.queries(layer, HEADS, first, part).unwrap(),
                    }
                }
            }
        }
    }
    (builder.finish().unwrap(), all)
}

/// Mean of a function of the vectors of a group of heads.
fn mean(vectors: &[f64], n_heads: usize, kv_head: usize, f: impl Fn(&[f64]) -> f64) -> f64 {
    let group = n_heads / KV;
    let of_group = vectors
        .chunks(DIM)
        .enumerate()
        .filter(|(i, _)| i % n_heads / group == kv_head);
    let (sum, n) = of_group.fold((0.0, 0), |(sum, n), (_, x)| (sum + f(x), n + 1));
    sum / f64::from(n)
}

#[test]
fn turning_back_recovers_what_was_before_rope() {
    let (calibration, [k, q]) = built();
    let content = calibration.content();
    assert_eq!((content.model, content.name()), (42, "synthetic  "));
    assert_eq!((content.n_tokens, content.n_layers), (192, 2));
    for (number, n_pairs) in [(3, 3), (5, 0)] {
        let layer = calibration.layer(number).unwrap();
        assert_eq!(
            (layer.n_head_kv(), layer.n_head(), layer.n_pairs()),
            (KV, HEADS, n_pairs)
        );
        let arrays = [layer.k_mean(), layer.k_square(), layer.q_square()];
        for (at, (found, array)) in arrays
            .into_iter()
            .enumerate()
            .flat_map(|(a, x)| x.map(move |x| (x, a)))
            .enumerate()
        {
            let (head, channel) = (at / DIM % KV, at % DIM);
            let (x, n_heads) = if array == 2 { (&q, HEADS) } else { (&k, KV) };
            let power = if array == 0 { 1 } else { 2 };
            let expected = mean(x, n_heads, head, |x| x[channel].powi(power));
            assert!(
                (f64::from(found) / expected - 1.0).abs() < 1e-5,
                "{number} {at}: {found} {expected}"
            );
        }
        let arrays = [(layer.k_cross(), &k, KV), (layer.q_cross(), &q, HEADS)];
        for (found, x, n_heads) in arrays {
            assert_eq!(found.len(), KV * n_pairs);
            for (at, found) in found.enumerate() {
                let (head, pair) = (at / n_pairs, at % n_pairs);
                let expected = mean(x, n_heads, head, |x| x[pair] * x[pair + DIM / 2]);
                assert!(
                    (f64::from(found) / expected - 1.0).abs() < 1e-5,
                    "{found} {expected}"
                );
            }
        }
    }
    assert_eq!(
        built().0.bytes(),
        calibration.bytes(),
        "the same bytes again"
    );

    let centre = calibration.static_centre(3, 50).unwrap();
    for head in 0..KV {
        let m: Vec<f64> = (0..DIM).map(|c| mean(&k, KV, head, |x| x[c])).collect();
        for channel in 0..DIM {
            let expected = (0..50).map(|p| turned(&m, p)[channel]).sum::<f64>() / 50.0;
            let off = f64::from(centre[head * DIM + channel]) - expected;
            assert!(off.abs() < 1e-5, "{head} {channel}: {off}");
        }
    }
    assert!(calibration.static_centre(4, 50).is_err() && calibration.static_centre(3, 0).is_err());
}

#[test]
fn what_does_not_fit_is_said() {
    let fresh = || {
        let mut builder = Builder::new(0, "m");
        announce(&mut builder, 3, &matrix(1), &matrix(FAR.into()));
        builder
    };
    let (k, q) = (vec![1.0; 8 * KV * DIM], vec![1.0; 8 * HEADS * DIM]);
    let mut bad = k.clone();
    bad[5 * KV * DIM + 1] = f32::NAN;
    let says = |error: Error, about: &str| {
        let text = error.to_string();
        assert!(text.contains(about), "{text}");
    };
    says(
        fresh().keys(4, KV, 0, &k).unwrap_err(),
        "the RoPE of layer 4 before its keys",
    );
    says(
        fresh().keys(3, KV, 10, &bad).unwrap_err(),
        "NaN at position 15",
    );
    says(
        fresh().keys(3, KV, 0, &k[1..]).unwrap_err(),
        "keys of 2 heads of 8 values",
    );
    says(fresh().keys(3, 0, 0, &k).unwrap_err(), "0 heads");
    let mut builder = fresh();
    builder.keys(3, KV, 0, &k).unwrap();
    says(
        builder.keys(3, 2 * KV, 0, &k).unwrap_err(),
        "2 heads of keys in layer 3 as before",
    );
    says(builder.finish().unwrap_err(), "4 and 0");
    says(fresh().finish().unwrap_err(), "0 and 0");
    let mut builder = fresh();
    builder.keys(3, KV, 0, &k).unwrap();
    builder.queries(3, HEADS, 0, &q).unwrap();
    announce(&mut builder, 4, &matrix(1), &matrix(FAR.into()));
    says(builder.finish().unwrap_err(), "layer 4");

    // RoPE that is not understood, or not what it seemed, leaves a layer out.
    let mut builder = Builder::new(0, "m");
    announce(&mut builder, 1, &matrix(1), &matrix(u64::from(FAR) + 1));
    announce(&mut builder, 2, &matrix(1)[1..], &matrix(FAR.into()));
    announce(&mut builder, 3, &matrix(1), &[]);
    let mut step = matrix(1);
    step[4] = -step[4];
    announce(&mut builder, 4, &step, &matrix(FAR.into()));
    let identity: Vec<f32> = (0..DIM * DIM)
        .map(|i| if i % (DIM + 1) == 0 { 1.0 } else { 0.0 })
        .collect();
    announce(&mut builder, 5, &identity, &identity);
    builder.keys(1, KV, 0, &bad).unwrap();
    let reasons: Vec<String> = builder
        .left_alone()
        .map(|(n, why)| format!("{n} {why}"))
        .collect();
    for (reason, about) in reasons.iter().zip([
        "1 its RoPE at position 700 departs",
        "2 expected 64",
        "3 its RoPE at a second",
        "4 RoPE does not turn",
        "5 its RoPE turns nothing",
    ]) {
        assert!(reason.starts_with(about), "{reason}");
    }
    assert_eq!(reasons.len(), 5);
    says(
        builder.finish().unwrap_err(),
        "a layer that can be calibrated",
    );
}

#[test]
fn a_file_centres_a_capture_or_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let model = Model {
        constant: 9.0,
        ..Model::small()
    };
    std::fs::write(path("kv"), model.bytes()).unwrap();
    let mut capture = Capture::read(&path("kv")).unwrap();
    let built_of = |layers: &[u32], heads: usize, value: f32| {
        let mut builder = Builder::new(0, "m");
        let values = vec![value; 5 * heads * model.head_dim];
        for layer in layers {
            let turning = Turning {
                rope: Rope::NONE,
                step: &[],
                check_position: 0,
                check: &[],
            };
            builder.layer(*layer, model.head_dim, turning);
            builder.keys(*layer, heads, 0, &values).unwrap();
            builder.queries(*layer, heads, 0, &values).unwrap();
        }
        builder.finish().unwrap()
    };
    let built_for = |layers: &[u32], heads: usize| built_of(layers, heads, 9.0);
    let before = capture.layers[0].k_mean_other_text.clone();
    for (wrong, about) in [
        (
            built_for(&[0, 6], 2),
            "expected layer 7 in the calibration, found layers 0, 6",
        ),
        (built_for(&[0, 7], 3), "2 kv heads of size 128 in layer 0"),
    ] {
        let error = wrong.centre(&mut capture).unwrap_err().to_string();
        assert!(error.contains(about), "{error}");
    }
    assert_eq!(capture.layers[0].k_mean_other_text, before);

    std::fs::write(path("cal"), built_for(&[0, 3, 7], 2).bytes()).unwrap();
    let kl = |capture: &Capture, center| {
        let report = measure(capture, &["tbq4_0"], center, Window::NONE, Encoder::Best).unwrap();
        match &report.formats[0].outcome {
            Outcome::Measured { figures, .. } => figures.attention_kl_mean,
            Outcome::NotRun { not_run } => panic!("{not_run}"),
        }
    };
    let plain = kl(&capture, Center::None);
    Calibration::read(&path("cal"))
        .unwrap()
        .centre(&mut capture)
        .unwrap();
    assert!(kl(&capture, Center::File) < plain / 10.0);
    // Means of nothing are a calibration too, and gain nothing.
    let zeros = built_of(&[0, 3, 7], 2, 0.0);
    zeros.centre(&mut capture).unwrap();
    assert_eq!(kl(&capture, Center::File), plain);

    std::fs::write(path("cal"), b"KVFCALIB\x02\0\0\0").unwrap();
    let error = Calibration::read(&path("cal")).unwrap_err().to_string();
    assert!(
        error.contains("cal: expected a calibration file of version 1, found version 2"),
        "{error}"
    );
}
