//! Encoders and decoders agree with the reference codec bit for bit, on every
//! instruction set.

mod common;

use common::{Random, isas};
use kvforge_cpu::{CacheType, Error, Isa, Op, counters, decode, dot, encode, poison};
use kvforge_formats::{
    CodecError, Domain, FORMATS, FormatSpec, f16_to_f32,
    oracle::{self, Type},
};
use proptest::prelude::*;

/// Longest row, in blocks: five groups of eight lanes.
const MOST: usize = 40;

/// Encodes with the reference and with `isa` into buffers of the same rubbish,
/// and compares what came of it: result, bytes written, bytes left alone.
fn check_encode(spec: &'static FormatSpec, isa: Isa, x: &[f32]) {
    let len = spec.row_bytes(x.len()).unwrap();
    let (mut expected, mut found) = (vec![0xa5; len], vec![0xa5; len]);
    let expected_result = (spec.encode)(x, &mut expected).map_err(Error::Codec);
    let found_result = encode(spec, isa, x, &mut found, 0);
    assert_eq!(
        found_result,
        expected_result,
        "{} {}",
        spec.name,
        isa.name()
    );
    let block = |b: &[u8]| b.to_vec();
    for (i, (found, expected)) in found
        .chunks(spec.block_bytes)
        .map(block)
        .zip(expected.chunks(spec.block_bytes).map(block))
        .enumerate()
    {
        assert_eq!(found, expected, "{} {} block {i}", spec.name, isa.name());
    }
}

/// One block of a kind that encoders might get wrong.
fn hard_block(random: &mut Random, kind: usize) -> [f32; 32] {
    let magnitude = 10f32.powi(random.below(17) as i32 - 10);
    let mut block: [f32; 32] = std::array::from_fn(|_| random.normal() * magnitude);
    match kind % 8 {
        // Zeros of both signs.
        1 => block = std::array::from_fn(|i| if i % 3 == 0 { -0.0 } else { 0.0 }),
        // fp32 subnormals: squares underflow, the scale may be zero.
        2 => block = std::array::from_fn(|_| f32::from_bits(random.bits() as u32 & 0x807f_ffff)),
        // Scales around the smallest fp16 numbers.
        3 => block = block.map(|v| v / magnitude * 3e-8),
        // One spike: all rotated values have the same magnitude.
        4 => block = std::array::from_fn(|i| if i == 5 { magnitude } else { 0.0 }),
        // Small integers: many equal distances and exact sums.
        5 => block = std::array::from_fn(|_| random.below(5) as f32 - 2.0),
        // Constant and alternating rows.
        6 => block = std::array::from_fn(|i| if i % 2 == 0 { 1.0 } else { -1.0 }),
        _ => {}
    }
    block
}

#[test]
fn encode_is_the_reference_bit_for_bit() {
    let mut random = Random::new(1);
    for isa in isas() {
        for spec in FORMATS {
            for blocks in 1..=MOST {
                for _ in 0..8 {
                    let x: Vec<f32> = (0..blocks)
                        .flat_map(|_| {
                            let kind = random.below(16);
                            hard_block(&mut random, kind)
                        })
                        .collect();
                    check_encode(spec, isa, &x);
                }
            }
        }
    }
}

/// A row whose rotated, scaled values are exactly half-way between two codebook
/// entries cannot be made at will; but values at the fp32 numbers around each
/// midpoint, found by search over the scale of a spiky block, get close enough
/// to need the reference's own rounding.
#[test]
fn encode_decides_near_ties_as_the_reference() {
    let mut random = Random::new(2);
    for isa in isas() {
        for spec in FORMATS {
            let mut x = vec![];
            for pair in spec.codebook.windows(2) {
                let middle = (pair[0] + pair[1]) / 2.0;
                for ulps in -8i32..=8 {
                    // In the rotated domain: one value near the midpoint, the rest
                    // of magnitude such that the RMS is 1; then back.
                    let target = f32::from_bits((middle.to_bits() as i32 + ulps) as u32);
                    let rest = ((32.0 - target * target) / 31.0).sqrt();
                    let mut block: [f64; 32] = std::array::from_fn(|_| {
                        f64::from(if random.below(2) == 0 { rest } else { -rest })
                    });
                    block[random.below(32)] = f64::from(target);
                    x.extend(unrotate(spec, &block));
                }
            }
            check_encode(spec, isa, &x);
        }
    }
}

/// The oracle rotates by a matrix; its inverse is its transpose.
fn unrotate(spec: &FormatSpec, r: &[f64; 32]) -> Vec<f32> {
    (0..32)
        .map(|i| {
            let mut unit = [0.0; 32];
            unit[i] = 1.0;
            let column = oracle::rotate(spec, &unit);
            column.iter().zip(r).map(|(c, r)| c * r).sum::<f64>() as f32
        })
        .collect()
}

