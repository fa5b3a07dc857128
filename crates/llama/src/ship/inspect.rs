//! What is in a tree, next to what `ship` would put there. `Plan` and
//! `status` both come from here, so that they cannot disagree.

use std::collections::{BTreeMap, BTreeSet};

use super::manifest::{self, FileEntry, Manifest, PatchedEntry, RegionEntry};
use super::own::Payload;
use super::stock;
use super::tree::Tree;
use super::types::{GGML_H, TypeIds};
use crate::Error;
use crate::patch;
use crate::patch::region::{self, Parts, Region};

/// A tree seen through a payload.
#[derive(Debug)]
pub(crate) struct Inspection<'a> {
    pub payload: &'a Payload,
    /// `None` if the tree's own type ids could not be read.
    pub ids: Option<TypeIds>,
    /// What an earlier `ship` noted.
    pub manifest: Option<Manifest>,
    /// Upstream files that have a hook, or a region, or both.
    pub upstream: Vec<UpstreamFile>,
    /// Our own files, but the manifest.
    pub own: Vec<OwnFile>,
    /// The manifest as it is, and as `ship` would write it.
    pub manifest_bytes: (Option<Vec<u8>>, Vec<u8>),
    /// Everything that keeps `ship` from writing.
    pub problems: Vec<Error>,
}

#[derive(Debug)]
pub(crate) struct UpstreamFile {
    pub path: String,
    /// As it is.
    pub text: String,
    /// Taken apart; `None` if its markers are damaged.
    pub parts: Option<Parts>,
    /// As `ship` would write it; `None` if a hook has no place.
    pub planned: Option<(String, Vec<Region>)>,
}

#[derive(Debug)]
pub(crate) struct OwnFile {
    pub path: String,
    pub found: Option<Vec<u8>>,
    /// `None` if this version of kvforge has no such file.
    pub wanted: Option<Vec<u8>>,
    /// Neither what we would write nor what an earlier ship wrote.
    pub edited: bool,
}

impl<'a> Inspection<'a> {
    /// Looks at everything; problems are collected, and only what makes
    /// looking itself impossible is an error.
    pub fn new(tree: &Tree, payload: &'a Payload) -> Result<Self, Error> {
        let mut problems = Vec::new();
        let marked = stock::scan(tree, &mut problems)?;

        let found = tree.own_files()?;
        let old_manifest = found.get(&manifest::path()).cloned();
        let manifest = match old_manifest.as_deref().map(Manifest::read) {
            Some(Ok(manifest)) => Some(manifest),
            Some(Err(e)) => {
                problems.push(e);
                None
            }
            None => None,
        };

        let mut upstream = read_upstream(tree, payload, marked, &mut problems)?;
        let ggml_h = upstream
            .iter()
            .find(|f| f.path == GGML_H)
            .and_then(|f| f.parts.as_ref());
        let ids = match ggml_h.map(|parts| TypeIds::read(&parts.upstream)) {
            Some(Ok(ids)) => Some(ids),
            Some(Err(e)) => {
                problems.push(e);
                None
            }
            // Damaged, which is a problem already.
            None => None,
        };
        // Without ids nothing will be written, but the anchors are looked at.
        let some_ids = ids.unwrap_or(TypeIds::starting_at(0));
        for file in &mut upstream {
            file.plan(payload, &some_ids, &mut problems);
        }

        let wanted = payload.own_files();
        let own = own_files(found, wanted, manifest.as_ref(), &mut problems);
        let new_manifest = new_manifest(tree, &some_ids, &own, &upstream);
        Ok(Inspection {
            payload,
            ids,
            manifest,
            upstream,
            own,
            manifest_bytes: (old_manifest, new_manifest.to_bytes()),
            problems,
        })
    }
}

impl UpstreamFile {
    fn plan(&mut self, payload: &Payload, ids: &TypeIds, problems: &mut Vec<Error>) {
        let Some(parts) = &self.parts else { return };
        for r in parts.regions.iter().filter(|r| r.edited()) {
            problems.push(Error::RegionEdited {
                file: self.path.clone(),
                line: r.line,
                hook: r.hook.clone(),
                recorded: r.recorded.clone(),
                found: region::hash(&r.body),
            });
        }
        let hooks = payload
            .patches
            .hooks()
            .iter()
            .filter(|h| h.file == self.path);
        match patch::apply(hooks, &parts.upstream, ids) {
            Ok(text) => {
                let again = region::take_apart(&text).expect("markers that we wrote pair up");
                let reversible = again.upstream == parts.upstream;
                assert!(
                    reversible,
                    "{}: taking our lines out must give it back",
                    self.path
                );
                self.planned = Some((text, again.regions));
            }
            Err(misses) => problems.extend(misses.into_iter().map(|(hook, miss)| Error::Anchor {
                file: self.path.clone(),
                hook: hook.id.clone(),
                reason: hook.reason.clone(),
                miss,
            })),
        }
    }
}

