//! A cache that lives, through libllama: tests/llama/sessions.c and window.cpp.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use kvforge_formats::{FormatSpec, cache_formats};

use super::{capi, tree};
use crate::command::Log;
use crate::kvforge::Tree;
use crate::places::Workshop;
use crate::report::Checked;

/// Runs sessions.c on the small model with every format that fits it and with
/// f16, of which as much is expected; and with the others on the one with wide
/// heads, which has a sliding window. Then window.cpp on both.
pub fn check(
    log: &Log,
    workshop: &Workshop,
    tree: &Tree,
    small: &Path,
    wide: &Path,
) -> Result<Checked> {
    let program = build(log, workshop, tree, "sessions.c")?;
    let states = workshop.folder("test/sessions/states")?;
    let mut checked = Checked::new(0, "checks");
    let mut run = |model: &Path, k: &str, v: &str, more: &[&str]| {
        let mut command = Command::new(&program);
        command.arg(model).args([k, v]).arg(&states).args(more);
        let printed = log
            .run(&mut command)
            .with_context(|| format!("K {k}, V {v}"))?;
        checked.add(capi::checks(&printed.stdout)?);
        anyhow::Ok(())
    };
    let fitting = tree::fitting();
    for format in &fitting {
        run(small, format.name, format.name, &[])?;
    }
    run(small, "f16", "f16", &[])?;
    let values = fitting.last().context("no format fits the small model")?;
    let wider = |format: &&FormatSpec| !fitting.iter().any(|other| other.name == format.name);
    for format in cache_formats().filter(wider).chain([*values]) {
        let v = if format.holds_values() {
            format
        } else {
            values
        };
        // with fewer bits, this model's text hangs on how sums are rounded
        let more: &[&str] = if format.code.bits() < 4 {
            &["coarse"]
        } else {
            &[]
        };
        run(wide, format.name, v.name, more)?;
    }
    // with the window that a context has by itself
    run(small, values.name, values.name, &["windowed"])?;
    run(wide, values.name, values.name, &["coarse", "windowed"])?;

    let program = build(log, workshop, tree, "window.cpp")?;
    let mut run = |model: &Path, k: &FormatSpec, v: &FormatSpec| {
        let mut command = Command::new(&program);
        let printed = log
            .run(command.arg(model).args([k.name, v.name]))
            .with_context(|| format!("window, K {}, V {}", k.name, v.name))?;
        checked.add(capi::checks(&printed.stdout)?);
        anyhow::Ok(())
    };
    run(small, values, values)?;
    // types that differ, of which one cannot shift
    let key = cache_formats().find(|format| !format.holds_values());
    run(wide, key.context("no format is for keys only")?, fitting[0])?;
    Ok(checked)
}

/// Builds a program of tests/llama against the libraries of the tree.
pub fn build(log: &Log, workshop: &Workshop, tree: &Tree, source: &str) -> Result<PathBuf> {
    let folder = workshop.folder("test/sessions")?;
    let (name, _) = source.split_once('.').context("a source has an ending")?;
    let (object, program) = (folder.join(format!("{name}.o")), folder.join(name));
    capi::compile_for_tree(log, tree, &format!("tests/llama/{source}"), &object)?;
    let mut link = Command::new("c++");
    link.arg(&object);
    let libraries = ["llama", "ggml", "ggml-base"];
    capi::against(&mut link, &tree.build_dir().join("bin"), &libraries);
    log.run(link.args(["-lm", "-o"]).arg(&program))?;
    Ok(program)
}