#[test]
fn encode_stops_at_the_first_bad_block() {
    let mut random = Random::new(3);
    for isa in isas() {
        for spec in FORMATS {
            for blocks in [1, 3, 8, 9, 16, 17, 25] {
                for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e9, f32::MAX] {
                    for at in 0..blocks {
                        let mut x = random.normals(32 * blocks);
                        // A second bad value behind the first must not be named.
                        x[32 * at + random.below(32)] = bad;
                        x[32 * blocks - 1] = f32::NAN;
                        check_encode(spec, isa, &x);
                    }
                }
            }
        }
    }
}

#[test]
fn encode_finds_the_largest_fp16_scale() {
    for isa in isas() {
        for spec in FORMATS {
            for (rms, fits) in [(65504.0, true), (65519.0, true), (65520.0, false)] {
                // A spike of sqrt(32) * rms has that RMS, give or take rounding.
                let mut x = [0.0f32; 32];
                x[7] = rms * 32f32.sqrt();
                check_encode(spec, isa, &x);
                let mut bytes = vec![0; spec.block_bytes];
                let result = encode(spec, isa, &x, &mut bytes, 0);
                if rms != 65519.0 {
                    assert_eq!(result.is_ok(), fits, "{rms}");
                }
            }
        }
    }
}

#[test]
fn wrong_lengths_are_refused() {
    for isa in isas() {
        for spec in FORMATS {
            let mut bytes = vec![1; spec.block_bytes];
            let before = bytes.clone();
            assert_eq!(
                encode(spec, isa, &[0.0; 31], &mut bytes, 0),
                Err(Error::Codec(CodecError::RowLength {
                    found: 31,
                    block_len: 32
                }))
            );
            let expected = Err(Error::Codec(CodecError::ByteLength {
                found: spec.block_bytes,
                expected: 2 * spec.block_bytes,
            }));
            assert_eq!(encode(spec, isa, &[0.0; 64], &mut bytes, 0), expected);
            assert_eq!(dot(spec, isa, &bytes, &[0.0; 64], 0).map(drop), expected);
            let kind = CacheType::Format(spec);
            let mut x = [0.5; 64];
            assert_eq!(
                decode(kind, isa, Domain::Original, &bytes, &mut x, 0),
                expected
            );
            assert_eq!((bytes, x), (before, [0.5; 64]));
        }
    }
}

/// Equal bits, or both NaN: payloads are nobody's business.
fn assert_same(found: &[f32], expected: &[f32], what: &str) {
    for (i, (f, e)) in found.iter().zip(expected).enumerate() {
        let same = f.to_bits() == e.to_bits() || f.is_nan() && e.is_nan();
        assert!(same, "{what}: value {i} is {f:e}, not {e:e}");
    }
}

#[test]
fn decode_is_the_reference_bit_for_bit() {
    let mut random = Random::new(4);
    // Both zeros, the subnormals' ends, the largest, both infinities, NaNs.
    let scales = [
        0x0000, 0x8000, 0x0001, 0x83ff, 0x0400, 0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7e00, 0x7c01,
    ];
    for isa in isas() {
        for spec in FORMATS {
            for blocks in 1..=MOST {
                let mut bytes = random.bytes(blocks * spec.block_bytes);
                for block in bytes.chunks_mut(spec.block_bytes) {
                    if random.below(4) == 0 {
                        let scale: u16 = scales[random.below(scales.len())];
                        block[..2].copy_from_slice(&scale.to_le_bytes());
                    }
                }
                for domain in [Domain::Original, Domain::Rotated] {
                    let mut expected = vec![0.0; 32 * blocks];
                    (spec.decode)(&bytes, &mut expected, domain).unwrap();
                    let mut found = vec![f32::NAN; 32 * blocks];
                    decode(CacheType::Format(spec), isa, domain, &bytes, &mut found, 0).unwrap();
                    let what = format!("{} {} {domain:?}", spec.name, isa.name());
                    assert_same(&found, &expected, &what);
                }
            }
        }
    }
}

#[test]
fn every_f16_decodes_exactly() {
    let halves: Vec<u16> = (0..=u16::MAX).collect();
    let bytes: Vec<u8> = halves.iter().flat_map(|h| h.to_ne_bytes()).collect();
    let expected: Vec<f32> = halves.iter().map(|&h| f16_to_f32(h)).collect();
    for isa in isas() {
        // Odd lengths have a tail that is not a whole vector.
        for n in [1, 7, 8, 9, 80, 65536] {
            let mut found = vec![1.5; n];
            decode(
                CacheType::F16,
                isa,
                Domain::Original,
                &bytes[..2 * n],
                &mut found,
                0,
            )
            .unwrap();
            assert_same(&found, &expected[..n], isa.name());
        }
    }
}

