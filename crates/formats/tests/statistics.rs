//! What the constants claim to be, and what they reach on Gaussian values. The
//! READMEs of the formats state these numbers; here they are held to them.

use kvforge_formats::q4_polar::{self, Residual};
use kvforge_formats::{Code, Domain, Encode, FORMATS, FormatSpec, Role, Rotation, Scale};
use kvforge_formats::{qjl1_256, tbq3_0, tbq3_tcq};

/// A Lloyd-Max codebook is a fixed point: borders halfway between entries, each
/// entry the mean of the density between its borders. For the normal density the
/// mean follows from its integral in closed form, `(p(a) - p(b)) / mass(a, b)`;
/// the mass is integrated numerically.
#[test]
fn codebooks_are_lloyd_max_for_the_normal_density() {
    // Polar's iteration was stopped before it got there. The legacy ones are for
    // blocks of length one; the first of them was fitted to something else.
    for (spec, margin) in [
        ("tbq3_0", 2e-5),
        ("tbq4_0", 2e-5),
        ("q4_polar", 1e-3),
        ("turbo3_legacy", 1e-2),
        ("turbo4_legacy", 2e-5),
    ] {
        let spec = kvforge_formats::by_name(spec).unwrap();
        let Code::Scalar { codebook, .. } = spec.code else {
            panic!("not a codebook");
        };
        let unit = match spec.scale {
            Scale::KeepsLength => 128f64.sqrt(),
            _ => 1.0,
        };
        let c: Vec<f64> = codebook.iter().map(|&c| f64::from(c) * unit).collect();
        for (i, &entry) in c.iter().enumerate() {
            let border = |i: usize| (c[i] + c[i + 1]) / 2.0;
            let low = if i == 0 { -12.0 } else { border(i - 1) };
            let high = if i + 1 == c.len() { 12.0 } else { border(i) };
            let mean = (density(low) - density(high)) / integral(density, low, high);
            assert!(
                (entry - mean).abs() < margin,
                "{} [{i}]: {entry} against {mean}",
                spec.name
            );
            let mirror = -c[c.len() - 1 - i];
            assert_eq!(entry, mirror, "{} [{i}] has no mirror", spec.name);
        }
        assert!(c.is_sorted_by(|a, b| a < b), "{}", spec.name);
    }
}

