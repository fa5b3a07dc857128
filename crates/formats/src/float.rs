//! The few scalar conversions that blocks need, without `std`: correctly
//! rounded on every target, so that encoders agree bit for bit everywhere.

/// fp32 to IEEE binary16, round to nearest even; overflow gives infinity,
/// NaN stays NaN.
pub const fn f32_to_f16(x: f32) -> u16 {
    let bits = x.to_bits();
    let sign = (bits >> 16) as u16 & 0x8000;
    let magnitude = bits & 0x7fff_ffff;
    if magnitude > 0x7f80_0000 {
        return sign | 0x7e00;
    }
    // 65520 and above round to infinity.
    if magnitude >= 0x477f_f000 {
        return sign | 0x7c00;
    }
    let (mantissa, shift) = if magnitude >= 0x3880_0000 {
        // Normal: rebias the exponent from 127 to 15, drop 13 bits.
        (magnitude - 0x3800_0000, 13)
    } else {
        // Subnormal: units of 2^-24, so drop 13 more bits a binade below 2^-14.
        let exponent = magnitude >> 23;
        if exponent < 102 {
            return sign;
        }
        ((magnitude & 0x007f_ffff) | 0x0080_0000, 126 - exponent)
    };
    let half = 1 << (shift - 1);
    let kept = mantissa >> shift;
    let dropped = mantissa & ((1 << shift) - 1);
    let up = dropped > half || (dropped == half && kept & 1 == 1);
    sign | (kept as u16 + up as u16)
}

/// IEEE binary16 to fp32, exact, subnormals included.
pub const fn f16_to_f32(h: u16) -> f32 {
    let sign = (h as u32 & 0x8000) << 16;
    let exponent = (h as u32 >> 10) & 0x1f;
    let mantissa = h as u32 & 0x3ff;
    let magnitude = match exponent {
        0 => {
            // mantissa * 2^-24 is exact in fp32.
            let value = mantissa as f32 * (1.0 / 16_777_216.0);
            return f32::from_bits(value.to_bits() | sign);
        }
        0x1f => 0x7f80_0000 | mantissa << 13,
        _ => (exponent + 112) << 23 | mantissa << 13,
    };
    f32::from_bits(sign | magnitude)
}

/// Square root, correctly rounded to nearest even, as the hardware instruction
/// gives it (`core` has none yet). Minus zero and plus infinity stay as they
/// are; other negative numbers and NaN give NaN.
pub fn sqrt_f32(x: f32) -> f32 {
    if x == 0.0 || x == f32::INFINITY {
        return x;
    }
    if x.is_nan() || x < 0.0 {
        return f32::NAN;
    }
    // x = m * 2^e with m an integer of 24 bits (fewer if subnormal).
    let bits = x.to_bits();
    let (mut m, mut e) = match bits >> 23 {
        0 => ((bits & 0x7f_ffff) as u64, -149),
        biased => ((bits & 0x7f_ffff | 0x80_0000) as u64, biased as i32 - 150),
    };
    // Scale m to 62 or 63 bits with an even exponent: its integer root then has 31 or
    // 32 bits, well over the 24 that are kept.
    let shift = m.leading_zeros() as i32 - 1;
    let shift = shift - (e - shift).rem_euclid(2);
    m <<= shift;
    e -= shift;
    let root = m.isqrt();
    // The remainder only matters as "is there one": make it a sticky bit.
    let sticky = (root * root != m) as u64;
    let extended = root << 1 | sticky;
    // `as f32` rounds to nearest even; the power of two is exact, since the
    // root of any fp32 number is a normal one.
    let exponent = e / 2 - 1;
    extended as f32 * f32::from_bits(((exponent + 127) as u32) << 23)
}

/// Square root in fp64, correctly rounded to nearest even, of a number that is
/// zero or normal and positive; infinity and NaN stay as they are.
pub fn sqrt_f64(x: f64) -> f64 {
    if x == 0.0 || !x.is_finite() {
        return x;
    }
    // x = m * 2^e with m of 53 bits; scaled to 125 or 126 bits with an even
    // exponent, its integer root has 63 bits, well over the 53 that are kept.
    let bits = x.to_bits();
    let mut m = u128::from(bits & 0x000f_ffff_ffff_ffff | 0x0010_0000_0000_0000);
    let mut e = (bits >> 52 & 0x7ff) as i32 - 1075;
    let shift = 72 + (e & 1);
    m <<= shift;
    e -= shift;
    let root = m.isqrt();
    // The remainder only matters as "is there one": make it a sticky bit.
    let sticky = u64::from(root * root != m);
    let extended = (root as u64) << 1 | sticky;
    // `as f64` rounds to nearest even; the power of two is exact.
    extended as f64 * f64::from_bits(((e / 2 - 1 + 1023) as u64) << 52)
}
