//! A llama.cpp source tree on disk. Everything here only reads.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use super::types::GGML_H;
use super::{BUILD_DIR, OWN_DIR};
use crate::Error;
use crate::patch::region;

const GGML_CMAKE: &str = "ggml/CMakeLists.txt";

/// Files that every llama.cpp tree has.
const LANDMARKS: [&str; 3] = [GGML_H, GGML_CMAKE, "include/llama.h"];

/// Parts of a tree that are searched for foreign types and forgotten markers.
const SEARCHED: [&str; 9] = [
    "ggml", "src", "include", "common", "tools", "examples", "tests", "cmake", "app",
];

/// A llama.cpp source tree.
#[derive(Debug)]
pub struct Tree {
    root: PathBuf,
    ggml_version: String,
}

impl Tree {
    /// Opens the tree in the folder `path`.
    ///
    /// # Errors
    /// [`Error::NoTree`], [`Error::NotLlamaCpp`] or [`Error::Unreadable`].
    pub fn open(path: &Path) -> Result<Self, Error> {
        let no_tree = || Error::NoTree { path: path.into() };
        let root = path.canonicalize().map_err(|_| no_tree())?;
        if !root.is_dir() {
            return Err(no_tree());
        }
        if let Some(missing) = LANDMARKS.into_iter().find(|l| !root.join(l).is_file()) {
            return Err(Error::NotLlamaCpp {
                path: path.into(),
                missing,
            });
        }
        let mut tree = Tree {
            root,
            ggml_version: String::new(),
        };
        let cmake = tree.text(GGML_CMAKE)?.unwrap_or_default();
        tree.ggml_version = ggml_version(&cmake)?;
        Ok(tree)
    }

    /// The folder, without symbolic links.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Version of ggml that the tree states, such as `0.25.3`.
    pub fn ggml_version(&self) -> &str {
        &self.ggml_version
    }

    /// Where `path` (with `/`, inside the tree) really lies, links followed.
    pub(crate) fn locate(&self, path: &str) -> Result<PathBuf, Error> {
        let wanted = self.root.join(path);
        // What does not exist yet cannot be a link: look at what does.
        let mut existing = wanted.as_path();
        while existing.symlink_metadata().is_err() {
            existing = existing.parent().expect("the root of the tree exists");
        }
        let rest = wanted.strip_prefix(existing).expect("a parent of it");
        let real = existing
            .canonicalize()
            .map_err(io_error(existing, "follow the link"))?;
        if !real.starts_with(&self.root) {
            return Err(Error::LeavesTree {
                file: path.into(),
                target: real,
            });
        }
        Ok(if rest.as_os_str().is_empty() {
            real
        } else {
            real.join(rest)
        })
    }

    /// Contents of a file, or `None` if there is none.
    pub(crate) fn bytes(&self, path: &str) -> Result<Option<Vec<u8>>, Error> {
        let file = self.locate(path)?;
        match fs::read(&file) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(io_error(&file, "read the file")(e)),
        }
    }

    /// Contents of a text file, or `None` if there is none.
    pub(crate) fn text(&self, path: &str) -> Result<Option<String>, Error> {
        let Some(bytes) = self.bytes(path)? else {
            return Ok(None);
        };
        match String::from_utf8(bytes) {
            Ok(text) => Ok(Some(text)),
            Err(_) => Err(Error::NotText { file: path.into() }),
        }
    }

    /// Every file in kvforge's own folder, by its path in the tree.
    pub(crate) fn own_files(&self) -> Result<BTreeMap<String, Vec<u8>>, Error> {
        let mut files = BTreeMap::new();
        // Refuses an own folder that is a link out of the tree.
        let folder = self.locate(OWN_DIR)?;
        // Where a file is in its place, the listing says so.
        if folder.exists() {
            self.walk(&folder, &mut |path, file| {
                files.insert(
                    path,
                    fs::read(file).map_err(io_error(file, "read the file"))?,
                );
                Ok(())
            })?;
        }
        Ok(files)
    }

    /// Calls `visit` with the path and text of every upstream source file that
    /// could carry one of our regions. Files that are not UTF-8 are none.
    pub(crate) fn each_source(&self, visit: &mut dyn FnMut(&str, String)) -> Result<(), Error> {
        let own = self.root.join(OWN_DIR);
        let mut read = |path: String, file: &Path| {
            if region::comment(&path).is_some() && !file.starts_with(&own) {
                let bytes = fs::read(file).map_err(io_error(file, "read the file"))?;
                if let Ok(text) = String::from_utf8(bytes) {
                    visit(&path, text);
                }
            }
            Ok(())
        };
        let top = "CMakeLists.txt";
        if self.root.join(top).is_file() {
            read(top.into(), &self.root.join(top))?;
        }
        for part in SEARCHED {
            let folder = self.root.join(part);
            if folder.is_dir() {
                self.walk(&folder, &mut read)?;
            }
        }
        Ok(())
    }

    /// Visits the regular files under `folder`, in order; links and other
    /// people's build folders are left out.
    fn walk(
        &self,
        folder: &Path,
        visit: &mut dyn FnMut(String, &Path) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let listing = || -> io::Result<Vec<fs::DirEntry>> { fs::read_dir(folder)?.collect() };
        let mut entries = listing().map_err(io_error(folder, "list the folder"))?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let kind = entry
                .file_type()
                .map_err(io_error(&entry.path(), "look at it"))?;
            let path = entry.path();
            if kind.is_dir() {
                if !path.join("CMakeCache.txt").exists() {
                    self.walk(&path, visit)?;
                }
            } else if kind.is_file() {
                visit(self.relative(&path), &path)?;
            }
        }
        Ok(())
    }

    /// Path inside the tree, with `/` on every system.
    fn relative(&self, path: &Path) -> String {
        let inside = path.strip_prefix(&self.root).unwrap_or(path);
        let parts: Vec<_> = inside
            .components()
            .filter_map(|c| match c {
                Component::Normal(part) => Some(part.to_string_lossy()),
                _ => None,
            })
            .collect();
        parts.join("/")
    }

    /// The build folder that `kvforge build` makes if not told otherwise.
    pub(crate) fn build_dir(&self) -> PathBuf {
        self.root.join(BUILD_DIR)
    }
}

/// Makes an [`Error::Io`] out of what the system said about `path`.
pub(crate) fn io_error(path: &Path, doing: &'static str) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_path_buf();
    move |source| Error::Io {
        path,
        doing,
        source,
    }
}

fn ggml_version(cmake: &str) -> Result<String, Error> {
    let part = |name: &str| {
        let prefix = format!("set(GGML_VERSION_{name} ");
        let number = cmake
            .lines()
            .find_map(|l| l.trim().strip_prefix(prefix.as_str())?.strip_suffix(')'));
        match number {
            Some(n) if n.parse::<u32>().is_ok() => Ok(n.to_string()),
            other => Err(Error::Unreadable {
                file: GGML_CMAKE.into(),
                expected: format!("`{prefix}<number>)`"),
                found: other.map_or("no such line".into(), |n| format!("`{n}`")),
            }),
        }
    };
    Ok(format!(
        "{}.{}.{}",
        part("MAJOR")?,
        part("MINOR")?,
        part("PATCH")?
    ))
}
