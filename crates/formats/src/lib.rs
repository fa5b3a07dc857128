//! Compressed KV-cache formats: what a block means, byte by byte.
//!
//! A *format* is a transform (which rotation, how wide, or a sketch), a code (a
//! scalar codebook, a trellis, signs) and a block layout. Each one stands in its own folder as
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
mod fnv;
mod layout;
#[cfg(any(test, feature = "oracle"))]
pub mod oracle;
mod packing;
mod projection;
pub mod q4_polar;
pub mod qjl1_256;
mod rotation;
mod scalar_code;
mod spec;
mod sums;
pub mod tbq3_0;
pub mod tbq3_tcq;
pub mod tbq4_0;
mod transform;
pub mod turbo3_legacy;
pub mod turbo4_legacy;
mod wht128;

pub use error::CodecError;
pub use float::{f16_to_f32, f32_to_f16, sqrt_f32, sqrt_f64};
pub use fnv::Fnv;
pub use packing::Packing;
pub use projection::{COLUMN_SQUARES, PROJECTION, PROJECTION_TRANSPOSED};
pub use rotation::Rotation;
pub use scalar_code::{SCALES, for_blocks, to_half};
pub use spec::{Code, Decode, Domain, Encode, FormatSpec, Role, Scale, Tolerance};
pub use transform::Transform;

/// Every format, in the order of its stable [`FormatSpec::id`]. Adding a
/// format is one folder and one line here.
pub static FORMATS: &[&FormatSpec] = &[
    &tbq3_0::SPEC,
    &tbq4_0::SPEC,
    &tbq3_tcq::SPEC,
    &qjl1_256::SPEC,
    &q4_polar::SPEC,
    &turbo3_legacy::SPEC,
    &turbo4_legacy::SPEC,
];

/// The formats that a cache may hold keys in: all but the legacy ones.
pub fn cache_formats() -> impl Iterator<Item = &'static FormatSpec> {
    FORMATS.iter().copied().filter(|f| f.holds_keys())
}

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
