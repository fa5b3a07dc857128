//! Compressed KV caches as a library: what people use who write Rust.
//!
//! | module | what it does |
//! |---|---|
//! | [`npy`] | arrays of rows, read from and written to `.npy` files |
//! | [`rows`] | encode, decode and score such arrays in any format |
//! | [`capture`] | queries, keys and values captured from a model |
//! | [`peers`] | the cache types that llama.cpp has, to compare with |
//! | [`quality`] | what each format does to captured attention |
//! | [`fixture`] | the public test files, read and checked |
//!
//! Everything here runs the reference codecs of [`kvforge_formats`]; it measures
//! formats, not kernels. Libraries return values: only the command prints.
#![forbid(unsafe_code)]

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
