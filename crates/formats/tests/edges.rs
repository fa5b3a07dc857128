//! One documented outcome for every input that is not an ordinary row.

use kvforge_formats::{
    CodecError, Domain, FORMATS, FormatSpec, Rotation, by_id, by_name, f16_to_f32, oracle,
};

const BLOCK: usize = 32;

/// What an untouched byte holds in these tests.
const UNTOUCHED: u8 = 0xa5;

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

/// Zero in, zero bytes, zero out; the sign of zero is lost.
#[test]
fn a_zero_row_is_zero_bytes() {
    for spec in FORMATS {
        for zero in [0.0, -0.0] {
            let bytes = encode(spec, &[zero; BLOCK]).unwrap();
            assert_eq!(bytes, vec![0; spec.block_bytes]);
            let x = decode(spec, &bytes, Domain::Original);
            assert!(x.iter().all(|v| v.to_bits() == 0));
        }
    }
}

/// Only the scale decides whether a block is zero.
#[test]
fn codes_of_a_zero_scale_are_ignored() {
    for spec in FORMATS {
        for sign in [0x00, 0x80] {
            let mut bytes = vec![0xff; spec.block_bytes];
            bytes[..2].copy_from_slice(&[0, sign]);
            for domain in [Domain::Original, Domain::Rotated] {
                assert_eq!(decode(spec, &bytes, domain), [0.0; BLOCK]);
            }
            assert_eq!(oracle::decode(spec, &bytes), [0.0; BLOCK]);
        }
    }
}

#[test]
fn non_finite_values_are_refused() {
    let subnormal_nan = f32::from_bits(0x7f80_0001);
    for spec in FORMATS {
        for bad in [
            f32::NAN,
            -f32::NAN,
            subnormal_nan,
            f32::INFINITY,
            f32::NEG_INFINITY,
        ] {
            for index in [0, 31, 32, 63, 95] {
                let mut x = [1.0; 3 * BLOCK];
                x[index] = bad;
                x[95] = bad;
                refused(spec, &x, CodecError::NonFinite { index }, index / BLOCK);
            }
        }
    }
}

/// fp16 ends at 65504; 65520 is the first number that rounds to infinity.
#[test]
fn scales_are_refused_from_65520_on() {
    // A constant row is one spike of sqrt(32) times its value after a butterfly
    // without signs, so unrotate a constant: every rotated value is the scale.
    let row = |spec: &FormatSpec, scale: f32| {
        let mut x = [scale; BLOCK];
        spec.rotation.unrotate(&mut x);
        x
    };
    for spec in FORMATS {
        for fits in [65503.0, 65504.0, 65510.0, 65519.0] {
            let bytes = encode(spec, &row(spec, fits)).unwrap();
            assert_eq!(scale_of(&bytes), 65504.0, "{fits}");
        }
        for overflows in [65520.5, 65521.0, 1e6, 1e30, 1e37] {
            let x = [[1.0; BLOCK], row(spec, overflows), [1.0; BLOCK]].concat();
            refused(spec, &x, CodecError::ScaleOverflow { block: 1 }, 1);
        }
        // The butterfly itself overflows to infinity and NaN.
        refused(
            spec,
            &[f32::MAX; BLOCK],
            CodecError::ScaleOverflow { block: 0 },
            0,
        );
    }
}

/// Errors come in the order of blocks, whatever their kind.
#[test]
fn the_first_bad_block_is_named() {
    for spec in FORMATS {
        let x = [[1.0; BLOCK], [1e30; BLOCK], [f32::NAN; BLOCK]].concat();
        refused(spec, &x, CodecError::ScaleOverflow { block: 1 }, 1);
        let x = [[f32::NAN; BLOCK], [1e30; BLOCK]].concat();
        refused(spec, &x, CodecError::NonFinite { index: 0 }, 0);
    }
}

