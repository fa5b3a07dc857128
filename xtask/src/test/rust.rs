//! What cargo checks, and what concerns the sources alone.

use anyhow::Result;

use crate::command::Log;
use crate::kvforge::cargo;
use crate::report::{Checked, Report, Step};
use crate::{generated, parse, tidy};

/// Packages that are workspaces of their own.
const LEAVES: [&str; 2] = ["crates/capi/link/Cargo.toml", "tests/link/rust/Cargo.toml"];

/// Variables that tests of the crates look for a tree in.
const NEED_TREE: [&str; 2] = ["KVFORGE_TREE ", "KVFORGE_BUILT_TREE "];

/// `tree`: the steps on a tree follow, and run the tests that need one.
pub fn steps(report: &mut Report, tree: bool) {
    report.step(
        Step { name: "format", after: &[], repair: "run `cargo fmt --all` (and `rustup component add rustfmt` before, if cargo says there is no such command)" },
        |log| {
            log.run(cargo().args(["fmt", "--all", "--check"]))?;
            for leaf in LEAVES {
                log.run(cargo().args(["fmt", "--check", "--manifest-path", leaf]))?;
            }
            Ok(Checked::new(1 + LEAVES.len(), "workspaces formatted"))
        },
    );
    report.step(
        Step {
            name: "tidy",
            after: &[],
            repair: "each line above says what to change",
        },
        |_| Ok(Checked::new(tidy::check()?, "files tidy")),
    );
    report.step(
        Step {
            name: "generated files",
            after: &[],
            repair: "run `cargo xtask gen` and commit the result",
        },
        |_| {
            Ok(Checked::new(
                generated::write(true)?.len(),
                "files as generated",
            ))
        },
    );
    report.step(
        Step { name: "clippy", after: &[], repair: "see the log; `rustup component add clippy` if cargo says there is no such command" },
        |log| {
            log.run(cargo().args(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))?;
            log.run(cargo().args(["clippy", "--manifest-path", LEAVES[0], "--", "-D", "warnings"]))?;
            Ok(Checked::new(2, "workspaces without warnings"))
        },
    );
    report.step(
        Step {
            name: "documentation",
            after: &[],
            repair: "see the log: a link in a comment leads nowhere",
        },
        |log| {
            log.run(cargo().env("RUSTDOCFLAGS", "-D warnings").args([
                "doc",
                "--workspace",
                "--no-deps",
            ]))?;
            Ok(Checked::new(1, "workspace documented"))
        },
    );
    report.step(
        Step {
            name: "unit tests",
            after: &[],
            repair: "run `cargo test` in the crate that failed",
        },
        |log| unit_tests(log, tree),
    );
}

/// Our crates optimised, or the searches for worst cases take for ever, but with
/// the checks of arithmetic that a release lacks; the others as xtask's own
/// build already has them.
fn unit_tests(log: &Log, tree: bool) -> Result<Checked> {
    let mut command = cargo();
    command.args([
        "test",
        "--workspace",
        "--no-fail-fast",
        "--config",
        "profile.test.opt-level=2",
        "--config",
        "profile.test.package.'*'.opt-level=0",
    ]);
    let printed = log.run(command.args(["--", "--show-output"]))?;
    let (passed, mut not_run) = parse::cargo_tests(&printed.log);
    not_run.retain(|what| !(tree && NEED_TREE.iter().any(|name| what.starts_with(name))));
    Ok(Checked::new(passed, "tests").without(not_run))
}
