//! Putting kvforge into a tree, and taking it out again.

mod inspect;
mod manifest;
mod own;
mod plan;
mod stock;
mod transaction;
mod tree;
mod types;
mod unship;

pub use own::{Payload, Source};
pub use plan::{Action, Change, Plan};
pub use tree::Tree;
pub use types::{TypeEntry, TypeIds};
pub use unship::{Restored, Unshipped, unship};

pub(crate) use inspect::{Inspection, UpstreamFile};
pub(crate) use tree::io_error;

/// kvforge's own folder in a tree.
pub const OWN_DIR: &str = "ggml/src/kvforge";

/// Folder in a tree where `kvforge build` builds if not told otherwise.
pub const BUILD_DIR: &str = "build-kvforge";

/// A file in a build folder that says that kvforge made the folder.
pub(crate) const BUILD_MARK: &str = ".kvforge-build";
