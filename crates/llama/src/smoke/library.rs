//! The libraries that a build left, and what they were built from.

use std::env::consts::{DLL_PREFIX, DLL_SUFFIX};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::SmokeError;

/// Folders of a build folder where CMake's generators put libraries and programs.
pub(crate) const FOLDERS: [&str; 4] = ["bin", "bin/Release", "lib", "."];

/// Shared libraries of a build.
#[derive(Debug)]
pub(crate) struct Built {
    /// Path in the build folder of the folder that holds them.
    pub folder: String,
    /// Files in it that hold kernels or lead to them: ggml-base, and the CPU
    /// backend in all its variants.
    pub libraries: Vec<String>,
}

impl Built {
    /// Looks for shared libraries in a build folder.
    pub fn find(build_dir: &Path) -> Result<Built, SmokeError> {
        let base = file_name("ggml-base");
        let Some(folder) = FOLDERS
            .into_iter()
            .find(|f| build_dir.join(f).join(&base).is_file())
        else {
            let static_one = ["ggml/src/libggml-base.a", "ggml/src/ggml-base.lib"];
            if let Some(found) = static_one.into_iter().find(|f| build_dir.join(f).is_file()) {
                return Err(SmokeError::StaticOnly {
                    found: build_dir.join(found),
                });
            }
            return Err(SmokeError::NotBuilt {
                build_dir: build_dir.into(),
                missing: base,
            });
        };
        let files =
            fs::read_dir(build_dir.join(folder)).and_then(Iterator::collect::<io::Result<Vec<_>>>);
        let files = files.map_err(|cause| SmokeError::Io {
            path: build_dir.join(folder),
            cause,
        })?;
        let mut libraries: Vec<String> = files
            .iter()
            .map(|f| f.file_name().to_string_lossy().into_owned())
            .filter(|name| *name == base || is_cpu(name))
            .collect();
        libraries.sort();
        Ok(Built {
            folder: folder.into(),
            libraries,
        })
    }

    /// Path of a file of the folder, in the build folder.
    pub fn inside(&self, name: &str) -> String {
        match self.folder.as_str() {
            "." => name.into(),
            folder => format!("{folder}/{name}"),
        }
    }
}

/// `ggml-cpu` and, with GGML_CPU_ALL_VARIANTS, `ggml-cpu-haswell` and the like.
fn is_cpu(name: &str) -> bool {
    let stem = name
        .strip_prefix(DLL_PREFIX)
        .and_then(|n| n.strip_suffix(DLL_SUFFIX));
    stem.is_some_and(|s| s == "ggml-cpu" || s.starts_with("ggml-cpu-"))
}

/// File name of a shared library on this system.
pub(crate) fn file_name(library: &str) -> String {
    format!("{DLL_PREFIX}{library}{DLL_SUFFIX}")
}

/// The tree that a build folder was configured for, links resolved, if it says so.
pub(crate) fn made_from(build_dir: &Path) -> Option<PathBuf> {
    let cache = fs::read_to_string(build_dir.join("CMakeCache.txt")).ok()?;
    let prefix = "CMAKE_HOME_DIRECTORY:INTERNAL=";
    let home = cache.lines().find_map(|line| line.strip_prefix(prefix))?;
    Path::new(home).canonicalize().ok()
}

/// A source under `sources` that was changed after the library that it goes into
/// was built: the library is then not made of what is there now.
pub(crate) fn newer_source(sources: &Path, library: &Path) -> io::Result<Option<PathBuf>> {
    let base = library.file_name() == Some(file_name("ggml-base").as_ref());
    let built = fs::metadata(library)?.modified()?;
    let newest = newest(sources, base)?;
    Ok(newest.and_then(|(changed, path)| (changed > built).then_some(path)))
}

/// Whether a file goes into ggml-base, or else into the CPU backend. A header may be for
/// either, or for tests, and what is named after llama is for libllama.
fn goes_into(base: bool, path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    match path.extension().and_then(|e| e.to_str()) {
        Some("rs" | "c") => base,
        Some("cpp") if name.starts_with("llama-") => false,
        Some("cpp") => base == (name == "ggml-kvforge-cache.cpp"),
        _ => false,
    }
}

