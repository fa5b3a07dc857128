//! Runs the steps of a test, one after the other, and says how each ended.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Result, bail};

use crate::command::Log;

/// What a step checked.
pub struct Checked {
    count: usize,
    what: String,
    not_run: Vec<String>,
}

impl Checked {
    /// `count` of `what`, such as 12 "tests". A step that checked nothing has
    /// not passed.
    pub fn new(count: usize, what: &str) -> Self {
        Checked {
            count,
            what: what.into(),
            not_run: Vec::new(),
        }
    }

    /// How much was checked.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Adds what another part of the step checked, and what it did not run.
    pub fn add(&mut self, other: Checked) {
        self.count += other.count;
        for what in other.not_run {
            if !self.not_run.contains(&what) {
                self.not_run.push(what);
            }
        }
    }

    /// Parts of the step that did not run, each with its reason.
    pub fn without(mut self, not_run: Vec<String>) -> Self {
        self.not_run = not_run;
        self
    }
}

/// A step of a test.
pub struct Step {
    /// Its name.
    pub name: &'static str,
    /// Steps that must have passed; this one does not run otherwise.
    pub after: &'static [&'static str],
    /// What to do when it fails.
    pub repair: &'static str,
}

/// How the steps of a test ended.
pub struct Report {
    logs: PathBuf,
    started: Instant,
    passed: Vec<&'static str>,
    failed: Vec<&'static str>,
    skipped: usize,
    not_run: Vec<String>,
}

impl Report {
    /// Nothing has run yet.
    pub fn new(logs: PathBuf) -> Self {
        Report {
            logs,
            started: Instant::now(),
            passed: vec![],
            failed: vec![],
            skipped: 0,
            not_run: vec![],
        }
    }

    /// Runs a step.
    pub fn step(&mut self, step: Step, run: impl FnOnce(&Log) -> Result<Checked>) {
        if let Some(missing) = step.after.iter().find(|name| !self.passed.contains(name)) {
            self.skip(
                step.name,
                &format!("it needs `{missing}`, which has not passed"),
            );
            return;
        }
        println!("  --  {}", step.name);
        let started = Instant::now();
        let log = self
            .logs
            .join(format!("{}.log", step.name.replace([' ', ':', ','], "-")));
        let result =
            Log::new(log)
                .and_then(|log| run(&log))
                .and_then(|checked| match checked.count {
                    0 => bail!("ran, but checked no {}", checked.what),
                    _ => Ok(checked),
                });
        let seconds = started.elapsed().as_secs_f64();
        match result {
            Ok(checked) => {
                println!(
                    "  ok  {}: {} {} ({seconds:.1} s)",
                    step.name, checked.count, checked.what
                );
                self.passed.push(step.name);
                self.not_run.extend(
                    checked
                        .not_run
                        .into_iter()
                        .map(|what| format!("{}: {what}", step.name)),
                );
            }
            Err(error) => {
                println!(
                    "FAIL  {} ({seconds:.1} s)\n{error:#}\n    what to do: {}",
                    step.name, step.repair
                );
                self.failed.push(step.name);
            }
        }
    }

    /// Notes that a step does not run, and why.
    pub fn skip(&mut self, name: &str, reason: &str) {
        self.skipped += 1;
        self.not_run.push(format!("{name}: {reason}"));
    }

    /// Prints the end, and whether all is well.
    pub fn finish(self) -> bool {
        let seconds = self.started.elapsed().as_secs();
        println!(
            "\n{} min {} s; logs are in {}",
            seconds / 60,
            seconds % 60,
            crate::places::shown(&self.logs)
        );
        for what in &self.not_run {
            println!("not run: {what}");
        }
        for name in &self.failed {
            println!("failed: {name}");
        }
        println!("{}", self.closing_line());
        self.is_good()
    }

    /// Something passed, and nothing failed.
    fn is_good(&self) -> bool {
        self.failed.is_empty() && !self.passed.is_empty()
    }

    fn closing_line(&self) -> String {
        let skipped = if self.skipped > 0 {
            format!(", {} skipped", self.skipped)
        } else {
            String::new()
        };
        format!(
            "{} passed, {} failed{skipped}",
            self.passed.len(),
            self.failed.len()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(name: &'static str, after: &'static [&'static str]) -> Step {
        Step {
            name,
            after,
            repair: "nothing",
        }
    }

    #[test]
    fn steps_pass_fail_and_wait_for_each_other() {
        let dir = tempfile::tempdir().unwrap();
        let mut report = Report::new(dir.path().into());
        report.step(step("good", &[]), |_| Ok(Checked::new(2, "tests")));
        report.step(step("bad", &["good"]), |_| bail!("broken"));
        report.step(step("empty", &[]), |_| Ok(Checked::new(0, "tests")));
        report.step(step("later", &["good", "bad"]), |_| panic!("must not run"));
        assert_eq!(report.passed, ["good"]);
        assert_eq!(report.failed, ["bad", "empty"]);
        assert_eq!(report.closing_line(), "1 passed, 2 failed, 1 skipped");
        assert!(
            report.not_run[0].contains("needs `bad`"),
            "{:?}",
            report.not_run
        );
        assert!(!report.is_good());
    }

    #[test]
    fn a_test_without_steps_has_not_passed() {
        let dir = tempfile::tempdir().unwrap();
        let mut report = Report::new(dir.path().into());
        report.skip("good", "not asked for");
        assert!(!report.is_good());
    }
}
