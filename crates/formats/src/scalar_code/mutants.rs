//! Changes every constant of the scalar codes by a little and demands that the
//! golden rows notice. (The large tables have checksums in `tests/golden.rs`.)

#[path = "../../tests/golden/mod.rs"]
mod data;

use std::{boxed::Box, string::String, vec, vec::Vec};

use super::{Scalar, decode, encode};
use crate::q4_polar::{self, Residual};
use crate::{Code, Domain, FORMATS, FormatSpec, Packing, Rotation, Scale, Transform};
use crate::{oracle, tbq3_0, tbq4_0, turbo3_legacy, turbo4_legacy, wht128};

/// Formats with a scalar code and golden rows.
fn scalar() -> impl Iterator<Item = &'static FormatSpec> {
    let formats = FORMATS.iter().copied();
    formats.filter(|f| matches!(f.code, Code::Scalar { .. }) && f.name != data::WITHOUT_ROWS)
}

fn with_scalar(spec: &FormatSpec, change: impl FnOnce(&mut Scalar)) -> FormatSpec {
    let mut scalar = Scalar::of(spec);
    change(&mut scalar);
    let Scalar {
        bits,
        packing,
        codebook,
        unit,
    } = scalar;
    let code = Code::Scalar {
        bits,
        packing,
        codebook,
        unit,
    };
    FormatSpec {
        code,
        ..spec.clone()
    }
}

fn with_entry(spec: &FormatSpec, i: usize, change: impl Fn(f32) -> f32) -> FormatSpec {
    with_scalar(spec, |scalar| {
        let mut codebook = scalar.codebook.to_vec();
        codebook[i] = change(codebook[i]);
        scalar.codebook = Box::leak(codebook.into());
    })
}

#[test]
fn unchanged_constants_pass() {
    for spec in scalar() {
        assert_eq!(notices(spec), [] as [String; 0]);
    }
    assert!(!fixture_notices(&turbo4_legacy::SPEC));
}

#[test]
fn every_codebook_entry_matters() {
    for spec in scalar() {
        for i in 0..Scalar::of(spec).codebook.len() {
            for change in [f32::next_up, f32::next_down] {
                let mutant = with_entry(spec, i, change);
                assert!(!notices(&mutant).is_empty(), "{} codebook[{i}]", spec.name);
            }
        }
    }
    // Of this one only scores are known: the last decimal of an entry shows in them.
    for i in 0..16 {
        for change in [-1e-6, 1e-6] {
            let mutant = with_entry(&turbo4_legacy::SPEC, i, |c| c + change);
            assert!(fixture_notices(&mutant), "codebook[{i}]");
        }
    }
}

#[test]
fn every_sign_matters() {
    for spec in [&tbq3_0::SPEC, &tbq4_0::SPEC] {
        let Transform::Rotation(Rotation::SignedHadamard32 { negative }) = spec.transform else {
            panic!("{} has another rotation", spec.name);
        };
        for i in 0..32 {
            let negative = negative ^ 1 << i;
            let mutant = FormatSpec {
                transform: Transform::Rotation(Rotation::SignedHadamard32 { negative }),
                ..spec.clone()
            };
            assert!(!notices(&mutant).is_empty(), "{} sign {i}", spec.name);
        }
    }
}

/// The three formats with this rotation share it as one constant; the oracle codes
/// a row by it.
#[test]
fn every_sign_of_the_wide_rotation_matters() {
    let spec = &turbo3_legacy::SPEC;
    let rows = data::load(spec.name);
    let Rotation::SignedHadamard128 { before, after } = wht128::ROTATION else {
        panic!("another rotation");
    };
    let same = |before, after| {
        let rotation = Rotation::SignedHadamard128 { before, after };
        let mutant = FormatSpec {
            transform: Transform::Rotation(rotation),
            ..spec.clone()
        };
        let same = |row: &data::Golden| oracle::encode(&mutant, &row.x) == row.blocks;
        rows.iter().all(same)
    };
    assert!(same(before, after));
    for i in 0..128 {
        assert!(!same(before ^ 1 << i, after), "{i} before");
        assert!(!same(before, after ^ 1 << i), "{i} after");
    }
}

#[test]
fn packing_matters() {
    for (spec, packing) in [
        (&tbq4_0::SPEC, Packing::Stream),
        (&q4_polar::SPEC, Packing::SplitNibbles),
        (&turbo3_legacy::SPEC, Packing::Stream),
    ] {
        let mutant = with_scalar(spec, |scalar| scalar.packing = packing);
        assert!(!notices(&mutant).is_empty(), "{}", spec.name);
    }
}

/// Golden rows that `spec` encodes or decodes to something else.
fn notices(spec: &FormatSpec) -> Vec<String> {
    let mut noticed = vec![];
    for row in data::load(spec.name) {
        let mut bytes = vec![0; row.blocks.len()];
        let mut x = vec![0.0; data::ROW];
        let mut same = true;
        match spec.scale {
            Scale::Rms => {
                encode(spec, &row.x, &mut bytes).unwrap();
                decode(spec, &row.blocks, &mut x, Domain::Original).unwrap();
                same &= bytes == row.blocks;
            }
            Scale::Length => {
                q4_polar::encode_with(spec, &row.x, &mut bytes).unwrap();
                let (domain, residual) = (Domain::Original, Residual::Ignored);
                q4_polar::decode_with(spec, &row.blocks, &mut x, domain, residual).unwrap();
                same &= bytes == row.blocks;
            }
            // Its codes depend on published borders, not on the codebook.
            Scale::KeepsLength => decode(spec, &row.blocks, &mut x, Domain::Rotated).unwrap(),
        }
        if !same || x != row.decoded {
            noticed.push(row.name);
        }
    }
    noticed
}

/// Whether a published score of the format without rows comes out as another one.
fn fixture_notices(spec: &FormatSpec) -> bool {
    let file = data::read("fixture_turbo4_legacy");
    let q = data::floats(&file["q_rotated"]);
    let errors = (0..8).map(|i| {
        let mut x = vec![0.0; data::ROW];
        let block = data::bytes(&file["blocks"][i]);
        decode(spec, &block, &mut x, Domain::Rotated).unwrap();
        let products = x.iter().zip(&q).map(|(x, q)| f64::from(*x) * f64::from(*q));
        let score: f64 = products.sum();
        (score - file["scores"][i].as_f64().unwrap()).abs()
    });
    // They were published with six decimals and summed up in fp32.
    errors.fold(0.0, f64::max) > 1e-5
}
