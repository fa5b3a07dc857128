//! Every kind of public fixture: it passes as it is, and fails when a byte or an expected
//! number is another one.
//!
//! Two are the published files. The others are made here: blocks by the reference encoders,
//! expected numbers by formulas of the layouts that share nothing with the decoders.

mod common;

use std::fs;
use std::path::Path;

use common::{dot, gaussian, softmax};
use kvforge::fixture::{self, Verdict};
use kvforge_formats::{Code, Domain, FormatSpec, by_name, f16_to_f32};
use serde_json::{Value, json};

fn verify(fixture: &Value) -> Result<Verdict, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("fixture.json");
    fs::write(&path, fixture.to_string()).unwrap();
    fixture::verify(&path).map_err(|e| e.to_string())
}

fn published(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name);
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// That it passes when read as `codec`, and not with any of the given numbers changed:
/// bytes by one bit, expected ones by twice the tolerance.
fn passes_only_as_it_is(fixture: &Value, codec: &str, outputs: usize, numbers: &[&str]) {
    let verdict = verify(fixture).unwrap();
    let reading = verdict.fitting().unwrap_or_else(|| panic!("{verdict:?}"));
    assert_eq!((reading.codec.as_str(), reading.outputs), (codec, outputs));
    assert_eq!(verdict.kernel, fixture["kernel"]);
    for pointer in numbers {
        let mut changed = fixture.clone();
        let number = changed.pointer_mut(pointer).expect(pointer);
        *number = match number.as_u64() {
            Some(byte) => json!(byte ^ 0x20),
            None => json!(number.as_f64().unwrap() + 2.0 * fixture::TOLERANCE),
        };
        let verdict = verify(&changed).unwrap();
        assert!(verdict.fitting().is_none(), "{pointer}: {verdict:?}");
    }
}

#[test]
fn published_files() {
    let numbers = ["/k_blocks/30", "/k_blocks/1", "/expected_scores/7", "/q/3"];
    let tcq = published("turbo3_tcq.json");
    passes_only_as_it_is(&tcq, "tbq3_tcq", 8, &numbers);
    let turbo4 = published("turbo4_legacy66.json");
    passes_only_as_it_is(&turbo4, "turbo4_legacy", 8, &numbers);
}

fn spec(name: &str) -> &'static FormatSpec {
    by_name(name).unwrap()
}

/// Blocks of `n` rows of 128 values.
fn blocks(name: &str, seed: u64, n: usize) -> Vec<u8> {
    let spec = spec(name);
    let row = spec.row_bytes(128).unwrap();
    let mut bytes = vec![0; n * row];
    let x = gaussian(seed, n * 128);
    for (bytes, x) in bytes.chunks_exact_mut(row).zip(x.chunks_exact(128)) {
        (spec.encode)(x, bytes).unwrap();
    }
    bytes
}

fn decoded(name: &str, bytes: &[u8], domain: Domain) -> Vec<Vec<f32>> {
    let spec = spec(name);
    let rows = bytes.chunks_exact(spec.row_bytes(128).unwrap());
    rows.map(|bytes| {
        let mut x = vec![0.0; 128];
        (spec.decode)(bytes, &mut x, domain).unwrap();
        x
    })
    .collect()
}

/// A turbo3 fixture says its bytes only: two codecs take as many.
#[test]
fn turbo3_and_turbo4_are_told_apart() {
    for (kernel, codec, block_bytes, seed) in [
        ("turbo3", "tbq3_0", 14, 1),
        ("turbo3", "turbo3_legacy", 14, 2),
        ("turbo4", "tbq4_0", 18, 3),
    ] {
        let (q, k) = (gaussian(seed + 10, 128), blocks(codec, seed, 5));
        let keys = decoded(codec, &k, Domain::Rotated);
        let fixture = json!({
            "kernel": kernel, "head_dim": 128, "n_kv": 5,
            "block_bytes": block_bytes, "blocks_per_kv": 4,
            "q": q, "k_blocks": k,
            "expected_scores": keys.iter().map(|k| dot(&q, k)).collect::<Vec<_>>(),
        });
        let numbers = ["/k_blocks/3", "/expected_scores/4", "/q/0"];
        passes_only_as_it_is(&fixture, codec, 5, &numbers);
    }
}