/// A Gaussian block divided by its own RMS is a point of a sphere, each value
/// of which has a density known in closed form. The error and the gain of a
/// codebook on it follow by integration; the reference encoders of the formats that
/// code so must reach them.
#[test]
fn gaussian_error_and_gain_are_those_of_theory() {
    for spec in FORMATS.iter().filter(|s| s.scale != Scale::KeepsLength) {
        let Code::Scalar { codebook, .. } = spec.code else {
            continue;
        };
        let nearest = |x: f64| {
            let distance = |c: f64| (x - c).abs();
            let entries = codebook.iter().map(|&c| f64::from(c));
            entries
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
        let (mse, gain) = error_and_gain(spec, spec.encode);
        let name = spec.name;
        assert!(
            (mse / mse_in_theory - 1.0).abs() < 0.01,
            "{name}: error {mse}, {mse_in_theory}"
        );
        assert!(
            (gain - gain_in_theory).abs() < 0.001,
            "{name}: gain {gain}, {gain_in_theory}"
        );
        let stated = spec.tolerance.gaussian_mse;
        assert!(
            (stated / mse_in_theory - 1.0).abs() < 1e-3,
            "{name} states {stated}"
        );
    }
}

/// Both encoders of every format reach what its spec and its README state.
#[test]
fn gaussian_error_and_gain_are_those_stated() {
    for spec in FORMATS {
        let (mse, gain) = error_and_gain(spec, spec.encode);
        let (best, best_gain) = error_and_gain(spec, spec.encode_best);
        let name = spec.name;
        let row = |what: &str, of: f64, of_best: f64, digits: usize| match spec.role {
            Role::Legacy => format!("| {what} | {of:.digits$} |"),
            _ => format!("| {what} | {of:.digits$} | {of_best:.digits$} |"),
        };
        readme_has(spec, &row("relative mean squared error", mse, best, 4));
        readme_has(
            spec,
            &row("gain `<x, decoded> / <x, x>`", gain, best_gain, 3),
        );
        let tolerance = spec.tolerance;
        for (found, stated) in [
            (mse, tolerance.gaussian_mse),
            (best, tolerance.gaussian_mse_best),
        ] {
            let off = (found / stated - 1.0).abs();
            assert!(
                off < tolerance.gaussian_mse_margin,
                "{name}: {found}, states {stated}"
            );
        }
        assert!(best <= mse, "{name}");
    }
}

/// Adding Polar's residual as it was published makes every decoded row worse on
/// average: its step is several times what the bit can tell.
#[test]
fn polar_residual_makes_it_worse() {
    let spec = &q4_polar::SPEC;
    let x = gaussian(BLOCKS * 128);
    let mut rows = String::new();
    for (name, encode) in [("reference", spec.encode), ("best", spec.encode_best)] {
        let mut bytes = vec![0; spec.row_bytes(x.len()).unwrap()];
        encode(&x, &mut bytes).unwrap();
        let [ignored, added] = [Residual::Ignored, Residual::Added].map(|residual| {
            let mut decoded = vec![0.0; x.len()];
            q4_polar::decode(&bytes, &mut decoded, Domain::Original, residual).unwrap();
            mse(&x, &decoded)
        });
        assert!(added > 1.1 * ignored, "{name}: {added} {ignored}");
        rows += &format!("| {name} | {ignored:.5} | {added:.5} |\n");
    }
    rows.lines().for_each(|row| readme_has(spec, row));
}

/// A host that rotates by an unsigned Hadamard matrix first undoes Polar's own
/// rotation, which has no signs: outliers stay outliers. Signs prevent it.
#[test]
fn rotating_twice_undoes_polar() {
    let mut x = gaussian(BLOCKS / 4 * 128);
    for block in x.chunks_mut(128) {
        for channel in [3, 40, 77, 111] {
            block[channel] *= 12.0;
        }
    }
    let mut turned = x.clone();
    Rotation::SignedHadamard128 {
        before: 0,
        after: 0,
    }
    .rotate(&mut turned);
    for spec in [&q4_polar::SPEC, &tbq3_0::SPEC, &tbq3_tcq::SPEC] {
        let error = |x: &[f32]| mse(x, &round_trip(spec, spec.encode, x));
        let (once, twice) = (error(&x), error(&turned));
        if *spec == q4_polar::SPEC {
            assert!(twice > 20.0 * once);
            readme_has(spec, &format!("| {once:.4} | {twice:.4} |"));
        } else {
            assert!(twice < 2.0 * once, "{}", spec.name);
        }
    }
}

/// Blocks of the trellis are rotated: a query that is not has nothing to do with
/// them.
#[test]
fn trellis_scores_need_a_rotated_query() {
    let spec = &tbq3_tcq::SPEC;
    let (k, q) = (
        gaussian(BLOCKS * 128),
        &gaussian(3 * BLOCKS * 128)[2 * BLOCKS * 128..],
    );
    let mut bytes = vec![0; spec.row_bytes(k.len()).unwrap()];
    (spec.encode)(&k, &mut bytes).unwrap();
    let mut coded = vec![0.0; k.len()];
    (spec.decode)(&bytes, &mut coded, Domain::Rotated).unwrap();
    let mut coded_q = q.to_vec();
    spec.transform.forward(q, &mut coded_q);
    let scores = |k: &[f32], q: &[f32]| -> Vec<f32> {
        let rows = k.chunks(128).zip(q.chunks(128));
        rows.map(|(k, q)| sum(k, q) as f32).collect()
    };
    let (true_scores, rotated, raw) = (scores(&k, q), scores(&coded, &coded_q), scores(&coded, q));
    let correlation =
        |a: &[f32]| sum(a, &true_scores) / (sum(a, a) * sum(&true_scores, &true_scores)).sqrt();
    assert!(correlation(&rotated) > 0.98);
    assert!(correlation(&raw).abs() < 0.1);
}

/// What a sketch is for: the true best keys are among the ones that it scores best.
#[test]
fn sketches_find_the_best_keys() {
    const KEYS: usize = 256;
    let spec = &qjl1_256::SPEC;
    let k = gaussian(KEYS * 128);
    let queries = &gaussian((KEYS + 64) * 128)[KEYS * 128..];
    let rows = |k: &[f32]| k.chunks(128).map(<[f32]>::to_vec).collect::<Vec<_>>();
    let keys = rows(&k);
    let ranked = |keys: &[Vec<f32>], q: &[f32]| {
        let mut order: Vec<usize> = (0..KEYS).collect();
        order.sort_by(|a, b| sum(&keys[*b], q).total_cmp(&sum(&keys[*a], q)));
        order
    };
    let mut found = vec![];
    for encode in [spec.encode, spec.encode_best] {
        let decoded = rows(&round_trip(spec, encode, &k));
        let mut hits = 0;
        for q in queries.chunks(128) {
            let best = &ranked(&keys, q)[..16];
            let sketched = &ranked(&decoded, q)[..32];
            hits += best.iter().filter(|key| sketched.contains(key)).count();
        }
        found.push(format!("{:.2}", hits as f64 / (16.0 * 64.0)));
    }
    readme_has(
        spec,
        &format!(
            "| the best 16 of 256 keys that are among the sketch's best 32 | {} | {} |",
            found[0], found[1]
        ),
    );
}

/// Blocks of 128 values that the numbers are measured on.
const BLOCKS: usize = 2000;

fn error_and_gain(spec: &FormatSpec, encode: Encode) -> (f64, f64) {
    let x = gaussian(BLOCKS * 128);
    let decoded = round_trip(spec, encode, &x);
    (mse(&x, &decoded), sum(&x, &decoded) / sum(&x, &x))
}

fn round_trip(spec: &FormatSpec, encode: Encode, x: &[f32]) -> Vec<f32> {
    let mut bytes = vec![0; spec.row_bytes(x.len()).unwrap()];
    encode(x, &mut bytes).unwrap();
    let mut decoded = vec![0.0; x.len()];
    (spec.decode)(&bytes, &mut decoded, Domain::Original).unwrap();
    decoded
}

/// Mean squared error relative to the mean square.
fn mse(x: &[f32], decoded: &[f32]) -> f64 {
    let error: Vec<f32> = x.iter().zip(decoded).map(|(x, d)| x - d).collect();
    sum(&error, &error) / sum(x, x)
}

fn readme_has(spec: &FormatSpec, row: &str) {
    let path = format!("{}/src/{}/README.md", env!("CARGO_MANIFEST_DIR"), spec.name);
    let text = std::fs::read_to_string(path).unwrap();
    assert!(
        text.lines().any(|line| line == row),
        "{}: no row\n{row}",
        spec.name
    );
}

fn sum(a: &[f32], b: &[f32]) -> f64 {
    let products = a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b));
    products.sum()
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
fn gaussian(n: usize) -> Vec<f32> {
    let uniform = |i: u64| {
        let z = i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ z >> 31) >> 11 | 1) as f64 / 2f64.powi(53)
    };
    (0..n as u64)
        .map(|i| {
            let radius = (-2.0 * uniform(2 * i + 1).ln()).sqrt();
            let angle = 2.0 * std::f64::consts::PI * uniform(2 * i + 2);
            (radius * angle.cos()) as f32
        })
        .collect()
}
