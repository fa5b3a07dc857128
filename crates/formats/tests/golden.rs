//! The codecs and the oracle against numbers from outside.

#[path = "golden/mod.rs"]
mod data;

use data::{Golden, ROW};
use kvforge_formats::q4_polar::{self, Residual};
use kvforge_formats::{
    Code, Domain, FORMATS, FormatSpec, PROJECTION, oracle, qjl1_256, tbq3_tcq, turbo4_legacy,
};

/// Every format that has golden rows, with each of them.
fn golden() -> impl Iterator<Item = (&'static FormatSpec, Golden)> {
    let with_rows = FORMATS
        .iter()
        .filter(|spec| spec.name != data::WITHOUT_ROWS);
    with_rows.flat_map(|spec| data::load(spec.name).into_iter().map(|row| (*spec, row)))
}

#[test]
fn encoders_are_byte_exact() {
    for (spec, row) in golden() {
        let bytes = encode(spec, &row.x);
        assert_eq!(bytes, row.blocks, "{} {}", spec.name, row.name);
    }
}

#[test]
fn decoders_are_exact() {
    for (spec, row) in golden() {
        let x = decode(spec, &row.blocks, domain_of(&row));
        assert_eq!(x, row.decoded, "{} {}", spec.name, row.name);
    }
}

#[test]
fn oracle_decodes_the_public_bytes() {
    for (spec, row) in golden() {
        let exact = match domain_of(&row) {
            Domain::Original => oracle::decode(spec, &row.blocks),
            Domain::Rotated => oracle::decode_rotated(spec, &row.blocks),
        };
        near(&row.decoded, &exact, &row.name);
    }
}

/// In f64 the codes come out the same, but for a row of zeros and the trellis: its
/// cheapest walk goes round four small values, and starting with the first of them
/// costs what starting with the third does, but for the order of fp32 sums.
#[test]
fn oracle_encodes_and_accepts_the_public_bytes() {
    for (spec, row) in golden() {
        oracle::judge(spec, &row.x, &row.blocks).unwrap();
        if (spec.name, &row.name[..]) != ("tbq3_tcq", "zeros") {
            let bytes = oracle::encode(spec, &row.x);
            assert_eq!(bytes, row.blocks, "{} {}", spec.name, row.name);
        }
    }
}

/// `<T^T c, q> = <c, T q>`: a raw query with decoded keys and a transformed query
/// with coded keys give the public score.
#[test]
fn scores_agree_in_both_domains() {
    for (spec, row) in golden() {
        let coded = decode(spec, &row.blocks, Domain::Rotated);
        let mut coded_q = vec![0.0; coded.len()];
        spec.transform.forward(&row.q, &mut coded_q);
        let raw = dot(&decode(spec, &row.blocks, Domain::Original), &row.q);
        let by_oracle = oracle::scores(&oracle::Scores {
            head_dim: ROW,
            n_heads: 1,
            n_kv_heads: 1,
            n_q: 1,
            n_kv: 1,
            q: oracle::Tensor::by_row(oracle::Type::F32, &row.q, ROW, 1),
            k: oracle::Tensor {
                ty: spec.into(),
                bytes: row.blocks.clone(),
                ..Default::default()
            },
        });
        let limit = limit(spec, &coded_q, &coded);
        for (how, score) in [
            ("raw", raw),
            ("coded", dot(&coded, &coded_q)),
            ("oracle", by_oracle[0]),
        ] {
            assert!(
                (score - row.score).abs() <= limit,
                "{} {} {how}: {score} against {}",
                spec.name,
                row.name,
                row.score
            );
        }
    }
}

/// What the public code makes of the query for each transform.
#[test]
fn queries_transform_as_published() {
    for (spec, key, factor) in [
        (&tbq3_tcq::SPEC, "q_rotated", 1.0),
        (&qjl1_256::SPEC, "q_sketch", 1.0),
        // The published butterfly is not scaled.
        (&q4_polar::SPEC, "q_preht", 128f64.sqrt()),
    ] {
        let q = data::floats(&data::read("inputs")["q"]);
        let public = data::floats(&data::read(spec.name)[key]);
        let mut ours = vec![0.0; spec.len_in(Domain::Rotated)];
        spec.transform.forward(&q, &mut ours);
        let ours: Vec<f64> = ours.iter().map(|v| f64::from(*v) * factor).collect();
        near(&public, &ours, spec.name);
        if factor == 1.0 {
            let ours: Vec<f32> = ours.iter().map(|v| *v as f32).collect();
            assert_eq!(ours, public, "{}", spec.name);
        }
    }
}

/// Polar's residual, and its scores from a query that went through the butterfly
/// first: `<x, q> = norm / 128 * <c, H q>`.
#[test]
fn polar_residual_and_early_butterfly_are_as_published() {
    let spec = &q4_polar::SPEC;
    let file = data::read(spec.name);
    let early_q = data::floats(&file["q_preht"]);
    for (i, row) in data::load(spec.name).iter().enumerate() {
        let read = |domain, residual| {
            let mut x = vec![0.0; ROW];
            q4_polar::decode(&row.blocks, &mut x, domain, residual).unwrap();
            x
        };
        let added = read(Domain::Original, Residual::Added);
        assert_eq!(added, data::floats(&file["decoded_residual"][i]));
        near(&added, &oracle::decode_residual(&row.blocks), &row.name);
        assert_eq!(read(Domain::Original, Residual::Ignored), row.decoded);
        for (residual, raw, early) in [
            (Residual::Ignored, "scores", "scores_preht"),
            (Residual::Added, "scores_residual", "scores_preht_residual"),
        ] {
            let public = |key: &str| file[key][i].as_f64().unwrap();
            let (x, c) = (
                read(Domain::Original, residual),
                read(Domain::Rotated, residual),
            );
            let limit = limit(spec, &row.q, &x);
            assert!(
                (dot(&x, &row.q) - public(raw)).abs() <= limit,
                "{}",
                row.name
            );
            let score = dot(&c, &early_q) / 128f64.sqrt();
            assert!((score - public(early)).abs() <= limit, "{}", row.name);
        }
    }
}

