//! The best encoders once more, written from the text of `scalar_code.md` and of the
//! READMEs: the rules there are all that it takes to make the same bytes.

#[path = "golden/mod.rs"]
mod data;

use kvforge_formats::{Code, Domain, FORMATS, FormatSpec, PROJECTION, f32_to_f16};
use kvforge_formats::{q4_polar, qjl1_256, tbq3_0, tbq3_tcq, tbq4_0};

/// The golden rows and others: what stands in them makes no difference here, only
/// that there are many.
fn rows() -> Vec<Vec<f32>> {
    let mut rows: Vec<_> = data::load("tbq3_0").into_iter().map(|row| row.x).collect();
    for i in 0..60 {
        let value = |j: usize| {
            let at = (i * 128 + j) as f32;
            ((at * 0.731).sin() + (at * at * 0.0137).cos()).powi(1 + i as i32 % 3)
        };
        rows.push((0..128).map(value).collect());
    }
    rows
}

#[test]
fn scalar_codes_follow_their_rule() {
    for spec in [&tbq3_0::SPEC, &tbq4_0::SPEC, &q4_polar::SPEC] {
        for x in rows() {
            for x in x.chunks(spec.block_len) {
                let block = best(spec, x);
                let (scale, codes) = fit(spec, x);
                assert_eq!(block[..2], f32_to_f16(scale).to_le_bytes(), "{}", spec.name);
                let stored: Vec<usize> = (0..x.len()).map(|i| code(spec, &block, i)).collect();
                assert_eq!(stored, codes, "{}", spec.name);
            }
        }
    }
}

/// Scale and codes of a block.
fn fit(spec: &FormatSpec, x: &[f32]) -> (f32, Vec<usize>) {
    let Code::Scalar { codebook, unit, .. } = spec.code else {
        panic!("{} has no codes", spec.name);
    };
    let mut r = vec![0.0; x.len()];
    spec.transform.forward(x, &mut r);
    let rms = (sum(&r, &r) / x.len() as f32).sqrt();
    if rms == 0.0 {
        return (0.0, vec![0; x.len()]);
    }
    let inverse = 1.0 / rms;
    let v: Vec<f32> = r.iter().map(|r| r * inverse).collect();
    let nearest = |v: f32| {
        // The first of two that are as near: the lower one.
        let mut best = 0;
        for (i, c) in codebook.iter().enumerate() {
            if (v - c).abs() < (v - codebook[best]).abs() {
                best = i;
            }
        }
        best
    };
    let at = |f: f32| {
        let codes: Vec<usize> = v.iter().map(|v| nearest(v * f)).collect();
        let c: Vec<f32> = codes.iter().map(|c| codebook[*c]).collect();
        (sum(&v, &c), sum(&c, &c), codes)
    };
    let mut winner = (0.0, 0.0, 0.0);
    for scale in [
        0.75, 0.8125, 0.875, 0.9375, 1.0, 1.0625, 1.125, 1.1875, 1.25f32,
    ] {
        let (a, b, _) = at(1.0 / scale);
        if a * a / b > winner.0 {
            winner = (a * a / b, a, b);
        }
    }
    let (a, b, codes) = at(winner.2 / winner.1);
    (rms * (a / b) / unit, codes)
}

fn code(spec: &FormatSpec, block: &[u8], i: usize) -> usize {
    let bits = spec.code.bits();
    let at = if *spec == tbq4_0::SPEC {
        8 * (i % 16) + 4 * (i / 16)
    } else {
        bits * i
    };
    let bit = |at: usize| usize::from(block[2 + at / 8] >> (at % 8) & 1);
    (0..bits).map(|b| bit(at + b) << b).sum()
}