/// `sqrt(pi / 2) / 256 * norm * sum (+-1) sketch`.
fn sketch_score(block: &[u8], sketch: &[f32]) -> f64 {
    let norm = f32::from_bits(u32::from(u16::from_le_bytes([block[32], block[33]])) << 16);
    let signed = sketch
        .iter()
        .enumerate()
        .map(|(j, s)| match block[j / 8] >> (j % 8) & 1 {
            1 => f64::from(*s),
            _ => -f64::from(*s),
        });
    (std::f64::consts::FRAC_PI_2).sqrt() / 256.0 * f64::from(norm) * signed.sum::<f64>()
}

#[test]
fn qjl() {
    let (sketch, k) = (gaussian(4, 4 * 256), blocks("qjl1_256", 5, 2 * 3));
    let keys: Vec<&[u8]> = k.chunks_exact(34).collect();
    let scores = (0..4).flat_map(|h| {
        let sketch = &sketch[h * 256..][..256];
        keys[h / 2 * 3..][..3]
            .iter()
            .map(|k| sketch_score(k, sketch))
            .collect::<Vec<_>>()
    });
    let fixture = json!({
        "kernel": "qjl", "head_dim": 128, "proj_dim": 256, "n_heads": 4, "n_kv_heads": 2,
        "n_tokens": 3, "block_bytes": 34, "q_sketch": sketch, "k_blocks": k,
        "expected_scores": scores.collect::<Vec<_>>(),
    });
    let numbers = ["/k_blocks/3", "/k_blocks/170", "/expected_scores/11"];
    passes_only_as_it_is(&fixture, "qjl1_256", 12, &numbers);
}

fn hadamard(x: &[f64]) -> Vec<f64> {
    let sign = |i: usize, j: usize| {
        if (i & j).count_ones().is_multiple_of(2) {
            1.0
        } else {
            -1.0
        }
    };
    let entry = |i| x.iter().enumerate().map(|(j, x)| sign(i, j) * x).sum();
    (0..x.len()).map(entry).collect()
}

/// The published five steps of the decoder, in fp64.
fn polar_decode(block: &[u8], residual: bool) -> Vec<f64> {
    let Code::Scalar { codebook, .. } = spec("q4_polar").code else {
        panic!("q4_polar has scalar codes");
    };
    let norm = f64::from(f16_to_f32(u16::from_le_bytes([block[0], block[1]])));
    let mut state = 42u32;
    let values: Vec<f64> = (0..128)
        .map(|i| {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            let plus = (state & 1 == 1) == (block[66] & 1 == 1);
            let step = 0.5 / 128f64.sqrt() * if plus { 1.0 } else { -1.0 };
            let code = block[2 + i / 2] >> (i % 2 * 4) & 15;
            f64::from(codebook[usize::from(code)]) + if residual { step } else { 0.0 }
        })
        .collect();
    hadamard(&values).iter().map(|v| v / 128.0 * norm).collect()
}

fn polar_scores(k: &[u8], residual: bool, q: &[f32]) -> Vec<f64> {
    let rows = k
        .chunks_exact(82)
        .map(|block| polar_decode(block, residual));
    rows.map(|k| k.iter().zip(q).map(|(k, q)| k * f64::from(*q)).sum())
        .collect()
}

#[test]
fn polar() {
    for (residual, codec) in [
        (false, "q4_polar"),
        (true, "q4_polar with the residual bit"),
    ] {
        let (q, k) = (gaussian(6, 128), blocks("q4_polar", 7, 4));
        let fixture = json!({
            "kernel": "polar", "head_dim": 128, "n_rows": 4, "block_bytes": 82,
            "use_qjl": i32::from(residual), "q": q, "k_blocks": k,
            "expected_scores": polar_scores(&k, residual, &q),
        });
        passes_only_as_it_is(
            &fixture,
            codec,
            4,
            &["/k_blocks/3", "/expected_scores/0", "/q/9"],
        );
        // The other way to read the residual bit is another format.
        let mut other = fixture.clone();
        other["use_qjl"] = json!(i32::from(!residual));
        assert!(verify(&other).unwrap().fitting().is_none(), "{codec}");
    }
}