/// fp16 scales below 2^-14 have fewer digits and still mean what they say.
#[test]
fn subnormal_scales_decode() {
    for spec in FORMATS {
        for exponent in 15..=24 {
            let size = 2f32.powi(-exponent);
            let x = walk(size);
            let bytes = encode(spec, &x).unwrap();
            let scale = scale_of(&bytes);
            assert!(
                scale > 0.0 && scale < 2f32.powi(-14),
                "2^-{exponent}: {scale}"
            );
            oracle::judge(spec, &x, &bytes).unwrap();
            // Half a unit of 2^-24 on the scale, times the widest code.
            let error = worst(&decode(spec, &bytes, Domain::Original), &x);
            assert!(
                error < 3.0 * 2f32.powi(-25) * 6.0 + size,
                "2^-{exponent}: {error}"
            );
        }
    }
}

/// A scale under 2^-25 is a number in fp32 and zero in fp16: codes are written
/// as for any block, and decode to zero.
#[test]
fn a_scale_lost_in_fp16_keeps_its_codes() {
    for spec in FORMATS {
        let size = 2f32.powi(-27);
        let tiny = encode(spec, &walk(size)).unwrap();
        let plain = encode(spec, &walk(1.0)).unwrap();
        assert_eq!(scale_of(&tiny), 0.0);
        assert_eq!(tiny[2..], plain[2..]);
        assert_eq!(decode(spec, &tiny, Domain::Original), [0.0; BLOCK]);
    }
}

/// So small that the squares vanish in fp32: a zero block.
#[test]
fn a_scale_lost_in_fp32_is_a_zero_block() {
    for spec in FORMATS {
        for size in [1e-30, f32::from_bits(1)] {
            assert_eq!(
                encode(spec, &walk(size)).unwrap(),
                vec![0; spec.block_bytes]
            );
        }
    }
}

/// Poisoned bytes are loud: a block whose scale is NaN is NaN everywhere.
#[test]
fn a_nan_scale_decodes_to_nan() {
    for spec in FORMATS {
        let mut bytes = vec![UNTOUCHED; spec.block_bytes];
        bytes[..2].copy_from_slice(&0x7e00u16.to_le_bytes());
        for domain in [Domain::Original, Domain::Rotated] {
            assert!(decode(spec, &bytes, domain).iter().all(|v| v.is_nan()));
        }
        assert!(oracle::decode(spec, &bytes).iter().all(|v| v.is_nan()));
    }
}

