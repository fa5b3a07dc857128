//! BLAKE3 of files and of whole folders, as lower-case hex.

use std::fs;
use std::io;
use std::path::Path;

/// Digest of bytes.
pub fn bytes(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex().to_string()
}

/// Digest of a file's contents.
///
/// # Errors
/// If the file cannot be read.
pub fn file(path: &Path) -> io::Result<String> {
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(kvforge_files::open(path)?)?;
    Ok(hasher.finalize().to_hex().to_string())
}

/// Digest of every file in a folder and below: names and contents, in the order
/// of the names. Moving, adding, removing or changing a file changes it; dates
/// and permissions do not.
///
/// # Errors
/// If something in the folder cannot be read.
pub fn folder(path: &Path) -> io::Result<String> {
    let mut files = vec![];
    list(path, "", &mut files)?;
    files.sort();
    let mut hasher = blake3::Hasher::new();
    for name in files {
        let contents = kvforge_files::read(&path.join(&name))?;
        // With the lengths no two lists of files read the same.
        for part in [name.as_bytes(), &contents] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
    }
    Ok(hasher.finalize().to_hex().to_string())
}

/// Paths of all files, relative and with `/`.
fn list(folder: &Path, prefix: &str, files: &mut Vec<String>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        if entry.path().is_dir() {
            list(&entry.path(), &format!("{name}/"), files)?;
        } else {
            files.push(name);
        }
    }
    Ok(())
}
