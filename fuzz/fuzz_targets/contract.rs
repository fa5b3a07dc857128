//! A contract of any bytes is read or refused.
#![no_main]

mod file;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = kvforge_evidence::contract::Contract::read(file::with(bytes).path());
});
