//! Figures of synthetic captures against attention written the plain way, and captures
//! that are not what they should be.

mod common;

use std::fs;

use common::{Model, SCALE, Tensor, dot, file, softmax};
use kvforge::Error;
use kvforge::capture::{Capture, Layer};
use kvforge::quality::{Center, Figures, Outcome, Report, Window, measure, names};
use kvforge::rows::Encoder;
use kvforge_formats::{Domain, FORMATS, Role, by_name};
use safetensors::Dtype;

fn read(bytes: &[u8]) -> Result<Capture, Error> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kv.safetensors");
    fs::write(&path, bytes).unwrap();
    Capture::read(&path)
}

fn all(capture: &Capture, center: Center) -> Report {
    measure(
        capture,
        &names().collect::<Vec<_>>(),
        center,
        Window::NONE,
        Encoder::Reference,
    )
    .unwrap()
}

/// The figures of all layers, and the layers'.
fn figures<'a>(report: &'a Report, format: &str) -> (&'a Figures, Vec<&'a Figures>) {
    let entry = report.formats.iter().find(|e| e.format == format).unwrap();
    match &entry.outcome {
        Outcome::Measured { figures, layers } => {
            (figures, layers.iter().map(|l| &l.figures).collect())
        }
        Outcome::NotRun { not_run } => panic!("{format}: {not_run}"),
    }
}

/// Weights and output of one query on the first keys.
fn attend(q: &[f32], k: &[&[f32]], v: &[&[f32]]) -> (Vec<f64>, Vec<f64>) {
    let scores: Vec<f64> = k.iter().map(|k| SCALE * dot(q, k)).collect();
    let weights = softmax(&scores);
    let output = (0..q.len()).map(|i| {
        let values = weights.iter().zip(v);
        values.map(|(w, v)| w * f64::from(v[i])).sum()
    });
    let output = output.collect();
    (weights, output)
}

fn distance(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum()
}

/// Every figure of `format` on some layers, from its definition.
fn plain(capture: &Capture, layers: &[&Layer], format: &str) -> [f64; 7] {
    let spec = by_name(format).unwrap();
    let n = capture.head_dim;
    let coded = |x: &[f32]| {
        let mut bytes = vec![0; spec.row_bytes(x.len()).unwrap()];
        (spec.encode)(x, &mut bytes).unwrap();
        let mut y = vec![0.0; x.len()];
        (spec.decode)(&bytes, &mut y, Domain::Original).unwrap();
        y
    };
    let wide = |x: &[f32]| x.iter().map(|x| f64::from(*x)).collect::<Vec<_>>();
    let (mut errors, mut energies, mut kl) = ([0.0; 4], [0.0; 3], vec![]);
    for layer in layers {
        let (k_coded, v_coded) = (coded(&layer.k), coded(&layer.v));
        errors[0] += distance(&wide(&layer.k), &wide(&k_coded));
        errors[1] += distance(&wide(&layer.v), &wide(&v_coded));
        energies[0] += dot(&layer.k, &layer.k);
        energies[1] += dot(&layer.v, &layer.v);
        for h in 0..capture.n_heads {
            let first = h / (capture.n_heads / capture.n_kv_heads) * capture.n_tokens;
            for (i, position) in Model::positions().1.into_iter().enumerate() {
                let [k, v, kc, vc] = [&layer.k, &layer.v, &k_coded, &v_coded].map(|x| {
                    let seen = x.chunks(n).skip(first).take(position + 1);
                    seen.collect::<Vec<&[f32]>>()
                });
                let q = layer.q.chunks(n).nth(h * 8 + i).unwrap();
                let (weights, output) = attend(q, &k, &v);
                let (weights_k, output_k) = attend(q, &kc, &v);
                let (_, output_v) = attend(q, &k, &vc);
                let terms = weights.iter().zip(weights_k).map(|(p, q)| p * (p / q).ln());
                kl.push(terms.sum::<f64>());
                errors[2] += distance(&output, &output_k);
                errors[3] += distance(&output, &output_v);
                energies[2] += output.iter().map(|o| o * o).sum::<f64>();
            }
        }
    }
    kl.sort_by(f64::total_cmp);
    let middle = kl.len() / 2;
    [
        errors[0] / energies[0],
        errors[1] / energies[1],
        kl.iter().sum::<f64>() / kl.len() as f64,
        (kl[middle - 1] + kl[middle]) / 2.0,
        kl[kl.len() - 1],
        (errors[2] / energies[2]).sqrt(),
        (errors[3] / energies[2]).sqrt(),
    ]
}

