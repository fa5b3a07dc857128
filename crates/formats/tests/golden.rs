//! The codecs and the oracle against numbers from outside.

#[path = "golden/mod.rs"]
mod data;

use data::ROW;
use kvforge_formats::{Domain, FORMATS, FormatSpec, oracle};

#[test]
fn encoders_are_byte_exact() {
    for spec in FORMATS {
        for row in data::load(spec.name) {
            assert_eq!(
                encode(spec, &row.x),
                row.blocks,
                "{} {}",
                spec.name,
                row.name
            );
        }
    }
}

#[test]
fn decoders_are_exact() {
    for spec in FORMATS {
        for row in data::load(spec.name) {
            let x = decode(spec, &row.blocks, Domain::Original);
            assert_eq!(x, row.decoded, "{} {}", spec.name, row.name);
        }
    }
}

/// `f32` rounding of 32 terms, relative to the largest value of the row.
const ROUNDING: f64 = 1e-6;

#[test]
fn oracle_decodes_the_public_bytes() {
    for spec in FORMATS {
        for row in data::load(spec.name) {
            let largest = row.decoded.iter().fold(0f32, |m, v| m.max(v.abs()));
            for (ours, public) in oracle::decode(spec, &row.blocks).iter().zip(&row.decoded) {
                let error = (ours - f64::from(*public)).abs();
                assert!(
                    error <= ROUNDING * f64::from(largest),
                    "{} {}: {ours} against {public}",
                    spec.name,
                    row.name
                );
            }
        }
    }
}

#[test]
fn oracle_encodes_and_accepts_the_public_bytes() {
    for spec in FORMATS {
        for row in data::load(spec.name) {
            oracle::judge(spec, &row.x, &row.blocks).unwrap();
            assert_eq!(oracle::encode(spec, &row.x), row.blocks, "{}", row.name);
        }
    }
}

/// `<x, q> = <R x, R q>`: a raw query with decoded keys and a rotated query with
/// rotated keys give the public score.
#[test]
fn scores_agree_in_both_domains() {
    for spec in FORMATS {
        for row in data::load(spec.name) {
            let mut rotated_q = row.q.clone();
            spec.rotation.rotate(&mut rotated_q);
            let raw = dot(&decode(spec, &row.blocks, Domain::Original), &row.q);
            let rotated = dot(&decode(spec, &row.blocks, Domain::Rotated), &rotated_q);
            let limit = spec.tolerance.score * norm(&row.q) * norm(&row.decoded);
            for (domain, score) in [("raw", raw), ("rotated", rotated)] {
                assert!(
                    (score - row.score).abs() <= limit,
                    "{} {} {domain}: {score} against {}",
                    spec.name,
                    row.name,
                    row.score
                );
            }
            let scores = oracle::scores(&oracle::Scores {
                head_dim: ROW,
                n_heads: 1,
                n_kv_heads: 1,
                n_q: 1,
                n_kv: 1,
                q: oracle::Tensor::by_row(oracle::Type::F32, &row.q, ROW, 1),
                k: oracle::Tensor {
                    ty: (*spec).into(),
                    bytes: row.blocks.clone(),
                    ..Default::default()
                },
            });
            assert!(
                (scores[0] - row.score).abs() <= limit,
                "{} {}",
                spec.name,
                row.name
            );
        }
    }
}

fn encode(spec: &FormatSpec, x: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; spec.row_bytes(x.len()).unwrap()];
    (spec.encode)(x, &mut bytes).unwrap();
    bytes
}

fn decode(spec: &FormatSpec, bytes: &[u8], domain: Domain) -> Vec<f32> {
    let mut x = vec![0.0; ROW];
    (spec.decode)(bytes, &mut x, domain).unwrap();
    x
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter()
        .zip(b)
        .map(|(a, b)| f64::from(*a) * f64::from(*b))
        .sum()
}

fn norm(x: &[f32]) -> f64 {
    dot(x, x).sqrt()
}
