//! The oracle's blocks against results that can be worked out by hand, and the
//! codecs against the oracle on rows that no public data covers.

use kvforge_formats::oracle::{self, Type};
use kvforge_formats::{Code, Domain, FORMATS, FormatSpec, Rotation, Transform};
use kvforge_formats::{q4_polar, qjl1_256, tbq3_0, tbq3_tcq, tbq4_0, turbo3_legacy, turbo4_legacy};

const EXACT: f64 = 1e-12;

/// A constant rotated block is one spike at index 0: the first row of the matrix
/// is constant, all others cancel.
#[test]
fn equal_codes_decode_to_a_spike() {
    // tbq3_0: scale 2, every code 6 (0b110), so bytes repeat every 24 bits.
    let bytes = [
        &[0x00, 0x40][..],
        &[0b1011_0110, 0b0110_1101, 0b1101_1011].repeat(4),
    ]
    .concat();
    spike(&tbq3_0::SPEC, &bytes, 2.0 * 1.3439093 * 32f64.sqrt());
    // tbq4_0: scale 0.5, every code 3.
    let bytes = [&[0x00, 0x38][..], &[0x33; 16]].concat();
    spike(&tbq4_0::SPEC, &bytes, 0.5 * -1.2557391 * 32f64.sqrt());
    // q4_polar: length 2, every code 3; its unit cancels the width of the butterfly.
    let bytes = [&[0x00, 0x40][..], &[0x33; 64], &[0; 16]].concat();
    spike(&q4_polar::SPEC, &bytes, 2.0 * -1.279_739_752);
}

fn spike(spec: &FormatSpec, bytes: &[u8], height: f64) {
    let x = oracle::decode(spec, bytes);
    // The codebook is stored as fp32.
    assert!((x[0] - height).abs() < 1e-6, "{} {height}", x[0]);
    assert!(x[1..].iter().all(|v| v.abs() < EXACT), "{x:?}");
    // The codec finds the same numbers.
    let mut ours = vec![0.0; spec.block_len];
    (spec.decode)(bytes, &mut ours, Domain::Original).unwrap();
    for (ours, exact) in ours.iter().zip(x) {
        assert!((f64::from(*ours) - exact).abs() < 1e-6);
    }
}

/// Where code `i` stands, spelled out for some `i`: byte and bits.
#[test]
fn codes_stand_where_the_layout_says() {
    let single = |spec: &FormatSpec, byte: usize, bits: u8| -> [usize; 2] {
        let Code::Scalar { codebook, unit, .. } = spec.code else {
            panic!("{} has no codes", spec.name);
        };
        let mut bytes = vec![0; spec.block_bytes];
        let groups = if *spec == turbo3_legacy::SPEC { 4 } else { 1 };
        for group in bytes.chunks_mut(spec.block_bytes / groups) {
            group[..2].copy_from_slice(&[0x00, 0x3c]);
        }
        bytes[byte] = bits;
        let r = oracle::decode_rotated(spec, &bytes);
        let code = |v: &f64| {
            let entry = |c: &f32| (f64::from(*c * unit) - v).abs() < 1e-6;
            codebook.iter().position(entry).unwrap()
        };
        assert_eq!(r.iter().filter(|v| code(v) != 0).count(), 1);
        let at = r.iter().position(|v| code(v) != 0).unwrap();
        [at, code(&r[at])]
    };
    assert_eq!(single(&tbq3_0::SPEC, 2, 0b0000_0101), [0, 5]);
    assert_eq!(single(&tbq3_0::SPEC, 2, 0b0010_1000), [1, 5]);
    // Code 2 takes the two highest bits of one byte and the lowest of the next.
    assert_eq!(single(&tbq3_0::SPEC, 2, 0b1100_0000), [2, 3]);
    assert_eq!(single(&tbq3_0::SPEC, 3, 0b0000_0001), [2, 4]);
    assert_eq!(single(&tbq3_0::SPEC, 13, 0b1110_0000), [31, 7]);
    assert_eq!(single(&tbq4_0::SPEC, 2, 0x0b), [0, 11]);
    assert_eq!(single(&tbq4_0::SPEC, 2, 0xb0), [16, 11]);
    assert_eq!(single(&tbq4_0::SPEC, 17, 0x02), [15, 2]);
    assert_eq!(single(&tbq4_0::SPEC, 17, 0x20), [31, 2]);
    for spec in [&q4_polar::SPEC, &turbo4_legacy::SPEC] {
        assert_eq!(single(spec, 2, 0x0b), [0, 11]);
        assert_eq!(single(spec, 2, 0xb0), [1, 11]);
        assert_eq!(single(spec, 65, 0x20), [127, 2]);
    }
    assert_eq!(single(&turbo3_legacy::SPEC, 2, 0b1100), [1, 3]);
    assert_eq!(single(&turbo3_legacy::SPEC, 9, 0b1000_0000), [31, 2]);
    assert_eq!(single(&turbo3_legacy::SPEC, 10, 0b10), [1, 4]);
    assert_eq!(single(&turbo3_legacy::SPEC, 3 * 14 + 13, 0x80), [127, 4]);
}

