use std::sync::OnceLock;
use std::{vec, vec::Vec};

/// Entry of the 128 x 256 projection of `qjl1_256`: Box and Muller over
/// splitmix64, by the functions of `std`.
pub(super) fn projection(input: usize, output: usize) -> f64 {
    static TABLE: OnceLock<Vec<f64>> = OnceLock::new();
    let table = TABLE.get_or_init(|| {
        let mut state = 42u64 ^ 0xC0FFEE1234567890;
        let mut uniform = || {
            state = state.wrapping_add(0x9E3779B97F4A7C15);
            let mut z = state;
            for (shift, factor) in [(30, 0xBF58476D1CE4E5B9u64), (27, 0x94D049BB133111EB)] {
                z = (z ^ (z >> shift)).wrapping_mul(factor);
            }
            z ^= z >> 31;
            ((z >> 11) | 1) as f64 * 2f64.powi(-53)
        };
        let mut table = vec![];
        while table.len() < 128 * 256 {
            let radius = (-2.0 * uniform().ln()).sqrt();
            let angle = 2.0 * std::f64::consts::PI * uniform();
            // The table is stored as fp32.
            table.push(f64::from((radius * angle.cos()) as f32));
            table.push(f64::from((radius * angle.sin()) as f32));
        }
        table
    });
    table[input * 256 + output]
}
