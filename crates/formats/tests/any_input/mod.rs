//! What must hold for any input whatever. Called by `tests/properties.rs` with
//! random inputs and by the targets in `/fuzz` with guided ones. A failure
//! panics.

use kvforge_formats::{
    Code, CodecError, Domain, Encode, FormatSpec, Packing, Scale, oracle, q4_polar,
};

/// What a byte holds that no encoder has written.
const UNTOUCHED: u8 = 0xa5;

/// Either encoder gives what it should, or names the first block that cannot be
/// encoded, for the right reason, and leaves it and all later ones alone. What the
/// reference makes the oracle accepts; the best encoder's error is no larger.
pub fn encode(spec: &FormatSpec, x: &[f32]) {
    let reference = try_encode(spec, spec.encode, x, true);
    let best = try_encode(spec, spec.encode_best, x, false);
    if let Some(bytes) = &reference {
        oracle::judge(spec, x, bytes).unwrap();
    }
    if let (Some(reference), Some(best)) = (reference, best) {
        no_worse(spec, x, &reference, &best);
    }
}

fn try_encode(spec: &FormatSpec, encode: Encode, x: &[f32], reference: bool) -> Option<Vec<u8>> {
    let mut bytes = vec![UNTOUCHED; spec.row_bytes(x.len()).unwrap()];
    let result = encode(x, &mut bytes);
    let first_bad = x.iter().position(|v| !v.is_finite());
    let block = match result {
        Ok(()) => {
            assert_eq!(first_bad, None);
            return Some(bytes);
        }
        Err(CodecError::NonFinite { index }) => {
            assert_eq!(first_bad, Some(index));
            index / spec.block_len
        }
        Err(CodecError::ScaleOverflow { block }) => {
            let end = (block + 1) * spec.block_len;
            assert!(first_bad.is_none_or(|i| i >= end));
            let x = &x[end - spec.block_len..end];
            assert!(overflows(spec, reference, x), "{} fits", norm(x));
            block
        }
        Err(error) => panic!("{error}"),
    };
    let mut whole = vec![0; block * spec.block_bytes];
    encode(&x[..block * spec.block_len], &mut whole).unwrap();
    let (written, rest) = bytes.split_at(whole.len());
    assert_eq!(written, whole);
    assert!(rest.iter().all(|b| *b == UNTOUCHED));
    None
}

/// Whether the scale of a block may be too large.
fn overflows(spec: &FormatSpec, reference: bool, x: &[f32]) -> bool {
    let length = norm(x);
    // Here the sum of squares ends before the scale does.
    if let Code::Signs { .. } = spec.code {
        return length > f64::from(f32::MAX).sqrt() * (1.0 - 1e-5);
    }
    let (scale, exact) = match spec.scale {
        Scale::Rms => (length / (spec.block_len as f64).sqrt(), reference),
        Scale::Length => (length, reference),
        Scale::KeepsLength => (length, false),
    };
    // A block of one large and many small values is coded as one shorter than it is,
    // and so gets a scale some times as large as others of its length.
    scale > 65520.0 * if exact { 1.0 - 1e-5 } else { 0.2 }
}

/// The error of every block of `best` is at most that of `reference` and what
/// rounding the scale can add to it.
fn no_worse(spec: &FormatSpec, x: &[f32], reference: &[u8], best: &[u8]) {
    let blocks = best.chunks(spec.block_bytes);
    let blocks = blocks.zip(reference.chunks(spec.block_bytes));
    for ((best, reference), x) in blocks.zip(x.chunks(spec.block_len)) {
        let error = |bytes: &[u8]| -> f64 {
            let decoded = oracle::decode(spec, bytes);
            let pairs = x.iter().zip(&decoded);
            pairs.map(|(x, d)| (f64::from(*x) - d).powi(2)).sum()
        };
        let (best, reference) = (error(best), error(reference));
        // Half a unit in the last place of fp16 or bf16, and of fp16's smallest numbers
        // times a block that is coded as long as blocks are.
        let half = match spec.code {
            Code::Signs { .. } => norm(x) * 2f64.powi(-9),
            _ => norm(x) * 2f64.powi(-11) + 2f64.powi(-25) * (spec.block_len as f64).sqrt() * 2.8,
        };
        let rounding = half * half + 1e-6 * norm(x).powi(2);
        assert!(
            best <= reference + rounding,
            "{}: error {best:e}, of the reference {reference:e}, {:e}",
            spec.name,
            norm(x).powi(2)
        );
    }
}

/// Decoding whole blocks of any bytes gives the oracle's numbers in both domains.
pub fn decode(spec: &FormatSpec, bytes: &[u8]) {
    let blocks = bytes.len() / spec.block_bytes;
    for (domain, exact) in [
        (Domain::Original, oracle::decode(spec, bytes)),
        (Domain::Rotated, oracle::decode_rotated(spec, bytes)),
    ] {
        let mut x = vec![0.0; blocks * spec.len_in(domain)];
        (spec.decode)(bytes, &mut x, domain).unwrap();
        alike(spec, &x, &exact);
    }
    if *spec == q4_polar::SPEC {
        let mut x = vec![0.0; blocks * spec.block_len];
        q4_polar::decode(bytes, &mut x, Domain::Original, q4_polar::Residual::Added).unwrap();
        alike(spec, &x, &oracle::decode_residual(bytes));
    }
}

fn alike(spec: &FormatSpec, x: &[f32], exact: &[f64]) {
    assert_eq!(x.len(), exact.len());
    for (x, exact) in x.chunks(spec.block_len).zip(exact.chunks(spec.block_len)) {
        // A block may have several scales. A bf16 one may be so small that products
        // are subnormal.
        let finite = exact.iter().filter(|v| v.is_finite());
        let size = finite.map(|v| v * v).sum::<f64>().sqrt();
        let limit = 1e-6 * size + 2f64.powi(-140);
        for (x, exact) in x.iter().map(|&x| f64::from(x)).zip(exact) {
            // Infinite and NaN scales have no distance, and which of the two an
            // infinite one ends in depends on the order of sums.
            let neither = !x.is_finite() && !exact.is_finite();
            assert!(
                neither || (x - exact).abs() <= limit,
                "{}: {x} {exact}",
                spec.name
            );
        }
    }
}

/// Where the scales of a block are.
pub fn scales_at(spec: &FormatSpec) -> impl Iterator<Item = usize> + use<> {
    let (first, step) = match spec.code {
        Code::Signs { .. } => (32, spec.block_bytes),
        Code::Scalar {
            packing: Packing::SplitPlanes,
            ..
        } => (0, 14),
        _ => (0, spec.block_bytes),
    };
    (first..spec.block_bytes).step_by(step)
}

fn norm(x: &[f32]) -> f64 {
    x.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>().sqrt()
}