#[test]
fn figures_are_what_their_definitions_say() {
    let capture = read(&Model::small().bytes()).unwrap();
    let report = all(&capture, Center::None);
    for format in ["tbq3_0", "tbq3_tcq", "q4_polar"] {
        let (total, by_layer) = figures(&report, format);
        let layers: Vec<&Layer> = capture.layers.iter().collect();
        let expected = plain(&capture, &layers, format);
        let agrees = |found: &Figures, expected: [f64; 7]| {
            let found = [
                found.k_rel_mse,
                found.v_rel_mse.unwrap(),
                found.attention_kl_mean,
                found.attention_kl_median,
                found.attention_kl_max,
                found.output_rel_error_k,
                found.output_rel_error_v.unwrap(),
            ];
            for (i, (f, e)) in found.iter().zip(expected).enumerate() {
                assert!((f / e - 1.0).abs() < 1e-9, "{format}, figure {i}: {f} {e}");
            }
        };
        agrees(total, expected);
        for (layer, found) in layers.iter().zip(by_layer) {
            agrees(found, plain(&capture, &[layer], format));
        }
    }
}

#[test]
fn what_cannot_be_held_is_said() {
    let small = Model {
        head_dim: 96,
        ..Model::small()
    };
    let report = all(&read(&small.bytes()).unwrap(), Center::None);
    assert_eq!(report.formats.len(), names().count());
    for entry in &report.formats {
        let json = serde_json::to_value(entry).unwrap();
        let fits = match by_name(entry.format) {
            Some(spec) => 96 % spec.block_len == 0,
            None => entry.format != "q4_0_rot",
        };
        let keys: Vec<&str> = json
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        if fits {
            assert_eq!(
                keys,
                [
                    "attention_kl_max",
                    "attention_kl_mean",
                    "attention_kl_median",
                    "bits_per_value",
                    "format",
                    "k_rel_mse",
                    "layers",
                    "output_rel_error_k",
                    "output_rel_error_v",
                    "v_rel_mse",
                ]
            );
            assert_eq!(json["layers"][1]["layer"], 7);
            assert!(json["layers"][1]["attention_kl_mean"].as_f64().unwrap() > 0.0);
        } else {
            assert_eq!(keys, ["bits_per_value", "format", "not_run"]);
            let why = json["not_run"].as_str().unwrap();
            assert!(why.contains("head size 96"), "{why}");
        }
    }
    // Keys only: nothing is said about values.
    let report = all(&read(&Model::small().bytes()).unwrap(), Center::None);
    for spec in FORMATS {
        let (found, _) = figures(&report, spec.name);
        let keys_only = spec.role == Role::Keys;
        assert_eq!(found.v_rel_mse.is_none(), keys_only, "{}", spec.name);
        assert_eq!(
            found.output_rel_error_v.is_none(),
            keys_only,
            "{}",
            spec.name
        );
    }
    assert!(FORMATS.iter().any(|spec| spec.role == Role::Keys));

    // Scores that no fp64 can hold: nothing measured, rather than no divergence.
    let mut metadata = Model::small().metadata();
    metadata.insert("kq_scale".into(), "1e308".into());
    let overflow = read(&file(Model::small().tensors(), metadata)).unwrap();
    for entry in all(&overflow, Center::None).formats {
        let json = serde_json::to_value(&entry).unwrap();
        let why = "layer 0: its scores are not finite";
        assert_eq!(json["not_run"].as_str(), Some(why), "{}", entry.format);
    }

    // Values that no fp16 scale can hold.
    let large = Model {
        constant: 1e6,
        ..Model::small()
    };
    let report = all(&read(&large.bytes()).unwrap(), Center::None);
    let json = serde_json::to_value(&report.formats[0]).unwrap();
    let why = json["not_run"].as_str().unwrap();
    assert!(why.starts_with("layer 0, kv head 0: row 0: "), "{why}");
}

#[test]
fn centring_takes_a_constant_out_of_the_keys() {
    let shifted = Model {
        constant: 20.0,
        ..Model::small()
    };
    let mut tensors = shifted.tensors();
    for layer in [0, 7] {
        tensors.push(Tensor {
            name: format!("blk.{layer}.k_mean_other_text"),
            dtype: Dtype::F32,
            shape: vec![2, 128],
            bytes: [20.0f32; 256]
                .iter()
                .flat_map(|v| v.to_le_bytes())
                .collect(),
        });
    }
    let capture = read(&file(tensors, shifted.metadata())).unwrap();
    let alone = all(&read(&Model::small().bytes()).unwrap(), Center::None);
    let [none, own, other] = [Center::None, Center::Own, Center::File].map(|c| all(&capture, c));
    for format in names() {
        let kl = |report| figures(report, format).0.attention_kl_mean;
        assert!(
            kl(&own) < 0.25 * kl(&none),
            "{format}: {} {}",
            kl(&own),
            kl(&none)
        );
        // With exactly the constant taken out, it is as if it had never been there.
        let ratio = kl(&other) / kl(&alone);
        assert!((ratio - 1.0).abs() < 0.02, "{format}: {ratio}");
        let mse = |report| figures(report, format).0.k_rel_mse;
        let energy = 20.0 * 20.0 + 1.0;
        let ratio = mse(&other) * energy / mse(&alone);
        assert!((ratio - 1.0).abs() < 0.05, "{format}: {ratio}");
    }
    assert!(figures(&own, "q8_0").0.attention_kl_mean < 1e-4);

    let error = measure(
        &read(&shifted.bytes()).unwrap(),
        &["q8_0"],
        Center::File,
        Window::NONE,
        Encoder::Best,
    )
    .unwrap_err();
    assert!(
        error.to_string().contains("blk.0.k_mean_other_text"),
        "{error}"
    );
}

