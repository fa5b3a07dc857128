//! What a contract must keep by itself, whatever the evidence says.

use super::problem::{Problems, Rule};
use super::{Contract, KERNELS, Kernel, KernelStatus, PublicKernel};
use crate::date;
use crate::json::{member, within};

/// Fewest characters that can say what comes next.
const SHORTEST_GATE: usize = 8;

pub(super) fn keep_rules(contract: &Contract, problems: &mut Problems<'_>) {
    if contract.backend.trim().is_empty() {
        problems.add(Rule::Field, "backend", "a name", "none");
    }
    let known = KERNELS.map(|k| k.name).join(", ");
    for name in contract.kernels.keys() {
        if !KERNELS.iter().any(|k| k.name == name) {
            let place = member("kernels", name);
            problems.add(Rule::Kernel, place, format!("one of {known}"), "this name");
        }
    }
    for public in &KERNELS {
        let place = member("kernels", public.name);
        if let Some(kernel) = contract.kernels.get(public.name) {
            keep_kernel_rules(kernel, public, &place, problems);
        } else if !problems
            .all
            .iter()
            .any(|p| within(&p.place, &place) || within(&place, &p.place))
        {
            // One that cannot be read has been told already.
            problems.add(Rule::Kernel, place, "an entry", "none");
        }
    }
    for (name, platform) in &contract.platform_targets {
        let gate = platform.next_gate.trim();
        if gate.chars().count() < SHORTEST_GATE {
            let place = format!("platformTargets.{name}.nextGate");
            let expected = format!("at least {SHORTEST_GATE} characters");
            problems.add(Rule::Gate, place, expected, format!("`{gate}`"));
        }
    }
}

fn keep_kernel_rules(
    kernel: &Kernel,
    public: &PublicKernel,
    place: &str,
    problems: &mut Problems<'_>,
) {
    let mut require = |holds: bool, rule, field: &str, expected: String, found: String| {
        if !holds {
            problems.add(rule, member(place, field), expected, found);
        }
    };
    let key = &kernel.runtime_capability_key;
    require(
        key == public.capability_key,
        Rule::Kernel,
        "runtimeCapabilityKey",
        format!("`{}`", public.capability_key),
        format!("`{key}`"),
    );
    require(
        kernel.graph_op.ends_with(public.operation),
        Rule::Kernel,
        "graphOp",
        format!("`...{}`", public.operation),
        format!("`{}`", kernel.graph_op),
    );
    require(
        date::is_day(&kernel.evidence_date),
        Rule::Date,
        "evidenceDate",
        "a day as YYYY-MM-DD".into(),
        format!("`{}`", kernel.evidence_date),
    );
    let negative = kernel.max_diff.is_some_and(|x| x < 0.0);
    require(
        !negative,
        Rule::MaxDiff,
        "maxDiff",
        "an error, not below 0".into(),
        kernel.max_diff.unwrap_or_default().to_string(),
    );
    let blank = kernel.shipped_symbols.iter().any(|s| s.trim().is_empty());
    require(
        !blank,
        Rule::Symbols,
        "shippedSymbols",
        "names".into(),
        "one that is empty".into(),
    );

    let says_ready = kernel.status == KernelStatus::RuntimeReady;
    require(
        says_ready == kernel.runtime_ready,
        Rule::Ready,
        "runtimeReady",
        format!("{says_ready}, as the status says"),
        kernel.runtime_ready.to_string(),
    );
    if !says_ready && !kernel.runtime_ready {
        return;
    }
    require(
        !kernel.shipped_symbols.is_empty(),
        Rule::Symbols,
        "shippedSymbols",
        "the symbols of a ready kernel".into(),
        "none".into(),
    );
    for (field, text) in [
        ("smokeTarget", &kernel.smoke_target),
        ("smokeCommand", &kernel.smoke_command),
    ] {
        let expected = "what proved a ready kernel".into();
        let there = !text.trim().is_empty();
        require(there, Rule::Smoke, field, expected, "nothing".into());
    }
    require(
        kernel.smoke_scores >= public.least_scores,
        Rule::Scores,
        "smokeScores",
        format!("at least {} for a ready kernel", public.least_scores),
        kernel.smoke_scores.to_string(),
    );
    require(
        kernel.max_diff.is_some(),
        Rule::MaxDiff,
        "maxDiff",
        "a finite number for a ready kernel".into(),
        "null".into(),
    );
}
