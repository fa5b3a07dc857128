//! Encoders and decoders agree with the reference codec bit for bit, on every
//! instruction set.

mod common;

use common::{Random, isas};
use kvforge_cpu::{
    CacheType, Encoder, Error, Isa, Op, counters, decode, dot, encode, kernel_isa, poison,
};
use kvforge_formats::q4_polar::{self, Residual};
use kvforge_formats::{
    Code, CodecError, Domain, FORMATS, FormatSpec, Packing, f16_to_f32,
    oracle::{self, Type},
};
use proptest::prelude::*;

/// Row lengths in blocks: around and over groups of eight lanes, fewer where blocks
/// are long and their reference encoders slow.
fn row_lengths(spec: &FormatSpec) -> Vec<usize> {
    match spec.block_len {
        32 => (1..=40).collect(),
        _ => vec![1, 2, 3, 5, 9],
    }
}

/// Encodes with the reference and with `isa` into buffers of the same rubbish,
/// and compares what came of it: result, bytes written, bytes left alone.
fn check_encode(spec: &'static FormatSpec, isa: Isa, x: &[f32]) {
    for encoder in Encoder::ALL {
        let reference = match encoder {
            Encoder::Reference => spec.encode,
            Encoder::Best => spec.encode_best,
        };
        let len = spec.row_bytes(x.len()).unwrap();
        let (mut expected, mut found) = (vec![0xa5; len], vec![0xa5; len]);
        let expected_result = reference(x, &mut expected).map_err(Error::Codec);
        let found_result = encode(spec, isa, encoder, x, &mut found, 0);
        let what = format!("{} {} {encoder:?}", spec.name, isa.name());
        assert_eq!(found_result, expected_result, "{what}");
        let blocks = found.chunks(spec.block_bytes);
        for (i, (found, expected)) in blocks.zip(expected.chunks(spec.block_bytes)).enumerate() {
            assert_eq!(found, expected, "{what} block {i}");
        }
    }
}

/// One block of a kind that encoders might get wrong.
fn hard_block(random: &mut Random, kind: usize, n: usize) -> Vec<f32> {
    let magnitude = 10f32.powi(random.below(17) as i32 - 10);
    let mut block = random.normals(n);
    block.iter_mut().for_each(|v| *v *= magnitude);
    let spike = random.below(n);
    for (i, v) in block.iter_mut().enumerate() {
        match kind {
            // Zeros of both signs.
            1 => *v = if i % 3 == 0 { -0.0 } else { 0.0 },
            // fp32 subnormals: squares underflow, the scale may be zero.
            2 => *v = f32::from_bits(random.bits() as u32 & 0x807f_ffff),
            // Scales around the smallest fp16 numbers.
            3 => *v *= 3e-8 / magnitude,
            // One spike: all rotated values have the same magnitude.
            4 => *v = if i == spike { magnitude } else { 0.0 },
            // Small integers: many equal distances and exact sums.
            5 => *v = random.below(5) as f32 - 2.0,
            // Alternating and constant rows.
            6 => *v = if i % 2 == 0 { 1.0 } else { -1.0 },
            7 => *v = magnitude,
            // A few values among zeros.
            8 if random.below(20) > 0 => *v = 0.0,
            // Lengths around what some formats count as zero.
            9 => *v *= 1e-11 / magnitude,
            // Squares that overflow.
            10 => *v *= 1e19 / magnitude,
            _ => {}
        }
    }
    block
}

#[test]
fn encode_is_the_reference_bit_for_bit() {
    let mut random = Random::new(1);
    for isa in isas() {
        for spec in FORMATS {
            for blocks in row_lengths(spec) {
                for _ in 0..8 {
                    let mut block = || {
                        let kind = random.below(20);
                        hard_block(&mut random, kind, spec.block_len)
                    };
                    let x: Vec<f32> = (0..blocks).flat_map(|_| block()).collect();
                    check_encode(spec, isa, &x);
                }
            }
            // Alone, so that a block that is refused hides no other.
            for kind in 0..120 {
                let x = hard_block(&mut random, kind % 12, spec.block_len);
                check_encode(spec, isa, &x);
            }
        }
    }
}

