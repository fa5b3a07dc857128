//! Readers open files, so the bytes go into one.

use std::io::Write as _;

use tempfile::NamedTempFile;

/// A temporary file that holds `bytes`.
pub fn with(bytes: &[u8]) -> NamedTempFile {
    let mut file = NamedTempFile::new().expect("a folder for temporary files");
    file.write_all(bytes).expect("room for the bytes");
    file
}