/// Two bits of the string, and the windows that see them.
#[test]
fn a_state_is_the_window_at_three_times_its_index() {
    let Code::Trellis { codebook } = tbq3_tcq::SPEC.code else {
        panic!("not a trellis");
    };
    let mut bytes = vec![0; 52];
    // Scale 1; bits 3 and 11 of the string.
    bytes[..4].copy_from_slice(&[0x00, 0x3c, 0b1000, 0b1000]);
    let states = [8, 0b1_0000_0001, 1 << 5, 1 << 2, 0, 0];
    let decoded = oracle::decode_rotated(&tbq3_tcq::SPEC, &bytes);
    for (t, v) in decoded.iter().enumerate() {
        let state = states.get(t).copied().unwrap_or(0);
        assert_eq!(*v, f64::from(codebook[state]), "value {t}");
    }
    // The last window ends two bits before the padding.
    bytes[50] = 0b0010_0000;
    let last = oracle::decode_rotated(&tbq3_tcq::SPEC, &bytes)[127];
    assert_eq!(last, f64::from(codebook[1 << 8]));
}

#[test]
fn signs_stand_in_order_before_the_scale() {
    let mut bytes = vec![0; 34];
    (bytes[1], bytes[31]) = (0b10, 0x80);
    // bf16: 2.
    bytes[32..].copy_from_slice(&[0x00, 0x40]);
    let unit = (std::f64::consts::PI / 2.0).sqrt() / 256.0;
    for (j, v) in oracle::decode_rotated(&qjl1_256::SPEC, &bytes)
        .iter()
        .enumerate()
    {
        let sign = if j == 9 || j == 255 { 1.0 } else { -1.0 };
        assert!((v - 2.0 * sign * unit).abs() < 1e-9, "{j}: {v}");
    }
}

/// A unit vector turns into one column of the matrix, whose signs are known.
#[test]
fn unit_vectors_rotate_to_signed_columns() {
    for spec in FORMATS {
        let (before, after) = match spec.transform {
            Transform::Rotation(Rotation::SignedHadamard32 { negative }) => (negative.into(), 0),
            Transform::Rotation(Rotation::SignedHadamard128 { before, after }) => (before, after),
            // `golden.rs` has its matrix.
            Transform::Sketch => continue,
        };
        let n = spec.block_len;
        let sign = |mask: u128, i: usize| [1.0, -1.0][(mask >> i & 1) as usize];
        for column in [0, 1, 2, 16, 31, n - 1] {
            let mut x = vec![0.0; n];
            x[column] = 1.0;
            for (row, v) in oracle::rotate(spec, &x).iter().enumerate() {
                let expected = match column {
                    0 => 1.0,
                    1 => [1.0, -1.0][row % 2],
                    2 => [1.0, 1.0, -1.0, -1.0][row % 4],
                    16 => [1.0, -1.0][row / 16 % 2],
                    31 => [1.0, -1.0][(row % 32).count_ones() as usize % 2],
                    _ => [1.0, -1.0][row.count_ones() as usize % 2],
                };
                let expected = sign(before, column) * expected * sign(after, row);
                assert!((v - expected / (n as f64).sqrt()).abs() < EXACT);
            }
        }
    }
}

