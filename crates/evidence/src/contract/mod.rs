//! The contract: which public kernel names a build may call runtime-ready.
//!
//! The layout, `schemaVersion` 1, is the one that apps already read: one backend,
//! one entry a kernel. kvforge never sets a status there but works it out of the
//! evidence of a smoke run, and adds what an older reader passes over: the
//! member `kvforge`, which names that evidence by hash, and `platformTargets`.
//! [`check`](check()) holds a file against all of this, and finds everything that is wrong
//! with it, not only the first thing.

mod check;
mod derive;
mod judge;
mod problem;
mod read;
mod rules;

use std::collections::BTreeMap;
use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Error, Hashed, ReachedBy, Status, TreeId, file};

pub use check::{Check, check, check_claims, check_evidence};
pub use derive::{Project, Target};
pub use problem::{Problem, Rule};
pub use read::Reading;

/// Name of the file in a build folder.
pub const FILE_NAME: &str = "kvforge-contract.json";

/// Version of the layout that apps read.
const SCHEMA: u64 = 1;

/// Version of the member `kvforge`.
const PROOF_SCHEMA: u64 = 2;

/// A kernel name that apps know, and what stands behind it.
#[derive(Clone, Copy, Debug)]
pub struct PublicKernel {
    /// Key in [`Contract::kernels`].
    pub name: &'static str,
    /// Key by which an app asks for it.
    pub capability_key: &'static str,
    /// Name of the format.
    pub format: &'static str,
    /// The host's operation that gives its scores, without the host's prefix.
    pub operation: &'static str,
    /// Scores that a smoke must have compared: 4 query heads on 8 tokens, and for
    /// polar in all four combinations of residual and pre-rotated query.
    pub least_scores: u64,
}

/// Every public kernel, in the order in which the contract is shown.
pub const KERNELS: [PublicKernel; 5] = [
    PublicKernel::new("turbo3", "turbo3", "tbq3_0", "ATTN_SCORE_TBQ", 32),
    PublicKernel::new("turbo4", "turbo4", "tbq4_0", "ATTN_SCORE_TBQ", 32),
    PublicKernel::new("turbo3_tcq", "turbo3_tcq", "tbq3_tcq", "ATTN_SCORE_TBQ", 32),
    PublicKernel::new("qjl", "qjl_full", "qjl1_256", "ATTN_SCORE_QJL", 32),
    PublicKernel::new("polar", "polarquant", "q4_polar", "ATTN_SCORE_POLAR", 128),
];

impl PublicKernel {
    const fn new(
        name: &'static str,
        capability_key: &'static str,
        format: &'static str,
        operation: &'static str,
        least_scores: u64,
    ) -> Self {
        PublicKernel {
            name,
            capability_key,
            format,
            operation,
            least_scores,
        }
    }
}

/// What a build claims of its kernels.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Contract {
    /// Version of the layout: 1.
    #[schemars(range(min = 1, max = 1))]
    pub schema_version: u64,
    /// Name of the backend, such as `cpu`.
    pub backend: String,
    /// What runtime-ready means in this file.
    pub source_of_truth: String,
    /// The report that the entries rest on.
    pub latest_report: String,
    /// Every kernel by its public name; see [`KERNELS`].
    pub kernels: BTreeMap<String, Kernel>,
    /// How far each platform has come.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub platform_targets: BTreeMap<String, Platform>,
    /// The evidence; without it nothing here is proved.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub kvforge: Option<Proof>,
}

/// One kernel.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Kernel {
    /// Key by which an app asks for it.
    pub runtime_capability_key: String,
    /// How far it has come.
    pub status: KernelStatus,
    /// Whether an app may rely on it: if and only if the status is `runtime-ready`.
    pub runtime_ready: bool,
    /// Names of the kernels that are in the built libraries.
    pub shipped_symbols: Vec<String>,
    /// The host's name of the graph operation.
    pub graph_op: String,
    /// What to run to prove it.
    pub smoke_target: String,
    /// The command line that ran it.
    pub smoke_command: String,
    /// Scores that were compared.
    pub smoke_scores: u64,
    /// Largest error of a score; `null` if none was measured.
    pub max_diff: Option<f64>,
    /// Day of the run, `YYYY-MM-DD`.
    #[schemars(regex(pattern = r"^\d{4}-\d{2}-\d{2}$"))]
    pub evidence_date: String,
    /// In words.
    pub notes: String,
}

