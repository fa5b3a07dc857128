//! A fixture of any bytes is judged or refused.
#![no_main]

mod file;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = kvforge::fixture::verify(file::with(bytes).path());
});
