//! What the tests of several verbs share.

use std::fs;

/// A folder that passes for a llama.cpp tree and has no place for any hook.
pub fn hollow_tree() -> tempfile::TempDir {
    let tree = tempfile::tempdir().unwrap();
    let version =
        "set(GGML_VERSION_MAJOR 0)\nset(GGML_VERSION_MINOR 1)\nset(GGML_VERSION_PATCH 2)\n";
    for (path, text) in [
        ("include/llama.h", ""),
        ("ggml/CMakeLists.txt", version),
        ("ggml/include/ggml.h", ""),
    ] {
        let path = tree.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    tree
}