#[test]
fn the_best_encoder_is_the_better_one() {
    let capture = read(&Model::small().bytes()).unwrap();
    let formats = ["tbq3_0", "q4_polar", "q4_0"];
    let [reference, best] = [Encoder::Reference, Encoder::Best]
        .map(|encoder| measure(&capture, &formats, Center::None, Window::NONE, encoder).unwrap());
    let mse = |report, format| figures(report, format).0.k_rel_mse;
    for format in &formats[..2] {
        assert!(mse(&best, format) < mse(&reference, format), "{format}");
    }
    assert_eq!(mse(&best, "q4_0"), mse(&reference, "q4_0"));
    let error = measure(
        &capture,
        &["q4_1"],
        Center::None,
        Window::NONE,
        Encoder::Best,
    )
    .unwrap_err();
    assert!(
        error.to_string().contains("`q4_1`; there are tbq3_0, "),
        "{error}"
    );
}

#[test]
fn halves_are_read_as_what_they_are() {
    let one = Model {
        layers: vec![0],
        ..Model::small()
    };
    for (dtype, one_and_a_half) in [(Dtype::F16, 0x3e00u16), (Dtype::BF16, 0x3fc0)] {
        let mut tensors = one.tensors();
        tensors[1].dtype = dtype;
        tensors[1].bytes = (0..2 * 40 * 128)
            .flat_map(|_| one_and_a_half.to_le_bytes())
            .collect();
        let capture = read(&file(tensors, one.metadata())).unwrap();
        assert!(capture.layers[0].k.iter().all(|k| *k == 1.5), "{dtype:?}");
        assert_eq!(capture.q_positions, Model::positions().1);
    }
}

#[test]
fn captures_that_are_not_right_are_refused() {
    type Change = (fn(&mut Vec<Tensor>), &'static str);
    let tensors: &[Change] = &[
        (|t| t.clear(), "none of them"),
        (|t| drop(t.remove(3)), "expected tensor blk.7.q"),
        (|t| drop(t.remove(1)), "expected tensor blk.0.k"),
        (
            |t| t[0].shape = vec![4, 4, 256],
            "blk.0.q of shape [4, any, 128], found [4, 4, 256]",
        ),
        (
            |t| t[2].shape = vec![1, 80, 128],
            "blk.0.v of shape [2, 40, 128]",
        ),
        (
            |t| t[1].dtype = Dtype::I32,
            "blk.0.k of F16, BF16 or F32, found I32",
        ),
        (
            |t| t[1].bytes[20..24].copy_from_slice(&f32::NAN.to_le_bytes()),
            "blk.0.k of finite values, found value 5 is NaN",
        ),
    ];
    let model = Model::small();
    for (change, about) in tensors {
        let mut tensors = model.tensors();
        change(&mut tensors);
        let said = read(&file(tensors, model.metadata()))
            .unwrap_err()
            .to_string();
        assert!(said.contains(about), "{about}: {said}");
        assert!(said.contains("kv.safetensors: expected "), "{said}");
    }
    for (key, value, about) in [
        ("model", None, "`model` in the metadata, found none"),
        ("q_positions", None, "`q_positions` in the metadata"),
        ("head_dim", Some("0"), "found 0"),
        (
            "head_dim",
            Some("many"),
            "a number as `head_dim` in the metadata, found many",
        ),
        ("n_kv_heads", Some("3"), "found 4 and 3"),
        ("n_kv_heads", Some("0"), "found 4 and 0"),
        ("kq_scale", Some("inf"), "finite kq_scale"),
        (
            "n_tokens",
            Some("38"),
            "n_tokens = 38 keys in blk.0.k, found 40",
        ),
        ("n_tokens", Some("5000000000"), "in blk.0.k, found 40"),
        ("q_positions", Some("40"), "each below n_tokens = 40"),
        ("q_positions", Some("20,23"), "each of the 8 queries"),
        ("q_positions", Some("0,1,...,39"), "each of the 8 queries"),
    ] {
        let mut metadata = model.metadata();
        metadata.remove(key);
        metadata.extend(value.map(|v| (key.to_string(), v.to_string())));
        let said = read(&file(model.tensors(), metadata))
            .unwrap_err()
            .to_string();
        assert!(said.contains(about), "{about}: {said}");
    }
    let bytes = model.bytes();
    for cut in [0, 7, 8, 100, bytes.len() - 1] {
        let said = read(&bytes[..cut]).unwrap_err().to_string();
        assert!(said.contains("expected a safetensors file"), "{said}");
    }
}
