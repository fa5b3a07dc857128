//! Building a shipped tree with CMake.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::ship::{BUILD_MARK, io_error};
use crate::{Error, Payload, State, Tree, status, tools};

/// Flags of every build; what the user passes comes later and wins.
const FLAGS: [&str; 8] = [
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=ON",
    "-DGGML_CCACHE=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_SERVER=ON",
    // the server's web page would be downloaded while building
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_TESTS=ON",
];

/// What is built if nothing is asked for: the libraries, the programs that people
/// talk to, the tools that smoke, calibration and measurements use, and the tree's tests of our
/// operations. Everything would be several times as much.
pub const TARGETS: [&str; 9] = [
    "ggml",
    "llama-completion",
    "llama-cli",
    "llama-server",
    "llama-perplexity",
    "llama-bench",
    "llama-kvforge-probe",
    "test-quantize-fns",
    "test-backend-ops",
];

/// How to build.
#[derive(Clone, Debug, Default)]
pub struct BuildOptions {
    /// Where; `build-kvforge` in the tree if not said. `unship` removes only
    /// that one.
    pub build_dir: Option<PathBuf>,
    /// How many jobs at once; the build tool's own choice if not said.
    pub jobs: Option<usize>,
    /// What to build; [`TARGETS`] if empty.
    pub targets: Vec<String>,
    /// Further arguments for the configuring `cmake`.
    pub cmake_args: Vec<String>,
}

/// Configures and builds a shipped tree, and returns the build folder. The
/// programs that do it write to this process's own standard output.
///
/// # Errors
/// [`Error::NotShipped`], [`Error::NoProgram`], [`Error::ForeignBuildDir`],
/// [`Error::BuildFailed`].
pub fn build(tree: &Tree, payload: &Payload, options: &BuildOptions) -> Result<PathBuf, Error> {
    let state = status(tree, payload)?.state;
    if state != State::Shipped {
        return Err(Error::NotShipped {
            tree: tree.root().into(),
            found: state.in_words(),
        });
    }
    let has_ninja = check_programs(&options.cmake_args, &|program| {
        tools::find(program).is_some()
    })?;
    let build_dir = options
        .build_dir
        .clone()
        .unwrap_or_else(|| tree.build_dir());
    claim(&build_dir)?;
    // A folder that is already configured keeps its generator.
    let use_ninja = has_ninja && !build_dir.join("CMakeCache.txt").exists();
    run(configure(tree.root(), &build_dir, use_ninja, options))?;
    run(compile(&build_dir, options))?;
    Ok(build_dir)
}

fn configure(root: &Path, build_dir: &Path, use_ninja: bool, options: &BuildOptions) -> Command {
    let mut cmake = Command::new("cmake");
    cmake.arg("-S").arg(root).arg("-B").arg(build_dir);
    if use_ninja {
        cmake.args(["-G", "Ninja"]);
    }
    cmake.args(FLAGS).args(&options.cmake_args);
    cmake
}

fn compile(build_dir: &Path, options: &BuildOptions) -> Command {
    // Said in any case: `make` would take no number for "without limit".
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let jobs = options.jobs.unwrap_or(cores).to_string();
    let mut cmake = Command::new("cmake");
    cmake
        .arg("--build")
        .arg(build_dir)
        .args(["--config", "Release", "--parallel", &jobs]);
    let asked = options.targets.iter().map(String::as_str);
    for target in asked.chain(TARGETS.into_iter().filter(|_| options.targets.is_empty())) {
        cmake.args(["--target", target]);
    }
    cmake
}

/// Looks for what the build needs before it starts, and says whether Ninja is
/// there.
fn check_programs(cmake_args: &[String], is_there: &dyn Fn(&str) -> bool) -> Result<bool, Error> {
    // A prebuilt kernel object makes Rust unnecessary.
    let prebuilt = cmake_args.iter().any(|a| a.starts_with("-DKVFORGE_OBJECT"));
    for tool in &tools::BUILD {
        let spared = prebuilt && tool.name == tools::RUSTC.name;
        if !spared && !tool.is_there(is_there) {
            return Err(Error::NoProgram {
                program: tool.name,
                package: tool.package,
            });
        }
    }
    Ok(is_there("ninja"))
}

