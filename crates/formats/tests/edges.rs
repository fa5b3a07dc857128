//! One documented outcome for every input that is not an ordinary row.

mod any_input;

use kvforge_formats::{
    Code, CodecError, Domain, Encode, FORMATS, FormatSpec, Scale, by_id, by_name, f16_to_f32,
    oracle,
};

/// What an untouched byte holds in these tests.
const UNTOUCHED: u8 = 0xa5;

/// Every format with both of its encoders.
fn encoders() -> impl Iterator<Item = (&'static FormatSpec, Encode)> {
    let formats = FORMATS.iter().copied();
    formats.flat_map(|spec| [(spec, spec.encode), (spec, spec.encode_best)])
}

/// Formats whose scale is fp16: all but those that store signs.
fn half_encoders() -> impl Iterator<Item = (&'static FormatSpec, Encode)> {
    encoders().filter(|(spec, _)| !matches!(spec.code, Code::Signs { .. }))
}

#[test]
fn formats_are_found_by_name_and_id() {
    for spec in FORMATS {
        assert_eq!(by_name(spec.name), Some(*spec));
        assert_eq!(by_id(spec.id), Some(*spec));
    }
    assert!(FORMATS.is_sorted_by(|a, b| a.id < b.id));
    assert_eq!(by_name("tbq5_0"), None);
    assert_eq!(by_id(0), None);
}

/// Legacy formats are read only, and a sketch is for scores.
#[test]
fn roles_say_what_a_cache_may_hold() {
    for spec in FORMATS {
        let legacy = spec.name.ends_with("_legacy");
        let sketch = spec.len_in(Domain::Rotated) != spec.block_len;
        assert_eq!(spec.holds_keys(), !legacy, "{}", spec.name);
        assert_eq!(spec.holds_values(), !legacy && !sketch, "{}", spec.name);
    }
}

/// What is not a whole block in both slices stays as it is.
#[test]
fn transforms_leave_parts_of_blocks_alone() {
    for spec in FORMATS {
        let (n, m) = (spec.block_len, spec.len_in(Domain::Rotated));
        let mut whole = vec![7.0; m];
        spec.transform.forward(&walk(spec, 1.0), &mut whole);
        let x = [walk(spec, 1.0), walk(spec, 1.0)].concat();
        let mut coded = vec![7.0; 2 * m];
        spec.transform.forward(&x[..2 * n - 1], &mut coded);
        assert_eq!(coded[..m], whole, "{}", spec.name);
        assert_eq!(coded[m..], vec![7.0; m], "{}", spec.name);
        let mut short = vec![7.0; 2 * m - 1];
        spec.transform.forward(&x, &mut short);
        assert_eq!(short[..m], whole, "{}", spec.name);
        assert_eq!(short[m..], vec![7.0; m - 1], "{}", spec.name);
    }
}

/// Zero in, zero out. `tbq` blocks of zeros are bytes of zeros; what codes the
/// others have says `golden.rs`.
#[test]
fn a_zero_row_decodes_to_zeros() {
    for (spec, encoder) in encoders() {
        for zero in [0.0, -0.0] {
            let bytes = encode(spec, encoder, &vec![zero; spec.block_len]).unwrap();
            assert_eq!(scales(spec, &bytes)[0], 0.0);
            assert!(
                decode(spec, &bytes, Domain::Original)
                    .iter()
                    .all(|v| *v == 0.0)
            );
            if spec.scale == Scale::Rms {
                assert_eq!(bytes, vec![0; spec.block_bytes]);
            }
        }
    }
}

/// Only the scale decides whether a block is zero.
#[test]
fn codes_of_a_zero_scale_are_ignored() {
    for spec in FORMATS {
        for scale in [0x0000, 0x8000] {
            let bytes = with_scales(spec, vec![0xff; spec.block_bytes], scale);
            for domain in [Domain::Original, Domain::Rotated] {
                assert!(decode(spec, &bytes, domain).iter().all(|v| *v == 0.0));
            }
            assert!(oracle::decode(spec, &bytes).iter().all(|v| *v == 0.0));
        }
    }
}

