//! What the machine must have: programs, by the Debian package that brings each.

use std::process::{Command, Stdio};

use anyhow::{Result, bail};

use crate::command::Log;

/// Debian packages, each with a command that succeeds if what it brings is there.
const NEEDS: [(&str, &[&str]); PROGRAMS] = [
    ("gcc", &["cc", "--version"]),
    ("g++", &["c++", "--version"]),
    ("cmake", &["cmake", "--version"]),
    ("ninja-build", &["ninja", "--version"]),
    ("binutils", &["nm", "--version"]),
    ("python3-pip", &["python3", "-m", "pip", "--version"]),
    ("git", &["git", "--version"]),
];

/// How many programs are needed.
pub const PROGRAMS: usize = 7;

/// Sees to it that every program is there, and says what was done.
pub fn ensure_programs(log: &Log) -> Result<String> {
    let missing: Vec<&str> = NEEDS
        .iter()
        .filter(|(_, probe)| !succeeds(probe))
        .map(|(package, _)| *package)
        .collect();
    if missing.is_empty() {
        return Ok("all there".into());
    }
    let packages = missing.join(" ");
    let by_hand =
        format!("apt-get update && apt-get install -y --no-install-recommends {packages}");
    if !succeeds(&["apt-get", "--version"]) {
        bail!(
            "missing: {packages} (Debian's names). Install them with your system's package manager and run this again"
        );
    }
    if !is_root() {
        bail!(
            "missing: {packages}. Run this, then the same command again:\n    sudo sh -c '{by_hand}'"
        );
    }
    log.run(apt().arg("update"))?;
    log.run(
        apt()
            .args(["install", "-y", "--no-install-recommends"])
            .args(&missing),
    )?;
    match NEEDS.iter().find(|(_, probe)| !succeeds(probe)) {
        None => Ok(format!("installed {packages}")),
        Some((_, probe)) => bail!("`{}` still fails after `{by_hand}`", probe.join(" ")),
    }
}

/// Does a command run, and end well?
pub fn succeeds(words: &[&str]) -> bool {
    let mut command = Command::new(words[0]);
    command
        .args(&words[1..])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn apt() -> Command {
    let mut command = Command::new("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive");
    command
}

fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output();
    id.is_ok_and(|out| out.stdout.trim_ascii() == b"0")
}
