//! `libkvforge`: see `kvforge-capi` for the functions.
#![no_std]

// Its exported functions are what this library consists of.
extern crate kvforge_capi;

/// Unreachable by design: every entry point validates its arguments and no
/// kernel indexes past what was validated. Should a defect prove that wrong,
/// stopping at once is better than unwinding into C, which is undefined.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    unsafe extern "C" {
        safe fn abort() -> !;
    }
    abort()
}