/// Poisoned bytes are loud: a block whose scale is NaN is NaN everywhere, and one
/// of all ones is such a block.
#[test]
fn a_nan_scale_decodes_to_nan() {
    for spec in FORMATS {
        for bytes in [
            with_scales(spec, vec![UNTOUCHED; spec.block_bytes], 0x7fc0),
            vec![0xff; spec.block_bytes],
        ] {
            for domain in [Domain::Original, Domain::Rotated] {
                assert!(decode(spec, &bytes, domain).iter().all(|v| v.is_nan()));
            }
            assert!(oracle::decode(spec, &bytes).iter().all(|v| v.is_nan()));
        }
    }
}

#[test]
fn non_finite_values_are_refused() {
    let subnormal_nan = f32::from_bits(0x7f80_0001);
    for (spec, encoder) in encoders() {
        let n = spec.block_len;
        for bad in [
            f32::NAN,
            -f32::NAN,
            subnormal_nan,
            f32::INFINITY,
            f32::NEG_INFINITY,
        ] {
            for index in [0, n - 1, n, 2 * n - 1, 3 * n - 1] {
                let mut x = vec![1.0; 3 * n];
                x[index] = bad;
                x[3 * n - 1] = bad;
                let error = CodecError::NonFinite { index };
                refused(spec, encoder, &x, error, index / n);
            }
        }
    }
}

/// fp16 ends at 65504, and 65520 is the first number that rounds to infinity: of
/// the sizes of a row, the largest that encodes and the smallest that does not
/// are next to each other, with a scale there.
#[test]
fn scales_are_refused_from_65520_on() {
    for (spec, encoder) in half_encoders() {
        let row = |size: f32| walk(spec, size);
        let (mut fits, mut overflows) = (1f32, 1e9f32);
        while fits.next_up() < overflows {
            let size = f32::midpoint(fits, overflows);
            match encode(spec, encoder, &row(size)) {
                Ok(_) => fits = size,
                Err(_) => overflows = size,
            }
        }
        let bytes = encode(spec, encoder, &row(fits)).unwrap();
        assert_eq!(scales(spec, &bytes)[0], 65504.0, "{}", spec.name);
        let x = [row(1.0), row(overflows), row(1.0)].concat();
        refused(spec, encoder, &x, CodecError::ScaleOverflow { block: 1 }, 1);
        // Half of it has half the scale: between the fp16 numbers there.
        let bytes = encode(spec, encoder, &row(overflows / 2.0)).unwrap();
        let half = scales(spec, &bytes)[0];
        assert!([32752.0, 32768.0].contains(&half), "{}: {half}", spec.name);
        any_input::encode(spec, &row(fits));
        any_input::encode(spec, &row(overflows));
    }
}

/// Sums and butterflies that overflow to infinity and NaN end in the same error.
#[test]
fn huge_rows_are_refused() {
    for (spec, encoder) in encoders() {
        for huge in [1e30, 1e37, f32::MAX] {
            let n = spec.block_len;
            let mut spike = vec![0.0; n];
            spike[n / 2] = -huge;
            for x in [vec![huge; n], walk(spec, huge), spike] {
                refused(spec, encoder, &x, CodecError::ScaleOverflow { block: 0 }, 0);
            }
        }
    }
}

/// Signs have a bf16 scale, which goes on until the squares end.
#[test]
fn signs_take_large_rows() {
    for (spec, encoder) in encoders() {
        if let Code::Signs { .. } = spec.code {
            let x = walk(spec, 1e18);
            let bytes = encode(spec, encoder, &x).unwrap();
            assert!(scales(spec, &bytes)[0] > 1e18);
            any_input::encode(spec, &x);
            any_input::decode(spec, &bytes);
        }
    }
}

/// Errors come in the order of blocks, whatever their kind.
#[test]
fn the_first_bad_block_is_named() {
    for (spec, encoder) in encoders() {
        let block = |value: f32| vec![value; spec.block_len];
        let x = [block(1.0), block(1e30), block(f32::NAN)].concat();
        refused(spec, encoder, &x, CodecError::ScaleOverflow { block: 1 }, 1);
        let x = [block(f32::NAN), block(1e30)].concat();
        refused(spec, encoder, &x, CodecError::NonFinite { index: 0 }, 0);
    }
}

