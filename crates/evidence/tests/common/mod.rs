//! Evidence and contracts of a run that nobody made.

use kvforge_evidence::contract::{Contract, KERNELS, KernelStatus, Project, Target};
use kvforge_evidence::{Evidence, Hashed, Host, Record, Run, TreeId};

/// The contract that apps were shipped with, byte for byte.
pub const METAL: &str = include_str!("../fixtures/metal-contract.json");

/// A host with two platforms.
pub const PROJECT: Project = Project {
    graph_op_prefix: "HOST_OP_",
    build_dir: "build",
    targets: &[
        target("cpu-x86_64", "x86_64"),
        target("cpu-aarch64", "aarch64"),
    ],
};

const fn target(name: &'static str, arch: &'static str) -> Target {
    Target {
        name,
        backend: "cpu",
        arch: Some(arch),
        kernel_verification: KernelStatus::ReferenceOnly,
        runtime_dispatch: KernelStatus::NeedsHardware,
        device_run: KernelStatus::NeedsHardware,
        next_gate: "a machine of this kind",
    }
}

/// A verified record of every kernel's score operation, in the order of the
/// kernels.
pub fn records() -> Vec<Record> {
    KERNELS
        .iter()
        .map(|kernel| {
            let text = r#"{
                "format": "", "operation": "", "backend": "cpu",
                "reachedBy": "smoke-graph", "notRun": null, "kernel": "", "isa": "avx2",
                "cases": 4, "scores": 128, "failed": 0,
                "measures": [
                    {"against": "decoded", "least": 1e-8, "worst": 3e-8, "floor": 0, "tolerance": 8e-7},
                    {"against": "unquantised", "least": 0.99, "worst": 1.01, "floor": 0.7, "tolerance": 1.6}
                ],
                "counted": 96, "expectedCount": 96, "status": null
            }"#;
            Record {
                format: kernel.format.into(),
                operation: kernel.operation.into(),
                kernel: format!("{}/score/avx2", kernel.format),
                ..serde_json::from_str(text).unwrap()
            }
        })
        .collect()
}

pub fn evidence(records: Vec<Record>) -> Evidence {
    let hashed = |path: &str| Hashed {
        path: path.into(),
        blake3: "0".repeat(64),
    };
    let run = Run {
        kvforge: "0.1.0".into(),
        date: "2026-11-30T15:04:05Z".into(),
        command: "kvforge smoke tree".into(),
        host: Host {
            cpu: "a processor".into(),
            os: "linux".into(),
            arch: "x86_64".into(),
        },
        tree: TreeId {
            version: "host 1.2.3".into(),
            shipped_by: Some("0.1.0".into()),
            type_ids: [("tbq4_0".to_string(), 44)].into(),
        },
        kernel_source: Some(hashed("kernels")),
        libraries: vec![hashed("bin/lib.so")],
    };
    Evidence::new(run, records)
}

pub fn contract(records: Vec<Record>) -> Contract {
    let file = Hashed {
        path: "kvforge-evidence.json".into(),
        blake3: "1".repeat(64),
    };
    Contract::from_evidence(&evidence(records), file, "cpu", &PROJECT)
}
