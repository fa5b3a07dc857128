use std::format;
use std::string::ToString as _;
use std::vec;
use std::vec::Vec;

use kvforge_formats::Fnv;

use crate::centre::mean_turn;
use crate::layout::{HEADER_BYTES, PREFIX_BYTES};
use crate::*;

/// The matrix of RoPE at position 1: pairs, their angles and a factor on them.
fn matrix(head_dim: usize, pairs: &[(usize, usize)], theta: &[f64], scale: f64) -> Vec<f32> {
    let mut m = vec![0.0; head_dim * head_dim];
    for i in 0..head_dim {
        m[i * head_dim + i] = 1.0;
    }
    for (&(a, b), theta) in pairs.iter().zip(theta) {
        let (cos, sin) = ((scale * theta.cos()) as f32, (scale * theta.sin()) as f32);
        (m[a * head_dim + a], m[b * head_dim + b]) = (cos, cos);
        (m[a * head_dim + b], m[b * head_dim + a]) = (sin, -sin);
    }
    m
}

fn halves(head_dim: usize, n: usize) -> Vec<(usize, usize)> {
    (0..n).map(|i| (i, i + head_dim / 2)).collect()
}

fn angles(n: usize) -> Vec<f64> {
    (0..n)
        .map(|i| 1e7_f64.powf(-(i as f64) / n as f64))
        .collect()
}

#[test]
fn pairs_are_found_whatever_their_order_and_speed() {
    let neighbours: Vec<_> = (0..8).map(|i| (2 * i, 2 * i + 1)).collect();
    let slow = [1.0, 1e-3, 1e-7, 1e-30, -0.5, 3.0, 0.1, 0.01];
    for (pairs, scale) in [
        (halves(16, 8), 1.0),
        (neighbours, 1.35),
        (halves(16, 3), 0.7),
    ] {
        let m = matrix(16, &pairs, &slow, scale);
        let found: Vec<Pair> = Step::new(&m, 16).unwrap().pairs().collect();
        let channels: Vec<_> = found.iter().map(|p| (p.a as usize, p.b as usize)).collect();
        assert_eq!(channels, pairs);
        for (pair, theta) in found.iter().zip(slow) {
            let [cos, sin] = pair.angle();
            assert!((pair.scale() - scale).abs() < 1e-6, "{pair:?}");
            assert!((cos - theta.cos()).abs() < 1e-6 && (sin - theta.sin()).abs() < 1e-6);
        }
    }
    let m = matrix(16, &halves(16, 8), &[0.0; 8], 1.0);
    assert_eq!(Step::new(&m, 16).unwrap().pairs().count(), 0);
    // Three channels of which the middle one goes with the faster: none is in two pairs.
    let mut m = matrix(3, &[], &[], 1.0);
    (m[1], m[3], m[5], m[7]) = (1e-8, -1e-8, 2e-8, -2e-8);
    let found: Vec<_> = Step::new(&m, 3)
        .unwrap()
        .pairs()
        .map(|p| (p.a, p.b))
        .collect();
    assert_eq!(found, [(1, 2)]);
}

#[test]
fn what_is_no_turning_of_pairs_is_refused() {
    let good = matrix(8, &halves(8, 3), &angles(3), 1.0);
    assert_eq!(Step::new(&good, 8).unwrap().pairs().count(), 3);
    let broken = |at: usize, value: f32| {
        let mut m = good.clone();
        m[at] = value;
        match Step::new(&m, 8) {
            Err(Error::NotTurns { reason, .. }) => reason,
            other => panic!("{at} {value}: {other:?}"),
        }
    };
    assert!(broken(0, f32::NAN).contains("not finite"));
    assert!(
        broken(4, good[4] * 1.001).contains("more channels"),
        "sines differ"
    );
    assert!(broken(4, -good[4]).contains("more channels"), "a mirror");
    assert!(broken(2, 1e-5).contains("more channels"));
    assert!(broken(0, good[0] + 2e-4).contains("cosines"));
    assert!(broken(3 * 8 + 3, 0.9).contains("no partner"));
    assert!(broken(3 * 8 + 3, -1.0).contains("no partner"));
    let squashed = matrix(8, &halves(8, 3), &angles(3), 1e-7);
    assert!(Step::new(&squashed, 8).is_err());
    let (expected, found) = (64, 63);
    let short = Step::new(&good[1..], 8).unwrap_err();
    assert_eq!(short, Error::Length { expected, found });
    assert!(Step::new(&[], 0).is_err() && Step::new(&good, usize::MAX).is_err());
}

