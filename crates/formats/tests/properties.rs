//! What holds for any floats and any bytes.

mod any_input;

use kvforge_formats::{Code, Domain, Encode, FORMATS, FormatSpec, Scale, oracle};
use proptest::prelude::*;

/// Values per row: two blocks of the larger size.
const ROW: usize = 256;

/// Bits of any float whatever; of any float below 2, so that the row is finite and
/// spans all sizes; ordinary ones, so that whole rows encode.
fn any_row() -> impl Strategy<Value = Vec<f32>> {
    let below_two = any::<u32>().prop_map(|bits| f32::from_bits(bits & 0xbfff_ffff));
    prop_oneof![
        prop::collection::vec(any::<u32>().prop_map(f32::from_bits), ROW),
        prop::collection::vec(below_two, ROW),
        finite_row(),
    ]
}

/// Rows that encode: all sizes from 1e-9 to 150, some of one value, some with
/// zeros, some with outliers.
fn finite_row() -> impl Strategy<Value = Vec<f32>> {
    let value = prop_oneof![
        8 => -1f32..1.0,
        1 => Just(0.0),
        1 => prop_oneof![Just(1.0), Just(-1.0)],
        1 => -50f32..50.0,
    ];
    let few = prop_oneof![Just(0.0), Just(1.0), Just(-1.0), Just(-7.0)];
    let values = prop_oneof![
        4 => prop::collection::vec(value, ROW),
        1 => prop::collection::vec(few, ROW),
    ];
    (values, -9f32..0.5)
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
    fn encoders_take_any_floats(spec in any_format(), x in any_row()) {
        any_input::encode(spec, &x);
    }

    #[test]
    fn decode_takes_any_bytes((spec, bytes) in any_bytes()) {
        any_input::decode(spec, &bytes);
    }

    /// A value in the middle is off by at most half a step of the codebook, one
    /// beyond its end by the distance to it; rotation keeps the sum of squares. For
    /// codes that are nearest to the block divided by its RMS.
    #[test]
    fn decoded_blocks_are_as_near_as_codes_allow(spec in any_format(), x in finite_row()) {
        let Code::Scalar { codebook, .. } = spec.code else { return Ok(()) };
        if spec.scale == Scale::KeepsLength {
            return Ok(());
        }
        let bytes = encode(spec, spec.encode, &x);
        let decoded = decode(spec, &bytes, Domain::Original);
        let widest = codebook.windows(2).map(|c| c[1] - c[0]).fold(0f32, f32::max) / 2.0;
        let end = codebook[codebook.len() - 1];
        let n = spec.block_len as f64;
        for (block, (x, decoded)) in x.chunks(spec.block_len).zip(decoded.chunks(spec.block_len)).enumerate() {
            let scale = norm(x) / n.sqrt();
            let bound: f64 = transformed(spec, x)
                .iter()
                .map(|v| {
                    let beyond = f64::from(v.abs()) - scale * f64::from(end);
                    (scale * f64::from(widest)).max(beyond).powi(2)
                })
                .sum::<f64>()
                .sqrt();
            // fp16 rounding of the scale, absolute below its normal numbers.
            let rounding = (scale * 2f64.powi(-11)).max(2f64.powi(-25)) * n.sqrt() * 2.8;
            let error: Vec<f32> = x.iter().zip(decoded).map(|(x, d)| x - d).collect();
            prop_assert!(norm(&error) <= bound + rounding, "block {block}");
        }
    }

    /// The two domains differ by the rotation and nothing else.
    #[test]
    fn rotating_the_original_gives_the_rotated((spec, bytes) in any_bytes()) {
        let Some(rotation) = spec.transform.rotation() else { return Ok(()) };
        for block in bytes.chunks(spec.block_bytes) {
            let rotated = decode(spec, block, Domain::Rotated);
            if rotated.iter().any(|v| !v.is_finite()) {
                continue;
            }
            let original = decode(spec, block, Domain::Original);
            let limit = 1e-6 * norm(&rotated);
            let (mut back, mut forth) = (original.clone(), rotated.clone());
            rotation.rotate(&mut back);
            rotation.unrotate(&mut forth);
            for (a, b) in back.iter().zip(&rotated).chain(forth.iter().zip(&original)) {
                prop_assert!(f64::from(a - b).abs() <= limit, "{a} {b}");
            }
            prop_assert!((norm(&original) - norm(&rotated)).abs() <= limit);
        }
    }

    /// The fp32 transform is the oracle's matrix; a rotation keeps norms and has an
    /// inverse.
    #[test]
    fn transforms_are_the_matrices(spec in any_format(), x in finite_row()) {
        let coded = transformed(spec, &x);
        let exact = oracle::rotate(spec, &x.iter().map(|&v| v.into()).collect::<Vec<_>>());
        prop_assert_eq!(coded.len(), exact.len());
        let limit = 1e-6 * norm(&coded);
        for (coded, exact) in coded.iter().zip(&exact) {
            prop_assert!((f64::from(*coded) - exact).abs() <= limit);
        }
        if let Some(rotation) = spec.transform.rotation() {
            let mut back = coded.clone();
            rotation.unrotate(&mut back);
            prop_assert!((norm(&coded) - norm(&x)).abs() <= limit);
            for (back, x) in back.iter().zip(&x) {
                prop_assert!(f64::from(back - x).abs() <= limit);
            }
        }
    }

    /// Scaling a row by a power of two scales its blocks and keeps their codes.
    #[test]
    fn codes_do_not_depend_on_size(spec in any_format(), x in finite_row(), shift in 0..4) {
        let factor = 2f32.powi(shift);
        let scaled: Vec<f32> = x.iter().map(|v| v * factor).collect();
        for encoder in [spec.encode, spec.encode_best] {
            let (a, b) = (encode(spec, encoder, &x), encode(spec, encoder, &scaled));
            for (a, b) in a.chunks(spec.block_bytes).zip(b.chunks(spec.block_bytes)) {
                prop_assert_eq!(codes(spec, a), codes(spec, b));
            }
        }
    }
}

fn encode(spec: &FormatSpec, encode: Encode, x: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; spec.row_bytes(x.len()).unwrap()];
    encode(x, &mut bytes).unwrap();
    bytes
}

fn decode(spec: &FormatSpec, bytes: &[u8], domain: Domain) -> Vec<f32> {
    let mut x = vec![0.0; bytes.len() / spec.block_bytes * spec.len_in(domain)];
    (spec.decode)(bytes, &mut x, domain).unwrap();
    x
}

fn transformed(spec: &FormatSpec, x: &[f32]) -> Vec<f32> {
    let mut coded = vec![0.0; spec.transform.coded_len(x.len())];
    spec.transform.forward(x, &mut coded);
    coded
}

/// A block with zeros where its scales are.
fn codes(spec: &FormatSpec, block: &[u8]) -> Vec<u8> {
    let mut block = block.to_vec();
    for at in any_input::scales_at(spec) {
        block[at..at + 2].fill(0);
    }
    block
}

fn norm(x: &[f32]) -> f64 {
    x.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>().sqrt()
}
