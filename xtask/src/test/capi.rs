//! The C ABI, as C and C++ programs use it: as a static and as a shared library.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use super::PACKAGES;
use crate::command::Log;
use crate::kvforge::{Tree, cargo};
use crate::places::{Workshop, root};
use crate::report::{Checked, Report, Step};

const BUILD: &str = "libkvforge";

pub fn steps(report: &mut Report, workshop: &Workshop) {
    let libraries = workshop.path("capi/release");
    report.step(
        Step {
            name: BUILD,
            after: &[PACKAGES],
            repair: "run `cargo build --release` in crates/capi/link",
        },
        |log| {
            let mut build = cargo();
            build.args([
                "build",
                "--release",
                "--locked",
                "--manifest-path",
                "crates/capi/link/Cargo.toml",
            ]);
            log.run(build.arg("--target-dir").arg(workshop.path("capi")))?;
            only_ours(log, &libraries.join("libkvforge.so"))
        },
    );
    let c: &[&str] = &["cc", "-std=c11"];
    let programs: [(&str, &str, &[&str], &str); 5] = [
        ("C program, static library", "abi.c", c, "libkvforge.a"),
        ("C program, shared library", "abi.c", c, "libkvforge.so"),
        (
            "C attention, static library",
            "attention.c",
            c,
            "libkvforge.a",
        ),
        (
            "C attention, shared library",
            "attention.c",
            c,
            "libkvforge.so",
        ),
        (
            "C++ program",
            "header.cpp",
            &["c++", "-std=c++11"],
            "libkvforge.so",
        ),
    ];
    for (name, source, compiler, library) in programs {
        report.step(
            Step {
                name,
                after: &[PACKAGES, BUILD],
                repair: "the lines above name the check in tests/c",
            },
            |log| program(log, workshop, compiler, source, &libraries.join(library)),
        );
    }
}

/// Everything that the shared library shows to the world is ours by name.
fn only_ours(log: &Log, library: &Path) -> Result<Checked> {
    let printed = log.run(
        Command::new("nm")
            .args(["-D", "--defined-only"])
            .arg(library),
    )?;
    let names: Vec<&str> = printed
        .stdout
        .lines()
        .filter_map(|line| line.split(' ').nth(2))
        .collect();
    if let Some(foreign) = names.iter().find(|name| !name.starts_with("kvf_")) {
        bail!("libkvforge.so exports `{foreign}`, which is no function of the C ABI");
    }
    Ok(Checked::new(
        names.len(),
        "functions exported, and nothing else",
    ))
}

fn program(
    log: &Log,
    workshop: &Workshop,
    compiler: &[&str],
    source: &str,
    library: &Path,
) -> Result<Checked> {
    let folder = workshop.folder("capi/programs")?;
    let kind = library
        .extension()
        .context("a library has an extension")?
        .to_string_lossy();
    let program = folder.join(format!("{}-{kind}", source.replace('.', "-")));
    let mut compile = Command::new(compiler[0]);
    compile
        .args(&compiler[1..])
        .args(["-O1", "-g", "-Wall", "-Wextra", "-Werror"]);
    compile
        .arg("-I")
        .arg(root().join("crates/capi/include"))
        .arg(sources().join(source))
        .arg(library);
    let rpath = library.parent().expect("a library is in a folder");
    log.run(
        compile
            .arg(format!("-Wl,-rpath,{}", rpath.display()))
            .args(["-lm", "-o"])
            .arg(&program),
    )?;
    let printed = log.run(&mut Command::new(&program))?;
    checks(&printed.stdout)
}

/// Compiles a C or C++ program of this checkout against the headers of a shipped tree.
pub fn compile_for_tree(log: &Log, tree: &Tree, source: &str, object: &Path) -> Result<()> {
    let (compiler, standard) = match source.ends_with(".cpp") {
        true => ("c++", "-std=c++17"),
        false => ("cc", "-std=c11"),
    };
    let mut compile = Command::new(compiler);
    compile
        .args([standard, "-O1", "-g", "-Wall", "-Wextra", "-Werror"])
        .arg("-I")
        .arg(sources());
    for include in ["include", "ggml/include", "ggml/src/kvforge"] {
        compile.arg("-I").arg(tree.root.join(include));
    }
    compile.arg("-c").arg(root().join(source));
    log.run(compile.arg("-o").arg(object))?;
    Ok(())
}

/// Has a linker take shared libraries from a folder, now and when the program runs.
pub fn against(link: &mut Command, folder: &Path, libraries: &[&str]) {
    link.arg("-L")
        .arg(folder)
        .arg(format!("-Wl,-rpath,{}", folder.display()))
        .args(libraries.iter().map(|name| format!("-l{name}")));
}

/// Sources of C programs, and `check.h`.
fn sources() -> PathBuf {
    root().join("tests/c")
}

/// Reads the last line of a program with `check.h`.
pub fn checks(output: &str) -> Result<Checked> {
    let last = output
        .lines()
        .rev()
        .find_map(|line| line.split_once(" checks passed, "));
    let (passed, failed) = last.context("the program did not say how many checks passed")?;
    if failed.trim() != "0 checks failed" {
        bail!("the program ended well, but says: {failed}");
    }
    let not_run = output
        .lines()
        .filter_map(|line| line.strip_prefix("not run: "))
        .map(str::to_string)
        .collect();
    Ok(Checked::new(passed.trim().parse()?, "checks").without(not_run))
}