/// Makes the build folder ours, unless someone else's things are in it.
fn claim(folder: &Path) -> Result<(), Error> {
    let mark = folder.join(BUILD_MARK);
    if mark.is_file() {
        return Ok(());
    }
    fs::create_dir_all(folder).map_err(io_error(folder, "create the folder"))?;
    let mut entries = fs::read_dir(folder).map_err(io_error(folder, "list the folder"))?;
    if entries.next().is_some() {
        return Err(Error::ForeignBuildDir {
            path: folder.into(),
        });
    }
    let text = "`kvforge build` made this folder; `kvforge unship` removes it.\n";
    fs::write(&mark, text).map_err(io_error(&mark, "write the file"))
}

fn run(mut command: Command) -> Result<(), Error> {
    let status = command.status().map_err(io_error(
        Path::new(command.get_program()),
        "run the program",
    ))?;
    match status.success() {
        true => Ok(()),
        false => Err(Error::BuildFailed {
            command: in_words(&command),
            status,
        }),
    }
}

fn in_words(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words
        .map(|w| w.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(command: Command) -> String {
        in_words(&command)
    }

    #[test]
    fn what_the_user_says_comes_after_our_flags() {
        let options = BuildOptions {
            jobs: Some(3),
            targets: vec!["ggml".into(), "llama".into()],
            cmake_args: vec!["-DBUILD_SHARED_LIBS=OFF".into()],
            ..BuildOptions::default()
        };
        let line = words(configure("/t".as_ref(), "/b".as_ref(), true, &options));
        assert!(
            line.starts_with("cmake -S /t -B /b -G Ninja -DCMAKE_BUILD_TYPE=Release "),
            "{line}"
        );
        assert!(
            line.ends_with(" -DLLAMA_BUILD_TESTS=ON -DBUILD_SHARED_LIBS=OFF"),
            "{line}"
        );
        assert!(!words(configure("/t".as_ref(), "/b".as_ref(), false, &options)).contains("Ninja"));
        assert_eq!(
            words(compile("/b".as_ref(), &options)),
            "cmake --build /b --config Release --parallel 3 --target ggml --target llama"
        );
        let default = words(compile("/b".as_ref(), &BuildOptions::default()));
        assert!(
            default.contains(" --target ggml --target llama-completion "),
            "{default}"
        );
    }

    #[test]
    fn a_missing_program_is_named_with_its_package() {
        let without = |missing: &'static [&'static str], args: &[String]| {
            check_programs(args, &|p| !missing.contains(&p)).map_err(|e| e.to_string())
        };
        assert_eq!(without(&[], &[]), Ok(true));
        assert_eq!(without(&["ninja"], &[]), Ok(false));
        for (missing, package) in [
            (&["cmake"][..], "cmake"),
            (&["rustc"], "rustc-web"),
            (&["ninja", "make"], "ninja-build"),
        ] {
            let said = without(missing, &[]).unwrap_err();
            assert!(
                said.contains(&format!("install the Debian package {package}")),
                "{said}"
            );
        }
        assert_eq!(
            without(&["rustc"], &["-DKVFORGE_OBJECT=k.o".into()]),
            Ok(true)
        );
    }

    #[test]
    fn only_an_empty_folder_is_taken_over() {
        let folder = tempfile::tempdir().unwrap();
        let ours = folder.path().join("new/build");
        claim(&ours).unwrap();
        assert!(ours.join(BUILD_MARK).is_file());
        fs::write(ours.join("more"), "").unwrap();
        claim(&ours).unwrap();
        let theirs = folder.path().join("new");
        assert!(matches!(claim(&theirs), Err(Error::ForeignBuildDir { path }) if path == theirs));
        assert!(!theirs.join(BUILD_MARK).exists());
    }

    #[test]
    fn a_failing_program_is_reported_with_its_command_line() {
        let mut command = Command::new("sh");
        command.args(["-c", "exit 3"]);
        let said = run(command).unwrap_err().to_string();
        assert!(
            said.starts_with("expected `sh -c exit 3` to succeed, found exit status: 3"),
            "{said}"
        );
    }
}
