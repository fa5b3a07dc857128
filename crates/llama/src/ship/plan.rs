//! What `ship` will do, checked as a whole before anything is done.

use std::fs;
use std::path::PathBuf;

use serde::Serialize;
use similar::TextDiff;

use super::inspect::Inspection;
use super::own::Payload;
use super::transaction::{Step, Transaction};
use super::tree::Tree;
use super::types::{TypeEntry, TypeIds};
use super::{OWN_DIR, manifest};
use crate::Error;

/// Everything that `ship` will write. A dry run prints it, a real run writes
/// it: there is no other path.
#[derive(Debug)]
pub struct Plan {
    ids: TypeIds,
    changes: Vec<Change>,
    steps: Vec<Step>,
    floor: PathBuf,
}

/// One file of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// Path in the tree.
    pub path: String,
    /// What happens to it.
    pub action: Action,
}

/// What happens to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// An upstream file gets, changes or loses marked lines.
    Patch,
    /// A file of our own is new.
    Add,
    /// A file of our own is replaced by this version's.
    Replace,
    /// A file of our own that this version no longer has is removed.
    Remove,
}

impl Plan {
    /// Works out what to write.
    ///
    /// # Errors
    /// [`Error::Refused`] with every problem there is.
    pub fn new(tree: &Tree, payload: &Payload) -> Result<Self, Error> {
        let Inspection {
            ids,
            own,
            upstream,
            manifest_bytes,
            mut problems,
            ..
        } = Inspection::new(tree, payload)?;
        let mut changes = Vec::new();
        let mut steps = Vec::new();
        let mut add =
            |path: String, action: Action, before: Option<Vec<u8>>, after: Option<Vec<u8>>| {
                if before == after {
                    return;
                }
                match writable(tree, &path) {
                    Ok(file) => {
                        changes.push(Change { path, action });
                        steps.push(Step {
                            path: file,
                            before,
                            after,
                        });
                    }
                    Err(e) => problems.push(e),
                }
            };
        let put = |before: &Option<Vec<u8>>| {
            if before.is_some() {
                Action::Replace
            } else {
                Action::Add
            }
        };

        // No upstream line ever calls into a missing file: what it needs comes
        // before it, what it no longer needs goes after it.
        let (needed, unneeded): (Vec<_>, Vec<_>) =
            own.into_iter().partition(|f| f.wanted.is_some());
        for file in needed {
            add(file.path, put(&file.found), file.found, file.wanted);
        }
        for file in upstream {
            if let Some((text, _)) = file.planned {
                add(
                    file.path,
                    Action::Patch,
                    Some(file.text.into()),
                    Some(text.into()),
                );
            }
        }
        for file in unneeded {
            add(file.path, Action::Remove, file.found, None);
        }
        // The manifest last: it says that the rest is there.
        let (old, new) = manifest_bytes;
        add(manifest::path(), put(&old), old, Some(new));

        match ids {
            Some(ids) if problems.is_empty() => Ok(Plan {
                ids,
                changes,
                steps,
                floor: own_floor(tree),
            }),
            _ => Err(Error::Refused { problems }),
        }
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// The files that will change, in the order they will.
    pub fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// The ggml type ids that the formats take.
    pub fn types(&self) -> Vec<TypeEntry> {
        self.ids.entries()
    }

    /// Unified diff of the upstream files.
    pub fn diff(&self) -> String {
        let mut out = String::new();
        for (change, step) in self.changes.iter().zip(&self.steps) {
            if let (Action::Patch, Some(before), Some(after)) =
                (change.action, &step.before, &step.after)
            {
                let before = String::from_utf8_lossy(before);
                let after = String::from_utf8_lossy(after);
                out += &TextDiff::from_lines(before.as_ref(), after.as_ref())
                    .unified_diff()
                    .header(&format!("a/{}", change.path), &format!("b/{}", change.path))
                    .to_string();
            }
        }
        out
    }

    /// Writes everything, or nothing.
    ///
    /// # Errors
    /// What the system refused, or [`Error::ChangedMeanwhile`]; the files are
    /// then as they were.
    pub fn write(self) -> Result<(), Error> {
        Transaction::new(self.floor, self.steps).commit()
    }
}

/// Folders of ours go when they are empty; this one, `ggml/src`, never does.
pub(super) fn own_floor(tree: &Tree) -> PathBuf {
    let own = tree.root().join(OWN_DIR);
    own.parent().expect("it is in ggml/src").into()
}

/// Where `path` really lies, if its protection bits let it be replaced. A
/// superuser could write in spite of them, but someone set them for a reason.
fn writable(tree: &Tree, path: &str) -> Result<PathBuf, Error> {
    let file = tree.locate(path)?;
    let mut above = file.parent().expect("a file of the tree is in a folder");
    while !above.exists() {
        above = above.parent().expect("the root of the tree exists");
    }
    for path in [file.as_path(), above] {
        if fs::metadata(path).is_ok_and(|meta| meta.permissions().readonly()) {
            return Err(Error::ReadOnly { path: path.into() });
        }
    }
    Ok(file)
}
