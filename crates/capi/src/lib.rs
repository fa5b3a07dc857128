//! The C ABI of kvforge: what the llama.cpp hooks and C programs call.
//!
//! Functions return a [`KVF_OK`] status or worse; they never panic, unwind,
//! allocate or read the environment, and validate every argument before they
//! write anything. `kvf_api` hands out all of them as one table, so that a
//! host links a single symbol.
//!
//! C names, C layouts; `include/kvforge.h` is generated from this crate by
//! cbindgen.
#![no_std]
#![allow(non_camel_case_types, reason = "the names are those that C sees")]

#[cfg(test)]
extern crate std;

mod attention;
mod calibration;
mod codec;
mod counters;
mod info;
mod memory;
mod scores;
mod status;
mod table;
mod types;

pub use attention::*;
pub use calibration::*;
pub use codec::*;
pub use counters::*;
pub use info::*;
pub use scores::*;
pub use status::*;
pub use table::*;
pub use types::*;
