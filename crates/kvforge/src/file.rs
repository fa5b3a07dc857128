use std::path::Path;

use crate::Error;

pub(crate) fn read(path: &Path) -> Result<Vec<u8>, Error> {
    kvforge_files::read(path).map_err(Error::io(path, "read the file"))
}

/// Writes the file as a whole or, if that fails, leaves what was there.
///
/// A link is followed; what is not a file (a pipe, a device) gets the bytes as they are.
///
/// # Errors
/// [`Error::Io`].
pub fn write_atomic(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    kvforge_files::write(path, bytes).map_err(Error::io(path, "write the file"))
}
