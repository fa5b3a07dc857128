//! Compressed KV caches as a library: what people use who write Rust.
//!
//! | module | what it does |
//! |---|---|
//! | [`npy`] | arrays of rows, read from and written to `.npy` files |
//! | [`rows`] | encode, decode and score such arrays in any format |
//! | [`capture`] | queries, keys and values captured from a model |
//! | [`calibration`] | what the keys of a model have in common, and the centres that follow |
//! | [`peers`] | the cache types that llama.cpp has, to compare with |
//! | [`cache`] | a compressed KV cache with an exact window, and attention over it |
//! | [`quality`] | what each format does to captured attention |
//! | [`fixture`] | the public test files, read and checked |
//!
//! [`cache`] runs the kernels of [`kvforge_cpu`]. Everything else runs the reference codecs
//! of [`kvforge_formats`]: it measures formats, not kernels. Libraries return values: only
//! the command prints.
//!
//! ```
//! use kvforge::npy::Array;
//! use kvforge::rows::{self, Encoder};
//!
//! let keys = Array::new(128, vec![0.25; 3 * 128])?;
//! let queries = Array::new(128, vec![1.0; 2 * 128])?;
//! let format = rows::format("tbq4_0")?;
//! let bytes = rows::encode(format, Encoder::Best, &keys)?;
//! let scores = rows::score(format, &queries, &bytes, false)?;
//! assert_eq!((scores.rows(), scores.cols()), (2, 3));
//! # Ok::<(), kvforge::Error>(())
//! ```
#![forbid(unsafe_code)]

pub mod cache;
pub mod calibration;
pub mod capture;
mod error;
mod file;
pub mod fixture;
pub mod npy;
pub mod peers;
pub mod quality;
pub mod rows;

pub use error::Error;
pub use file::write_atomic;