/// fp16 scales below 2^-14 have fewer digits and still mean what they say.
#[test]
fn subnormal_scales_decode() {
    for (spec, encoder) in half_encoders() {
        let one = encode(spec, encoder, &walk(spec, 1.0)).unwrap();
        let one = scales(spec, &one)[0];
        for exponent in 15..=24 {
            let wanted = 2f32.powi(-exponent) * 0.99;
            let x = walk(spec, wanted / one);
            let bytes = encode(spec, encoder, &x).unwrap();
            let scale = scales(spec, &bytes)[0];
            // A unit in the last place is 2^-24; the size of a row may change a code.
            let error = (scale - wanted).abs();
            assert!(
                error <= 2f32.powi(-25) * 1.01 + 0.01 * wanted,
                "{}",
                spec.name
            );
            any_input::encode(spec, &x);
            any_input::decode(spec, &bytes);
        }
    }
}

/// A scale under 2^-25 is a number in fp32 and zero in fp16: codes are written
/// as for any block, and decode to zero.
#[test]
fn a_scale_lost_in_fp16_keeps_its_codes() {
    for (spec, encoder) in half_encoders() {
        let tiny = encode(spec, encoder, &walk(spec, 2f32.powi(-32))).unwrap();
        let plain = encode(spec, encoder, &walk(spec, 1.0)).unwrap();
        assert_eq!(scales(spec, &tiny)[0], 0.0);
        assert_eq!(tiny, with_scales(spec, plain, 0), "{}", spec.name);
        assert!(
            decode(spec, &tiny, Domain::Original)
                .iter()
                .all(|v| *v == 0.0)
        );
    }
}

/// The reference encoders of the formats that divide by a length take one of
/// 1e-10 and less for zero: the codes are those of a row of zeros.
#[test]
fn the_shortest_rows_are_zero_blocks() {
    for spec in FORMATS.iter().filter(|s| s.scale != Scale::Rms) {
        let zeros = encode(spec, spec.encode, &walk(spec, 0.0)).unwrap();
        for (length, same) in [(5e-11, true), (2e-10, false)] {
            let x = walk(spec, length / norm(&walk(spec, 1.0)));
            let bytes = encode(spec, spec.encode, &x).unwrap();
            // Signs have no division and no such rule.
            let signs = matches!(spec.code, Code::Signs { .. });
            assert_eq!(bytes == zeros, same && !signs, "{} {length}", spec.name);
            any_input::encode(spec, &x);
        }
    }
}

/// So small that the squares vanish in fp32: a block of zeros.
#[test]
fn a_scale_lost_in_fp32_is_a_zero_block() {
    for (spec, encoder) in encoders() {
        let zeros = encode(spec, encoder, &walk(spec, 0.0)).unwrap();
        for size in [1e-30, f32::from_bits(1)] {
            let bytes = encode(spec, encoder, &walk(spec, size)).unwrap();
            // What signs the reference stores for a length of zero does not matter.
            let bytes = match spec.code {
                Code::Signs { .. } => bytes[32..].to_vec(),
                _ => bytes,
            };
            assert!(zeros.ends_with(&bytes), "{} {size:e}", spec.name);
        }
    }
}

