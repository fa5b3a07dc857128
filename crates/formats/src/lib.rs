//! Compressed KV-cache formats: what a block means, byte by byte.
//!
//! A *format* is a transform (which rotation, how wide), a code (a scalar
//! codebook for now) and a block layout. Each one stands in its own folder as
//! a single constant, its [`FormatSpec`]; C headers, ggml type rows, docs
//! tables and test tolerances are derived from that constant and nowhere
//! restated.
//!
//! This crate holds the *reference* side: byte-exact scalar codecs written to
//! be read, and the `f64` `oracle` (a feature) that judges everything faster.
//! It does no IO, allocates only in the oracle, contains no `unsafe`, depends
//! on nothing, and knows no device and no host.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(any(test, feature = "oracle"))]
extern crate std;

mod error;
mod float;
#[cfg(any(test, feature = "oracle"))]
pub mod oracle;
mod packing;
mod rotation;
mod scalar_code;
mod spec;
pub mod tbq3_0;
pub mod tbq4_0;

pub use error::CodecError;
pub use float::{f16_to_f32, f32_to_f16, sqrt_f32};
pub use packing::Packing;
pub use rotation::Rotation;
pub use spec::{Domain, FormatSpec, Tolerance};

/// Every format, in the order of its stable [`FormatSpec::id`]. Adding a
/// format is one folder and one line here.
pub static FORMATS: &[&FormatSpec] = &[&tbq3_0::SPEC, &tbq4_0::SPEC];

/// The format that people call `name` (`"tbq4_0"`), if there is one.
pub fn by_name(name: &str) -> Option<&'static FormatSpec> {
    FORMATS.iter().copied().find(|f| f.name == name)
}

/// The format with the stable identifier `id`, if there is one.
pub fn by_id(id: u32) -> Option<&'static FormatSpec> {
    FORMATS.iter().copied().find(|f| f.id == id)
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
