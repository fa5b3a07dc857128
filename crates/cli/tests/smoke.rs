//! `kvforge smoke`, as a person meets it: what it refuses, and, on a built tree,
//! that it notices when a route or a kernel is broken.
#![cfg(unix)]

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::hollow_tree;
use kvforge_evidence::{Evidence, FILE_NAME};
use kvforge_formats::cache_formats;

/// Exit code, and everything that was printed.
fn smoke(tree: &Path, more: &[&str]) -> (i32, String) {
    let done = Command::new(env!("CARGO_BIN_EXE_kvforge"))
        .arg("smoke")
        .arg(tree)
        .args(more)
        .output()
        .unwrap();
    let out = String::from_utf8_lossy(&done.stdout);
    let err = String::from_utf8_lossy(&done.stderr);
    (done.status.code().unwrap(), format!("{out}{err}"))
}

#[test]
fn help_has_an_example() {
    let (code, said) = smoke(Path::new("--help"), &[]);
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("Example:\n  kvforge smoke "), "{said}");
}

#[test]
fn what_cannot_be_loaded_is_refused() {
    let tree = hollow_tree();
    let (code, said) = smoke(tree.path(), &[]);
    assert_eq!(code, 2, "{said}");
    assert!(said.contains("run `kvforge build` first"), "{said}");

    let folder = tree.path().join("build-kvforge/ggml/src");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("libggml-base.a"), "").unwrap();
    let (code, said) = smoke(tree.path(), &[]);
    assert_eq!(code, 2, "{said}");
    assert!(said.contains("found a static build"), "{said}");
    assert!(said.contains("-DBUILD_SHARED_LIBS=ON"), "{said}");
    // Nothing was there to be wrong about a library.
    assert!(!said.contains("checks passed"), "{said}");

    // Models are looked at before anything of a build is.
    for (model, about) in [
        ("/absent.gguf", "/absent.gguf: "),
        ("/dev/zero", "a regular file"),
    ] {
        let (code, said) = smoke(tree.path(), &["--model", model]);
        assert_eq!(code, 2, "{said}");
        assert!(
            said.contains(about) && !said.contains("static build"),
            "{said}"
        );
    }

    let (code, said) = smoke(tree.path(), &["--backend", "abacus"]);
    assert_eq!(code, 2, "{said}");
    assert!(said.contains("[possible values: cpu]"), "{said}");
}

/// A file that is changed, and put back when this goes out of scope.
struct Edited {
    path: PathBuf,
    original: Vec<u8>,
}

impl Edited {
    fn new(path: PathBuf, change: impl FnOnce(String) -> String) -> Edited {
        let original = fs::read(&path).unwrap();
        let text = String::from_utf8(original.clone()).unwrap();
        let changed = change(text.clone());
        assert_ne!(text, changed, "{}: nothing to change", path.display());
        fs::write(&path, changed).unwrap();
        Edited { path, original }
    }
}

impl Drop for Edited {
    fn drop(&mut self) {
        fs::write(&self.path, &self.original).unwrap();
    }
}

fn build(tree: &Path) {
    let done = Command::new("cmake")
        .arg("--build")
        .arg(tree.join("build-kvforge"))
        .args(["--target", "ggml"])
        .output()
        .unwrap();
    assert!(
        done.status.success(),
        "{}",
        String::from_utf8_lossy(&done.stdout)
    );
}

/// The text without the body of a hook.
fn without_hook(text: &str, hook: &str) -> String {
    let mut inside = false;
    let mut out = String::new();
    for line in text.lines() {
        let marker = |kind: &str| {
            line.trim_start()
                .starts_with(&format!("// kvforge:{kind} {hook}"))
        };
        inside &= !marker("end");
        if !inside {
            out += line;
            out.push('\n');
        }
        inside |= marker("begin");
    }
    out
}

/// A defect put into the tree, and what the smoke must say of it. The tree is
/// built and looked at with each of them, and is given back without.
struct Defect {
    /// The formats that are looked at, or all.
    formats: &'static str,
    file: &'static str,
    change: fn(String) -> String,
    said: &'static [&'static str],
}