#[test]
fn the_mean_turn_is_the_sum_that_it_says() {
    for theta in [0.0, 1e-7, 3e-4, 0.1, 1.0, 3.0] {
        let (mut cos, mut sin) = (0.0, 0.0);
        for n in 1..=3000_u64 {
            let at = (n - 1) as f64 * theta;
            (cos, sin) = (cos + at.cos(), sin + at.sin());
            let [x, y] = mean_turn([theta.cos(), theta.sin()], n).unwrap();
            let (cos, sin) = (cos / n as f64, sin / n as f64);
            assert!(
                (x - cos).abs() < 1e-11 && (y - sin).abs() < 1e-11,
                "{theta} {n}"
            );
        }
    }
    assert_eq!(mean_turn([1.0, 0.0], 0), Err(Error::NoPositions));
    let whole = mean_turn([1.0, 0.0], u64::MAX).unwrap();
    assert!((whole[0] - 1.0).abs() < 1e-12);
}

const DIM: usize = 8;

/// A file of three layers: split halves with a rest, none, neighbours stretched.
fn file() -> Vec<u8> {
    let of = |pairs: &[_], scale| {
        let m = matrix(DIM, pairs, &angles(pairs.len()), scale);
        Step::new(&m, DIM).unwrap().pairs().collect::<Vec<_>>()
    };
    let first = of(&halves(DIM, 3), 1.0);
    let last = of(&[(0, 1), (2, 3), (4, 5), (6, 7)], 1.2);
    let numbers: Vec<f32> = (0..2 * DIM).map(|i| 0.25 + i as f32).collect();
    let rope = Rope {
        mode: 2,
        n_dims: 6,
        n_ctx_orig: 4096,
        freq_base: 1e4,
        freq_scale: 1.0,
        ext_factor: 0.0,
        attn_factor: 1.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
        has_factors: true,
    };
    let layer = |index, rope, pairs| NewLayer {
        index,
        n_head_kv: 2,
        n_head: 6,
        head_dim: DIM as u32,
        rope,
        pairs,
        k_mean: &numbers,
        k_square: &numbers,
        q_square: &numbers,
        k_cross: &numbers[..2 * pairs.len()],
        q_cross: &numbers[..2 * pairs.len()],
    };
    let layers = [
        layer(0, rope, &first),
        layer(3, Rope::NONE, &[]),
        layer(4, rope, &last),
    ];
    let mut bytes = vec![];
    write(7, "a model", 1000, &layers, &mut |part| {
        bytes.extend_from_slice(part)
    });
    bytes
}

