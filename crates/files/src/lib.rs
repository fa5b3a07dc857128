//! Whole files, read and written: the rules that hold for every file of kvforge.
//!
//! Only regular files are read, because a pipe or a device may never end. What is written
//! is there as a whole or not at all; what cannot be replaced (a pipe, a device, an open
//! descriptor such as `/dev/stdout`) gets the bytes as they are.
#![forbid(unsafe_code)]

use std::ffi::OsStr;
use std::fs::{self, File, FileType, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Write};
use std::path::{Path, PathBuf};

/// Links that are followed before they count as a circle, as on Linux.
const MAX_LINKS: usize = 40;

/// Opens a regular file for reading.
///
/// # Errors
/// What the system says; [`ErrorKind::InvalidInput`] if it is no regular file.
pub fn open(path: &Path) -> io::Result<File> {
    let kind = fs::metadata(path)?.file_type();
    if !kind.is_file() {
        let found = in_words(kind);
        let what = format!("expected a regular file, found {found}");
        return Err(io::Error::new(ErrorKind::InvalidInput, what));
    }
    File::open(path)
}

/// The contents of a regular file.
///
/// # Errors
/// As [`open`].
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = vec![];
    open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// What a message repeats of a file's content: not much of it, on one line.
pub fn excerpt(text: &str) -> String {
    const MOST: usize = 160;
    let start: String = text.chars().take(MOST).collect();
    let mut shown = String::with_capacity(start.len());
    for c in start.chars() {
        match c.is_control() {
            true => shown.extend(c.escape_default()),
            false => shown.push(c),
        }
    }
    if start.len() < text.len() {
        shown += "...";
    }
    shown
}

/// Whether both paths lead to one existing file.
pub fn same(a: &Path, b: &Path) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt as _;
        let id = |path| fs::metadata(path).map(|m| (m.dev(), m.ino()));
        matches!((id(a), id(b)), (Ok(a), Ok(b)) if a == b)
    }
    #[cfg(not(unix))]
    {
        matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
    }
}

/// Writes a file as a whole or, if that fails, leaves what was there.
///
/// Links are followed, and permissions of an existing file kept. What is no regular file
/// gets the bytes as they are, and so does an open descriptor, whatever it leads to:
/// others may be writing into the same file.
///
/// # Errors
/// What the system says, also where an existing file may not be written.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let target = end_of_links(path)?;
    if is_descriptor(&target) {
        return write_descriptor(&target, bytes);
    }
    let found = match fs::metadata(&target) {
        Ok(found) => Some(found),
        Err(e) if e.kind() == ErrorKind::NotFound => None,
        Err(e) => return Err(e),
    };
    if let Some(found) = &found {
        // The system refuses what may not be written; nothing is cut off yet.
        let mut file = OpenOptions::new().write(true).open(&target)?;
        if !found.is_file() {
            return file.write_all(bytes);
        }
    }
    let mut builder = tempfile::Builder::new();
    builder.prefix(".kvforge-");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        // Those of any new file: the user's mask is taken off.
        builder.permissions(fs::Permissions::from_mode(0o666));
    }
    let mut new = builder.tempfile_in(folder_of(&target))?;
    new.write_all(bytes)?;
    if let Some(found) = found {
        new.as_file().set_permissions(found.permissions())?;
    }
    new.as_file().sync_all()?;
    new.persist(&target)?;
    Ok(())
}

/// Where `path` really lies once every link is followed; the last part need not exist.
/// Links of open descriptors are not followed.
fn end_of_links(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_path_buf();
    for _ in 0..MAX_LINKS {
        let Some(name) = path.file_name() else {
            return path.canonicalize();
        };
        let here = folder_of(&path).canonicalize()?.join(name);
        if is_descriptor(&here) {
            return Ok(here);
        }
        match fs::read_link(&here) {
            Ok(target) => path = folder_of(&here).join(target),
            // It is no link, or does not exist.
            Err(_) => return Ok(here),
        }
    }
    Err(io::Error::other("too many links, one after the other"))
}

/// The folder that `path` lies in.
fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    }
}

