//! What a folder holds, so that two moments can be compared.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use anyhow::{Context as _, Result, bail};

/// Every file and folder below a folder.
pub struct Digest(BTreeMap<String, Entry>);

#[derive(PartialEq)]
struct Entry {
    contents: String,
    mode: u32,
    modified: (i64, i64),
}

impl Digest {
    /// Reads everything.
    pub fn of(folder: &Path) -> Result<Self> {
        let mut entries = BTreeMap::new();
        read(folder, "", &mut entries)
            .with_context(|| format!("cannot read {}", folder.display()))?;
        Ok(Digest(entries))
    }

    /// How many files and folders there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Fails, naming what differs, unless `now` has the same files and folders
    /// with the same contents and permissions.
    pub fn expect_same(&self, now: &Digest) -> Result<()> {
        self.compare(now, |a, b| a.contents == b.contents && a.mode == b.mode)
    }

    /// As `expect_same`, and nothing was even written again.
    pub fn expect_untouched(&self, now: &Digest) -> Result<()> {
        self.compare(now, Entry::eq)
    }

    fn compare(&self, now: &Digest, same: impl Fn(&Entry, &Entry) -> bool) -> Result<()> {
        let mut changes = Vec::new();
        for (path, before) in &self.0 {
            match now.0.get(path) {
                None => changes.push(format!("{path} is gone")),
                Some(after) if !same(before, after) => changes.push(format!("{path} has changed")),
                Some(_) => {}
            }
        }
        changes.extend(
            now.0
                .keys()
                .filter(|path| !self.0.contains_key(*path))
                .map(|path| format!("{path} is new")),
        );
        if changes.is_empty() {
            return Ok(());
        }
        let shown = changes
            .iter()
            .take(10)
            .cloned()
            .collect::<Vec<_>>()
            .join("\n    ");
        bail!("{} differences:\n    {shown}", changes.len())
    }
}

fn read(folder: &Path, prefix: &str, entries: &mut BTreeMap<String, Entry>) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let metadata = fs::symlink_metadata(&path)?;
        let name = format!(
            "{prefix}{}",
            path.file_name().unwrap_or_default().to_string_lossy()
        );
        let contents = if metadata.is_dir() {
            read(&path, &format!("{name}/"), entries)?;
            "folder".into()
        } else if metadata.is_symlink() {
            format!("link to {}", fs::read_link(&path)?.display())
        } else {
            blake3::hash(&fs::read(&path)?).to_hex().to_string()
        };
        // a folder's time changes with every file that comes and goes in it
        let modified = if metadata.is_dir() {
            (0, 0)
        } else {
            (metadata.mtime(), metadata.mtime_nsec())
        };
        entries.insert(
            name,
            Entry {
                contents,
                mode: metadata.permissions().mode(),
                modified,
            },
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_difference_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a/b");
        let other = dir.path().join("c");
        fs::create_dir(dir.path().join("a")).unwrap();
        fs::write(&file, "text").unwrap();
        let before = Digest::of(dir.path()).unwrap();
        let see = || {
            before
                .expect_same(&Digest::of(dir.path()).unwrap())
                .map_err(|e| e.to_string())
        };
        assert_eq!(before.len(), 2);
        assert!(see().is_ok());

        fs::write(&file, "texT").unwrap();
        assert!(see().unwrap_err().contains("a/b has changed"));
        fs::write(&file, "text").unwrap();
        assert!(see().is_ok());
        assert!(
            before
                .expect_untouched(&Digest::of(dir.path()).unwrap())
                .is_err()
        );

        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(see().unwrap_err().contains("a/b has changed"));
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();

        fs::create_dir(&other).unwrap();
        assert!(see().unwrap_err().contains("c is new"));
        fs::remove_dir(&other).unwrap();
        fs::remove_file(&file).unwrap();
        assert!(see().unwrap_err().contains("a/b is gone"));
    }
}
