//! House rules that no compiler knows.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use kvforge_formats::FORMATS;

use crate::places::root;

/// The longest a source file may be.
const MAX_LINES: usize = 600;

/// Beginnings of paths that exist on one machine only. In pieces, so that
/// this file does not hold what it looks for.
const MACHINE_PATHS: [&str; 4] = [
    concat!("/wo", "rk/"),
    concat!("/ho", "me/"),
    concat!("/ro", "ot/"),
    concat!("/Us", "ers/"),
];

/// Rust that is not finished.
const UNFINISHED: [&str; 4] = [
    concat!("to", "do!"),
    concat!("unimpl", "emented!"),
    concat!("#[ign", "ore"),
    concat!("db", "g!("),
];

/// Folders whose code must not know the host that it serves.
const HOST_FREE: [&str; 5] = [
    "crates/formats/",
    "crates/calibration/",
    "crates/cpu/",
    "crates/capi/",
    "crates/evidence/",
];

/// Names that belong to the host.
const HOST_NAMES: [&str; 3] = ["ggml_", "GGML_", "llama_"];

/// Checks every file of the checkout, and says how many there were.
pub fn check() -> Result<usize> {
    let files = files()?;
    let mut problems = Vec::new();
    for path in &files {
        let bytes = fs::read(root().join(path)).with_context(|| format!("cannot read {path}"))?;
        // what is not text has no lines to check
        if let Ok(text) = String::from_utf8(bytes) {
            problems.extend(check_file(path, &text));
        }
    }
    for format in FORMATS {
        let readme = format!("crates/formats/src/{}/README.md", format.name);
        match fs::read_to_string(root().join(&readme)) {
            Ok(text) if text.contains(format.name) => {}
            _ => problems.push(format!("{readme}: missing, or does not name the format")),
        }
    }
    let architecture = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap_or_default();
    for room in rooms(&files).filter(|room| !architecture.contains(room)) {
        problems.push(format!("ARCHITECTURE.md: does not say what {room} is for"));
    }
    if problems.is_empty() {
        return Ok(files.len());
    }
    bail!("    {}", problems.join("\n    "));
}

/// Every file that is or could be committed.
fn files() -> Result<Vec<String>> {
    let mut git = Command::new("git");
    git.current_dir(root()).args([
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ]);
    let output = git.output().context("cannot run git")?;
    if !output.status.success() {
        bail!(
            "git cannot list the files of this checkout: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    let list = String::from_utf8(output.stdout)?;
    // a file that was deleted, but not yet from git, has nothing to check
    Ok(list
        .split_terminator('\0')
        .filter(|path| root().join(path).is_file())
        .map(str::to_string)
        .collect())
}

/// Folders with a Cargo.toml, but for parts of another room.
fn rooms(files: &[String]) -> impl Iterator<Item = &str> {
    let folders = files
        .iter()
        .filter_map(|path| path.strip_suffix("/Cargo.toml"));
    folders.filter(|folder| {
        *folder == "xtask" || folder.split('/').count() == 2 && folder.starts_with("crates/")
    })
}

/// The rules for one file.
fn check_file(path: &str, text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    let extension = Path::new(path)
        .extension()
        .and_then(|e| e.to_str())
        .unwrap_or_default();
    let is_source = ["rs", "c", "h", "cpp", "cmake", "toml", "md"].contains(&extension);
    let is_generated = text.lines().take(5).any(|line| line.contains("Generated "));
    let length = text.lines().count();
    if is_source && !is_generated && length > MAX_LINES {
        problems.push(format!("{path}: {length} lines; the most is {MAX_LINES}"));
    }
    let host_free = HOST_FREE.iter().any(|folder| path.starts_with(folder));
    for (line, number) in text.lines().zip(1..) {
        let mut complain = |what: String| problems.push(format!("{path}:{number}: {what}"));
        for found in MACHINE_PATHS.iter().filter(|p| line.contains(**p)) {
            complain(format!("`{found}...` exists on one machine only"));
        }
        if extension == "rs" {
            let code = line.split("//").next().unwrap_or_default();
            for found in UNFINISHED.iter().filter(|p| code.contains(**p)) {
                complain(format!("`{found}` is unfinished work"));
            }
            for found in HOST_NAMES
                .iter()
                .filter(|p| host_free && code.contains(**p))
            {
                complain(format!("`{found}...`: only crates/llama knows the host"));
            }
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complains(path: &str, text: &str, about: &str) {
        let problems = check_file(path, text);
        assert!(
            problems.len() == 1 && problems[0].contains(about),
            "{path}: {problems:?}"
        );
    }

    #[test]
    fn every_rule_complains() {
        complains(
            "docs/x.md",
            &format!("see {}x", MACHINE_PATHS[0]),
            "one machine",
        );
        for unfinished in UNFINISHED {
            complains(
                "crates/cli/src/main.rs",
                &format!("fn f() {{ {unfinished} }}"),
                "unfinished",
            );
        }
        complains(
            "crates/cpu/src/lib.rs",
            "fn ggml_x() {}",
            "only crates/llama",
        );
        complains(
            "crates/cpu/src/lib.rs",
            &"\n".repeat(MAX_LINES + 1),
            "lines",
        );
    }

    #[test]
    fn what_is_right_passes() {
        assert_eq!(
            check_file("crates/cpu/src/lib.rs", "// as ggml_x does\nfn f() {}\n"),
            Vec::<String>::new()
        );
        assert_eq!(
            check_file("crates/llama/src/lib.rs", "fn ggml_x() {}\n"),
            Vec::<String>::new()
        );
        assert_eq!(
            check_file("Cargo.lock", &"\n".repeat(MAX_LINES + 1)),
            Vec::<String>::new()
        );
    }

    #[test]
    fn rooms_are_crates() {
        let files = [
            "crates/cpu/Cargo.toml",
            "crates/capi/link/Cargo.toml",
            "tests/link/rust/Cargo.toml",
            "Cargo.toml",
        ];
        let files: Vec<String> = files.map(str::to_string).into();
        assert_eq!(rooms(&files).collect::<Vec<_>>(), ["crates/cpu"]);
    }
}
