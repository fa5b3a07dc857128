//! Several files change together, or none does.
//!
//! Each file is written beside its place, synced and renamed, so that no
//! reader ever sees half of one. If a step fails, the earlier ones are undone
//! from memory. A crash of the machine in between is not undone here; the
//! order of the steps (our own files, upstream files, manifest) leaves a state
//! that `status` recognises and that a second `ship` or `unship` completes.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::tree::io_error;
use crate::Error;

/// The change of one file.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub path: PathBuf,
    /// What the file holds now; `None` if there is none.
    pub before: Option<Vec<u8>>,
    /// What it is to hold; `None` to remove it.
    pub after: Option<Vec<u8>>,
}

/// Steps that are taken in order.
#[derive(Debug)]
pub(crate) struct Transaction {
    steps: Vec<Step>,
    /// Folders that become empty are removed, but this one and those above.
    floor: PathBuf,
}

/// What a step changed, to put it back.
struct Done<'a> {
    step: &'a Step,
    /// Permissions and modification time of the old file.
    old: Option<(fs::Permissions, SystemTime)>,
}

impl Transaction {
    pub fn new(floor: PathBuf, steps: Vec<Step>) -> Self {
        Transaction { steps, floor }
    }

    /// Takes every step, or none.
    pub fn commit(self) -> Result<(), Error> {
        let mut made = Vec::new();
        let result = self.write(&mut made);
        let folders: BTreeSet<&Path> = self.steps.iter().filter_map(|s| s.path.parent()).collect();
        match result {
            Ok(()) => {
                for step in self.steps.iter().filter(|s| s.after.is_none()) {
                    self.remove_empty_above(&step.path);
                }
                for folder in folders {
                    sync_folder(folder)?;
                }
                Ok(())
            }
            Err(cause) => {
                // Deepest first.
                for folder in made.iter().rev() {
                    // One that is not empty belongs to someone else by now.
                    let _ = fs::remove_dir(folder);
                }
                Err(cause)
            }
        }
    }

    /// `made` are the folders that were created, outermost first.
    fn write(&self, made: &mut Vec<PathBuf>) -> Result<(), Error> {
        // Everything that can fail for lack of space or permission comes
        // before the first rename.
        let mut staged = Vec::new();
        for step in &self.steps {
            staged.push(match &step.after {
                Some(bytes) => Some(stage(&step.path, bytes, made)?),
                None => None,
            });
        }
        let mut done = Vec::new();
        for (step, staged) in self.steps.iter().zip(staged) {
            match take(step, staged) {
                Ok(old) => done.push(Done { step, old }),
                Err(cause) => return Err(undo(done, cause)),
            }
        }
        Ok(())
    }

    fn remove_empty_above(&self, file: &Path) {
        let mut folder = file.parent();
        while let Some(f) = folder.filter(|f| *f != self.floor && f.starts_with(&self.floor)) {
            // Fails where something is left, and that ends it.
            if fs::remove_dir(f).is_err() {
                break;
            }
            folder = f.parent();
        }
    }
}

/// Writes `bytes` to a new file beside `path`, with the permissions of the
/// file that is there, and syncs it.
fn stage(
    path: &Path,
    bytes: &[u8],
    made: &mut Vec<PathBuf>,
) -> Result<tempfile::NamedTempFile, Error> {
    let folder = path.parent().expect("a file of the tree is in a folder");
    make_folder(folder, made).map_err(io_error(folder, "create the folder"))?;
    let mut builder = tempfile::Builder::new();
    builder.prefix(".kvforge-");
    #[cfg(unix)]
    {
        // As any new file: the umask takes away from it.
        use std::os::unix::fs::PermissionsExt as _;
        builder.permissions(fs::Permissions::from_mode(0o666));
    }
    let mut file = builder
        .tempfile_in(folder)
        .map_err(io_error(folder, "create a file in it"))?;
    let mut write = || -> io::Result<()> {
        file.write_all(bytes)?;
        if let Ok(old) = fs::metadata(path) {
            keep_owner(file.as_file(), &old);
            file.as_file().set_permissions(old.permissions())?;
        }
        file.as_file().sync_all()
    };
    write().map_err(io_error(path, "write the file"))?;
    Ok(file)
}

/// A superuser must not make other people's files his own. Anyone else may
/// not give files away, and the result is what an editor would leave.
#[cfg(unix)]
fn keep_owner(file: &fs::File, old: &fs::Metadata) {
    use std::os::unix::fs::MetadataExt as _;
    let _ = std::os::unix::fs::fchown(file, Some(old.uid()), Some(old.gid()));
}

#[cfg(not(unix))]
fn keep_owner(_: &fs::File, _: &fs::Metadata) {}

fn make_folder(folder: &Path, made: &mut Vec<PathBuf>) -> io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    if let Some(above) = folder.parent() {
        make_folder(above, made)?;
    }
    fs::create_dir(folder)?;
    made.push(folder.into());
    Ok(())
}

/// Renames or removes, if the file is still what the plan saw.
fn take(
    step: &Step,
    staged: Option<tempfile::NamedTempFile>,
) -> Result<Option<(fs::Permissions, SystemTime)>, Error> {
    let path = &step.path;
    let (now, old) = match fs::symlink_metadata(path) {
        Ok(meta) => {
            let bytes = fs::read(path).map_err(io_error(path, "read the file"))?;
            let time = meta.modified().map_err(io_error(path, "read its time"))?;
            (Some(bytes), Some((meta.permissions(), time)))
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => (None, None),
        Err(e) => return Err(io_error(path, "look at the file")(e)),
    };
    if now != step.before {
        return Err(Error::ChangedMeanwhile { path: path.clone() });
    }
    match staged {
        Some(file) => {
            file.persist(path)
                .map_err(|e| io_error(path, "replace the file")(e.error))?;
        }
        None => fs::remove_file(path).map_err(io_error(path, "remove the file"))?,
    }
    Ok(old)
}

/// Puts the files of `done` back, newest change first.
fn undo(done: Vec<Done<'_>>, cause: Error) -> Error {
    let mut lost = Vec::new();
    for Done { step, old } in done.into_iter().rev() {
        let back = || -> Result<(), Error> {
            let path = &step.path;
            match (&step.before, &old) {
                (Some(bytes), Some((permissions, time))) => {
                    let file = stage(path, bytes, &mut Vec::new())?;
                    let restore = || -> io::Result<()> {
                        file.as_file().set_permissions(permissions.clone())?;
                        file.as_file().set_modified(*time)
                    };
                    restore().map_err(io_error(path, "restore its time"))?;
                    file.persist(path)
                        .map_err(|e| io_error(path, "replace the file")(e.error))?;
                    Ok(())
                }
                _ => fs::remove_file(path).map_err(io_error(path, "remove the file")),
            }
        };
        if back().is_err() {
            lost.push(step.path.clone());
        }
    }
    match lost.is_empty() {
        true => cause,
        false => Error::RollbackFailed {
            cause: Box::new(cause),
            files: lost,
        },
    }
}

/// A rename is safe on disk only once its folder is.
fn sync_folder(folder: &Path) -> Result<(), Error> {
    if cfg!(unix) && folder.is_dir() {
        let file = fs::File::open(folder).map_err(io_error(folder, "open the folder"))?;
        file.sync_all()
            .map_err(io_error(folder, "sync the folder"))?;
    }
    Ok(())
}
