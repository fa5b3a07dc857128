use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Status, number};

/// What is known about one operation on one format on one backend.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Record {
    /// Name of the format, such as `tbq4_0`.
    pub format: String,
    /// The host's name of the operation, such as `FLASH_ATTN_EXT`.
    pub operation: String,
    /// Name of the backend, such as `cpu`.
    pub backend: String,
    /// What kind of graph ran it.
    pub reached_by: ReachedBy,
    /// Why it was not run, if it was not.
    pub not_run: Option<String>,
    /// The kernel that had to run, such as `tbq4_0/attend/avx2`.
    pub kernel: String,
    /// Its instruction set.
    pub isa: String,
    /// Comparisons of numbers that were made.
    pub cases: u64,
    /// Single scores that were compared; 0 if the operation gives none.
    pub scores: u64,
    /// Checks of any kind that failed.
    pub failed: u64,
    /// What came out of the comparisons.
    pub measures: Vec<Measure>,
    /// How often the kernel counted itself, over all graphs.
    pub counted: u64,
    /// How often it had to.
    pub expected_count: u64,
    /// As it follows from the above. [`Evidence::new`](crate::Evidence::new)
    /// fills it in, whatever stood here.
    pub status: Option<Status>,
}

/// What kind of graph reached a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ReachedBy {
    /// A graph that the smoke built, and whose numbers it compared.
    SmokeGraph,
    /// The graph of a model that generated text. It shows that the host takes
    /// the route by itself; its numbers are not compared.
    ModelGraph,
}

/// Numbers that were compared with one kind of expectation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Measure {
    /// The expectation.
    pub against: Against,
    /// Smallest value over all cases.
    #[serde(with = "number")]
    #[schemars(with = "Option<f64>")]
    pub least: f64,
    /// Largest value over all cases.
    #[serde(with = "number")]
    #[schemars(with = "Option<f64>")]
    pub worst: f64,
    /// What no case may fall below. An error far too small is suspicious too:
    /// perhaps nothing was compressed.
    #[serde(with = "number")]
    #[schemars(with = "Option<f64>")]
    pub floor: f64,
    /// What no case may exceed.
    #[serde(with = "number")]
    #[schemars(with = "Option<f64>")]
    pub tolerance: f64,
}

/// What numbers were compared with.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Against {
    /// Bytes or values of the reference codec; the value is the number of
    /// blocks or values that differ.
    Reference,
    /// The oracle on what the bytes decode to; the value is an error, relative
    /// as the format's tolerance defines it.
    Decoded,
    /// The oracle on the uncompressed input; the value is the squared error
    /// divided by the one that the format's specification predicts.
    Unquantised,
}

impl Record {
    /// How far the numbers show it to have come. Before it was put into an
    /// [`Evidence`](crate::Evidence) nothing is known but that it is declared.
    pub fn status(&self) -> &Status {
        self.status.as_ref().unwrap_or(&Status::Declared)
    }

    /// The status that the numbers support, for sources that are shipped and
    /// libraries that are built, or are not.
    pub(crate) fn supported(&self, shipped: bool, built: bool) -> Status {
        if let Some(reason) = &self.not_run {
            return Status::NotRun(reason.clone());
        }
        if !shipped {
            return Status::Declared;
        }
        if !built {
            return Status::Shipped;
        }
        if self.counted == 0 || self.counted != self.expected_count {
            return Status::Compiled;
        }
        let compared = self.cases > 0 && !self.measures.is_empty();
        if compared && self.failed == 0 && self.measures.iter().all(Measure::holds) {
            Status::Verified
        } else {
            Status::Dispatched
        }
    }
}

impl Measure {
    /// Whether every case kept within the limits. NaN never does.
    pub fn holds(&self) -> bool {
        let finite = [self.least, self.worst, self.floor, self.tolerance]
            .iter()
            .all(|x| x.is_finite());
        finite
            && self.floor <= self.least
            && self.least <= self.worst
            && self.worst <= self.tolerance
    }
}