/// A row whose rotated, scaled values are exactly half-way between two codebook
/// entries cannot be made at will; but values at the fp32 numbers around each
/// midpoint, in blocks whose scale is one, get close enough to need the
/// reference's own rounding.
#[test]
fn encode_decides_near_ties_as_the_reference() {
    let mut random = Random::new(2);
    for spec in FORMATS {
        let Code::Scalar { codebook, .. } = spec.code else {
            continue;
        };
        let n = spec.block_len;
        // Codebooks are for blocks of variance one or of length one.
        let square = if codebook[codebook.len() - 1] > 1.0 {
            n as f32
        } else {
            1.0
        };
        let mut x = vec![];
        for pair in codebook.windows(2) {
            let middle = (pair[0] + pair[1]) / 2.0;
            for ulps in -8i32..=8 {
                // In the rotated domain: one value near the midpoint, the rest
                // of one magnitude; then back.
                let target = f32::from_bits((middle.to_bits() as i32 + ulps) as u32);
                let rest = ((square - target * target) / (n - 1) as f32).sqrt();
                let sign = |r: &mut Random| if r.below(2) == 0 { rest } else { -rest };
                let mut block: Vec<f64> = (0..n).map(|_| sign(&mut random).into()).collect();
                block[random.below(n)] = f64::from(target);
                x.extend(unrotate(spec, &block));
            }
        }
        for isa in isas() {
            check_encode(spec, isa, &x);
        }
    }
}

/// The oracle rotates by a matrix; its inverse is its transpose.
fn unrotate(spec: &FormatSpec, r: &[f64]) -> Vec<f32> {
    let mut unit = vec![0.0; r.len()];
    (0..r.len())
        .map(|i| {
            unit[i] = 1.0;
            let column = oracle::rotate(spec, &unit);
            unit[i] = 0.0;
            column.iter().zip(r).map(|(c, r)| c * r).sum::<f64>() as f32
        })
        .collect()
}

/// A sum taken in another order differs in its last bits, which fp16 scales and codes
/// seldom show: once in some thousand blocks.
#[test]
fn best_scales_are_the_reference_over_many_blocks() {
    let mut random = Random::new(7);
    for spec in FORMATS {
        if matches!(spec.code, Code::Scalar { .. }) && spec.holds_keys() {
            for _ in 0..16 {
                let x = random.normals(640 * spec.block_len);
                isas()
                    .into_iter()
                    .for_each(|isa| check_encode(spec, isa, &x));
            }
        }
    }
}

/// The codebook of a trellis.
fn trellis() -> (&'static FormatSpec, &'static [f32; 512]) {
    let of = |spec: &&'static FormatSpec| match spec.code {
        Code::Trellis { codebook } => Some((*spec, codebook)),
        _ => None,
    };
    FORMATS.iter().find_map(of).unwrap()
}

/// A block of length one that is `r` when it has been rotated.
fn rotated_to(spec: &FormatSpec, mut r: Vec<f32>) -> Vec<f32> {
    spec.transform.rotation().unwrap().unrotate(&mut r);
    r
}

/// Two states have the same value and lead to the same states: a walk may begin in
/// either, and takes the lower one.
#[test]
fn walks_begin_in_the_lower_of_equal_states() {
    let (spec, codebook) = trellis();
    let s = (0..511).find(|s| codebook[*s] == codebook[s + 1]).unwrap();
    let mut random = Random::new(8);
    let mut begun = 0;
    for _ in 0..40 {
        let mut state = s;
        let walk = (0..128).map(|_| {
            let value = codebook[state];
            state = state >> 3 | random.below(8) << 6;
            value
        });
        let x = rotated_to(spec, walk.collect());
        let mut bytes = vec![0; spec.block_bytes];
        (spec.encode)(&x, &mut bytes).unwrap();
        let first = usize::from(u16::from_le_bytes([bytes[2], bytes[3]]) & 511);
        assert_ne!(first, s + 1);
        begun += usize::from(first == s);
        isas()
            .into_iter()
            .for_each(|isa| check_encode(spec, isa, &x));
    }
    assert!(begun > 10, "{begun} walks began there");
}

/// A last value half-way between those of two states after the same one: costs are
/// often equal once they are rounded, and the lower state wins.
#[test]
fn walks_end_in_the_lower_of_equal_states() {
    let (spec, codebook) = trellis();
    let mut random = Random::new(9);
    for _ in 0..300 {
        let mut r = random.normals(128);
        let encode = |r: &[f32]| {
            let mut bytes = vec![0; spec.block_bytes];
            (spec.encode)(&rotated_to(spec, r.to_vec()), &mut bytes).unwrap();
            usize::from(u16::from_le_bytes([bytes[49], bytes[50]]) >> 5 & 511)
        };
        let last = encode(&r);
        let others = (0..8).map(|symbol| last % 64 + 64 * symbol);
        let value = codebook[last];
        let next = others.map(|s| codebook[s]).filter(|v| *v > value);
        let next = next.fold(f32::INFINITY, f32::min);
        if next.is_finite() {
            // Length one with that value in it.
            let middle = (value + next) / 2.0;
            let rest: f32 = r[..127].iter().map(|v| v * v).sum();
            let factor = ((1.0 - middle * middle) / rest).sqrt();
            r.iter_mut().for_each(|v| *v *= factor);
            r[127] = middle;
            let x = rotated_to(spec, r);
            isas()
                .into_iter()
                .for_each(|isa| check_encode(spec, isa, &x));
        }
    }
}