#[test]
fn polar_with_a_transformed_query() {
    let q = gaussian(8, 128);
    let (plain, with_bit) = (blocks("q4_polar", 9, 3), blocks("q4_polar", 10, 3));
    let wide: Vec<f64> = q.iter().map(|q| f64::from(*q)).collect();
    let fixture = json!({
        "kernel": "polar_preht", "head_dim": 128, "n_rows": 3, "block_bytes": 82,
        "hadamard_inv_scale": 1.0 / 128.0, "q": q, "hq": hadamard(&wide),
        "k_blocks": plain, "k_blocks_qjl": with_bit,
        "expected_scores": polar_scores(&plain, false, &q),
        "expected_scores_qjl": polar_scores(&with_bit, true, &q),
    });
    let numbers = [
        "/k_blocks/3",
        "/k_blocks_qjl/3",
        "/expected_scores/2",
        "/expected_scores_qjl/2",
    ];
    passes_only_as_it_is(
        &fixture,
        "q4_polar without and with the residual bit",
        6,
        &numbers,
    );
}

/// Two cases, one of them causal; four query heads on two kv heads.
#[test]
fn fused_attention() {
    for (kernel, v_format, residual) in [
        ("fused_attn_qjl_tbq", "tbq3_0", false),
        ("fused_attn_qjl_polar", "q4_polar", true),
    ] {
        let sm_scale = 0.3;
        let case = |n_kv: usize, q_pos_base: Option<usize>| {
            let sketch = gaussian(11, 4 * 256);
            let (k, v) = (
                blocks("qjl1_256", 12, 2 * n_kv),
                blocks(v_format, 13, 2 * n_kv),
            );
            let values: Vec<Vec<f64>> = match residual {
                true => v.chunks_exact(82).map(|v| polar_decode(v, true)).collect(),
                false => decoded(v_format, &v, Domain::Original)
                    .iter()
                    .map(|v| v.iter().map(|v| f64::from(*v)).collect())
                    .collect(),
            };
            let seen = q_pos_base.map_or(n_kv, |base| base + 1);
            let mut out = vec![];
            for (h, sketch) in sketch.chunks_exact(256).enumerate() {
                let first = h / 2 * n_kv;
                let keys = k.chunks_exact(34).skip(first).take(seen);
                let scores: Vec<f64> = keys.map(|k| sm_scale * sketch_score(k, sketch)).collect();
                let weights = softmax(&scores);
                out.extend((0..128).map(|i| -> f64 {
                    let values = weights.iter().zip(&values[first..]);
                    values.map(|(w, v)| w * v[i]).sum()
                }));
            }
            let mut case = json!({
                "n_heads": 4, "n_kv_heads": 2, "n_kv": n_kv, "q_sketch": sketch,
                "k_blocks": k, "v_blocks": v, "expected_out": out,
            });
            if let Some(base) = q_pos_base {
                case["causal"] = json!(1);
                case["q_pos_base"] = json!(base);
            }
            case
        };
        let v_spec = spec(v_format);
        let fixture = json!({
            "kernel": kernel, "head_dim": 128, "proj_dim": 256, "k_block_bytes": 34,
            "v_block_bytes": v_spec.block_bytes, "v_blocks_per_token": 128 / v_spec.block_len,
            "use_qjl": i32::from(residual), "sm_scale": sm_scale, "q_is_pre_projected": 1,
            "cases": [case(5, None), case(9, Some(4)), case(6, Some(0))],
        });
        let codec = format!("qjl1_256 keys, {v_format} values");
        let numbers = [
            "/cases/0/k_blocks/33",
            "/cases/0/v_blocks/1",
            "/cases/1/k_blocks/33",
            "/cases/2/expected_out/511",
        ];
        passes_only_as_it_is(&fixture, &codec, 3 * 512, &numbers);
        // What is after the query's position is not seen.
        let mut unseen = fixture.clone();
        unseen["cases"][1]["q_pos_base"] = json!(5);
        assert!(verify(&unseen).unwrap().fitting().is_none());
    }
}