/// Blocks and scores that were published with a query already rotated.
#[test]
fn published_fixtures_score_as_published() {
    for spec in [&tbq3_tcq::SPEC, &turbo4_legacy::SPEC] {
        let file = data::read(&format!("fixture_{}", spec.name));
        let q = data::floats(&file["q_rotated"]);
        let blocks = file["blocks"].as_array().unwrap();
        assert_eq!(blocks.len(), 8);
        for (block, score) in blocks.iter().zip(file["scores"].as_array().unwrap()) {
            let block = data::bytes(block);
            let coded = decode(spec, &block, Domain::Rotated);
            near(&coded, &oracle::decode_rotated(spec, &block), spec.name);
            // Published with six decimals, and summed up in fp32.
            let error = dot(&coded, &q) - score.as_f64().unwrap();
            assert!(error.abs() <= 1e-5, "{}: off by {error}", spec.name);
            // What was coded before has the same nearest codes. (A trellis is chosen for
            // the length of the block, so its decoded block may have another one.)
            if *spec == turbo4_legacy::SPEC {
                let x = decode(spec, &block, Domain::Original);
                assert_eq!(encode(spec, &x), block);
                oracle::judge(spec, &x, &block).unwrap();
            }
        }
    }
}

/// The large tables are the published ones, by a checksum of their little-endian
/// bytes that was taken from those once (FNV-1a of 64 bits).
#[test]
fn tables_are_the_published_ones() {
    let Code::Trellis { codebook } = tbq3_tcq::SPEC.code else {
        panic!("not a trellis");
    };
    for (table, sum) in [
        (PROJECTION.as_flattened(), 0x038c_512b_b1c1_ca6d),
        (codebook, 0x60d9_14ef_808e_bd1d),
    ] {
        let bytes = table.iter().flat_map(|v| v.to_le_bytes());
        let found = bytes.fold(0xcbf2_9ce4_8422_2325u64, |sum, byte| {
            (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
        assert_eq!(found, sum);
    }
}

/// The projection, entry by entry, is what `std` makes of its definition: the oracle
/// computes it so, and projects a unit vector to a row of it.
#[test]
fn projection_is_what_std_computes() {
    for (i, row) in PROJECTION.iter().enumerate() {
        let mut unit = vec![0.0; ROW];
        unit[i] = 1.0;
        let by_oracle = oracle::rotate(&qjl1_256::SPEC, &unit);
        assert!(row.iter().zip(&by_oracle).all(|(a, b)| f64::from(*a) == *b));
    }
}

/// The signs of Polar's residual, taken from the public rows: what it adds to a
/// rotated block.
#[test]
fn residual_signs_are_the_published_ones() {
    let file = data::read("q4_polar");
    for (i, row) in data::load("q4_polar").iter().enumerate() {
        if row.blocks[..2] == [0, 0] {
            continue;
        }
        let added = data::floats(&file["decoded_residual"][i]);
        let added: Vec<f64> = added
            .iter()
            .zip(&row.decoded)
            .map(|(a, b)| f64::from(a - b))
            .collect();
        let rotated = oracle::rotate(&q4_polar::SPEC, &added);
        let negative = rotated
            .iter()
            .enumerate()
            .fold(0u128, |mask, (i, v)| mask | u128::from(*v < 0.0) << i);
        let turned = if row.blocks[66] == 1 { 0 } else { !0 };
        assert_eq!(
            negative ^ turned,
            q4_polar::RESIDUAL_NEGATIVE,
            "{}",
            row.name
        );
    }
}

fn domain_of(row: &Golden) -> Domain {
    if row.rotated {
        Domain::Rotated
    } else {
        Domain::Original
    }
}

fn encode(spec: &FormatSpec, x: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; spec.row_bytes(x.len()).unwrap()];
    (spec.encode)(x, &mut bytes).unwrap();
    bytes
}

fn decode(spec: &FormatSpec, bytes: &[u8], domain: Domain) -> Vec<f32> {
    let mut x = vec![0.0; bytes.len() / spec.block_bytes * spec.len_in(domain)];
    (spec.decode)(bytes, &mut x, domain).unwrap();
    x
}

/// Equal but for fp32 rounding of 256 terms, relative to the largest value.
fn near(ours: &[f32], exact: &[f64], name: &str) {
    assert_eq!(ours.len(), exact.len());
    let largest = exact.iter().fold(0f64, |m, v| m.max(v.abs()));
    for (ours, exact) in ours.iter().zip(exact) {
        let error = (f64::from(*ours) - exact).abs();
        assert!(error <= 1e-6 * largest, "{name}: {ours} against {exact}");
    }
}

/// How far apart two scores of a query and a key may be.
fn limit(spec: &FormatSpec, q: &[f32], k: &[f32]) -> f64 {
    spec.tolerance.score * dot(q, q).sqrt() * dot(k, k).sqrt()
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    let products = a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b));
    products.sum()
}
