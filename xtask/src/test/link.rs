//! Every way of linking ggml that people use: in each, a C program and a Rust
//! program reach the same kernel, of which there is one copy.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use kvforge_formats::cache_formats;

use super::{capi, tree};
use crate::command::Log;
use crate::kvforge::{Kvforge, Tree, cargo};
use crate::places::Workshop;
use crate::report::{Checked, Report, Step};

/// How programs get at ggml.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// Archives.
    Static,
    /// Shared libraries.
    Shared,
    /// Shared libraries, and backends that ggml loads at run time.
    Loaded,
}

/// A way of building and linking.
struct Way {
    name: &'static str,
    kind: Kind,
    /// Arguments for cmake; none: the tree's main build.
    cmake: &'static [&'static str],
}

const WAYS: [Way; 4] = [
    Way {
        name: "link: shared, native",
        kind: Kind::Shared,
        cmake: &[],
    },
    Way {
        name: "link: static, native",
        kind: Kind::Static,
        cmake: &["-DBUILD_SHARED_LIBS=OFF", "-DGGML_NATIVE=ON"],
    },
    // ggml itself without any instruction that not every x86-64 has: our
    // kernels must be those of the machine all the same
    Way {
        name: "link: static, baseline CPU",
        kind: Kind::Static,
        cmake: &[
            "-DBUILD_SHARED_LIBS=OFF",
            "-DGGML_NATIVE=OFF",
            "-DGGML_SSE42=OFF",
            "-DGGML_AVX=OFF",
            "-DGGML_AVX2=OFF",
            "-DGGML_BMI2=OFF",
            "-DGGML_FMA=OFF",
            "-DGGML_F16C=OFF",
        ],
    },
    Way {
        name: "link: backends loaded, all CPU variants",
        kind: Kind::Loaded,
        cmake: &[
            "-DBUILD_SHARED_LIBS=ON",
            "-DGGML_NATIVE=OFF",
            "-DGGML_BACKEND_DL=ON",
            "-DGGML_CPU_ALL_VARIANTS=ON",
        ],
    },
];

pub fn steps<'k>(
    report: &mut Report,
    workshop: &Workshop,
    tree: &Tree,
    kvforge: impl Fn() -> Result<&'k Kvforge>,
) {
    for way in &WAYS {
        report.step(
            Step {
                name: way.name,
                after: &[tree::BUILD],
                repair: "docs/linking.md says how the kernels get into ggml",
            },
            |log| check(log, workshop, tree, kvforge()?, way),
        );
    }
}

fn check(
    log: &Log,
    workshop: &Workshop,
    tree: &Tree,
    kvforge: &Kvforge,
    way: &Way,
) -> Result<Checked> {
    let build = match way.cmake {
        [] => tree.build_dir(),
        flags => {
            let folder = workshop
                .folder("test/link")?
                .join(way.name.replace([' ', ':', ','], "-"));
            let options = [
                "--build-dir".as_ref(),
                folder.as_os_str(),
                "--target".as_ref(),
                "ggml".as_ref(),
            ];
            log.run(&mut kvforge.build_with(tree, &options, flags))?;
            folder
        }
    };
    let folder = workshop.folder("test/link/programs")?;
    let name = way.name.replace([' ', ':', ','], "-");
    let c = folder.join(format!("c-{name}"));
    compile_c(log, tree, &build, way.kind, &c)?;
    let rust = compile_rust(log, &folder.join(format!("rust-{name}")), &build, way.kind)?;

    let ids = type_ids(log, kvforge, tree)?;
    let mut count = 0;
    for format in cache_formats() {
        let id = ids
            .iter()
            .find(|(name, _)| name == format.name)
            .context("a format without a type id")?
            .1;
        for (program, args) in [
            (&c, vec![format.name.into()]),
            (&rust, vec![format.name.into(), id.to_string()]),
        ] {
            let mut command = Command::new(program);
            command.args::<Vec<String>, _>(args);
            if way.kind == Kind::Loaded {
                command.arg(build.join("bin"));
            }
            count += capi::checks(&log.run(&mut command)?.stdout)?.count();
        }
    }
    let mut files = vec![c.clone()];
    if way.kind != Kind::Static {
        files.extend(libraries(&build)?);
    }
    let variants = files
        .iter()
        .filter(|path| path.to_string_lossy().contains("libggml-cpu-"))
        .count();
    if way.kind == Kind::Loaded && variants < 2 {
        bail!(
            "{} has {variants} variants of the CPU backend, but several were asked for",
            build.display()
        );
    }
    one_copy(log, &files)?;
    Ok(Checked::new(count + 1, "checks"))
}

