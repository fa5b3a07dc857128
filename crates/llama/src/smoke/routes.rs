//! Operations, the kernels that they must reach, and the hooks that lead there.

use kvforge_formats::{FormatSpec, q4_polar, qjl1_256};

use super::ggml::ScoreOp;
use crate::{HookState, HookStatus};

/// An operation on a compressed type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// Cache write.
    SetRows,
    /// Rows back as F32.
    GetRows,
    /// F32 copied into blocks.
    CopyTo,
    /// Blocks copied into F32.
    CopyFrom,
    /// Scores without fusion.
    MulMat,
    /// Scores by an operation of kvforge's own.
    Score,
    /// Fused attention.
    FlashAttn,
}

impl Operation {
    pub const ALL: [Operation; 7] = [
        Operation::SetRows,
        Operation::GetRows,
        Operation::CopyTo,
        Operation::CopyFrom,
        Operation::MulMat,
        Operation::Score,
        Operation::FlashAttn,
    ];

    /// ggml's name.
    pub fn name(self, format: &FormatSpec) -> &'static str {
        match self {
            Operation::SetRows => "SET_ROWS",
            Operation::GetRows => "GET_ROWS",
            Operation::CopyTo | Operation::CopyFrom => "CPY",
            Operation::MulMat => "MUL_MAT",
            Operation::Score => match score_op(format)[0] {
                ScoreOp::Tbq => "ATTN_SCORE_TBQ",
                ScoreOp::Qjl => "ATTN_SCORE_QJL",
                ScoreOp::Polar { .. } => "ATTN_SCORE_POLAR",
            },
            Operation::FlashAttn => "FLASH_ATTN_EXT",
        }
    }

    /// What the kernel does that it must reach.
    fn work(self) -> &'static str {
        match self {
            Operation::SetRows | Operation::CopyTo => "encode",
            Operation::GetRows | Operation::CopyFrom => "decode",
            Operation::MulMat => "dot",
            Operation::Score => "score",
            Operation::FlashAttn => "attend",
        }
    }

    /// The same in words, copies apart.
    pub fn in_words(self, format: &FormatSpec) -> &'static str {
        match self {
            Operation::CopyTo => "CPY (encode)",
            Operation::CopyFrom => "CPY (decode)",
            _ => self.name(format),
        }
    }

    /// Name of the kernel that it must reach.
    pub fn kernel(self, format: &FormatSpec, isa: &str) -> String {
        format!("{}/{}/{isa}", format.name, self.work())
    }

    /// Hooks of the patch set without which it does not get there.
    pub fn hooks(self) -> &'static [&'static str] {
        match self {
            Operation::MulMat => &["cpu-traits", "cpu-supports"],
            Operation::Score => &[
                "op-enum",
                "op-constructors",
                "cpu-compute",
                "cpu-tasks",
                "cpu-work-size",
                "cpu-supports",
            ],
            Operation::FlashAttn => &["cpu-compute", "cpu-work-size", "cpu-supports"],
            _ => &["cpu-compute", "cpu-supports"],
        }
    }

    /// Hooks without which llama.cpp does not even make the operation.
    pub fn model_hooks(self) -> &'static [&'static str] {
        &["arg-types", "cache-rotation", "context-check"]
    }
}

/// Hooks in words, each with its file, and with its state if that is not as it
/// should be.
pub(crate) fn in_words(ids: &[&str], tree: &[HookStatus]) -> String {
    let one = |id: &&str| {
        let state = |s| match s {
            HookState::Applied => "",
            HookState::Missing => ", MISSING in this tree",
            HookState::Older => ", of another version in this tree",
            HookState::Obsolete => ", obsolete",
            HookState::EditedByHand => ", EDITED by hand in this tree",
            HookState::NoPlace => ", without a place in this tree",
        };
        match tree.iter().find(|h| h.id == **id) {
            Some(hook) => format!("{id} ({}{})", hook.file, state(hook.state)),
            None => format!("{id} (MISSING in this tree)"),
        }
    };
    ids.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// The forms of the operation that gives plain scores of a format's keys.
pub(crate) fn score_op(format: &FormatSpec) -> &'static [ScoreOp] {
    const fn polar(use_qjl: bool, preht: bool) -> ScoreOp {
        ScoreOp::Polar { use_qjl, preht }
    }
    const POLAR: &[ScoreOp] = &[
        polar(false, false),
        polar(false, true),
        polar(true, false),
        polar(true, true),
    ];
    if *format == q4_polar::SPEC {
        POLAR
    } else if *format == qjl1_256::SPEC {
        &[ScoreOp::Qjl]
    } else {
        &[ScoreOp::Tbq]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Payload;

    #[test]
    fn every_hook_named_here_is_in_the_patch_set() {
        let payload = Payload::embedded().unwrap();
        let known = payload.patches.hooks();
        for operation in Operation::ALL {
            for id in operation.hooks().iter().chain(operation.model_hooks()) {
                assert!(known.iter().any(|h| h.id == *id), "{operation:?}: {id}");
            }
        }
    }

    #[test]
    fn a_missing_hook_is_pointed_out() {
        let applied = HookStatus {
            id: "a".into(),
            file: "x.c".into(),
            line: Some(3),
            state: HookState::Applied,
        };
        let missing = HookStatus {
            id: "b".into(),
            line: None,
            state: HookState::Missing,
            ..applied.clone()
        };
        let text = in_words(&["a", "b", "c"], &[applied, missing]);
        assert_eq!(
            text,
            "a (x.c), b (x.c, MISSING in this tree), c (MISSING in this tree)"
        );
    }
}
