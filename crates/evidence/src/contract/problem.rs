use std::fmt;
use std::path::{Path, PathBuf};

use kvforge_files::excerpt;
use serde::{Serialize, Serializer};

/// Something that is wrong with a contract or with what it rests on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The rule that it breaks.
    pub rule: Rule,
    /// The file.
    #[serde(serialize_with = "lossy")]
    pub file: PathBuf,
    /// Where in it, such as `kernels.turbo3.maxDiff`.
    pub place: String,
    /// What should be there.
    pub expected: String,
    /// What is there.
    pub found: String,
    /// What to do.
    pub mend: String,
}

/// A path as text; what is not UTF-8 in it is replaced.
fn lossy<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&path.display())
}

/// What a contract and its evidence must keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// The file is JSON.
    Json,
    /// No member stands twice.
    Duplicate,
    /// Every member is there, known and of its type.
    Field,
    /// The layout is one that this version reads.
    Schema,
    /// Kernels have their public names, capability keys and operations.
    Kernel,
    /// `runtimeReady` and the status `runtime-ready` agree, both ways.
    Ready,
    /// What is ready names what was shipped.
    Symbols,
    /// What is ready says how it was proved.
    Smoke,
    /// What is ready compared enough scores.
    Scores,
    /// An error is not negative, and known for what is ready.
    MaxDiff,
    /// A day is a day.
    Date,
    /// A platform says what comes next.
    Gate,
    /// There is a contract.
    NoContract,
    /// There is evidence.
    NoEvidence,
    /// A claim rests on evidence.
    Unproven,
    /// Nothing changed since the run.
    Stale,
    /// Contract and evidence are as they were written.
    Edited,
    /// What did not run is not presented as a pass.
    Skip,
    /// The kernel counted itself, as often as it had to.
    NeverReached,
    /// Measured numbers are finite.
    NotFinite,
    /// Measured numbers keep within their limits.
    Tolerance,
    /// No check failed.
    Failed,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = self.file.display();
        if self.place.is_empty() {
            write!(f, "{file}: ")?;
        } else {
            write!(f, "{file}: {}: ", self.place)?;
        }
        let (expected, found, mend) = (&self.expected, &self.found, &self.mend);
        write!(f, "expected {expected}, found {found}; {mend}")
    }
}

/// Problems of one file, as they are found.
pub(super) struct Problems<'a> {
    pub file: &'a Path,
    pub mend: String,
    pub all: &'a mut Vec<Problem>,
}

impl Problems<'_> {
    pub fn add(
        &mut self,
        rule: Rule,
        place: impl Into<String>,
        expected: impl Into<String>,
        found: impl Into<String>,
    ) {
        self.all.push(Problem {
            rule,
            file: self.file.into(),
            place: excerpt(&place.into()),
            expected: expected.into(),
            found: excerpt(&found.into()),
            mend: self.mend.clone(),
        });
    }
}
