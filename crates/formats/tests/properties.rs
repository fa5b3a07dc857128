//! What holds for any floats and any bytes.

mod any_input;

use kvforge_formats::{Domain, FORMATS, FormatSpec, f16_to_f32, oracle};
use proptest::prelude::*;

/// Values per row: three blocks.
const ROW: usize = 96;

/// Bits of any float whatever, mixed with ordinary ones so that whole rows
/// encode.
fn any_row() -> impl Strategy<Value = Vec<f32>> {
    prop_oneof![
        prop::collection::vec(any::<u32>().prop_map(f32::from_bits), ROW),
        finite_row(),
    ]
}

/// Rows that encode: all sizes from 1e-9 to 5e3, some of one value, some with
/// zeros, some with outliers.
fn finite_row() -> impl Strategy<Value = Vec<f32>> {
    let value = prop_oneof![
        8 => -1f32..1.0,
        1 => Just(0.0),
        1 => prop_oneof![Just(1.0), Just(-1.0)],
        1 => -50f32..50.0,
    ];
    let values = prop::collection::vec(value, ROW);
    (values, -9f32..2.0)
        .prop_map(|(values, size)| values.into_iter().map(|v| v * 10f32.powf(size)).collect())
}

fn any_format() -> impl Strategy<Value = &'static FormatSpec> {
    prop::sample::select(FORMATS)
}

fn any_bytes() -> impl Strategy<Value = (&'static FormatSpec, Vec<u8>)> {
    any_format().prop_flat_map(|spec| {
        let bytes = prop::collection::vec(any::<u8>(), ROW / spec.block_len * spec.block_bytes);
        (Just(spec), bytes)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn encode_takes_any_floats(spec in any_format(), x in any_row()) {
        any_input::encode(spec, &x);
    }

    #[test]
    fn decode_takes_any_bytes((spec, bytes) in any_bytes()) {
        any_input::decode(spec, &bytes);
    }

    /// A value in the middle is off by at most half a step of the codebook, one
    /// beyond its end by the distance to it; rotation keeps the sum of squares.
    #[test]
    fn decoded_blocks_are_as_near_as_codes_allow(spec in any_format(), x in finite_row()) {
        let bytes = encode(spec, &x);
        let decoded = decode(spec, &bytes, Domain::Original);
        let widest = spec.codebook.windows(2).map(|c| c[1] - c[0]).fold(0f32, f32::max) / 2.0;
        let end = spec.codebook[spec.codebook.len() - 1];
        for (block, (x, decoded)) in x.chunks(32).zip(decoded.chunks(32)).enumerate() {
            let scale = norm(x) / 32f64.sqrt();
            let mut r = x.to_vec();
            spec.rotation.rotate(&mut r);
            let bound: f64 = r
                .iter()
                .map(|v| {
                    let beyond = f64::from(v.abs()) - scale * f64::from(end);
                    (scale * f64::from(widest)).max(beyond).powi(2)
                })
                .sum::<f64>()
                .sqrt();
            // fp16 rounding of the scale, absolute below its normal numbers.
            let rounding = (scale * 2f64.powi(-11)).max(2f64.powi(-25)) * 32f64.sqrt() * 2.8;
            let error: Vec<f32> = x.iter().zip(decoded).map(|(x, d)| x - d).collect();
            prop_assert!(norm(&error) <= bound + rounding, "block {block}");
        }
    }

    /// The two domains differ by the rotation and nothing else.
    #[test]
    fn rotating_the_original_gives_the_rotated((spec, bytes) in any_bytes()) {
        for block in bytes.chunks(spec.block_bytes) {
            let scale = f16_to_f32(u16::from_le_bytes([block[0], block[1]]));
            if !scale.is_finite() {
                continue;
            }
            let rotated = decode(spec, block, Domain::Rotated);
            let original = decode(spec, block, Domain::Original);
            let mut back = original.clone();
            spec.rotation.rotate(&mut back);
            let mut forth = rotated.clone();
            spec.rotation.unrotate(&mut forth);
            prop_assert_eq!(&forth, &original);
            let limit = 1e-6 * norm(&rotated);
            for (a, b) in back.iter().zip(&rotated) {
                prop_assert!(f64::from(a - b).abs() <= limit, "{a} {b}");
            }
            prop_assert!((norm(&original) - norm(&rotated)).abs() <= limit);
        }
    }

    /// The fp32 rotation is the oracle's matrix, and keeps norms.
    #[test]
    fn rotation_is_orthogonal(spec in any_format(), x in finite_row()) {
        let mut r = x.clone();
        spec.rotation.rotate(&mut r);
        let exact = oracle::rotate(spec, &x.iter().map(|&v| v.into()).collect::<Vec<_>>());
        let limit = 1e-6 * norm(&x);
        for (r, exact) in r.iter().zip(&exact) {
            prop_assert!((f64::from(*r) - exact).abs() <= limit);
        }
        prop_assert!((norm(&r) - norm(&x)).abs() <= limit);
        spec.rotation.unrotate(&mut r);
        for (r, x) in r.iter().zip(&x) {
            prop_assert!(f64::from(r - x).abs() <= limit);
        }
    }

    /// Scaling a row by a power of two scales its blocks and keeps their codes.
    #[test]
    fn codes_do_not_depend_on_size(spec in any_format(), x in finite_row(), shift in 0..4) {
        let factor = 2f32.powi(shift);
        let scaled: Vec<f32> = x.iter().map(|v| v * factor).collect();
        let (a, b) = (encode(spec, &x), encode(spec, &scaled));
        for (a, b) in a.chunks(spec.block_bytes).zip(b.chunks(spec.block_bytes)) {
            prop_assert_eq!(&a[2..], &b[2..]);
        }
    }
}

fn encode(spec: &FormatSpec, x: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; spec.row_bytes(x.len()).unwrap()];
    (spec.encode)(x, &mut bytes).unwrap();
    bytes
}

fn decode(spec: &FormatSpec, bytes: &[u8], domain: Domain) -> Vec<f32> {
    let mut x = vec![0.0; bytes.len() / spec.block_bytes * spec.block_len];
    (spec.decode)(bytes, &mut x, domain).unwrap();
    x
}

fn norm(x: &[f32]) -> f64 {
    x.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>().sqrt()
}