#[test]
fn encode_stops_at_the_first_bad_block() {
    let mut random = Random::new(3);
    for isa in isas() {
        for spec in FORMATS {
            let n = spec.block_len;
            let lengths = [1, 3, 8, 9, 16, 17, 25];
            for blocks in &lengths[..if n == 32 { 7 } else { 2 }] {
                for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e9, f32::MAX] {
                    for at in 0..*blocks {
                        let mut x = random.normals(n * blocks);
                        // A second bad value behind the first must not be named.
                        x[n * at + random.below(n)] = bad;
                        x[n * blocks - 1] = f32::NAN;
                        check_encode(spec, isa, &x);
                    }
                }
            }
        }
    }
}

#[test]
fn encode_finds_the_largest_scale() {
    for isa in isas() {
        for spec in FORMATS {
            let largest = match spec.code {
                Code::Signs { .. } => 2f32.powi(64),
                _ => 65504.0,
            };
            let mut results = [0, 0];
            for step in -64..128 {
                let mut x = vec![0.0f32; spec.block_len];
                x[7] = largest * 2f32.powf(step as f32 / 32.0);
                check_encode(spec, isa, &x);
                let mut bytes = vec![0; spec.block_bytes];
                let result = encode(spec, isa, Encoder::Reference, &x, &mut bytes, 0);
                results[usize::from(result.is_ok())] += 1;
            }
            assert!(results.iter().all(|n| *n > 0), "{}: {results:?}", spec.name);
        }
    }
}

