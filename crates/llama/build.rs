//! Embeds what goes into a llama.cpp tree: the C glue in `tree/`, the C header
//! and the Rust sources, which the tree's CMake compiles with rustc.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// Our crates, by the folder they get under `rust/`.
const CRATES: [(&str, &str); 5] = [
    ("formats", "formats"),
    ("cpu", "cpu"),
    ("calibration", "calibration"),
    ("capi", "capi"),
    ("link", "capi/link"),
];

fn main() {
    let here = PathBuf::from(env("CARGO_MANIFEST_DIR"));
    let out = PathBuf::from(env("OUT_DIR"));
    let crates = here.parent().expect("crates/llama is in crates/");
    let mut sources: Vec<(String, PathBuf)> = Vec::new();

    collect(&here.join("tree"), "", &mut sources);
    collect(&crates.join("capi/include"), "", &mut sources);

    for (short, folder) in CRATES {
        let folder = crates.join(folder).join("src");
        collect(&folder, &format!("rust/{short}/src/"), &mut sources);
    }

    sources.sort();
    if let Some(pair) = sources.windows(2).find(|w| w[0].0 == w[1].0) {
        panic!(
            "{} and {} would be the same file in the tree",
            pair[0].1.display(),
            pair[1].1.display()
        );
    }
    let mut code = String::from("[\n");
    for (path, file) in sources {
        writeln!(code, "    ({path:?}, include_bytes!({file:?})),")
            .expect("a String takes any text");
    }
    code += "]\n";
    fs::write(out.join("sources.rs"), code).expect("OUT_DIR is writable");
}

fn env(name: &str) -> String {
    std::env::var(name).expect("cargo sets it")
}

fn watch(path: &Path) {
    println!("cargo:rerun-if-changed={}", path.display());
}

/// What stays behind: tests and the oracle, which are compiled out in a tree.
const NOT_SHIPPED: [&str; 4] = ["tests", "tests.rs", "mutants.rs", "oracle"];

/// Every file under `folder` that has a use in a tree.
fn collect(folder: &Path, prefix: &str, sources: &mut Vec<(String, PathBuf)>) {
    watch(folder);
    let entries = fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    for entry in entries {
        let path = entry.expect("a readable folder").path();
        let name = path
            .file_name()
            .and_then(|n| n.to_str())
            .expect("UTF-8 file names")
            .to_string();
        if name.starts_with('.') || NOT_SHIPPED.contains(&name.as_str()) {
            continue;
        }
        if path.is_dir() {
            collect(&path, &format!("{prefix}{name}/"), sources);
        } else {
            watch(&path);
            sources.push((format!("{prefix}{name}"), path));
        }
    }
}
