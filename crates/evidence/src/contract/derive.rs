//! Works a contract out of evidence.

use std::collections::{BTreeMap, BTreeSet};

use super::judge::shortcomings;
use super::problem::Rule;
use super::{
    Contract, KERNELS, Kernel, KernelStatus, PROOF_SCHEMA, Platform, Proof, PublicKernel, SCHEMA,
    Summary,
};
use crate::{Against, Evidence, Hashed, ReachedBy, Record};

const SOURCE_OF_TRUTH: &str = "Runtime-ready means that a graph of the built tree selected the \
    shipped kernel, which the kernel's own counter shows, and that its scores were right against \
    an oracle in double precision. A symbol in a library proves nothing. Every status follows \
    from the evidence file named below, which is bound by hash to the kernel sources and to the \
    built libraries.";

/// What a contract says that no evidence can tell; who knows the host says it.
#[derive(Clone, Copy, Debug)]
pub struct Project {
    /// What the host writes before the names of its graph operations.
    pub graph_op_prefix: &'static str,
    /// The usual build folder in a tree.
    pub build_dir: &'static str,
    /// Every platform, those without kernels too.
    pub targets: &'static [Target],
}

/// A platform, and how far it has come where the evidence is from another one.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Name, such as `cpu-aarch64`.
    pub name: &'static str,
    /// Its backend.
    pub backend: &'static str,
    /// Its architecture, as Rust calls it, if that matters.
    pub arch: Option<&'static str>,
    /// Are the kernels' numbers right there?
    pub kernel_verification: KernelStatus,
    /// Do graphs reach the kernels there?
    pub runtime_dispatch: KernelStatus,
    /// Did a model generate text there?
    pub device_run: KernelStatus,
    /// What has to happen next.
    pub next_gate: &'static str,
}

impl Contract {
    /// The contract that follows from `evidence`, whose file is `file` as seen
    /// from the contract's folder. Who calls it has seen that the evidence is not
    /// stale.
    pub fn from_evidence(
        evidence: &Evidence,
        file: Hashed,
        backend: &str,
        project: &Project,
    ) -> Contract {
        let on_backend = || evidence.records().iter().filter(|r| r.backend == backend);
        let kernels: BTreeMap<String, Kernel> = KERNELS
            .iter()
            .map(|public| {
                let records: Vec<&Record> =
                    on_backend().filter(|r| r.format == public.format).collect();
                (
                    public.name.into(),
                    kernel(evidence, public, &records, project),
                )
            })
            .collect();
        let platform = |t: &Target| {
            let host = &evidence.run().host;
            let here = t.backend == backend && t.arch.is_none_or(|arch| arch == host.arch);
            match here {
                true => platform_of_run(&on_backend().collect::<Vec<_>>(), &kernels),
                false => Platform {
                    kernel_verification: t.kernel_verification,
                    runtime_dispatch: t.runtime_dispatch,
                    device_run: t.device_run,
                    next_gate: t.next_gate.into(),
                },
            }
        };
        Contract {
            schema_version: SCHEMA,
            backend: backend.into(),
            source_of_truth: SOURCE_OF_TRUTH.into(),
            latest_report: file.path.clone(),
            platform_targets: project
                .targets
                .iter()
                .map(|t| (t.name.into(), platform(t)))
                .collect(),
            kvforge: Some(Proof {
                schema_version: PROOF_SCHEMA,
                evidence: file,
                tree: evidence.run().tree.clone(),
                records: on_backend().map(summary).collect(),
            }),
            kernels,
        }
    }
}

/// `records` are all of its format on the backend.
fn kernel(
    evidence: &Evidence,
    public: &PublicKernel,
    records: &[&Record],
    project: &Project,
) -> Kernel {
    let run = evidence.run();
    let of_scores: Vec<&Record> = records
        .iter()
        .copied()
        .filter(|r| r.operation == public.operation && r.reached_by == ReachedBy::SmokeGraph)
        .collect();
    let (status, notes) = standing(public, &of_scores);
    let ran = records.iter().filter(|r| r.not_run.is_none());
    let symbols: BTreeSet<&String> = ran.map(|r| &r.kernel).collect();
    Kernel {
        runtime_capability_key: public.capability_key.into(),
        status,
        runtime_ready: status == KernelStatus::RuntimeReady,
        shipped_symbols: symbols.into_iter().cloned().collect(),
        graph_op: format!("{}{}", project.graph_op_prefix, public.operation),
        smoke_target: "smoke".into(),
        smoke_command: run.command.clone(),
        smoke_scores: scores(&of_scores),
        max_diff: worst_score(&of_scores),
        // The date is RFC 3339, and begins with the day.
        evidence_date: run.date.get(..10).unwrap_or(&run.date).into(),
        notes,
    }
}

