//! CPU kernels for compressed KV-cache formats: encode, decode, dot, score and
//! fused attention, for every instruction set that the machine has.
//!
//! A call names its [`Isa`]; the kernel is chosen once per call, never per row,
//! and says its name ([`kernel_name`]) and how often it ran ([`counters`]).
//! Encoders and decoders agree bit for bit with the reference codec of
//! `kvforge-formats` on every instruction set; scores and attention keep the
//! tolerance of the format.
//!
//! Rooms: `scalar` is the kernel set to read, `avx2` the one to run; both
//! implement the small trait in `kernels`, and `attention` is the one engine
//! over that trait. `view` and `avx2` hold all the `unsafe` of the crate.
//!
//! A new format works here as soon as it stands in
//! [`FORMATS`](kvforge_formats::FORMATS): the reference codec serves it, and says so
//! ([`kernel_isa`]). For speed it gets a file in `avx2` and a line in the table there.
//!
//! No allocation, no threads, no environment: scratch memory and the split of
//! work over threads belong to the caller.
#![no_std]

#[cfg(test)]
extern crate std;

pub mod attention;
#[cfg(target_arch = "x86_64")]
mod avx2;
mod cache_type;
mod codec;
pub mod counters;
mod error;
mod isa;
mod kernels;
mod math;
mod names;
mod scalar;
pub mod view;

pub use cache_type::CacheType;
pub use codec::{Encoder, decode, dot, encode, poison};
pub use error::Error;
pub use isa::Isa;
pub use names::{Op, kernel_isa, kernel_name};
