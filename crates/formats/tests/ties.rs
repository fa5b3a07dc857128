//! Values exactly on a border between two codes.

use kvforge_formats::{
    Code, Domain, Encode, FORMATS, FormatSpec, Scale, q4_polar, qjl1_256, tbq3_tcq, turbo3_legacy,
};

const BLOCK: usize = 32;

/// Formats that code 32 values in units of their RMS, with their codebooks.
fn formats() -> impl Iterator<Item = (&'static FormatSpec, &'static [f32])> {
    FORMATS.iter().filter_map(|spec| match spec.code {
        Code::Scalar { codebook, .. } if spec.scale == Scale::Rms => Some((*spec, codebook)),
        _ => None,
    })
}

/// Around the middle between two entries the rounded distances decide, and a tie
/// goes to the lower one. A comparison with the rounded middle would differ: some
/// pairs have no fp32 number exactly between them.
#[test]
fn borders_are_where_the_distances_cross() {
    for (spec, codebook) in formats() {
        let mut ties = 0;
        for low in 0..codebook.len() - 1 {
            let (c_low, c_high) = (codebook[low], codebook[low + 1]);
            let middle = (c_low + c_high) / 2.0;
            // The pair around zero has its own test below.
            if middle == 0.0 {
                continue;
            }
            for v in [middle.next_down(), middle, middle.next_up()] {
                let (down, up) = (v - c_low, c_high - v);
                ties += usize::from(down == up);
                let expected = if down <= up { low } else { low + 1 };
                let x = row_with_first_value(spec, v);
                assert_eq!(
                    first_code(spec, spec.encode, &x),
                    expected,
                    "{} {v}",
                    spec.name
                );
            }
        }
        assert!(ties >= codebook.len() / 2 - 1, "{ties}");
    }
}

/// A row whose first rotated value is `wanted` when scaled as the encoder scales
/// it.
fn row_with_first_value(spec: &FormatSpec, wanted: f32) -> [f32; BLOCK] {
    let row = |first: f32, size: f32| {
        let mut x: [f32; BLOCK] =
            std::array::from_fn(|i| size * ((i * 7 % 32) as f32 - 15.5) / 16.0);
        x[0] = first;
        spec.transform.rotation().unwrap().unrotate(&mut x);
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
    spec.transform.rotation().unwrap().rotate(&mut r);
    let sum = r.iter().fold(0f32, |sum, v| sum + v * v);
    let inverse = 1.0 / (sum / 32.0).sqrt();
    r.map(|v| v * inverse)
}

/// Two equal values, or two opposite ones, cancel in half of the rotated values:
/// those are zero, which lies between the two middle entries. It takes the lower
/// one, but in `turbo3_legacy`, whose published borders send it up.
#[test]
fn zeros_within_a_row_take_a_middle_code() {
    for spec in FORMATS {
        let Code::Scalar { codebook, .. } = spec.code else {
            continue;
        };
        let mut x = vec![0.0; spec.block_len];
        x[0] = 1.0;
        let mut coded = x.clone();
        // The sign of the second value with which the first rotated value is zero.
        x[1] = 1.0;
        spec.transform.forward(&x, &mut coded);
        if coded[0] != 0.0 {
            x[1] = -1.0;
            spec.transform.forward(&x, &mut coded);
        }
        assert_eq!(coded[0], 0.0);
        let up = usize::from(**spec == turbo3_legacy::SPEC);
        let expected = codebook.len() / 2 - 1 + up;
        assert_eq!(first_code(spec, spec.encode, &x), expected, "{}", spec.name);
        assert_eq!(
            first_code(spec, spec.encode_best, &x),
            expected,
            "{}",
            spec.name
        );
    }
}

/// Polar's published middle border is what an iteration left of zero, 5e-16: a value
/// has to be above it to get the upper code.
#[test]
fn the_middle_border_of_polar_is_not_quite_zero() {
    let spec = &q4_polar::SPEC;
    for (first, code) in [(0.0, 7), (1e-17, 7), (1e-15, 8), (-1e-15, 7)] {
        // H x is constant on what index 0 adds; all else cancels at index 0.
        let mut x = vec![0.0f32; 128];
        (x[0], x[1], x[2]) = (1.0, -1.0, first);
        assert_eq!(first_code(spec, spec.encode, &x), code, "{first:e}");
    }
}

/// Two states next to each other have the same value, so that two walks cost the same
/// if they start with one of them: the lower one is taken.
#[test]
fn the_lower_of_two_equal_first_states_is_taken() {
    let spec = &tbq3_tcq::SPEC;
    let Code::Trellis { codebook } = spec.code else {
        panic!("not a trellis");
    };
    let lower = codebook
        .windows(2)
        .position(|pair| pair[0] == pair[1])
        .unwrap();
    let mut taken = 0;
    for i in 0..64u32 {
        // A string of any bits that starts with the upper state.
        let mut block = [0; 52];
        block[..2].copy_from_slice(&[0x00, 0x3c]);
        for (j, byte) in block[2..51].iter_mut().enumerate() {
            *byte = (i * 49 + j as u32).wrapping_mul(0x9e37_79b1).rotate_left(9) as u8;
        }
        let upper = lower as u16 + 1;
        block[2] = upper as u8;
        block[3] = block[3] & 0xfe | (upper >> 8) as u8;
        let mut x = [0.0; 128];
        (spec.decode)(&block, &mut x, Domain::Original).unwrap();
        let mut again = [0; 52];
        (spec.encode)(&x, &mut again).unwrap();
        let first = usize::from(u16::from_le_bytes([again[2], again[3]]) & 0x1ff);
        assert_ne!(first, lower + 1);
        taken += usize::from(first == lower);
    }
    // The others have a nearer walk than their own, since their length is not one.
    assert!(taken > 8, "{taken}");
}

/// A bf16 number has eight digits: of lengths between two of them the even one is
/// stored.
#[test]
fn lengths_halfway_between_bf16_numbers_go_to_the_even_one() {
    for (length, upper) in [
        (1.0 + 1.0 / 256.0, 0x3f80u16),
        (1.0 + 3.0 / 256.0, 0x3f82),
        (1.0 + 3.1 / 256.0, 0x3f82),
        (1.0 + 0.9 / 256.0, 0x3f80),
        (1.0 + 1.1 / 256.0, 0x3f81),
    ] {
        let mut x = [0.0; 128];
        x[5] = length;
        let mut block = [0; 34];
        (qjl1_256::SPEC.encode)(&x, &mut block).unwrap();
        assert_eq!(block[32..], upper.to_le_bytes(), "{length}");
    }
}

/// In all packings the code of value 0 has its low bits in the lowest ones of the
/// first byte after the scale; `turbo3_legacy` has the third elsewhere.
fn first_code(spec: &FormatSpec, encode: Encode, x: &[f32]) -> usize {
    let mut bytes = vec![0; spec.row_bytes(x.len()).unwrap()];
    encode(x, &mut bytes).unwrap();
    let low = usize::from(bytes[2]);
    match spec.block_bytes {
        56 => low & 3 | usize::from(bytes[10] & 1) << 2,
        _ => low & ((1 << spec.code.bits()) - 1),
    }
}