/// How far a kernel or a platform has come. There are no others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum KernelStatus {
    /// Something keeps it from working.
    Blocked,
    /// It compiles, and nobody has run it.
    CompileOnly,
    /// A machine that could run it is missing.
    NeedsHardware,
    /// No graph of a built tree has run it.
    NeedsRuntimeSmoke,
    /// Of QJL some routes, and no others.
    PartialQjlOnly,
    /// There is a reference, and no kernel for the device.
    ReferenceOnly,
    /// A graph of the built tree ran it, and its numbers were right.
    RuntimeReady,
    /// Right by itself, outside of a graph.
    StandaloneVerified,
    /// It is in the library, and no graph reaches it.
    SymbolShipped,
    /// Its numbers were right.
    Verified,
}

impl KernelStatus {
    /// Every status.
    pub const ALL: [KernelStatus; 10] = [
        KernelStatus::Blocked,
        KernelStatus::CompileOnly,
        KernelStatus::NeedsHardware,
        KernelStatus::NeedsRuntimeSmoke,
        KernelStatus::PartialQjlOnly,
        KernelStatus::ReferenceOnly,
        KernelStatus::RuntimeReady,
        KernelStatus::StandaloneVerified,
        KernelStatus::SymbolShipped,
        KernelStatus::Verified,
    ];

    /// As files spell it.
    pub const fn name(self) -> &'static str {
        match self {
            KernelStatus::Blocked => "blocked",
            KernelStatus::CompileOnly => "compile-only",
            KernelStatus::NeedsHardware => "needs-hardware",
            KernelStatus::NeedsRuntimeSmoke => "needs-runtime-smoke",
            KernelStatus::PartialQjlOnly => "partial-qjl-only",
            KernelStatus::ReferenceOnly => "reference-only",
            KernelStatus::RuntimeReady => "runtime-ready",
            KernelStatus::StandaloneVerified => "standalone-verified",
            KernelStatus::SymbolShipped => "symbol-shipped",
            KernelStatus::Verified => "verified",
        }
    }

    /// Every status as files spell it, for messages.
    pub(crate) fn spellings() -> String {
        KernelStatus::ALL.map(KernelStatus::name).join(", ")
    }
}

/// One platform.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Platform {
    /// Are the kernels' numbers right there?
    pub kernel_verification: KernelStatus,
    /// Do graphs reach every kernel there?
    pub runtime_dispatch: KernelStatus,
    /// Did a model generate text there?
    pub device_run: KernelStatus,
    /// What has to happen next, in words.
    #[schemars(length(min = 8))]
    pub next_gate: String,
}

/// Which evidence the contract rests on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Proof {
    /// Version of this member: 2.
    #[schemars(range(min = 2, max = 2))]
    pub schema_version: u64,
    /// The evidence file, its path as seen from the contract's folder.
    pub evidence: Hashed,
    /// The tree, with the type ids that the formats have in it.
    pub tree: TreeId,
    /// What the evidence says of every operation on the backend.
    pub records: Vec<Summary>,
}

/// A record of the evidence in short.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Summary {
    /// Name of the format.
    pub format: String,
    /// The host's name of the operation.
    pub operation: String,
    /// What kind of graph ran it.
    pub reached_by: ReachedBy,
    /// The kernel that had to run.
    pub kernel: String,
    /// How far it has come.
    pub status: Status,
}

impl Contract {
    /// Writes the file as a whole or, if that fails, leaves the old one.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        file::write(path, self)
    }

    /// Kernels that are runtime-ready by both of their fields, in the order of
    /// [`KERNELS`].
    pub fn ready(&self) -> impl Iterator<Item = &str> {
        KERNELS.iter().map(|k| k.name).filter(|name| {
            let kernel = self.kernels.get(*name);
            kernel.is_some_and(|k| k.runtime_ready && k.status == KernelStatus::RuntimeReady)
        })
    }
}
