//! A calibration of any bytes is read or refused, with a hash that fits too; what was
//! read gives centres, and any matrix is a turning of pairs or refused.
#![no_main]

use kvforge_calibration::{Calibration, Layer, Step, static_centre};
use kvforge_formats::Fnv;
use libfuzzer_sys::fuzz_target;

/// The hash, and what it is over.
const HASH: usize = 12;
const HASHED: usize = 20;

fn centre(layer: &Layer, positions: u64) {
    let mut centre = vec![f32::NAN; layer.n_head_kv() * layer.head_dim()];
    static_centre(layer, layer.pairs(), positions, &mut centre).unwrap();
}

fuzz_target!(|bytes: &[u8]| {
    let _ = Calibration::read(bytes);
    let mut bytes = bytes.to_vec();
    if let Some(content) = bytes.get(HASHED..) {
        let hash = Fnv::new().bytes(content).finish();
        bytes[HASH..HASHED].copy_from_slice(&hash.to_le_bytes());
    }
    if let Ok(calibration) = Calibration::read(&bytes) {
        let layers = calibration
            .layers()
            .inspect(|layer| centre(layer, calibration.n_tokens));
        assert_eq!(layers.count(), calibration.n_layers as usize);
    }
    let floats: Vec<f32> = bytes
        .as_chunks()
        .0
        .iter()
        .map(|b| f32::from_le_bytes(*b))
        .collect();
    let head_dim = floats.len().isqrt();
    if let Ok(step) = Step::new(&floats[..head_dim * head_dim], head_dim) {
        assert!(
            step.pairs()
                .all(|pair| pair.a < pair.b && (pair.b as usize) < head_dim)
        );
    }
});
