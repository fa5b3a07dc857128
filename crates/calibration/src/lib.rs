//! What a model's keys have in common, the `.kvcal` file that holds it, and the
//! static centre that follows for a context; the README says why, and what each
//! byte of the file means.
//!
//! No `std`, no allocation: this crate is compiled into llama.cpp trees.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

mod centre;
mod error;
mod layout;
mod read;
#[cfg(test)]
mod tests;
mod turns;
mod write;

pub use centre::static_centre;
pub use error::Error;
pub use layout::{MAX_HEAD_DIM, MAX_HEADS, MAX_LAYERS, NAME_BYTES, NO_ROPE, Rope, VERSION};
pub use read::{Calibration, Layer, Numbers};
pub use turns::{Pair, Step};
pub use write::{NewLayer, write};
