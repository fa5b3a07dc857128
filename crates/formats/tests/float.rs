//! The scalar conversions against `half`, `std` and the oracle's definitions.

use half::f16;
use kvforge_formats::{f16_to_f32, f32_to_f16, oracle, sqrt_f32, sqrt_f64};

#[test]
fn every_f16_widens() {
    for h in 0..=u16::MAX {
        let ours = f16_to_f32(h);
        let theirs = f16::from_bits(h).to_f32();
        if theirs.is_nan() {
            assert!(ours.is_nan(), "{h:#06x}");
            assert_eq!(ours.is_sign_negative(), theirs.is_sign_negative());
            assert!(oracle::from_half(h).is_nan());
        } else {
            assert_eq!(ours.to_bits(), theirs.to_bits(), "{h:#06x}");
            assert_eq!(oracle::from_half(h).to_bits(), f64::from(theirs).to_bits());
        }
    }
}

#[test]
fn every_f16_survives_a_round_trip() {
    for h in 0..=u16::MAX {
        let back = f32_to_f16(f16_to_f32(h));
        if f16::from_bits(h).is_nan() {
            assert_eq!(back, h & 0x8000 | 0x7e00);
        } else {
            assert_eq!(back, h);
            assert_eq!(oracle::to_half(oracle::from_half(h)), h);
        }
    }
}

/// Every number halfway between two fp16 numbers, and its two fp32 neighbours.
#[test]
fn every_border_narrows_to_even() {
    for h in 0..0x7c00u16 {
        let low = f16_to_f32(h);
        // What follows the largest fp16 number, as if its exponent went on.
        let high = if h == 0x7bff {
            65536.0
        } else {
            f16_to_f32(h + 1)
        };
        let border = (low + high) / 2.0;
        for sign in [1.0, -1.0] {
            for x in [border.next_down(), border, border.next_up()] {
                narrows_alike(sign * x);
            }
        }
        let even = h + h % 2;
        assert_eq!(
            [border.next_down(), border, border.next_up()].map(f32_to_f16),
            [h, even, h + 1]
        );
    }
}

#[test]
fn special_and_random_f32_narrow() {
    for x in [
        0.0,
        f32::from_bits(1),
        f32::MIN_POSITIVE,
        65504.0,
        65519.996,
        65520.0,
        f32::MAX,
        f32::INFINITY,
        f32::NAN,
        // A NaN whose digits are all among those that fp16 drops.
        f32::from_bits(0x7f80_0001),
    ] {
        narrows_alike(x);
        narrows_alike(-x);
    }
    for bits in random_bits().take(3_000_000) {
        narrows_alike(f32::from_bits(bits));
        // Most bits are far outside of fp16: bring the exponent near it.
        narrows_alike(f32::from_bits(bits & 0x8fff_ffff | 0x3000_0000));
    }
}

fn narrows_alike(x: f32) {
    let (ours, theirs) = (f32_to_f16(x), f16::from_f32(x));
    if theirs.is_nan() {
        assert!(f16::from_bits(ours).is_nan(), "{:#010x}", x.to_bits());
        assert_eq!(ours >> 15, theirs.to_bits() >> 15);
    } else {
        assert_eq!(ours, theirs.to_bits(), "{x:e} {:#010x}", x.to_bits());
    }
}

/// The oracle's own fp16 rounding, on numbers that fp32 cannot hold.
#[test]
fn oracle_rounds_to_nearest_even() {
    let one_ulp = 2f64.powi(-10);
    let tie = 1.0 + one_ulp / 2.0;
    for (x, h) in [
        (tie.next_down(), 0x3c00),
        (tie, 0x3c00),
        (tie.next_up(), 0x3c01),
        (tie + one_ulp, 0x3c02),
        (65520f64.next_down(), 0x7bff),
        (65520.0, 0x7c00),
        (2f64.powi(-25), 0x0000),
        (2f64.powi(-25).next_up(), 0x0001),
    ] {
        assert_eq!(oracle::to_half(x), h, "{x}");
        assert_eq!(oracle::to_half(-x), h | 0x8000, "{x}");
    }
    assert!(oracle::from_half(oracle::to_half(f64::NAN)).is_nan());
    for bits in random_bits().take(20_000) {
        let x = f32::from_bits(bits & 0x8fff_ffff | 0x3000_0000);
        assert_eq!(oracle::to_half(x.into()), f16::from_f32(x).to_bits());
    }
}

#[test]
fn square_roots_are_those_of_the_machine() {
    let special = [0.0, -0.0, f32::MIN_POSITIVE, f32::MAX, f32::INFINITY].map(f32::to_bits);
    let subnormal = random_bits().map(|bits| bits & 0x007f_ffff);
    // Perfect squares, and their neighbours.
    let squares = (1..4096u32).flat_map(|i| {
        let square = ((i * i) as f32).to_bits();
        [square - 1, square, square + 1]
    });
    for bits in special
        .into_iter()
        .chain(squares)
        .chain(subnormal.take(500_000))
        .chain(random_bits().take(3_000_000))
    {
        let x = f32::from_bits(bits);
        let (ours, machine) = (sqrt_f32(x), x.sqrt());
        if machine.is_nan() {
            assert!(ours.is_nan(), "{x:e}");
        } else {
            assert_eq!(ours.to_bits(), machine.to_bits(), "{x:e}");
        }
    }
}

/// All mantissas of two neighbouring binades: square roots repeat from there.
#[test]
fn square_roots_of_every_mantissa() {
    for bits in 1f32.to_bits()..4f32.to_bits() {
        let x = f32::from_bits(bits);
        assert_eq!(sqrt_f32(x).to_bits(), x.sqrt().to_bits(), "{x:e}");
    }
}

/// Of numbers that are zero or normal: a sum of squares of fp32 numbers is no other.
#[test]
fn double_square_roots_are_those_of_the_machine() {
    let special = [
        0.0,
        f64::MIN_POSITIVE,
        f64::MAX,
        f64::INFINITY,
        // The least and the greatest sum of squares of a block.
        f64::from(f32::from_bits(1)).powi(2),
        f64::from(f32::MAX).powi(2) * 128.0,
    ];
    let powers = (1..2047u64).map(|exponent| exponent << 52);
    // Perfect squares of 26 bits, and products that are nearly squares of more.
    let squares = random_wide_bits().take(200_000).flat_map(|bits| {
        let (short, long) = ((bits >> 38) as f64, (bits >> 11) as f64);
        [short * short, long * long]
    });
    let random = random_wide_bits().map(|bits| bits & !(1 << 63));
    let bits = special.map(f64::to_bits).into_iter();
    let bits = bits.chain(powers).chain(squares.map(f64::to_bits));
    for bits in bits.chain(random.take(1_000_000)) {
        for bits in [bits.saturating_sub(1), bits, bits + 1] {
            let x = f64::from_bits(bits);
            if x == 0.0 || x.is_normal() || x.is_infinite() {
                assert_eq!(sqrt_f64(x).to_bits(), x.sqrt().to_bits(), "{x:e}");
            }
        }
    }
    assert!(sqrt_f64(f64::NAN).is_nan());
}

/// The same 32-bit numbers on every run.
fn random_bits() -> impl Iterator<Item = u32> {
    random_wide_bits().map(|z| z as u32)
}

/// The same 64-bit numbers on every run (splitmix64).
fn random_wide_bits() -> impl Iterator<Item = u64> {
    (1u64..).map(|i| {
        let z = i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    })
}