fn compile_c(log: &Log, tree: &Tree, build: &Path, kind: Kind, program: &Path) -> Result<()> {
    let object = program.with_extension("o");
    capi::compile_for_tree(log, tree, "tests/link/attend.c", &object)?;

    // ggml is written in C++, so its linker is the one to use
    let mut link = Command::new("c++");
    link.arg(&object);
    match kind {
        Kind::Static => {
            for library in ["libggml.a", "libggml-cpu.a", "libggml-base.a"] {
                link.arg(archive(build, library)?);
            }
            link.arg("-fopenmp");
        }
        Kind::Shared | Kind::Loaded => {
            capi::against(&mut link, &build.join("bin"), &["ggml", "ggml-base"]);
        }
    }
    log.run(link.args(["-lm", "-ldl", "-lpthread", "-o"]).arg(program))?;
    Ok(())
}

/// Static libraries lie where CMake makes them: one folder a library.
fn archive(build: &Path, name: &str) -> Result<PathBuf> {
    let places = [
        build.join("ggml/src").join(name),
        build.join("ggml/src/ggml-cpu").join(name),
    ];
    let found = places.into_iter().find(|path| path.is_file());
    found.with_context(|| format!("{} holds no {name}", build.display()))
}

fn compile_rust(log: &Log, target: &Path, build: &Path, kind: Kind) -> Result<PathBuf> {
    let how = match kind {
        Kind::Static => "static",
        Kind::Shared => "shared",
        Kind::Loaded => "loaded",
    };
    let mut command = cargo();
    command.env("KVFORGE_BUILD", build).env("KVFORGE_LINK", how);
    command.args([
        "build",
        "--release",
        "--locked",
        "--manifest-path",
        "tests/link/rust/Cargo.toml",
    ]);
    log.run(command.arg("--target-dir").arg(target))?;
    Ok(target.join("release/kvforge-link-test"))
}

/// The numbers that the types have in this tree.
fn type_ids(log: &Log, kvforge: &Kvforge, tree: &Tree) -> Result<Vec<(String, u64)>> {
    let printed = log.run_apart(kvforge.on("status", tree).arg("--json"))?;
    let status: serde_json::Value = serde_json::from_str(&printed.stdout)?;
    let types = status["types"]
        .as_array()
        .context("`kvforge status --json` lists no types")?;
    types
        .iter()
        .map(|entry| {
            let id = entry["ggml_id"].as_u64().or(entry["ggmlId"].as_u64());
            Some((entry["name"].as_str()?.to_string(), id?))
        })
        .collect::<Option<_>>()
        .context("`kvforge status --json` lists types without name or id")
}

fn libraries(build: &Path) -> Result<Vec<PathBuf>> {
    let bin = build.join("bin");
    let mut files = Vec::new();
    for entry in fs::read_dir(&bin).with_context(|| format!("cannot read {}", bin.display()))? {
        let path = entry?.path();
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if name.starts_with("libggml") && name.ends_with(".so") {
            files.push(path);
        }
    }
    Ok(files)
}

/// The kernels, and so their counters, are in exactly one of the files.
fn one_copy(log: &Log, files: &[PathBuf]) -> Result<()> {
    let mut holders = Vec::new();
    for file in files {
        let symbols = log
            .run_apart(Command::new("nm").arg("--defined-only").arg(file))?
            .stdout;
        holders.extend(
            symbols
                .lines()
                .filter(|line| line.ends_with(" kvf_counters_reset"))
                .map(|_| file.display().to_string()),
        );
    }
    if holders.len() != 1 {
        bail!(
            "the kernels must be in exactly one file, but they are in {}: {holders:?}",
            holders.len()
        );
    }
    Ok(())
}