/// What the codec writes is what the oracle accepts. Rows with a pattern have
/// rotated values of exactly zero, on a border, where fp32 rounding decides; rows
/// without one must come out the same, but for rare values on a border.
#[test]
fn codecs_agree_with_the_oracle_on_many_rows() {
    for spec in FORMATS {
        let n = spec.block_len;
        let encoded = |x: &[f32]| {
            let mut bytes = vec![0; spec.block_bytes];
            (spec.encode)(x, &mut bytes).unwrap();
            oracle::judge(spec, x, &bytes).unwrap();
            let mut decoded = vec![0.0; n];
            (spec.decode)(&bytes, &mut decoded, Domain::Original).unwrap();
            let exact = oracle::decode(spec, &bytes);
            let size = exact.iter().map(|v| v * v).sum::<f64>().sqrt();
            for (ours, exact) in decoded.iter().zip(exact) {
                assert!((f64::from(*ours) - exact).abs() <= 1e-6 * size);
            }
            bytes
        };
        for x in rows_with_a_pattern(n) {
            encoded(&x);
        }
        let count = 32_000 / n;
        let row = |i: usize| -> Vec<f32> {
            let size = 10f32.powi(i as i32 % 9 - 5);
            (0..n).map(|j| size * wave(n * i + j)).collect()
        };
        let differ = (0..count)
            .map(row)
            .filter(|x| oracle::encode(spec, x) != encoded(x))
            .count();
        assert!(differ <= 2, "{}: {differ} of {count}", spec.name);
    }
}

fn rows_with_a_pattern(n: usize) -> Vec<Vec<f32>> {
    let row = |value: &dyn Fn(usize) -> f32| (0..n).map(value).collect();
    let mut rows = vec![];
    for i in (0..n).step_by(n / 32) {
        // One-hot, Walsh functions, steps, ramps, an outlier among small values.
        rows.push(row(&|j| f32::from(j == i)));
        rows.push(row(&|j| [1.0, -1.0][(i & j).count_ones() as usize % 2]));
        rows.push(row(&|j| f32::from(j <= i) * 3.0));
        rows.push(row(&|j| (i * j) as f32 / 16.0 - 100.0));
        rows.push(row(&|j| if j == i { 1e4 } else { (j as f32).sin() }));
    }
    rows
}

/// An independent encoder is only a judge if it refuses what is wrong: every bit of
/// a block, padding too.
#[test]
fn judge_refuses_wrong_codes_and_scales() {
    for spec in FORMATS {
        let x: Vec<f32> = (0..spec.block_len).map(wave).collect();
        let mut good = vec![0; spec.block_bytes];
        (spec.encode)(&x, &mut good).unwrap();
        oracle::judge(spec, &x, &good).unwrap();
        for bit in 0..spec.block_bytes * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(
                oracle::judge(spec, &x, &bad).is_err(),
                "{} bit {bit}",
                spec.name
            );
        }
    }
}

// Plain types.

#[test]
fn plain_types_decode() {
    assert_eq!(Type::F32.decode(&[0, 0, 0x80, 0xbf]), [-1.0]);
    assert_eq!(
        Type::F16.decode(&[0x00, 0xc1, 0x01, 0x00]),
        [-2.5, 2f64.powi(-24)]
    );
    let mut block = vec![0u8; 34];
    block[..4].copy_from_slice(&[0x00, 0x38, 3, 0x80]);
    let x = Type::Q8_0.decode(&block);
    assert_eq!(x[..3], [1.5, -64.0, 0.0]);
    assert_eq!(x.len(), 32);
    for (ty, len, bytes) in [(Type::F32, 5, 20), (Type::F16, 5, 10), (Type::Q8_0, 64, 68)] {
        assert_eq!(ty.row_bytes(len), bytes);
    }
    assert_eq!(Type::from(&tbq3_0::SPEC).row_bytes(64), 28);
    assert_eq!(Type::from(&tbq3_0::SPEC).name(), "tbq3_0");
}

#[test]
fn plain_types_encode_to_nearest() {
    let x: Vec<f32> = (0..64).map(|i| wave(i) * 3.0).collect();
    for (ty, relative) in [
        (Type::F32, 0.0),
        (Type::F16, 2f64.powi(-11)),
        (Type::Q8_0, 0.005),
    ] {
        let decoded = ty.decode(&ty.encode(&x));
        let largest = x.iter().fold(0f32, |m, v| m.max(v.abs()));
        for (a, b) in x.iter().zip(decoded) {
            assert!(
                (f64::from(*a) - b).abs() <= relative * f64::from(largest),
                "{ty:?}"
            );
        }
    }
    assert_eq!(Type::Q8_0.encode(&[0.0; 32]), [0; 34]);
}

/// Numbers between -2 and 2 without a pattern that a rotation would meet.
fn wave(i: usize) -> f32 {
    let i = i as f32;
    (i * 0.731).sin() + (i * i * 0.0137).cos()
}
