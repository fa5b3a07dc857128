use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;

use crate::Error;

pub(crate) fn read(path: &Path) -> Result<Vec<u8>, Error> {
    fs::read(path).map_err(Error::io(path, "read the file"))
}

/// Writes the file as a whole or, if that fails, leaves what was there.
///
/// A link is followed; what is not a file (a pipe, a device) gets the bytes as they are.
///
/// # Errors
/// [`Error::Io`].
pub fn write_atomic(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let failed = || Error::io(path, "write the file");
    if fs::metadata(path).is_ok_and(|m| !m.is_file()) {
        return fs::write(path, bytes).map_err(failed());
    }
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.into());
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    let new = target.with_file_name(format!(".{name}.{}", std::process::id()));
    let written = File::create(&new)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
        .and_then(|()| fs::rename(&new, &target));
    if written.is_err() {
        // It may not even exist; the first error is the one to report.
        let _ = fs::remove_file(&new);
    }
    written.map_err(failed())
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn links_are_followed_and_failures_leave_what_was_there() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        fs::write(&file, "old").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        write_atomic(&link, b"new").unwrap();
        assert!(link.is_symlink());
        assert_eq!(fs::read(&file).unwrap(), b"new");
        write_atomic(Path::new("/dev/null"), b"new").unwrap();
        assert!(!Path::new("/dev/null").is_file());

        // In the way of the new file, so that it cannot be made.
        fs::create_dir(folder.path().join(format!(".file.{}", std::process::id()))).unwrap();
        write_atomic(&file, b"newer").unwrap_err();
        assert_eq!(fs::read(&file).unwrap(), b"new");
    }
}
