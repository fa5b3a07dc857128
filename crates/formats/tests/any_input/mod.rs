//! What must hold for any input whatever. Called by `tests/properties.rs` with
//! random inputs and by the targets in `/fuzz` with guided ones. A failure
//! panics.

use kvforge_formats::{CodecError, Domain, FormatSpec, oracle};

/// Encoding either gives what the oracle accepts, or names the first block that
/// cannot be encoded, for the right reason.
pub fn encode(spec: &FormatSpec, x: &[f32]) {
    let mut bytes = vec![0; spec.row_bytes(x.len()).unwrap()];
    let first_bad = x.iter().position(|v| !v.is_finite());
    match (spec.encode)(x, &mut bytes) {
        Ok(()) => {
            assert_eq!(first_bad, None);
            oracle::judge(spec, x, &bytes).unwrap();
        }
        Err(CodecError::NonFinite { index }) => assert_eq!(first_bad, Some(index)),
        Err(CodecError::ScaleOverflow { block }) => {
            let end = (block + 1) * spec.block_len;
            assert!(first_bad.is_none_or(|i| i >= end));
            let rms = norm(&x[end - spec.block_len..end]) / (spec.block_len as f64).sqrt();
            assert!(rms > 65520.0 * (1.0 - 1e-5), "{rms} fits fp16");
        }
        Err(error) => panic!("{error}"),
    }
}

/// Decoding whole blocks of any bytes gives the oracle's numbers in both domains.
pub fn decode(spec: &FormatSpec, bytes: &[u8]) {
    let mut x = vec![0.0; bytes.len() / spec.block_bytes * spec.block_len];
    for (domain, exact) in [
        (Domain::Original, oracle::decode(spec, bytes)),
        (Domain::Rotated, oracle::decode_rotated(spec, bytes)),
    ] {
        (spec.decode)(bytes, &mut x, domain).unwrap();
        for (x, exact) in x.chunks(spec.block_len).zip(exact.chunks(spec.block_len)) {
            let limit = 1e-6 * norm(x);
            for (x, exact) in x.iter().map(|&x| f64::from(x)).zip(exact) {
                // Infinite and NaN scales have no distance.
                let alike = x == *exact || x.is_nan() && exact.is_nan();
                assert!(
                    alike || (x - exact).abs() <= limit,
                    "{domain:?}: {x} {exact}"
                );
            }
        }
    }
}

fn norm(x: &[f32]) -> f64 {
    x.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>().sqrt()
}
