//! A llama.cpp tree small enough to be written out here.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use kvforge_llama::patch::PatchSet;
use kvforge_llama::{Error, Payload, Plan, Source, Tree};

pub const GGML_H: &str = "\
#pragma once

    enum ggml_type {
        GGML_TYPE_F32     = 0,
        GGML_TYPE_F16     = 1,
        // GGML_TYPE_Q4_2 = 4, support has been removed
        GGML_TYPE_Q2_0    = 42,
        GGML_TYPE_COUNT   = 43,
    };
";

const FILES: [(&str, &str, u32); 8] = [
    ("ggml/include/ggml.h", GGML_H, 0o644),
    (
        "ggml/CMakeLists.txt",
        "set(GGML_VERSION_MAJOR 0)\nset(GGML_VERSION_MINOR 25)\nset(GGML_VERSION_PATCH 3)\n",
        0o644,
    ),
    (
        "ggml/src/CMakeLists.txt",
        "add_library(ggml-base\n            ggml.c\n            gguf.cpp)\n\nset_target_properties(ggml-base)\n",
        0o600,
    ),
    ("include/llama.h", "#pragma once\n", 0o644),
    (
        "src/llama-kv-cache.cpp",
        "#include <map>\r\n\r\nvoid a() {\r\n    rotate();\r\n}\r\n\r\nvoid b() {\r\n    rotate();\r\n}\r\n",
        0o664,
    ),
    (
        "common/arg.cpp",
        "types = {\n    F32,\n}; // last line",
        0o755,
    ),
    (
        "README.md",
        "tbq3_0 is mentioned here, and it does not matter\n",
        0o644,
    ),
    ("ggml/src/notes.txt", "no source\n", 0o444),
];

/// Hooks of all kinds for the files above.
pub const HOOKS: &str = r##"
[[hook]]
id = "type-enum"
file = "ggml/include/ggml.h"
within = "enum ggml_type {"
anchor = "GGML_TYPE_COUNT"
match = "prefix"
place = "wrap"
before = """
@each         GGML_TYPE_@NAME@ = @id@,
        GGML_TYPE_COUNT = @type_count@,
#if 0
"""
after = """
#endif
"""
reason = "gives every format an id"

[[hook]]
id = "cmake-base"
file = "ggml/src/CMakeLists.txt"
within = "add_library(ggml-base"
anchor = "ggml.c"
place = "after"
lines = "            kvforge/glue.c\n"
reason = "compiles our glue"

[[hook]]
id = "rotation"
file = "src/llama-kv-cache.cpp"
within = "void b() {"
anchor = "rotate();"
place = "before"
lines = "    if (ours()) return;\n"
reason = "keeps the rotation off"

[[hook]]
id = "names"
file = "common/arg.cpp"
anchor = "}; // last line"
place = "after"
lines = "@each name(\"@name@\");\n"
reason = "makes our names known"
"##;

/// A temporary folder with a space in its name that holds the tree.
pub struct MiniTree {
    _folder: tempfile::TempDir,
    root: PathBuf,
}

/// Everything about a tree that must come back: contents, modes, folders.
pub type Snapshot = BTreeMap<String, (Option<Vec<u8>>, u32)>;

impl MiniTree {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("llama cpp");
        let tree = MiniTree {
            _folder: folder,
            root,
        };
        for (path, text, mode) in FILES {
            tree.write(path, text);
            tree.chmod(path, mode);
        }
        tree.write("media/logo.bin", [0u8, 255, 13, 10]);
        tree
    }

    pub fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    pub fn open(&self) -> Tree {
        Tree::open(&self.root).unwrap()
    }

    pub fn write(&self, path: &str, contents: impl AsRef<[u8]>) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, contents).unwrap();
    }

    pub fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap()
    }

    /// Replaces `from`, which must be there, by `to`.
    pub fn edit(&self, path: &str, from: &str, to: &str) {
        let text = self.read(path);
        assert!(text.contains(from), "{path} has no `{from}`");
        self.write(path, text.replace(from, to));
    }

    pub fn chmod(&self, path: &str, mode: u32) {
        fs::set_permissions(self.path(path), fs::Permissions::from_mode(mode)).unwrap();
    }

    pub fn snapshot(&self) -> Snapshot {
        let mut all = Snapshot::new();
        each(&self.root, &mut |path| {
            let meta = fs::symlink_metadata(path).unwrap();
            let bytes = meta.is_file().then(|| fs::read(path).unwrap());
            all.insert(self.name(path), (bytes, meta.permissions().mode()));
        });
        all
    }

    /// Modification times of all files.
    pub fn times(&self) -> BTreeMap<String, SystemTime> {
        let mut all = BTreeMap::new();
        each(&self.root, &mut |path| {
            if path.is_file() {
                all.insert(
                    self.name(path),
                    fs::metadata(path).unwrap().modified().unwrap(),
                );
            }
        });
        all
    }

    fn name(&self, path: &Path) -> String {
        path.strip_prefix(&self.root)
            .unwrap()
            .to_str()
            .unwrap()
            .into()
    }

    pub fn plan(&self, payload: &Payload) -> Result<Plan, Error> {
        Plan::new(&self.open(), payload)
    }

    pub fn ship(&self, payload: &Payload) {
        self.plan(payload).unwrap().write().unwrap();
    }

    /// The problems that keep `payload` out.
    pub fn refusal(&self, payload: &Payload) -> Vec<Error> {
        match self.plan(payload) {
            Err(Error::Refused { problems }) => problems,
            other => panic!("expected a refusal, found {other:?}"),
        }
    }
}

fn each(folder: &Path, visit: &mut dyn FnMut(&Path)) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        visit(&path);
        if path.is_dir() && !path.is_symlink() {
            each(&path, visit);
        }
    }
}

pub fn payload(hooks: &str) -> Payload {
    Payload {
        patches: PatchSet::parse(hooks).unwrap(),
        sources: vec![
            Source {
                path: "glue.c",
                bytes: b"int glue;\n",
            },
            Source {
                path: "rust/formats/src/lib.rs",
                bytes: b"pub fn one() {}\n",
            },
        ],
    }
}
