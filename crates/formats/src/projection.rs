//! The random projection of [`qjl1_256`](crate::qjl1_256), computed when this
//! crate is compiled.
//!
//! `P` is 128 x 256, row-major, each entry N(0, 1): splitmix64 from a fixed seed,
//! two uniforms for two normals (Box and Muller), all in fp64 and rounded once. The
//! functions below exist because `core` has no logarithm at compile time; they
//! err by a few units of 2^-53, and the table is the published one bit for bit.

/// Values that are projected.
pub(crate) const INPUTS: usize = 128;

/// Projections of them.
pub(crate) const OUTPUTS: usize = 256;

/// The published seed 42, mixed as its generator does.
const SEED: u64 = 42 ^ 0xc0ff_ee12_3456_7890;

/// `P[i][j]`: what value `i` adds to projection `j`.
pub static PROJECTION: [[f32; OUTPUTS]; INPUTS] = table();

/// `P^T[j][i]`, the same numbers.
pub static PROJECTION_TRANSPOSED: [[f32; INPUTS]; OUTPUTS] = transposed(&PROJECTION);

/// Squared length of every column of `P`.
pub static COLUMN_SQUARES: [f32; OUTPUTS] = column_squares(&PROJECTION);

/// `coded = P^T x`, in fp32, in the order of `x`: the order is part of the
/// byte-exact contract.
pub(crate) fn project(x: &[f32; INPUTS], coded: &mut [f32; OUTPUTS]) {
    coded.fill(0.0);
    for (x, row) in x.iter().zip(&PROJECTION) {
        for (coded, p) in coded.iter_mut().zip(row) {
            *coded += x * p;
        }
    }
}

#[allow(long_running_const_eval, reason = "one second, once a compilation")]
const fn table() -> [[f32; OUTPUTS]; INPUTS] {
    let mut table = [[0.0; OUTPUTS]; INPUTS];
    let mut state = SEED;
    let mut i = 0;
    while i < INPUTS {
        let mut j = 0;
        while j < OUTPUTS {
            let (radius, turns);
            (radius, state) = uniform(state);
            (turns, state) = uniform(state);
            let radius = sqrt(-2.0 * ln(radius));
            let (sin, cos) = sin_cos_turns(turns);
            table[i][j] = (radius * cos) as f32;
            table[i][j + 1] = (radius * sin) as f32;
            j += 2;
        }
        i += 1;
    }
    table
}

#[allow(long_running_const_eval, reason = "one second, once a compilation")]
const fn transposed(p: &[[f32; OUTPUTS]; INPUTS]) -> [[f32; INPUTS]; OUTPUTS] {
    let mut transposed = [[0.0; INPUTS]; OUTPUTS];
    let mut i = 0;
    while i < INPUTS {
        let mut j = 0;
        while j < OUTPUTS {
            transposed[j][i] = p[i][j];
            j += 1;
        }
        i += 1;
    }
    transposed
}

#[allow(long_running_const_eval, reason = "one second, once a compilation")]
const fn column_squares(p: &[[f32; OUTPUTS]; INPUTS]) -> [f32; OUTPUTS] {
    let mut squares = [0.0; OUTPUTS];
    let mut i = 0;
    while i < INPUTS {
        let mut j = 0;
        while j < OUTPUTS {
            squares[j] += p[i][j] * p[i][j];
            j += 1;
        }
        i += 1;
    }
    squares
}

/// A number in (0, 1) and the next state: splitmix64.
const fn uniform(state: u64) -> (f64, u64) {
    let state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    let z = z ^ z >> 31;
    ((z >> 11 | 1) as f64 / 9_007_199_254_740_992.0, state)
}

/// Natural logarithm of a normal positive number.
const fn ln(x: f64) -> f64 {
    const LN_2: f64 = core::f64::consts::LN_2;
    // x = m * 2^e with m between sqrt(1/2) and sqrt(2).
    let bits = x.to_bits();
    let mut e = (bits >> 52) as i64 - 1023;
    let mut m = f64::from_bits(bits & 0x000f_ffff_ffff_ffff | 0x3ff0_0000_0000_0000);
    if m > core::f64::consts::SQRT_2 {
        m /= 2.0;
        e += 1;
    }
    // ln m = 2 (z + z^3 / 3 + z^5 / 5 ...), z at most 0.172.
    let z = (m - 1.0) / (m + 1.0);
    let mut sum = 0.0;
    let mut n = 25;
    while n >= 3 {
        sum = (sum + 1.0 / n as f64) * z * z;
        n -= 2;
    }
    e as f64 * LN_2 + (2.0 * z + 2.0 * z * sum)
}

/// Square root of a number above zero, by Newton's method.
const fn sqrt(x: f64) -> f64 {
    // Half the exponent: right within a factor of 1.5.
    let mut y = f64::from_bits((x.to_bits() >> 1) + (1023 << 51));
    let mut i = 0;
    while i < 6 {
        y = (y + x / y) / 2.0;
        i += 1;
    }
    y
}

/// Sine and cosine of `turns` whole turns, in [0, 1].
const fn sin_cos_turns(turns: f64) -> (f64, f64) {
    // To the nearest quarter turn: at most an eighth is left.
    let quarter = (turns * 4.0 + 0.5) as i64;
    let x = (turns - quarter as f64 / 4.0) * core::f64::consts::TAU;
    let (mut sin, mut cos) = (0.0, 0.0);
    let mut n = 20;
    while n > 0 {
        // Horner's scheme of both series, last term first.
        sin = 1.0 - sin * x * x / (n * (n + 1)) as f64;
        cos = 1.0 - cos * x * x / (n * (n - 1)) as f64;
        n -= 2;
    }
    let sin = sin * x;
    match quarter % 4 {
        0 => (sin, cos),
        1 => (cos, -sin),
        2 => (-sin, -cos),
        _ => (-cos, sin),
    }
}