#[test]
fn wrong_lengths_are_refused() {
    for isa in isas() {
        for spec in FORMATS {
            let n = spec.block_len;
            let mut bytes = vec![1; spec.block_bytes];
            let before = bytes.clone();
            for encoder in Encoder::ALL {
                let mut encode = |x: &[f32]| encode(spec, isa, encoder, x, &mut bytes, 0);
                assert_eq!(
                    encode(&vec![0.0; n - 1]),
                    Err(Error::Codec(CodecError::RowLength {
                        found: n - 1,
                        block_len: n
                    }))
                );
                let expected = Err(Error::Codec(CodecError::ByteLength {
                    found: spec.block_bytes,
                    expected: 2 * spec.block_bytes,
                }));
                let two = vec![0.0; 2 * n];
                assert_eq!(encode(&two), expected);
                assert_eq!(dot(spec, isa, &bytes, &two, 0).map(drop), expected);
                let kind = CacheType::Format(spec);
                for domain in [Domain::Original, Domain::Rotated] {
                    let mut x = vec![0.5; 2 * spec.len_in(domain)];
                    assert_eq!(decode(kind, isa, domain, &bytes, &mut x, 0), expected);
                    assert!(x.iter().all(|v| *v == 0.5));
                }
            }
            assert_eq!(bytes, before);
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

/// Stores the bits of a scale in a block.
fn set_scale(spec: &FormatSpec, block: &mut [u8], scale: u16) {
    let (start, step) = match spec.code {
        Code::Signs { .. } => (spec.block_bytes - 2, spec.block_bytes),
        Code::Scalar {
            packing: Packing::SplitPlanes,
            ..
        } => (0, spec.block_bytes / 4),
        _ => (0, spec.block_bytes),
    };
    for at in (start..spec.block_bytes).step_by(step) {
        block[at..at + 2].copy_from_slice(&scale.to_le_bytes());
    }
}

#[test]
fn decode_is_the_reference_bit_for_bit() {
    let mut random = Random::new(4);
    // Both zeros, the subnormals' ends, the largest, both infinities, NaNs, of
    // fp16 and of bf16.
    let scales = [
        0x0000, 0x8000, 0x0001, 0x83ff, 0x0400, 0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7e00, 0x7c01,
        0x007f, 0x7f7f, 0xff7f, 0x7f80, 0xff80, 0x7fc0,
    ];
    let kinds = FORMATS.iter().map(|&spec| (CacheType::Format(spec), spec));
    for (kind, spec) in kinds.chain([(CacheType::PolarResidual, &q4_polar::SPEC)]) {
        for blocks in row_lengths(spec).into_iter().chain([30, 31]) {
            let mut bytes = random.bytes(blocks * spec.block_bytes);
            for block in bytes.chunks_mut(spec.block_bytes) {
                if random.below(4) == 0 {
                    set_scale(spec, block, scales[random.below(scales.len())]);
                }
            }
            for domain in [Domain::Original, Domain::Rotated] {
                let mut expected = vec![0.0; spec.len_in(domain) * blocks];
                match kind {
                    CacheType::PolarResidual => {
                        q4_polar::decode(&bytes, &mut expected, domain, Residual::Added)
                    }
                    _ => (spec.decode)(&bytes, &mut expected, domain),
                }
                .unwrap();
                for isa in isas() {
                    let mut found = vec![f32::NAN; spec.len_in(domain) * blocks];
                    decode(kind, isa, domain, &bytes, &mut found, 0).unwrap();
                    assert_same(
                        &found,
                        &expected,
                        &format!("{kind:?} {} {domain:?}", isa.name()),
                    );
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
    for spec in FORMATS {
        let mut worst = 0f64;
        for blocks in row_lengths(spec) {
            let n = spec.block_len * blocks;
            let mut bytes = vec![0; blocks * spec.block_bytes];
            (spec.encode)(&random.normals(n), &mut bytes).unwrap();
            let decoded = oracle::decode(spec, &bytes);
            let q = random.normals(n);
            let expected: f64 = q.iter().zip(&decoded).map(|(&q, k)| f64::from(q) * k).sum();
            let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|v| v * v).sum::<f64>().sqrt();
            let lengths = norm(&mut q.iter().map(|&v| v.into())) * norm(&mut decoded.into_iter());
            for isa in isas() {
                let found = dot(spec, isa, &bytes, &q, 0).unwrap();
                let error = (f64::from(found) - expected).abs() / lengths;
                let limit = spec.tolerance.score;
                assert!(
                    error <= limit,
                    "{} {}: {error:e} > {limit:e}",
                    spec.name,
                    isa.name()
                );
                worst = worst.max(error);
            }
        }
        println!("largest error of {} dot: {worst:e}", spec.name);
    }
}

#[test]
fn poisoned_blocks_decode_to_nan_everywhere() {
    for isa in isas() {
        for spec in FORMATS {
            let mut bytes = vec![0; 9 * spec.block_bytes];
            poison(spec, &mut bytes).unwrap();
            for domain in [Domain::Original, Domain::Rotated] {
                let mut x = vec![0.0; 9 * spec.len_in(domain)];
                decode(CacheType::Format(spec), isa, domain, &bytes, &mut x, 0).unwrap();
                assert!(x.iter().all(|v| v.is_nan()), "{}", spec.name);
            }
            assert!(poison(spec, &mut bytes[1..]).is_err());
        }
    }
}

#[test]
fn kernels_count_the_blocks_they_coded() {
    // Slots of this test alone, one an instruction set that is asked for: counters
    // are one for the whole process.
    const SLOT: u32 = 700;
    for isa in isas() {
        for spec in FORMATS {
            let (slot, n) = (SLOT + isa as u32, spec.block_len);
            let mut x = vec![1.0; 12 * n];
            let mut bytes = vec![0; 12 * spec.block_bytes];
            let kind = CacheType::Format(spec);
            encode(spec, isa, Encoder::Reference, &x, &mut bytes, slot).unwrap();
            decode(kind, isa, Domain::Original, &bytes, &mut x, slot).unwrap();
            dot(spec, isa, &bytes, &x, slot).unwrap();
            let count = |op| counters::get(spec, op, kernel_isa(spec, op, isa), slot);
            assert_eq!(
                [Op::Encode, Op::Decode, Op::Dot, Op::Attend].map(count),
                [12, 12, 12, 0]
            );
            // Coded values of a sketch are twice as many, blocks are not.
            let mut coded = vec![0.0; 12 * spec.len_in(Domain::Rotated)];
            decode(kind, isa, Domain::Rotated, &bytes, &mut coded, slot).unwrap();
            assert_eq!(count(Op::Decode), 24);
            // Ten blocks are written before the bad one.
            x[10 * n] = f32::NAN;
            encode(spec, isa, Encoder::Best, &x, &mut bytes, slot).unwrap_err();
            assert_eq!(count(Op::Encode), 22);
        }
    }
    let mut cursor = 0;
    let mut seen = 0;
    while let Some(c) = counters::next(&mut cursor) {
        if (SLOT..SLOT + Isa::ALL.len() as u32).contains(&(c.slot as u32)) {
            assert_eq!(c.count, counters::get(c.spec, c.op, c.isa, c.slot as u32));
            seen += 1;
        }
    }
    assert_eq!(seen, isas().len() * FORMATS.len() * 3);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..Default::default() })]

    /// Any bits whatever, in particular such that a block is refused.
    #[test]
    fn encode_agrees_on_arbitrary_bits(bits in prop::collection::vec(any::<u32>(), 1..=64)) {
        // Exponents near each other, or nearly every block would be refused.
        for fold in [0, 0x3f80_0000] {
            for spec in FORMATS {
                let n = (bits.len() * 8).next_multiple_of(spec.block_len);
                let x: Vec<f32> = (0..n)
                    .map(|i| bits[i % bits.len()].rotate_left(i as u32 / 7) & !fold | fold >> 1)
                    .map(f32::from_bits)
                    .collect();
                for isa in isas() {
                    check_encode(spec, isa, &x);
                }
            }
        }
    }
}
