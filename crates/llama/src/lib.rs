//! Everything that knows llama.cpp.
//!
//! *Shipping* ([`Plan::write`]) puts kvforge into a llama.cpp source tree: our sources into one
//! folder of their own, and a few marked lines into upstream files that call
//! into it. What those lines are is data, a [`patch::PatchSet`]; what goes
//! into the folder is a [`Payload`]. Nothing is written before the whole
//! [`Plan`] has been checked, and [`unship`] gives back every upstream byte.
//! [`mod@build`] compiles the tree, and [`mod@smoke`] proves which kernels the built
//! tree runs and that their numbers are right. [`mod@eval`] measures how far a cache of
//! the built tree moves a model.
#![deny(unsafe_code)]

pub mod build;
pub mod contract;
pub mod doctor;
mod error;
pub mod eval;
pub mod gguf;
pub mod patch;
pub mod probe;
mod ship;
pub mod smoke;
mod status;
mod tools;

pub use error::Error;
pub use ship::{
    Action, BUILD_DIR, Change, OWN_DIR, Payload, Plan, Restored, Source, Tree, TypeEntry, TypeIds,
    Unshipped, unship,
};
pub use status::{FileStatus, HookState, HookStatus, State, Status, status};
