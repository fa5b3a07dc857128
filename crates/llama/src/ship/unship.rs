//! Taking kvforge out of a tree. Markers and our own folder are enough; the
//! manifest, if it is there, proves that the result is the original.

use std::fs;

use serde::Serialize;

use super::BUILD_MARK;
use super::inspect::Inspection;
use super::manifest;
use super::own::Payload;
use super::plan::own_floor;
use super::transaction::{Step, Transaction};
use super::tree::{Tree, io_error};
use crate::Error;

/// What `unship` did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Unshipped {
    /// Upstream files that lost our regions.
    pub upstream: Vec<(String, Restored)>,
    /// How many files of our own were removed.
    pub removed: usize,
    /// Files in our folder that are not ours and were left there.
    pub left: Vec<String>,
    /// Whether the build folder of `kvforge build` was removed.
    pub build_removed: bool,
}

/// How an upstream file compares with what it was before `ship`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Restored {
    /// Byte for byte the same.
    Exactly,
    /// Edited outside our regions since; that edit was kept.
    EditedElsewhere,
    /// Our regions are gone; no manifest says what the file was.
    Unproven,
}

impl Unshipped {
    /// Whether there was nothing to take out.
    pub fn is_empty(&self) -> bool {
        self.upstream.is_empty() && self.removed == 0 && !self.build_removed
    }
}

/// Removes every region and every file of ours from the tree. `force` removes
/// also those that someone edited.
///
/// # Errors
/// [`Error::Refused`] with everything that was edited or damaged, before
/// anything is removed; or what the system refused, and all is as it was.
pub fn unship(tree: &Tree, payload: &Payload, force: bool) -> Result<Unshipped, Error> {
    let Inspection {
        manifest,
        upstream,
        own,
        manifest_bytes,
        problems,
        ..
    } = Inspection::new(tree, payload)?;
    let problems: Vec<Error> = problems
        .into_iter()
        .filter(|p| match p {
            Error::MarkerDamaged { .. } => true,
            Error::RegionEdited { .. } | Error::OwnFileEdited { .. } => !force,
            // What keeps kvforge out of a tree need not keep it in.
            _ => false,
        })
        .collect();
    if !problems.is_empty() {
        return Err(Error::Refused { problems });
    }

    let mut result = Unshipped::default();
    let mut steps = Vec::new();
    for file in upstream {
        let Some(parts) = file.parts.filter(|p| !p.regions.is_empty()) else {
            continue;
        };
        let before = manifest
            .as_ref()
            .and_then(|m| m.patched(&file.path))
            .map(|p| p.before.as_str());
        let restored = match before {
            Some(before) if before == manifest::digest(parts.upstream.as_bytes()) => {
                Restored::Exactly
            }
            Some(_) => Restored::EditedElsewhere,
            None => Restored::Unproven,
        };
        steps.push(Step {
            path: tree.locate(&file.path)?,
            before: Some(file.text.into()),
            after: Some(parts.upstream.into()),
        });
        result.upstream.push((file.path, restored));
    }
    let own = own.into_iter().map(|f| (f.path, f.found));
    for (path, found) in own.chain([(manifest::path(), manifest_bytes.0)]) {
        if found.is_some() {
            result.removed += 1;
            steps.push(Step {
                path: tree.locate(&path)?,
                before: found,
                after: None,
            });
        }
    }
    Transaction::new(own_floor(tree), steps).commit()?;
    result.left = tree.own_files()?.into_keys().collect();

    let build = tree.build_dir();
    if build.join(BUILD_MARK).is_file() {
        fs::remove_dir_all(&build).map_err(io_error(&build, "remove the build folder"))?;
        result.build_removed = true;
    }
    Ok(result)
}