#[test]
fn wrong_lengths_are_refused() {
    for (spec, encoder) in encoders() {
        let n = spec.block_len;
        let row = CodecError::RowLength {
            found: n + 1,
            block_len: n,
        };
        assert_eq!(spec.row_bytes(n + 1), Err(row));
        let mut bytes = vec![UNTOUCHED; 2 * spec.block_bytes];
        assert_eq!(encoder(&vec![1.0; n + 1], &mut bytes), Err(row));
        for domain in [Domain::Original, Domain::Rotated] {
            let n = spec.len_in(domain);
            let row = CodecError::RowLength {
                found: n + 1,
                block_len: n,
            };
            let mut x = vec![7.0; n + 1];
            assert_eq!((spec.decode)(&bytes, &mut x, domain), Err(row));
        }
        for found in [
            0,
            spec.block_bytes,
            2 * spec.block_bytes - 1,
            2 * spec.block_bytes + 1,
        ] {
            let error = CodecError::ByteLength {
                found,
                expected: 2 * spec.block_bytes,
            };
            let mut bytes = vec![UNTOUCHED; found];
            assert_eq!(encoder(&vec![1.0; 2 * n], &mut bytes), Err(error));
            assert_eq!(bytes, vec![UNTOUCHED; found]);
            for domain in [Domain::Original, Domain::Rotated] {
                let mut x = vec![7.0; 2 * spec.len_in(domain)];
                assert_eq!((spec.decode)(&bytes, &mut x, domain), Err(error));
                assert!(x.iter().all(|v| *v == 7.0));
            }
        }
        // A row of no values is a row.
        assert_eq!(encoder(&[], &mut []), Ok(()));
        assert_eq!((spec.decode)(&[], &mut [], Domain::Original), Ok(()));
    }
}

#[test]
fn errors_say_the_numbers() {
    for (error, words) in [
        (CodecError::NonFinite { index: 37 }, "37"),
        (CodecError::ScaleOverflow { block: 5 }, "block 5"),
        (
            CodecError::RowLength {
                found: 33,
                block_len: 32,
            },
            "33 values",
        ),
        (
            CodecError::ByteLength {
                found: 17,
                expected: 18,
            },
            "18 bytes, the buffer has 17",
        ),
    ] {
        assert!(error.to_string().contains(words), "{error}");
    }
}

fn encode(spec: &FormatSpec, encode: Encode, x: &[f32]) -> Result<Vec<u8>, CodecError> {
    let mut bytes = vec![UNTOUCHED; spec.row_bytes(x.len())?];
    encode(x, &mut bytes).map(|()| bytes)
}

fn decode(spec: &FormatSpec, bytes: &[u8], domain: Domain) -> Vec<f32> {
    let mut x = vec![7.0; bytes.len() / spec.block_bytes * spec.len_in(domain)];
    (spec.decode)(bytes, &mut x, domain).unwrap();
    x
}

/// Encoding `x` gives `error`; `whole` blocks before it have been written and
/// nothing else has.
fn refused(spec: &FormatSpec, encoder: Encode, x: &[f32], error: CodecError, whole: usize) {
    let mut bytes = vec![UNTOUCHED; spec.row_bytes(x.len()).unwrap()];
    assert_eq!(encoder(x, &mut bytes), Err(error), "{}", spec.name);
    let (written, untouched) = bytes.split_at(whole * spec.block_bytes);
    let expected = encode(spec, encoder, &x[..whole * spec.block_len]);
    assert_eq!(written, expected.unwrap());
    assert!(untouched.iter().all(|&b| b == UNTOUCHED));
}

fn scales(spec: &FormatSpec, block: &[u8]) -> Vec<f32> {
    let bits = any_input::scales_at(spec).map(|at| u16::from_le_bytes([block[at], block[at + 1]]));
    bits.map(|bits| match spec.code {
        Code::Signs { .. } => f32::from_bits(u32::from(bits) << 16),
        _ => f16_to_f32(bits),
    })
    .collect()
}

fn with_scales(spec: &FormatSpec, mut block: Vec<u8>, bits: u16) -> Vec<u8> {
    for at in any_input::scales_at(spec) {
        block[at..at + 2].copy_from_slice(&bits.to_le_bytes());
    }
    block
}

/// A row with values of many sizes, at most `size`.
fn walk(spec: &FormatSpec, size: f32) -> Vec<f32> {
    let value = |i: usize| ((i * 7 % 32) as f32 - 15.5) / 16.0;
    let values = (0..spec.block_len).map(|i| value(i) * if i < 32 { 1.0 } else { 0.9 });
    values.map(|v| size * v).collect()
}

fn norm(x: &[f32]) -> f32 {
    x.iter().map(|v| v * v).sum::<f32>().sqrt()
}
