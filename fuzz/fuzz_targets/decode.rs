//! Any bytes through every decoder, into both domains, against the oracle.
#![no_main]

#[path = "../../crates/formats/tests/any_input/mod.rs"]
#[allow(dead_code, reason = "others take other parts")]
mod any_input;

use kvforge_formats::FORMATS;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    for spec in FORMATS {
        any_input::decode(
            spec,
            &bytes[..bytes.len() / spec.block_bytes * spec.block_bytes],
        );
    }
});