#[test]
fn wrong_lengths_are_refused() {
    for spec in FORMATS {
        let row = CodecError::RowLength {
            found: 33,
            block_len: BLOCK,
        };
        assert_eq!(spec.row_bytes(33), Err(row));
        let mut bytes = vec![UNTOUCHED; 2 * spec.block_bytes];
        assert_eq!((spec.encode)(&[1.0; 33], &mut bytes), Err(row));
        assert_eq!(
            (spec.decode)(&bytes, &mut [7.0; 33], Domain::Original),
            Err(row)
        );
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
            assert_eq!((spec.encode)(&[1.0; 64], &mut bytes), Err(error));
            assert_eq!(bytes, vec![UNTOUCHED; found]);
            let mut x = [7.0; 64];
            assert_eq!((spec.decode)(&bytes, &mut x, Domain::Original), Err(error));
            assert_eq!(x, [7.0; 64]);
        }
        // A row of no values is a row.
        assert_eq!((spec.encode)(&[], &mut []), Ok(()));
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

/// Around the middle between two entries the rounded distances decide, and a tie
/// goes to the lower one. A comparison with the rounded middle would differ: some
/// pairs have no fp32 number exactly between them.
#[test]
fn borders_are_where_the_distances_cross() {
    for spec in FORMATS {
        let mut ties = 0;
        for low in 0..spec.codebook.len() - 1 {
            let (c_low, c_high) = (spec.codebook[low], spec.codebook[low + 1]);
            let middle = (c_low + c_high) / 2.0;
            // The pair around zero has its own test below.
            if middle == 0.0 {
                continue;
            }
            for v in [middle.next_down(), middle, middle.next_up()] {
                let (down, up) = (v - c_low, c_high - v);
                ties += usize::from(down == up);
                let expected = if down <= up { low } else { low + 1 };
                let bytes = encode(spec, &row_with_first_value(spec, v)).unwrap();
                assert_eq!(first_code(spec, &bytes), expected, "{} {v}", spec.name);
            }
        }
        assert!(ties >= spec.codebook.len() / 2 - 1, "{ties}");
    }
}

/// A row whose first rotated value is `wanted` when scaled as the encoder scales
/// it.
fn row_with_first_value(spec: &FormatSpec, wanted: f32) -> [f32; BLOCK] {
    let row = |first: f32, size: f32| {
        let mut x = walk(size);
        x[0] = first;
        spec.rotation.unrotate(&mut x);
        x
    };
    // Every size of the other values is another grid to hit the number on.
    for step in 0..200 {
        let size = 1.0 + step as f32 / 200.0;
        let (mut below, mut above) = (-200.0f32, 200.0f32);
        while (above - below).abs() > 1e-5 {
            let guess = (below + above) / 2.0;
            if scaled(spec, &row(guess, size))[0] < wanted {
                below = guess;
            } else {
                above = guess;
            }
        }
        let mut first = below;
        while first < above {
            let x = row(first, size);
            if scaled(spec, &x)[0] == wanted {
                return x;
            }
            first = first.next_up().max(first + 1e-8);
        }
    }
    panic!("no row gives {wanted}");
}

/// The values that an encoder codes: rotated, divided by their fp32 RMS.
fn scaled(spec: &FormatSpec, x: &[f32; BLOCK]) -> [f32; BLOCK] {
    let mut r = *x;
    spec.rotation.rotate(&mut r);
    let sum = r.iter().fold(0f32, |sum, v| sum + v * v);
    let inverse = 1.0 / (sum / 32.0).sqrt();
    r.map(|v| v * inverse)
}

/// Half of the rotated values of two equal neighbours are zero, which lies
/// between the two middle entries: also a tie.
#[test]
fn zeros_within_a_row_take_the_lower_middle_code() {
    for spec in FORMATS {
        let Rotation::SignedHadamard32 { negative } = spec.rotation;
        assert_eq!(negative & 0b11, 0b10, "the first two signs differ");
        let mut x = [0.0; BLOCK];
        x[..2].fill(1.0);
        let bytes = encode(spec, &x).unwrap();
        // s . x = (1, -1, 0 ...): even rotated values cancel.
        assert_eq!(first_code(spec, &bytes), spec.codebook.len() / 2 - 1);
    }
}

fn encode(spec: &FormatSpec, x: &[f32]) -> Result<Vec<u8>, CodecError> {
    let mut bytes = vec![UNTOUCHED; spec.row_bytes(x.len())?];
    (spec.encode)(x, &mut bytes).map(|()| bytes)
}

fn decode(spec: &FormatSpec, bytes: &[u8], domain: Domain) -> Vec<f32> {
    let mut x = vec![7.0; bytes.len() / spec.block_bytes * BLOCK];
    (spec.decode)(bytes, &mut x, domain).unwrap();
    x
}

/// Encoding `x` gives `error`; `whole` blocks before it have been written and
/// nothing else has.
fn refused(spec: &FormatSpec, x: &[f32], error: CodecError, whole: usize) {
    let mut bytes = vec![UNTOUCHED; spec.row_bytes(x.len()).unwrap()];
    assert_eq!((spec.encode)(x, &mut bytes), Err(error), "{}", spec.name);
    let (written, untouched) = bytes.split_at(whole * spec.block_bytes);
    assert_eq!(written, encode(spec, &x[..whole * BLOCK]).unwrap());
    assert!(untouched.iter().all(|&b| b == UNTOUCHED));
}

fn scale_of(bytes: &[u8]) -> f32 {
    f16_to_f32(u16::from_le_bytes([bytes[0], bytes[1]]))
}

/// In both packings code 0 is the lowest bits of the first byte after the scale.
fn first_code(spec: &FormatSpec, bytes: &[u8]) -> usize {
    usize::from(bytes[2]) & (spec.codebook.len() - 1)
}

/// A row with values of many sizes, at most `size`.
fn walk(size: f32) -> [f32; BLOCK] {
    std::array::from_fn(|i| size * ((i * 7 % 32) as f32 - 15.5) / 16.0)
}

fn worst(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).fold(0.0, |m, (a, b)| m.max((a - b).abs()))
}