fn read_upstream(
    tree: &Tree,
    payload: &Payload,
    marked: BTreeSet<String>,
    problems: &mut Vec<Error>,
) -> Result<Vec<UpstreamFile>, Error> {
    let paths = [GGML_H]
        .into_iter()
        .chain(payload.patches.files())
        .map(String::from);
    let mut seen = BTreeSet::new();
    let mut files = Vec::new();
    for path in paths.chain(marked) {
        // By where it really lies: a link and its target are one file.
        if let Ok(file) = tree.locate(&path)
            && !seen.insert(file)
        {
            continue;
        }
        let text = match tree.text(&path) {
            Ok(Some(text)) => text,
            Ok(None) => {
                let hooks = payload.patches.hooks().iter().filter(|h| h.file == path);
                problems.extend(hooks.map(|hook| Error::NoFile {
                    file: path.clone(),
                    hook: hook.id.clone(),
                    reason: hook.reason.clone(),
                }));
                continue;
            }
            Err(e) => {
                problems.push(e);
                continue;
            }
        };
        let parts = match region::take_apart(&text) {
            Ok(parts) => Some(parts),
            Err(damages) => {
                problems.extend(damages.into_iter().map(|d| Error::MarkerDamaged {
                    file: path.clone(),
                    line: d.line,
                    what: d.what,
                }));
                None
            }
        };
        files.push(UpstreamFile {
            path,
            text,
            parts,
            planned: None,
        });
    }
    Ok(files)
}

/// Pairs what is in our folder with what should be.
fn own_files(
    mut found: BTreeMap<String, Vec<u8>>,
    wanted: BTreeMap<String, Vec<u8>>,
    manifest: Option<&Manifest>,
    problems: &mut Vec<Error>,
) -> Vec<OwnFile> {
    found.remove(&manifest::path());
    let mut own = Vec::new();
    let written_by_us = |path: &str, bytes: &[u8]| {
        manifest
            .and_then(|m| m.file(path))
            .is_some_and(|f| f.blake3 == manifest::digest(bytes))
    };
    for (path, wanted) in wanted {
        let found = found.remove(&path);
        let edited = found
            .as_ref()
            .is_some_and(|f| *f != wanted && !written_by_us(&path, f));
        own.push(OwnFile {
            path,
            found,
            wanted: Some(wanted),
            edited,
        });
    }
    // Files of an earlier version. Anything else there is not ours to touch.
    for (path, bytes) in found {
        if manifest.is_some_and(|m| m.file(&path).is_some()) {
            own.push(OwnFile {
                edited: !written_by_us(&path, &bytes),
                path,
                found: Some(bytes),
                wanted: None,
            });
        }
    }
    problems.extend(
        own.iter()
            .filter(|f| f.edited)
            .map(|f| Error::OwnFileEdited {
                file: f.path.clone(),
            }),
    );
    own
}

fn new_manifest(
    tree: &Tree,
    ids: &TypeIds,
    own: &[OwnFile],
    upstream: &[UpstreamFile],
) -> Manifest {
    let files = own
        .iter()
        .filter_map(|f| {
            Some(FileEntry {
                path: f.path.clone(),
                blake3: manifest::digest(f.wanted.as_ref()?),
            })
        })
        .collect();
    let patched = upstream
        .iter()
        .filter_map(|f| {
            let (text, regions) = f.planned.as_ref()?;
            let parts = f.parts.as_ref()?;
            (!regions.is_empty()).then(|| PatchedEntry {
                path: f.path.clone(),
                before: manifest::digest(parts.upstream.as_bytes()),
                after: manifest::digest(text.as_bytes()),
                regions: regions
                    .iter()
                    .map(|r| RegionEntry {
                        hook: r.hook.clone(),
                        hash: r.recorded.clone(),
                    })
                    .collect(),
            })
        })
        .collect();
    Manifest::new(tree.ggml_version(), ids, files, patched)
}