#[test]
fn what_cannot_be_read_is_refused_by_name() {
    let good = published("turbo3_tcq.json");
    let with = |key: &str, value: Value| {
        let mut changed = good.clone();
        changed[key] = value;
        changed
    };
    for (fixture, about) in [
        (with("kernel", json!("turbo5")), "unknown variant `turbo5`"),
        (with("block_bytes", json!(50)), "found block_bytes 50"),
        (
            with("blocks_per_kv", json!(u64::MAX)),
            "found block_bytes 52, blocks_per_kv 18446744073709551615",
        ),
        (with("head_dim", json!(64)), "q: 64, found 128"),
        (with("n_kv", json!(9)), "rows of blocks: 9, found 8"),
        (
            with("expected_scores", json!([1.0])),
            "expected outputs: 8, found 1",
        ),
        (with("k_blocks", json!([1, 2, 3])), "whole rows of 52 bytes"),
        (with("k_blocks", json!([1, 256])), "256"),
        (with("q", json!("all")), "q"),
        (json!({"q": []}), "missing field `kernel`"),
        (json!([]), "fixture of a known kind"),
        (
            json!({
                "kernel": "turbo3_tcq", "head_dim": 0, "n_kv": 0, "block_bytes": 52,
                "blocks_per_kv": 0, "q": [], "k_blocks": [], "expected_scores": [],
            }),
            "found rows of 0",
        ),
        (
            json!({
                "kernel": "turbo3_tcq", "head_dim": 128, "n_kv": 0, "block_bytes": 52,
                "blocks_per_kv": 1, "q": vec![0.0; 128], "k_blocks": [], "expected_scores": [],
            }),
            "expected outputs to compare, found none",
        ),
        (
            json!({
                "kernel": "qjl", "head_dim": 128, "proj_dim": 128, "n_heads": 1, "n_kv_heads": 1,
                "n_tokens": 0, "block_bytes": 34, "q_sketch": [], "k_blocks": [], "expected_scores": [],
            }),
            "proj_dim: 256, found 128",
        ),
        (
            json!({
                "kernel": "qjl", "head_dim": 128, "proj_dim": 256, "n_heads": 3, "n_kv_heads": 2,
                "n_tokens": 0, "block_bytes": 34, "q_sketch": [], "k_blocks": [], "expected_scores": [],
            }),
            "found 3 and 2",
        ),
        (
            json!({
                "kernel": "polar", "head_dim": 128, "n_rows": 0, "block_bytes": 81, "use_qjl": 0,
                "q": [], "k_blocks": [], "expected_scores": [],
            }),
            "block_bytes: 82, found 81",
        ),
        (
            json!({
                "kernel": "fused_attn_qjl_tbq", "head_dim": 128, "proj_dim": 256, "k_block_bytes": 34,
                "v_block_bytes": 18, "v_blocks_per_token": 4, "sm_scale": 1.0,
                "q_is_pre_projected": 1, "cases": [],
            }),
            "v_block_bytes: 14, found 18",
        ),
        (
            json!({
                "kernel": "fused_attn_qjl_tbq", "head_dim": 128, "proj_dim": 256, "k_block_bytes": 34,
                "v_block_bytes": 14, "v_blocks_per_token": 4, "sm_scale": 1.0,
                "q_is_pre_projected": 0, "cases": [],
            }),
            "q_is_pre_projected: 1, found 0",
        ),
    ] {
        let said = verify(&fixture).expect_err(about);
        assert!(said.contains(about), "{about}: {said}");
        assert!(said.contains("fixture.json: expected "), "{said}");
    }
}