/// Whether a path without links is one of Linux's names for an open descriptor.
fn is_descriptor(path: &Path) -> bool {
    let folder = folder_of(path);
    folder.starts_with("/proc") && folder.file_name() == Some(OsStr::new("fd"))
}

fn write_descriptor(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let to = |mut stream: Box<dyn Write>| stream.write_all(bytes).and_then(|()| stream.flush());
    let own = folder_of(path) == Path::new("/proc/self/fd").canonicalize()?;
    match path.file_name().and_then(OsStr::to_str) {
        Some("1") if own => to(Box::new(io::stdout())),
        Some("2") if own => to(Box::new(io::stderr())),
        // Opened anew it begins at the start, where others may have written.
        _ => to(Box::new(OpenOptions::new().append(true).open(path)?)),
    }
}

fn in_words(kind: FileType) -> &'static str {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt as _;
        if kind.is_fifo() {
            return "a pipe";
        }
        if kind.is_socket() {
            return "a socket";
        }
    }
    if kind.is_dir() {
        "a folder"
    } else {
        "a device"
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::process::Command;

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn links_are_followed_and_permissions_kept() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("file"), "old").unwrap();
        fs::set_permissions(at("file"), fs::Permissions::from_mode(0o640)).unwrap();
        symlink("file", at("link")).unwrap();
        symlink(at("link"), at("link to link")).unwrap();
        write(&at("link to link"), b"new").unwrap();
        assert!(at("link").is_symlink() && at("link to link").is_symlink());
        assert_eq!(fs::read(at("file")).unwrap(), b"new");
        assert_eq!(mode(&at("file")), 0o640);

        symlink("not there", at("dangling")).unwrap();
        write(&at("dangling"), b"new").unwrap();
        assert!(at("dangling").is_symlink());
        assert_eq!(fs::read(at("not there")).unwrap(), b"new");
        fs::write(at("plain"), "").unwrap();
        assert_eq!(mode(&at("not there")), mode(&at("plain")));

        symlink("circle", at("circle")).unwrap();
        write(&at("circle"), b"new").unwrap_err();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 7);
    }

    #[test]
    fn a_name_of_any_length_and_a_failure_leave_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let long = folder.path().join("x".repeat(255));
        write(&long, b"old").unwrap();
        let too_long = folder.path().join("x".repeat(256));
        write(&too_long, b"new").unwrap_err();
        assert_eq!(fs::read(&long).unwrap(), b"old");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_is_no_file_is_written_into_and_not_read() {
        write(Path::new("/dev/null"), b"new").unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        assert!(
            Command::new("mkfifo")
                .arg(&pipe)
                .status()
                .unwrap()
                .success()
        );
        // Before anyone reads: to open it would wait for ever.
        let refused = read(&pipe).unwrap_err().to_string();
        assert_eq!(refused, "expected a regular file, found a pipe");
        let reader = std::thread::spawn({
            let pipe = pipe.clone();
            move || fs::read(pipe).unwrap()
        });
        write(&pipe, b"new").unwrap();
        assert_eq!(reader.join().unwrap(), b"new");
        write(folder.path(), b"new").unwrap_err();
        let refused = read(Path::new("/dev/zero")).unwrap_err().to_string();
        assert_eq!(refused, "expected a regular file, found a device");
    }

    #[test]
    fn excerpts_are_short_and_harmless() {
        assert_eq!(excerpt("\u{1b}[2J\n\u{e9}"), "\\u{1b}[2J\\n\u{e9}");
        let (fits, long) = ("\u{e9}".repeat(160), "\u{e9}".repeat(161));
        assert_eq!(excerpt(&fits), fits);
        assert_eq!(excerpt(&long), format!("{fits}..."));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn an_open_descriptor_is_added_to() {
        use std::os::fd::AsRawFd as _;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let mut log = File::create(&path).unwrap();
        log.write_all(b"before ").unwrap();
        let link = folder.path().join("link");
        symlink(format!("/proc/self/fd/{}", log.as_raw_fd()), &link).unwrap();
        write(&link, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"before new");
    }
}
