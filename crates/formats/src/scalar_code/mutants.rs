//! Changes every constant of a format by a little and demands that the golden
//! rows notice.

#[path = "../../tests/golden/mod.rs"]
mod data;

use std::{boxed::Box, string::String, vec, vec::Vec};

use super::{decode, encode};
use crate::{Domain, FORMATS, FormatSpec, Packing, Rotation};

#[test]
fn unchanged_constants_pass() {
    for spec in FORMATS {
        assert_eq!(notices(spec), [] as [String; 0]);
    }
}

#[test]
fn every_codebook_entry_matters() {
    for spec in FORMATS {
        for i in 0..spec.codebook.len() {
            for change in [f32::next_up, f32::next_down] {
                let mut codebook = spec.codebook.to_vec();
                codebook[i] = change(codebook[i]);
                let mutant = FormatSpec {
                    codebook: Box::leak(codebook.into()),
                    ..(*spec).clone()
                };
                assert!(!notices(&mutant).is_empty(), "{} codebook[{i}]", spec.name);
            }
        }
    }
}

#[test]
fn every_sign_matters() {
    for spec in FORMATS {
        let Rotation::SignedHadamard32 { negative } = spec.rotation;
        for i in 0..32 {
            let mutant = FormatSpec {
                rotation: Rotation::SignedHadamard32 {
                    negative: negative ^ 1 << i,
                },
                ..(*spec).clone()
            };
            assert!(!notices(&mutant).is_empty(), "{} sign {i}", spec.name);
        }
    }
}

#[test]
fn packing_matters() {
    let spec = &crate::tbq4_0::SPEC;
    assert_eq!(spec.packing, Packing::SplitNibbles);
    let mutant = FormatSpec {
        packing: Packing::Stream,
        ..spec.clone()
    };
    assert!(!notices(&mutant).is_empty());
}

/// Golden rows that `spec` encodes or decodes to something else.
fn notices(spec: &FormatSpec) -> Vec<String> {
    let mut noticed = vec![];
    for row in data::load(spec.name) {
        let mut bytes = vec![0; row.blocks.len()];
        encode(spec, &row.x, &mut bytes).unwrap();
        let mut x = vec![0.0; data::ROW];
        decode(spec, &row.blocks, &mut x, Domain::Original).unwrap();
        if bytes != row.blocks || x != row.decoded {
            noticed.push(row.name);
        }
    }
    noticed
}