/// The reference's walk with the scale of least squares.
#[test]
fn trellis_scale_is_that_of_least_squares() {
    let spec = &tbq3_tcq::SPEC;
    for x in rows() {
        let (block, mut reference) = (best(spec, &x), vec![0; spec.block_bytes]);
        (spec.encode)(&x, &mut reference).unwrap();
        assert_eq!(block[2..], reference[2..]);
        reference[..2].copy_from_slice(&f32_to_f16(1.0).to_le_bytes());
        let mut coded = vec![0.0; 128];
        (spec.decode)(&reference, &mut coded, Domain::Rotated).unwrap();
        let length = x.iter().fold(0.0f32, |sum, v| sum + v * v).sqrt();
        let inverse = if length > 1e-10 { 1.0 / length } else { 0.0 };
        let unit: Vec<f32> = x.iter().map(|v| v * inverse).collect();
        let mut r = vec![0.0; 128];
        spec.transform.forward(&unit, &mut r);
        let scale = length * (sum(&r, &coded) / sum(&coded, &coded));
        assert_eq!(block[..2], f32_to_f16(scale).to_le_bytes());
    }
}

#[test]
fn sketches_follow_their_rule() {
    for x in rows() {
        assert_eq!(best(&qjl1_256::SPEC, &x), sketch(&x));
    }
}

fn sketch(x: &[f32]) -> Vec<u8> {
    let length = sum(x, x).sqrt();
    if length == 0.0 {
        return vec![0; 34];
    }
    let inverse = 1.0 / length;
    let x: Vec<f32> = x.iter().map(|v| v * inverse).collect();
    let columns: Vec<Vec<f32>> = (0..256)
        .map(|j| PROJECTION.iter().map(|row| row[j]).collect())
        .collect();
    let in_order = |a: &[f32], b: &[f32]| a.iter().zip(b).fold(0.0f32, |sum, (a, b)| sum + a * b);
    let mut signs: Vec<f32> = columns
        .iter()
        .map(|p| if in_order(&x, p) > 0.0 { 1.0 } else { -1.0 })
        .collect();
    let fit = |signs: &[f32]| {
        let mut s = vec![0.0f32; 128];
        for (sign, p) in signs.iter().zip(&columns) {
            for (s, p) in s.iter_mut().zip(p) {
                *s += sign * p;
            }
        }
        (sum(&x, &s) / sum(&s, &s), s)
    };
    for _ in 0..4 {
        let (a, s) = fit(&signs);
        let mut e: Vec<f32> = x.iter().zip(&s).map(|(x, s)| x - a * s).collect();
        for (sign, p) in signs.iter_mut().zip(&columns) {
            let old = a * *sign;
            let new = if sum(&e, p) + old * in_order(p, p) > 0.0 {
                1.0
            } else {
                -1.0
            };
            if new != *sign {
                for (e, p) in e.iter_mut().zip(p) {
                    *e += (2.0 * old) * p;
                }
            }
            *sign = new;
        }
    }
    let unit = (std::f64::consts::PI / 2.0).sqrt() as f32 / 256.0;
    let scale = length * (fit(&signs).0 / unit);
    let mut block = vec![0; 34];
    for (j, sign) in signs.iter().enumerate() {
        block[j / 8] |= u8::from(*sign > 0.0) << (j % 8);
    }
    // bf16: the upper half, a remainder of a half going to the even one.
    let (upper, lower) = (scale.to_bits() >> 16, scale.to_bits() & 0xffff);
    let up = lower > 0x8000 || lower == 0x8000 && upper % 2 == 1;
    block[32..].copy_from_slice(&((upper + u32::from(up)) as u16).to_le_bytes());
    block
}

/// Every format but the legacy ones has a rule of its own here.
#[test]
fn no_best_encoder_is_left_out() {
    for spec in FORMATS {
        let covered = [1, 2, 3, 4, 5].contains(&spec.id);
        let x = &rows()[0];
        let mut reference = vec![0; spec.row_bytes(128).unwrap()];
        (spec.encode)(x, &mut reference).unwrap();
        assert_eq!(best(spec, x) != reference, covered, "{}", spec.name);
    }
}

fn best(spec: &FormatSpec, x: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; spec.row_bytes(x.len()).unwrap()];
    (spec.encode_best)(x, &mut bytes).unwrap();
    bytes
}

/// Sum of products in strands.
fn sum(a: &[f32], b: &[f32]) -> f32 {
    let mut s = [0.0f32; 8];
    for (i, (a, b)) in a.iter().zip(b).enumerate() {
        s[i % 8] += a * b;
    }
    ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]))
}
