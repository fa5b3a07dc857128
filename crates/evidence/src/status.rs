use std::cmp::Ordering;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How far an operation on a format has come on a backend. The first five are
/// ordered; what did not run stands outside of the order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// The format's specification lists it.
    Declared,
    /// Its sources are in the tree.
    Shipped,
    /// They are part of a built library.
    Compiled,
    /// A graph that the built library ran reached the kernel, exactly as often
    /// as it should.
    Dispatched,
    /// And its numbers were right.
    Verified,
    /// It was not run, for this reason.
    NotRun(String),
}

impl Status {
    fn rank(&self) -> Option<u8> {
        match self {
            Status::Declared => Some(0),
            Status::Shipped => Some(1),
            Status::Compiled => Some(2),
            Status::Dispatched => Some(3),
            Status::Verified => Some(4),
            Status::NotRun(_) => None,
        }
    }
}

impl PartialOrd for Status {
    /// `declared < shipped < compiled < dispatched < verified`; `not-run` is
    /// neither less nor more than any of them.
    fn partial_cmp(&self, other: &Status) -> Option<Ordering> {
        match (self.rank(), other.rank()) {
            (Some(a), Some(b)) => Some(a.cmp(&b)),
            _ => (self == other).then_some(Ordering::Equal),
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Status::Declared => "declared",
            Status::Shipped => "shipped",
            Status::Compiled => "compiled",
            Status::Dispatched => "dispatched",
            Status::Verified => "verified",
            Status::NotRun(reason) => return write!(f, "not run: {reason}"),
        })
    }
}