/// The file that was changed last, of those that go into a library.
fn newest(folder: &Path, base: bool) -> io::Result<Option<(SystemTime, PathBuf)>> {
    let mut found: Option<(SystemTime, PathBuf)> = None;
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let candidate = if path.is_dir() {
            newest(&path, base)?
        } else if goes_into(base, &path) {
            Some((fs::metadata(&path)?.modified()?, path))
        } else {
            None
        };
        found = found.max(candidate);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn touch(path: &Path) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }

    #[test]
    fn shared_libraries_are_found() {
        let build = tempfile::tempdir().unwrap();
        for name in [
            "ggml",
            "ggml-base",
            "ggml-cpu-haswell",
            "ggml-cpu",
            "llama",
            "ggml-cpux",
        ] {
            touch(&build.path().join("bin").join(file_name(name)));
        }
        let built = Built::find(build.path()).unwrap();
        assert_eq!(built.folder, "bin");
        let expected = ["ggml-base", "ggml-cpu-haswell", "ggml-cpu"].map(file_name);
        let mut expected = expected.to_vec();
        expected.sort();
        assert_eq!(built.libraries, expected);
        assert_eq!(built.inside("x"), "bin/x");
    }

    #[test]
    fn a_static_build_is_told_from_none() {
        let build = tempfile::tempdir().unwrap();
        let none = Built::find(build.path()).unwrap_err();
        assert!(matches!(none, SmokeError::NotBuilt { .. }), "{none}");
        touch(&build.path().join("ggml/src/libggml-base.a"));
        let error = Built::find(build.path()).unwrap_err();
        assert!(matches!(error, SmokeError::StaticOnly { .. }), "{error}");
    }

    #[test]
    fn a_build_folder_says_what_it_was_made_from() {
        let tree = tempfile::tempdir().unwrap();
        let root = tree.path().canonicalize().unwrap();
        let build = tree.path().join("build");
        assert_eq!(made_from(&build), None);
        fs::create_dir(&build).unwrap();
        let home = root.join(".").display().to_string();
        let cache = format!("A:STRING=b\nCMAKE_HOME_DIRECTORY:INTERNAL={home}\nB:STRING=c\n");
        fs::write(build.join("CMakeCache.txt"), cache).unwrap();
        assert_eq!(made_from(&build), Some(root));
    }

    #[test]
    fn a_source_newer_than_the_library_is_found() {
        let place = tempfile::tempdir().unwrap();
        let sources = place.path().join("sources");
        let base = place.path().join(file_name("ggml-base"));
        let cpu = place.path().join(file_name("ggml-cpu"));
        let at = |path: &Path, seconds| {
            touch(path);
            let file = fs::File::options().write(true).open(path).unwrap();
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
            file.set_modified(time).unwrap();
        };
        let newer = |library| newer_source(&sources, library).unwrap();
        at(&base, 1000);
        at(&cpu, 1000);
        at(&sources.join("rust/lib.rs"), 900);
        // Go into neither.
        at(&sources.join("manifest.json"), 2000);
        at(&sources.join("llama-kvforge-window.cpp"), 2000);
        assert_eq!((newer(&base), newer(&cpu)), (None, None));
        let (kernel, glue) = (sources.join("rust/cpu/kernel.rs"), sources.join("x.cpp"));
        at(&kernel, 1001);
        assert_eq!((newer(&base), newer(&cpu)), (Some(kernel.clone()), None));
        at(&glue, 1001);
        assert_eq!(
            (newer(&base), newer(&cpu)),
            (Some(kernel), Some(glue.clone()))
        );
        let cache = sources.join("ggml-kvforge-cache.cpp");
        at(&cache, 1002);
        assert_eq!((newer(&base), newer(&cpu)), (Some(cache), Some(glue)));
    }
}
