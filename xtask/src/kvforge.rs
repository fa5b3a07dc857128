//! The `kvforge` program of this checkout, and the llama.cpp trees it works on.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use anyhow::{Context as _, Result};

use crate::command::Log;
use crate::places::{cargo_target, root};

/// The built `kvforge` program.
pub struct Kvforge {
    program: PathBuf,
}

impl Kvforge {
    /// Builds it from this checkout.
    pub fn build(log: &Log) -> Result<Self> {
        log.run(cargo().args(["build", "--release", "--package", "kvforge-cli"]))?;
        Ok(Kvforge {
            program: cargo_target().join("release/kvforge"),
        })
    }

    /// `kvforge <verb> <tree>`, to which options can be added.
    pub fn on(&self, verb: &str, tree: &Tree) -> Command {
        let mut command = Command::new(&self.program);
        command.arg(verb).arg(&tree.root);
        // The tree lies inside this checkout: without a ceiling its build would
        // take kvforge's git commit for llama.cpp's.
        command.env(
            "GIT_CEILING_DIRECTORIES",
            tree.root.parent().expect("a tree is in a folder"),
        );
        command
    }

    /// `kvforge contract <verb> <tree>`.
    pub fn contract(&self, verb: &str, tree: &Tree) -> Command {
        let mut command = Command::new(&self.program);
        command.args(["contract", verb]).arg(&tree.root);
        command
    }

    /// `kvforge build` of what it builds if not told otherwise, on all cores,
    /// without what does not work here.
    pub fn build_tree(&self, tree: &Tree) -> Command {
        self.build_with(tree, &[], &[])
    }

    /// `kvforge build` with options of its own, and arguments for cmake.
    pub fn build_with(&self, tree: &Tree, options: &[&OsStr], cmake: &[&str]) -> Command {
        let mut command = self.on("build", tree);
        command
            .args(["--jobs", &threads().to_string()])
            .args(options)
            .arg("--")
            .args(cmake);
        if has_amx() {
            // clears what -march=native sets, and nothing else
            let flags = "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16";
            command.args([
                format!("-DCMAKE_C_FLAGS={flags}"),
                format!("-DCMAKE_CXX_FLAGS={flags}"),
            ]);
        }
        command
    }

    /// The program itself.
    pub fn program(&self) -> &Path {
        &self.program
    }
}

/// Said before a build that leaves AMX out.
pub const AMX_NOTE: &str =
    "this processor has AMX, and ggml's AMX code faults in some virtual machines: built without it";

/// Does the processor have AMX? ggml's own kernels for it (not kvforge's, there
/// are none) end in SIGSEGV or SIGILL where a virtual machine announces AMX but
/// does not keep its registers.
pub fn has_amx() -> bool {
    fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| text.contains(" amx_tile"))
}

/// One thread a core.
pub fn threads() -> usize {
    thread::available_parallelism().map_or(1, |n| n.get())
}

/// Cargo, in the root of the checkout.
pub fn cargo() -> Command {
    let mut command = Command::new("cargo");
    command.current_dir(root());
    command
}

/// A llama.cpp source tree.
pub struct Tree {
    /// Its root.
    pub root: PathBuf,
}

impl Tree {
    /// Where `kvforge build` builds.
    pub fn build_dir(&self) -> PathBuf {
        self.root.join("build-kvforge")
    }

    /// One of the programs built.
    pub fn built(&self, name: &str) -> Command {
        Command::new(self.build_dir().join("bin").join(name))
    }

    /// Every library that was built, and some of the programs: what a
    /// measurement depends on.
    pub fn built_files(&self, programs: &[&str]) -> Result<Vec<PathBuf>> {
        let bin = self.build_dir().join("bin");
        let entries =
            fs::read_dir(&bin).with_context(|| format!("nothing is built in {}", bin.display()))?;
        let mut files: Vec<PathBuf> = programs.iter().map(|name| bin.join(name)).collect();
        for entry in entries {
            let path = entry?.path();
            if path.extension().is_some_and(|e| e == "so") {
                files.push(path);
            }
        }
        files.sort();
        Ok(files)
    }
}
