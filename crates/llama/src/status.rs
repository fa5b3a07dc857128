//! What state a tree is in.

use serde::Serialize;

use crate::patch::region::Region;
use crate::ship::{Inspection, UpstreamFile};
use crate::{Error, Payload, Tree, TypeEntry};

/// What state a tree is in, as a whole and hook by hook.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Status {
    /// The whole tree.
    pub state: State,
    /// Version of ggml that the tree states.
    pub ggml: String,
    /// Version of kvforge that shipped, if its manifest is there.
    pub shipped_by: Option<String>,
    /// The ggml type ids that the formats have, or would get; empty if the tree
    /// does not tell.
    pub types: Vec<TypeEntry>,
    /// Every hook of this version, then regions of hooks it no longer has.
    pub hooks: Vec<HookStatus>,
    /// Our own files that are not as this version would write them.
    pub files: Vec<FileStatus>,
    /// What would keep `ship` from working, in words.
    pub problems: Vec<String>,
}

/// The state of a whole tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Nothing of kvforge is there.
    NotShipped,
    /// Everything is as this version writes it.
    Shipped,
    /// Parts are missing that an earlier `ship` wrote.
    Partial,
    /// Another version of kvforge shipped.
    Older,
    /// Someone edited our lines or files.
    EditedByHand,
    /// Upstream files changed since; our lines are still in them.
    Drifted,
}

impl State {
    /// As a sentence says it: "this tree is ...".
    pub fn in_words(self) -> &'static str {
        match self {
            State::NotShipped => "not shipped",
            State::Shipped => "shipped",
            State::Partial => "partially shipped",
            State::Older => "shipped by another build of kvforge",
            State::EditedByHand => "edited by hand where kvforge wrote",
            State::Drifted => "shipped, and changed upstream since",
        }
    }
}

/// The state of one hook.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HookStatus {
    /// The hook.
    pub id: String,
    /// Path in the tree.
    pub file: String,
    /// Line number of its first region, from 1.
    pub line: Option<usize>,
    /// Its state.
    pub state: HookState,
}

/// The state of one hook, or of one file of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum HookState {
    /// As this version writes it.
    Applied,
    /// Not there.
    Missing,
    /// As another version wrote it.
    Older,
    /// Left by another version; this one has no use for it.
    Obsolete,
    /// Edited by hand, or its markers are damaged.
    EditedByHand,
    /// The upstream file is absent, or has no single place for it any more.
    NoPlace,
}

/// The state of one file of ours.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FileStatus {
    /// Path in the tree.
    pub path: String,
    /// Its state.
    pub state: HookState,
}

/// Looks at a tree and writes nothing.
///
/// # Errors
/// Only if the tree cannot be read; what `ship` would refuse is in
/// [`Status::problems`].
pub fn status(tree: &Tree, payload: &Payload) -> Result<Status, Error> {
    let inspection = Inspection::new(tree, payload)?;
    let hooks = hooks(&inspection);
    let files: Vec<FileStatus> = inspection
        .own
        .iter()
        .map(|f| FileStatus {
            path: f.path.clone(),
            state: match (&f.found, &f.wanted) {
                _ if f.edited => HookState::EditedByHand,
                (None, _) => HookState::Missing,
                (Some(_), None) => HookState::Obsolete,
                (Some(a), Some(b)) if a == b => HookState::Applied,
                (Some(_), Some(_)) => HookState::Older,
            },
        })
        .collect();
    Ok(Status {
        state: whole(&inspection, &hooks, &files),
        ggml: tree.ggml_version().into(),
        shipped_by: inspection.manifest.as_ref().map(|m| m.kvforge.clone()),
        types: inspection.ids.map(|ids| ids.entries()).unwrap_or_default(),
        hooks,
        files: files
            .into_iter()
            .filter(|f| f.state != HookState::Applied)
            .collect(),
        problems: inspection.problems.iter().map(Error::to_string).collect(),
    })
}

