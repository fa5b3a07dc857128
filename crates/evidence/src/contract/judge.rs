//! What a record falls short of.

use super::problem::Rule;
use crate::{Measure, ReachedBy, Record, Status};

/// One thing that keeps a record from being a proof.
pub(super) struct Shortcoming {
    pub rule: Rule,
    pub expected: String,
    pub found: String,
}

/// Everything that is wrong with a record that says that it ran. Of a model's
/// graph only the counts are known. A record of what did not run claims nothing,
/// and so falls short of nothing.
pub(super) fn shortcomings(record: &Record) -> Vec<Shortcoming> {
    let mut all = vec![];
    let mut add = |rule, expected: String, found: String| {
        all.push(Shortcoming {
            rule,
            expected,
            found,
        });
    };
    if record.not_run.is_some() {
        return all;
    }
    if let status @ (Status::Declared | Status::Shipped) = record.status() {
        let expected = "hashes of kernel sources and built libraries".into();
        add(Rule::Unproven, expected, format!("`{status}`"));
    }
    let (counted, due) = (record.counted, record.expected_count);
    if counted == 0 || counted != due {
        let kernel = &record.kernel;
        let expected = match due {
            0 => format!("{kernel} to count itself"),
            due => format!("{kernel} to count itself {due} times"),
        };
        add(Rule::NeverReached, expected, format!("{counted} times"));
    }
    if record.failed > 0 {
        let expected = "no check to fail".into();
        add(Rule::Failed, expected, format!("{} failed", record.failed));
    }
    let compared = record.cases > 0 && !record.measures.is_empty();
    if record.reached_by == ReachedBy::SmokeGraph && !compared {
        let expected = "numbers that were compared".into();
        add(Rule::Skip, expected, "none: nothing ran".into());
    }
    for measure in &record.measures {
        let Measure {
            least,
            worst,
            floor,
            tolerance,
            ..
        } = measure;
        let finite = [least, worst, floor, tolerance]
            .iter()
            .all(|x| x.is_finite());
        let found = format!("{least:e} to {worst:e}");
        if !finite {
            add(Rule::NotFinite, "finite numbers".into(), found);
        } else if !measure.holds() {
            let expected = format!("numbers from {floor:e} to {tolerance:e}");
            add(Rule::Tolerance, expected, found);
        }
    }
    all
}

/// Which record it is, in words.
pub(super) fn name(record: &Record) -> String {
    let graph = match record.reached_by {
        ReachedBy::SmokeGraph => "",
        ReachedBy::ModelGraph => ", model graph",
    };
    let Record {
        format,
        operation,
        kernel,
        ..
    } = record;
    format!("{operation} on {format} ({kernel}{graph})")
}
