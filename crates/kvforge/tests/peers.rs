//! Errors of the peers on Gaussian values.

mod common;

use common::gaussian;
use kvforge::peers::{PEERS, Role};

/// The step of q8_0 is the largest of 32 magnitudes over 127; the others as they were
/// measured elsewhere.
#[test]
fn gaussian_errors() {
    let x = gaussian(1, 1 << 17);
    let energy: f64 = x.iter().map(|x| f64::from(*x).powi(2)).sum();
    let largest = x
        .chunks(32)
        .map(|b| b.iter().fold(0.0, |m: f32, v| m.max(v.abs())));
    let steps = largest.map(|m| f64::from(m / 127.0).powi(2)).sum::<f64>() * 32.0 / energy;
    for (peer, expected) in PEERS.iter().zip([steps / 12.0, 0.0074, 0.0074, 0.0058]) {
        let mut y = x.clone();
        peer.simulate(&mut y, 128, Role::K);
        let error: f64 = x
            .iter()
            .zip(&y)
            .map(|(x, y)| f64::from(x - y).powi(2))
            .sum();
        let found = error / energy;
        assert!(
            (found / expected - 1.0).abs() < 0.05,
            "{}: {found} {expected}",
            peer.name
        );
    }
}