fn hooks(inspection: &Inspection<'_>) -> Vec<HookStatus> {
    let known = inspection.payload.patches.hooks();
    let mut all = Vec::new();
    for hook in known {
        let file = inspection.upstream.iter().find(|f| f.path == hook.file);
        let (line, state) = match file {
            Some(file) => hook_state(file, &hook.id),
            None => (None, HookState::NoPlace),
        };
        all.push(HookStatus {
            id: hook.id.clone(),
            file: hook.file.clone(),
            line,
            state,
        });
    }
    for file in &inspection.upstream {
        for region in file.parts.iter().flat_map(|p| &p.regions) {
            if !known
                .iter()
                .any(|h| h.id == region.hook && h.file == file.path)
            {
                all.push(HookStatus {
                    id: region.hook.clone(),
                    file: file.path.clone(),
                    line: Some(region.line),
                    state: if region.edited() {
                        HookState::EditedByHand
                    } else {
                        HookState::Obsolete
                    },
                });
            }
        }
    }
    all
}

fn hook_state(file: &UpstreamFile, id: &str) -> (Option<usize>, HookState) {
    let Some(parts) = &file.parts else {
        return (None, HookState::EditedByHand);
    };
    let of_hook = |regions: &[Region]| -> Vec<Region> {
        regions.iter().filter(|r| r.hook == id).cloned().collect()
    };
    let found = of_hook(&parts.regions);
    let line = found.first().map(|r| r.line);
    let state = match &file.planned {
        _ if found.iter().any(Region::edited) => HookState::EditedByHand,
        None => HookState::NoPlace,
        _ if found.is_empty() => HookState::Missing,
        Some((_, planned)) => {
            let planned = of_hook(planned);
            let same = found.len() == planned.len()
                && found.iter().zip(&planned).all(|(a, b)| a.body == b.body);
            if same {
                HookState::Applied
            } else {
                HookState::Older
            }
        }
    };
    (line, state)
}

fn whole(inspection: &Inspection<'_>, hooks: &[HookStatus], files: &[FileStatus]) -> State {
    let states = || {
        hooks
            .iter()
            .map(|h| h.state)
            .chain(files.iter().map(|f| f.state))
    };
    let any = |state: HookState| states().any(|s| s == state);
    let nothing = hooks
        .iter()
        .all(|h| h.line.is_none() && h.state != HookState::EditedByHand)
        && files.iter().all(|f| f.state == HookState::Missing);
    if nothing {
        return State::NotShipped;
    }
    if any(HookState::EditedByHand) {
        return State::EditedByHand;
    }
    // Something that an earlier version did not have is not a loss.
    let lost_hook = |h: &HookStatus| {
        h.line.is_none()
            && inspection
                .manifest
                .as_ref()
                .is_none_or(|m| m.knows_hook(&h.id))
    };
    let lost_file = |f: &FileStatus| {
        f.state == HookState::Missing
            && inspection
                .manifest
                .as_ref()
                .is_none_or(|m| m.file(&f.path).is_some())
    };
    if hooks.iter().any(lost_hook) || files.iter().any(lost_file) || inspection.manifest.is_none() {
        return State::Partial;
    }
    if any(HookState::Missing) || any(HookState::Older) || any(HookState::Obsolete) {
        return State::Older;
    }
    let (old, new) = &inspection.manifest_bytes;
    let as_planned = inspection
        .upstream
        .iter()
        .all(|f| f.planned.as_ref().is_some_and(|(text, _)| *text == f.text));
    if inspection.problems.is_empty() && as_planned && old.as_ref() == Some(new) {
        return State::Shipped;
    }
    let other_version = inspection
        .manifest
        .as_ref()
        .is_some_and(|m| m.kvforge != env!("CARGO_PKG_VERSION"));
    if other_version {
        State::Older
    } else {
        State::Drifted
    }
}