#[test]
fn a_file_is_read_as_it_was_written() {
    let bytes = file();
    let mut shifted = vec![0];
    shifted.extend_from_slice(&bytes);
    for bytes in [&bytes[..], &shifted[1..]] {
        let c = Calibration::read(bytes).unwrap();
        assert_eq!(
            (c.model, c.name(), c.n_tokens, c.n_layers),
            (7, "a model", 1000, 3)
        );
        assert_eq!(c.hash, Fnv::new().bytes(&bytes[PREFIX_BYTES..]).finish());
        let layers: Vec<Layer> = c.layers().collect();
        let numbers: Vec<_> = layers
            .iter()
            .map(|l| (l.index, l.n_pairs(), l.has_rope()))
            .collect();
        assert_eq!(numbers, [(0, 3, true), (3, 0, false), (4, 4, true)]);
        let layer = c.layer(2).unwrap();
        assert_eq!(
            (layer.n_head_kv(), layer.n_head(), layer.head_dim()),
            (2, 6, DIM)
        );
        assert_eq!((layer.rope.freq_base, layer.rope.has_factors), (1e4, true));
        assert!(
            layer
                .k_mean()
                .chain(layer.q_square())
                .eq((0..32).map(|i| 0.25 + (i % 16) as f32))
        );
        assert!(layer.q_cross().eq((0..8).map(|i| 0.25 + i as f32)));
        let m = matrix(DIM, &[(0, 1), (2, 3), (4, 5), (6, 7)], &angles(4), 1.2);
        assert!(layer.pairs().eq(Step::new(&m, DIM).unwrap().pairs()));
        assert_eq!(c.layer(3).unwrap_err(), Error::NoLayer { n_layers: 3 });
    }
    // The identity of a calibration: other machines must come to the same.
    assert_eq!(Calibration::read(&bytes).unwrap().hash, 0x9d14393f4383b797);
}

#[test]
fn damage_anywhere_is_found() {
    let good = file();
    for n in 0..good.len() {
        let error = Calibration::read(&good[..n]).unwrap_err();
        let expected = match n {
            0..8 => matches!(error, Error::NotACalibration),
            8..20 => matches!(error, Error::Malformed { .. }),
            _ => matches!(error, Error::Damaged { .. }),
        };
        assert!(expected, "{n}: {error}");
        let mut bytes = good.clone();
        bytes[n] ^= 0x10;
        let error = Calibration::read(&bytes).unwrap_err();
        let expected = match n {
            0..8 => matches!(error, Error::NotACalibration),
            8..12 => matches!(error, Error::Version { .. }),
            _ => matches!(error, Error::Damaged { .. }),
        };
        assert!(expected, "{n}: {error}");
    }
}

/// Bytes with a hash that fits them.
fn hashed(mut bytes: Vec<u8>) -> Vec<u8> {
    let hash = Fnv::new().bytes(&bytes[PREFIX_BYTES..]).finish();
    bytes[12..20].copy_from_slice(&hash.to_le_bytes());
    bytes
}

#[test]
fn what_makes_no_sense_is_refused_with_a_fitting_hash_too() {
    let good = file();
    let word = |at: usize, value: u32| {
        let mut bytes = good.clone();
        bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        hashed(bytes)
    };
    let (layer, array) = (HEADER_BYTES, HEADER_BYTES + 60 + 3 * 16);
    let long = [&good[..], &[0]].concat();
    let cut = good[..good.len() - 1].to_vec();
    for (bytes, about) in [
        (word(36, 0), "layers"),
        (word(36, 4097), "layers"),
        (word(36, 4), "more bytes"),
        (word(36, 2), "the end"),
        (word(28, 0), "token"),
        (word(40, 0xff6d_2061), "UTF-8"),
        (word(100, 1), "zeros"),
        (word(layer, 3), "ascending"),
        (word(layer + 4, 0), "heads"),
        (word(layer + 4, 4), "heads"),
        (word(layer + 8, 4098), "heads"),
        (word(layer + 12, 0), "head size"),
        (word(layer + 12, u32::MAX), "head size"),
        (word(layer + 12, 4096), "more bytes"),
        (word(layer + 16, 5), "half as many"),
        (word(layer + 20, NO_ROPE), "others"),
        (word(layer + 32, f32::NAN.to_bits()), "RoPE parameters"),
        (word(layer + 56, 2), "0 or 1"),
        (word(layer + 60, 4), "two channels"),
        (word(layer + 60 + 4, 8), "two channels"),
        (word(layer + 60 + 16, 0), "ascending"),
        (word(layer + 60 + 16 + 4, 4), "share"),
        (word(layer + 60 + 8, f32::INFINITY.to_bits()), "ordinary"),
        (word(array, f32::NAN.to_bits()), "finite"),
        (word(array + 4 * 16, (-1_f32).to_bits()), "at least 0"),
        (word(array + 4 * 48, f32::INFINITY.to_bits()), "finite"),
        (hashed(long), "the end"),
        (hashed(cut), "more bytes"),
    ] {
        let error = Calibration::read(&bytes).unwrap_err();
        assert!(matches!(error, Error::Malformed { .. }), "{about}: {error}");
        assert!(error.to_string().contains(about), "{about}: {error}");
    }
    let name = format!("{}é", "x".repeat(63));
    let mut bytes = vec![];
    write(0, &name, 1, &[], &mut |part| bytes.extend_from_slice(part));
    assert_eq!(&bytes[40..104], [&name.as_bytes()[..63], &[0]].concat());
}

