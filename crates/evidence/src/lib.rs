//! What a smoke run proved, and how long that stays true.
//!
//! A [`Record`] says how far one operation on one format has come on one
//! backend. Its [`Status`] is never set: it follows from the numbers in the
//! record, and a file that claims more than its numbers support is refused.
//! All records of a file come from one [`Run`], which states what was run by
//! hash. Once a kernel source or a built library has changed, the file is
//! stale, and [`Checked::ready`] says no.
//!
//! A [`contract`] is what apps read: it says of each kernel whether it may be relied
//! on, and follows from evidence alone.
//!
//! This crate knows no host and no device: which folder holds the kernel
//! sources, and which files are the libraries, is part of the evidence.
#![forbid(unsafe_code)]

pub mod contract;
mod date;
pub mod digest;
mod error;
mod file;
mod json;
mod number;
mod record;
pub mod schema;
mod status;

pub use date::utc;
pub use error::Error;
pub use file::{Checked, Evidence, FILE_NAME, Hashed, Host, Run, Stale, TreeId};
pub use record::{Against, Measure, ReachedBy, Record};
pub use status::Status;
