//! What the constants claim to be, and what they reach on Gaussian values.

use kvforge_formats::{Domain, FORMATS};

/// A Lloyd-Max codebook is a fixed point: borders halfway between entries, each
/// entry the mean of the density between its borders. For the normal density the
/// mean follows from its integral in closed form, `(p(a) - p(b)) / mass(a, b)`;
/// the mass is integrated numerically.
#[test]
fn codebooks_are_lloyd_max_for_the_normal_density() {
    for spec in FORMATS {
        let c: Vec<f64> = spec.codebook.iter().map(|&c| c.into()).collect();
        for (i, &entry) in c.iter().enumerate() {
            let border = |i: usize| (c[i] + c[i + 1]) / 2.0;
            let low = if i == 0 { -12.0 } else { border(i - 1) };
            let high = if i + 1 == c.len() { 12.0 } else { border(i) };
            let mean = (density(low) - density(high)) / integral(density, low, high);
            assert!(
                (entry - mean).abs() < 2e-5,
                "{} [{i}]: {entry} against {mean}",
                spec.name
            );
            assert_eq!(
                -entry,
                c[c.len() - 1 - i],
                "{} [{i}] has no mirror",
                spec.name
            );
        }
        assert!(c.is_sorted_by(|a, b| a < b), "{}", spec.name);
    }
}

/// A Gaussian block divided by its own RMS is a point of a sphere, each value
/// of which has a density known in closed form. The error and the gain of a
/// codebook on it follow by integration; the codec must reach them.
#[test]
fn gaussian_error_and_gain_are_those_of_theory() {
    for spec in FORMATS {
        let nearest = |x: f64| {
            let distance = |c: f64| (x - c).abs();
            spec.codebook
                .iter()
                .map(|&c| f64::from(c))
                .min_by(|a, b| distance(*a).total_cmp(&distance(*b)))
                .unwrap()
        };
        let n = spec.block_len as f64;
        let sphere = |x: f64| (1.0 - x * x / n).max(0.0).powf((n - 3.0) / 2.0);
        let mean = |f: &dyn Fn(f64) -> f64| {
            let edge = n.sqrt();
            integral(|x| f(x) * sphere(x), -edge, edge) / integral(sphere, -edge, edge)
        };
        let mse_in_theory = mean(&|x| (x - nearest(x)).powi(2));
        let gain_in_theory = mean(&|x| x * nearest(x));

        let x = gaussian(1_000_000);
        let mut bytes = vec![0; spec.row_bytes(x.len()).unwrap()];
        (spec.encode)(&x, &mut bytes).unwrap();
        let mut decoded = vec![0.0; x.len()];
        (spec.decode)(&bytes, &mut decoded, Domain::Original).unwrap();
        let energy = sum(&x, &x);
        let error: Vec<f32> = x.iter().zip(&decoded).map(|(x, d)| x - d).collect();
        let mse = sum(&error, &error) / energy;
        let gain = sum(&x, &decoded) / energy;

        let name = spec.name;
        println!(
            "{name}: error {mse:.5} ({mse_in_theory:.6}), gain {gain:.5} ({gain_in_theory:.5})"
        );
        assert!(
            (mse / mse_in_theory - 1.0).abs() < 0.01,
            "{name} {mse} {mse_in_theory}"
        );
        assert!(
            (gain - gain_in_theory).abs() < 0.001,
            "{name} {gain} {gain_in_theory}"
        );
        // The numbers that the spec and the README state are those of theory.
        let readme = format!("{}/src/{name}/README.md", env!("CARGO_MANIFEST_DIR"));
        let readme = std::fs::read_to_string(readme).unwrap();
        for (what, number) in [
            ("relative mean squared error", format!("{mse_in_theory:.5}")),
            (
                "gain `<x, decoded> / <x, x>`",
                format!("{gain_in_theory:.3}"),
            ),
        ] {
            assert!(
                readme.contains(&format!("| {what} | {number} |")),
                "{name}: {what} {number}"
            );
        }
        let stated = spec.tolerance.gaussian_mse;
        assert!(
            (stated / mse_in_theory - 1.0).abs() < 1e-3,
            "{name} states {stated}"
        );
        assert!(
            (mse / stated - 1.0).abs() < spec.tolerance.gaussian_mse_margin,
            "{name} {mse}"
        );
    }
}

fn sum(a: &[f32], b: &[f32]) -> f64 {
    a.iter()
        .zip(b)
        .map(|(&a, &b)| f64::from(a) * f64::from(b))
        .sum()
}

fn density(x: f64) -> f64 {
    (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt()
}

/// Simpson's rule.
fn integral(f: impl Fn(f64) -> f64, low: f64, high: f64) -> f64 {
    let n = 20_000;
    let h = (high - low) / f64::from(n);
    let inner: f64 = (1..n)
        .map(|i| f64::from(2 + i % 2 * 2) * f(low + f64::from(i) * h))
        .sum();
    (f(low) + inner + f(high)) * h / 3.0
}

/// Normal values, the same on every run: Box-Muller over splitmix64.
fn gaussian(n: u64) -> Vec<f32> {
    let uniform = |i: u64| {
        let z = i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ z >> 31) >> 11 | 1) as f64 / 2f64.powi(53)
    };
    (0..n)
        .map(|i| {
            let radius = (-2.0 * uniform(2 * i + 1).ln()).sqrt();
            let angle = 2.0 * std::f64::consts::PI * uniform(2 * i + 2);
            (radius * angle.cos()) as f32
        })
        .collect()
}