#[test]
fn f32_and_q8_0_decode_as_the_oracle() {
    let mut random = Random::new(5);
    for isa in isas() {
        for (kind, ty) in [(CacheType::F32, Type::F32), (CacheType::Q8_0, Type::Q8_0)] {
            for blocks in 1..=20 {
                let n = blocks * kind.block_len();
                let bytes = ty.encode(&random.normals(n));
                let expected: Vec<f32> = ty.decode(&bytes).iter().map(|&v| v as f32).collect();
                let mut found = vec![0.0; n];
                decode(kind, isa, Domain::Original, &bytes, &mut found, 0).unwrap();
                assert_same(&found, &expected, &format!("{kind:?} {}", isa.name()));
            }
        }
    }
}

#[test]
fn dot_keeps_the_score_tolerance() {
    let mut random = Random::new(6);
    for isa in isas() {
        for spec in FORMATS {
            for blocks in 1..=MOST {
                let mut bytes = vec![0; blocks * spec.block_bytes];
                let k = random.normals(32 * blocks);
                encode(spec, isa, &k, &mut bytes, 0).unwrap();
                let q = random.normals(32 * blocks);
                let decoded = oracle::decode(spec, &bytes);
                let expected: f64 = q.iter().zip(&decoded).map(|(&q, k)| f64::from(q) * k).sum();
                let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|v| v * v).sum::<f64>().sqrt();
                let limit = spec.tolerance.score
                    * norm(&mut q.iter().map(|&v| v.into()))
                    * norm(&mut decoded.iter().copied());
                let found = dot(spec, isa, &bytes, &q, 0).unwrap();
                let error = (f64::from(found) - expected).abs();
                assert!(
                    error <= limit,
                    "{} {}: {error:e} > {limit:e}",
                    spec.name,
                    isa.name()
                );
            }
        }
    }
}

#[test]
fn poisoned_blocks_decode_to_nan_everywhere() {
    for isa in isas() {
        for spec in FORMATS {
            let mut bytes = vec![0; 9 * spec.block_bytes];
            poison(spec, &mut bytes).unwrap();
            for domain in [Domain::Original, Domain::Rotated] {
                let mut x = vec![0.0; 9 * 32];
                decode(CacheType::Format(spec), isa, domain, &bytes, &mut x, 0).unwrap();
                assert!(x.iter().all(|v| v.is_nan()));
            }
            assert!(poison(spec, &mut bytes[1..]).is_err());
        }
    }
}

#[test]
fn kernels_count_the_blocks_they_coded() {
    // Slots of this test alone: counters are one for the whole process.
    const SLOT: u32 = 700;
    for isa in isas() {
        for spec in FORMATS {
            let mut x = vec![1.0; 12 * 32];
            let mut bytes = vec![0; 12 * spec.block_bytes];
            encode(spec, isa, &x, &mut bytes, SLOT).unwrap();
            decode(
                CacheType::Format(spec),
                isa,
                Domain::Original,
                &bytes,
                &mut x,
                SLOT,
            )
            .unwrap();
            dot(spec, isa, &bytes, &x, SLOT).unwrap();
            let count = |op| counters::get(spec, op, isa, SLOT);
            assert_eq!(
                [Op::Encode, Op::Decode, Op::Dot, Op::Attend].map(count),
                [12, 12, 12, 0]
            );
            // Ten blocks are written before the bad one.
            x[10 * 32] = f32::NAN;
            encode(spec, isa, &x, &mut bytes, SLOT).unwrap_err();
            assert_eq!(count(Op::Encode), 22);
        }
    }
    let mut cursor = 0;
    let mut seen = 0;
    while let Some(c) = counters::next(&mut cursor) {
        if c.slot == SLOT as usize {
            assert_eq!(c.count, counters::get(c.spec, c.op, c.isa, SLOT));
            seen += 1;
        }
    }
    assert_eq!(seen, isas().len() * FORMATS.len() * 3);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

    /// Any bits whatever, in particular such that a block is refused.
    #[test]
    fn encode_agrees_on_arbitrary_bits(bits in prop::collection::vec(any::<u32>(), 1..=64)) {
        // Exponents near each other, or nearly every block would be refused.
        for fold in [0, 0x3f80_0000] {
            let x: Vec<f32> = (0..bits.len().div_ceil(4) * 32)
                .map(|i| bits[i % bits.len()].rotate_left(i as u32 / 7) & !fold | fold >> 1)
                .map(f32::from_bits)
                .collect();
            for isa in isas() {
                for spec in FORMATS {
                    check_encode(spec, isa, &x);
                }
            }
        }
    }
}