#[test]
fn the_static_centre_is_the_mean_of_the_turned_means() {
    let bytes = file();
    let c = Calibration::read(&bytes).unwrap();
    let pairs = [(0, 1), (2, 3), (4, 5), (6, 7)];
    // Not the angles of the file: a context may be stretched.
    let theta: Vec<f64> = angles(4).iter().map(|t| t / 2.0).collect();
    let m = matrix(DIM, &pairs, &theta, 1.5);
    let turns = Step::new(&m, DIM).unwrap().pairs();
    let layer = c.layer(2).unwrap();
    let mean: Vec<f32> = layer.k_mean().collect();
    let mut centre = vec![0.0; 2 * DIM];
    for (n, lengths) in [
        (1, &[1][..]),
        (7, &[7]),
        (512, &[512]),
        (1023, &[1023]),
        (5000, &[5000, 2500, 1250, 625]),
    ] {
        static_centre(&layer, turns.clone(), n, &mut centre).unwrap();
        for (head, (a, b)) in (0..2).flat_map(|h| pairs.map(|pair| (h, pair))) {
            let (x, y) = (mean[head * DIM + a] as f64, mean[head * DIM + b] as f64);
            let (mut u, mut v) = (0.0, 0.0);
            for (length, p) in lengths.iter().flat_map(|&l| (0..l).map(move |p| (l, p))) {
                let (sin, cos) = (p as f64 * theta[a / 2]).sin_cos();
                let weight = 1.5 / (length * lengths.len()) as f64;
                u += weight * (x * cos - y * sin);
                v += weight * (x * sin + y * cos);
            }
            let off = (centre[head * DIM + a] as f64 - u).hypot(centre[head * DIM + b] as f64 - v);
            assert!(off < 2e-5 * x.hypot(y), "{n} {head} {a}: {off}");
        }
    }
    let plain = c.layer(1).unwrap();
    static_centre(&plain, [].into_iter(), 9, &mut centre).unwrap();
    assert!(plain.k_mean().eq(centre.iter().copied()));

    centre.fill(5.0);
    let mut refused = |layer: &Layer, m: &[f32], n, len| {
        let turns = Step::new(m, DIM).unwrap().pairs();
        static_centre(layer, turns, n, &mut centre[..len]).unwrap_err()
    };
    let (expected, found) = (16, 15);
    assert_eq!(refused(&layer, &m, 0, 16), Error::NoPositions);
    assert_eq!(
        refused(&layer, &m, 1, 15),
        Error::Length { expected, found }
    );
    assert_eq!(refused(&plain, &m, 1, 16), Error::OtherTurns { channel: 0 });
    let none = matrix(DIM, &[], &[], 1.0);
    assert_eq!(
        refused(&layer, &none, 1, 16),
        Error::OtherTurns { channel: 0 }
    );
    let other = matrix(DIM, &[(2, 4), (3, 5)], &[0.1, 0.2], 1.0);
    assert_eq!(
        refused(&layer, &other, 1, 16),
        Error::OtherTurns { channel: 2 }
    );
    assert!(centre.iter().all(|x| *x == 5.0), "nothing was written");
}
