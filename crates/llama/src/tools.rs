//! The programs that a build needs, and where they are.

use std::env;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// A program, under whichever of its names.
#[derive(Debug)]
pub(crate) struct Tool {
    /// What it is called in messages.
    pub name: &'static str,
    /// Names that it has, any of which will do.
    pub programs: &'static [&'static str],
    /// A variable that may name another one.
    pub variable: Option<&'static str>,
    /// The Debian package that brings it.
    pub package: &'static str,
}

/// Compiles the kernels; not needed where they come as a built object.
pub(crate) const RUSTC: Tool = Tool {
    name: "rustc",
    programs: &["rustc"],
    variable: None,
    package: "rustc-web, or Rust 1.95 or newer from elsewhere",
};

/// What every build of a tree needs.
pub(crate) const BUILD: [Tool; 5] = [
    Tool {
        name: "cmake",
        programs: &["cmake"],
        variable: None,
        package: "cmake",
    },
    Tool {
        name: "cc",
        programs: &["cc", "gcc", "clang"],
        variable: Some("CC"),
        package: "gcc",
    },
    Tool {
        name: "c++",
        programs: &["c++", "g++", "clang++"],
        variable: Some("CXX"),
        package: "g++",
    },
    RUSTC,
    Tool {
        name: "ninja",
        programs: &["ninja", "make"],
        variable: None,
        package: "ninja-build",
    },
];

impl Tool {
    pub fn is_there(&self, on_path: &dyn Fn(&str) -> bool) -> bool {
        let named = self.variable.is_some_and(|v| env::var_os(v).is_some());
        named || self.programs.iter().any(|program| on_path(program))
    }

    /// The program that a build would take.
    pub fn find(&self) -> Option<PathBuf> {
        let named = self.variable.and_then(env::var_os).map(PathBuf::from);
        named.or_else(|| self.programs.iter().find_map(|program| find(program)))
    }
}

/// Where the shell, or CMake, would find a program.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let cargo = env::home_dir().map(|home| home.join(".cargo/bin"));
    let file = format!("{program}{}", env::consts::EXE_SUFFIX);
    env::split_paths(&path)
        .chain(cargo)
        .map(|folder| folder.join(&file))
        .find(|file| file.is_file())
}

/// What a command prints first, if it ends well.
pub(crate) fn first_line(command: &mut Command) -> Option<String> {
    let out = command
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let line = text.lines().next().unwrap_or_default();
    out.status.success().then(|| line.trim().into())
}

/// The first version number in a line: `1.95.0` of `rustc 1.95.0 (...)`.
pub(crate) fn version(line: &str) -> Option<&str> {
    line.split([' ', '(', ')'])
        .find(|word| word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.'))
}

/// Whether a version is at least another, number by number.
pub(crate) fn at_least(version: &str, least: &str) -> bool {
    let numbers = |text: &str| -> Vec<u64> {
        text.split(['.', '-', '+'])
            .map_while(|part| part.parse().ok())
            .collect()
    };
    numbers(version) >= numbers(least)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_and_compared() {
        for (line, found) in [
            ("rustc 1.95.0 (59807616e 2026-04-14)", Some("1.95.0")),
            ("cmake version 3.25.1", Some("3.25.1")),
            ("c++ (Debian 12.2.0-14) 12.2.0", Some("12.2.0-14")),
            ("1.11.1", Some("1.11.1")),
            ("no version", None),
        ] {
            assert_eq!(version(line), found);
        }
        assert!(at_least("1.95.0", "1.95") && at_least("2.0", "1.95") && at_least("1.100", "1.95"));
        assert!(!at_least("1.94.9", "1.95") && !at_least("1.9", "1.95") && !at_least("x", "1.95"));
    }
}
