//! What the contract must know of llama.cpp and of the platforms it runs on.

use std::path::{Path, PathBuf};

use kvforge_evidence::contract::KernelStatus::{Blocked, NeedsHardware, ReferenceOnly};
use kvforge_evidence::contract::{Project, Target};

use crate::BUILD_DIR;

/// The host of every contract that kvforge writes. A platform that the evidence
/// is from is not judged by this table but by the evidence.
pub const PROJECT: Project = Project {
    graph_op_prefix: "GGML_OP_",
    build_dir: BUILD_DIR,
    targets: &[
        Target {
            name: "cpu-x86_64",
            backend: "cpu",
            arch: Some("x86_64"),
            kernel_verification: NeedsHardware,
            runtime_dispatch: NeedsHardware,
            device_run: NeedsHardware,
            next_gate: "`kvforge smoke` on an x86-64 machine",
        },
        Target {
            name: "cpu-aarch64",
            backend: "cpu",
            arch: Some("aarch64"),
            kernel_verification: ReferenceOnly,
            runtime_dispatch: NeedsHardware,
            device_run: NeedsHardware,
            next_gate: "`kvforge smoke` on an aarch64 machine; only the scalar kernels run there",
        },
        without_kernels("vulkan", "kernels for Vulkan, and hooks that lead to them"),
        without_kernels("metal", "kernels for Metal, and hooks that lead to them"),
        without_kernels("cuda", "kernels for CUDA, and hooks that lead to them"),
    ],
};

const fn without_kernels(name: &'static str, next_gate: &'static str) -> Target {
    Target {
        name,
        backend: name,
        arch: None,
        kernel_verification: Blocked,
        runtime_dispatch: Blocked,
        device_run: Blocked,
        next_gate,
    }
}

/// The tree that a build folder was made from, if the folder says so.
pub fn tree_of(build_dir: &Path) -> Option<PathBuf> {
    crate::smoke::made_from(build_dir)
}