const DEFECTS: [Defect; 9] = [
    Defect {
        formats: "tbq3_0",
        file: "ggml/src/ggml-cpu/ggml-cpu.c",
        change: |text| without_hook(&text, "cpu-compute"),
        // Writing falls back to ggml's own code and the type traits, which does
        // the right thing without our operation; reading stops ggml.
        said: &[
            "cpu-compute (ggml/src/ggml-cpu/ggml-cpu.c, ",
            "route not taken: SET_ROWS on tbq3_0 did not reach tbq3_0/encode/",
            "failed: GET_ROWS on tbq3_0",
            "the process that ran it ended with signal: 6",
        ],
    },
    Defect {
        formats: "tbq3_0",
        file: "ggml/src/ggml-cpu/ggml-cpu.c",
        change: |text| without_hook(&text, "cpu-traits"),
        said: &[
            "failed: MUL_MAT on tbq3_0",
            "cpu-traits (ggml/src/ggml-cpu/ggml-cpu.c, ",
        ],
    },
    Defect {
        formats: "tbq3_0",
        file: "ggml/src/ggml-cpu/ggml-cpu.c",
        change: |text| without_hook(&text, "cpu-work-size"),
        said: &[
            "failed: ATTN_SCORE_TBQ on tbq3_0",
            "cpu-work-size (ggml/src/ggml-cpu/ggml-cpu.c, ",
        ],
    },
    // Encoder and decoder agree with each other, and with nobody else.
    Defect {
        formats: "tbq4_0",
        file: "ggml/src/kvforge/rust/formats/src/tbq4_0/mod.rs",
        change: |text| text.replace("1.2557391", "1.2567391"),
        said: &[
            "SET_ROWS on tbq4_0, 70 rows of 384, I64 indices, 1 threads",
            "blocks differ from the reference codec's",
            "FLASH_ATTN_EXT on tbq4_0, K tbq4_0 V tbq4_0, head 128, 6/2 heads, 70 queries",
            "worst error",
        ],
    },
    Defect {
        formats: "tbq3_0",
        file: "ggml/src/kvforge/ggml-kvforge-cpu.cpp",
        change: |text| text.replace("a.softcap = op_param(node, 2);", "a.softcap = 0;"),
        said: &["queries, soft-cap, 1 threads: worst error"],
    },
    Defect {
        formats: "tbq3_0",
        file: "ggml/src/kvforge/ggml-kvforge-cpu.cpp",
        change: |text| text.replace("r % idx->ne[0]", "0"),
        said: &["GET_ROWS on tbq3_0", "worst error"],
    },
    Defect {
        formats: "tbq3_tcq",
        file: "ggml/src/kvforge/rust/formats/src/tbq3_tcq/codebook.rs",
        change: |text| text.replacen("-0.14559399", "-0.14569399", 1),
        said: &[
            "GET_ROWS on tbq3_tcq",
            "blocks differ from the reference codec's",
        ],
    },
    // Another random projection is as good as the right one, and is not it.
    Defect {
        formats: "qjl1_256",
        file: "ggml/src/kvforge/rust/formats/src/projection.rs",
        change: |text| text.replace("42 ^", "43 ^"),
        said: &[
            "SET_ROWS on qjl1_256",
            "blocks differ from the reference codec's",
            "ATTN_SCORE_QJL on qjl1_256",
            "worst error",
        ],
    },
    Defect {
        formats: "q4_polar",
        file: "ggml/src/kvforge/ggml-kvforge-score.cpp",
        change: |text| text.replace("preht ? 1.0f/std::sqrt(128.0f) : 1.0f", "1.0f"),
        said: &[
            "ATTN_SCORE_POLAR on q4_polar, use_qjl 0, preht 1",
            "worst error",
        ],
    },
];

#[test]
fn defects_of_a_built_tree_are_found() {
    let Some(tree) = std::env::var_os("KVFORGE_BUILT_TREE").map(PathBuf::from) else {
        println!("not run: KVFORGE_BUILT_TREE (a tree that was shipped and built) is not set");
        return;
    };
    let file = tree.join("build-kvforge").join(FILE_NAME);
    let sound = || {
        build(&tree);
        let (code, said) = smoke(&tree, &[]);
        assert_eq!(code, 0, "{said}");
        assert!(said.contains(" checks passed, 0 failed (cpu, "), "{said}");
        let evidence = Evidence::read(&file).unwrap();
        let checked = evidence.check(&tree, &tree.join("build-kvforge")).unwrap();
        assert_eq!(checked.stale(), []);
        for format in cache_formats() {
            for operation in ["SET_ROWS", "GET_ROWS", "CPY", "MUL_MAT", "FLASH_ATTN_EXT"] {
                assert!(checked.ready(format.name, operation, "cpu"), "{operation}");
            }
            let score = ["ATTN_SCORE_TBQ", "ATTN_SCORE_QJL", "ATTN_SCORE_POLAR"];
            let ready = score
                .iter()
                .filter(|op| checked.ready(format.name, op, "cpu"));
            assert_eq!(ready.count(), 1, "{}", format.name);
        }
        evidence
    };
    let before = sound();
    for defect in DEFECTS {
        {
            let _edited = Edited::new(tree.join(defect.file), defect.change);
            build(&tree);
            let (code, said) = smoke(&tree, &["--formats", defect.formats]);
            println!("{}\n{said}\n", defect.file);
            assert_eq!(code, 1, "{said}");
            for part in defect.said {
                assert!(said.contains(part), "{part}\n{said}");
            }
            // What was proved before is not proved for these libraries.
            let checked = before.check(&tree, &tree.join("build-kvforge")).unwrap();
            assert!(!checked.stale().is_empty(), "{}", defect.file);
        }
    }
    sound();
}
