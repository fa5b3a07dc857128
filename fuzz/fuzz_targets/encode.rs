//! Any floats through both encoders of every format: the reference judged by the oracle, the
//! best one by the reference.
#![no_main]

#[path = "../../crates/formats/tests/any_input/mod.rs"]
#[allow(dead_code, reason = "others take other parts")]
mod any_input;

use kvforge_formats::FORMATS;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let x: Vec<f32> = bytes
        .as_chunks()
        .0
        .iter()
        .copied()
        .map(f32::from_le_bytes)
        .collect();
    for spec in FORMATS {
        any_input::encode(spec, &x[..x.len() / spec.block_len * spec.block_len]);
    }
});
