/// Value of an IEEE binary16 number, from its definition.
pub fn from_half(bits: u16) -> f64 {
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let exponent = i32::from(bits >> 10 & 31);
    let fraction = f64::from(bits & 1023) / 1024.0;
    sign * match exponent {
        0 => fraction * 2f64.powi(-14),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (1.0 + fraction) * 2f64.powi(exponent - 15),
    }
}

/// The binary16 number nearest to `x`, the even one on a tie. It searches: the
/// bits of non-negative numbers are in the order of their values.
pub fn to_half(x: f64) -> u16 {
    const LARGEST: u16 = 0x7bff;
    const INFINITY: u16 = 0x7c00;
    const NAN: u16 = 0x7e00;
    let sign = u16::from(x.is_sign_negative()) << 15;
    let x = x.abs();
    if x.is_nan() {
        return sign | NAN;
    }
    let (mut below, mut above) = (0, INFINITY);
    while above - below > 1 {
        let middle = (below + above) / 2;
        if from_half(middle) <= x {
            below = middle;
        } else {
            above = middle;
        }
    }
    // For rounding, the number after the largest one is where it would be if
    // the exponent went on.
    let next = if below == LARGEST {
        65536.0
    } else {
        from_half(above)
    };
    let (down, up) = (x - from_half(below), next - x);
    sign | if down < up || (down == up && below % 2 == 0) {
        below
    } else {
        above
    }
}
