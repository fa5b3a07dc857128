//! A stream of any bytes in place of the probe's is read or refused.
#![no_main]

use kvforge_llama::probe::Stream;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = Stream::new(bytes);
    let told = [&b"KVFPROB1"[..], bytes].concat();
    let mut stream = Stream::new(&told[..]).unwrap();
    while let Ok(Some(_)) = stream.record() {}
});