/// The status that the records of the score operation support, and why.
fn standing(public: &PublicKernel, records: &[&Record]) -> (KernelStatus, String) {
    let PublicKernel {
        format,
        operation,
        least_scores,
        ..
    } = public;
    let open = |why: String| (KernelStatus::NeedsRuntimeSmoke, why);
    if records.is_empty() {
        return open(format!("The evidence has no {operation} on {format}."));
    }
    let wrong: Vec<_> = records.iter().flat_map(|r| shortcomings(r)).collect();
    if !wrong.is_empty() {
        let in_words: Vec<String> = wrong
            .iter()
            .map(|s| format!("expected {}, found {}", s.expected, s.found))
            .collect();
        let is = |rule| wrong.iter().any(|s| s.rule == rule);
        let status = if is(Rule::Failed) || is(Rule::NotFinite) || is(Rule::Tolerance) {
            KernelStatus::Blocked
        } else if is(Rule::NeverReached) {
            KernelStatus::SymbolShipped
        } else {
            KernelStatus::NeedsRuntimeSmoke
        };
        let in_words = in_words.join("; ");
        return (status, format!("{operation} on {format}: {in_words}."));
    }
    if let Some(reason) = records.iter().find_map(|r| r.not_run.as_ref()) {
        return open(format!("{operation} on {format} was not run: {reason}."));
    }
    let (scores, worst) = (scores(records), worst_score(records));
    let Some(worst) = worst.filter(|_| scores >= *least_scores) else {
        return open(format!(
            "{operation} on {format}: {scores} scores compared, at least {least_scores} needed."
        ));
    };
    let counted: Vec<String> = records
        .iter()
        .map(|r| format!("{} counted {}", r.kernel, r.counted))
        .collect();
    let counted = counted.join(", ");
    let notes = format!(
        "{operation} on {format} in graphs of the built libraries: {counted}, as expected; \
         {scores} scores within {worst:.1e} of the oracle on the decoded keys, relative to |q| |k|."
    );
    (KernelStatus::RuntimeReady, notes)
}

fn scores(records: &[&Record]) -> u64 {
    records.iter().map(|r| r.scores).sum()
}

/// Largest error against the decoded keys; none if one of them is no number.
fn worst_score(records: &[&Record]) -> Option<f64> {
    let decoded = records
        .iter()
        .flat_map(|r| &r.measures)
        .filter(|m| m.against == Against::Decoded);
    let mut worst: Option<f64> = None;
    for measure in decoded {
        // `max` would lose a NaN.
        if !measure.worst.is_finite() {
            return None;
        }
        worst = Some(worst.unwrap_or(0.0).max(measure.worst));
    }
    worst
}

/// The platform that the evidence is from.
fn platform_of_run(records: &[&Record], kernels: &BTreeMap<String, Kernel>) -> Platform {
    let standing = |reached_by| {
        let of_graph = || records.iter().filter(|r| r.reached_by == reached_by);
        if of_graph().any(|r| !shortcomings(r).is_empty()) {
            KernelStatus::Blocked
        } else if of_graph().any(|r| r.not_run.is_none()) {
            KernelStatus::Verified
        } else {
            KernelStatus::NeedsRuntimeSmoke
        }
    };
    let open: Vec<&str> = KERNELS
        .iter()
        .map(|public| public.name)
        .filter(|name| !kernels.get(*name).is_some_and(|k| k.runtime_ready))
        .collect();
    let (graph, model) = (
        standing(ReachedBy::SmokeGraph),
        standing(ReachedBy::ModelGraph),
    );
    let next_gate = if [graph, model].contains(&KernelStatus::Blocked) {
        "mend what `kvforge smoke` reports".into()
    } else if !open.is_empty() {
        format!("score graphs of the built tree for {}", open.join(", "))
    } else if model != KernelStatus::Verified {
        "run `kvforge smoke` with a model".into()
    } else {
        "run `kvforge smoke` again after every change of sources or libraries".into()
    };
    Platform {
        kernel_verification: graph,
        runtime_dispatch: match open.is_empty() {
            true => KernelStatus::RuntimeReady,
            false => KernelStatus::NeedsRuntimeSmoke,
        },
        device_run: model,
        next_gate,
    }
}

fn summary(record: &Record) -> Summary {
    Summary {
        format: record.format.clone(),
        operation: record.operation.clone(),
        reached_by: record.reached_by,
        kernel: record.kernel.clone(),
        status: record.status().clone(),
    }
}
