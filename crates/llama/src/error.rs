use std::fmt;
use std::io;
use std::path::PathBuf;

use crate::patch::Miss;

/// Why kvforge would not, or could not, work on a tree. Each says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no folder there.
    #[error("{} is not a folder; give the path of a llama.cpp source tree", path.display())]
    NoTree {
        /// What was given.
        path: PathBuf,
    },
    /// The folder holds something else.
    #[error(
        "{} is not a llama.cpp source tree: it has no {missing}; give the folder that holds ggml/ and src/",
        path.display()
    )]
    NotLlamaCpp {
        /// What was given.
        path: PathBuf,
        /// A file that every llama.cpp tree has.
        missing: &'static str,
    },
    /// A file that says what the tree is could not be understood.
    #[error(
        "{file}: expected {expected}, found {found}; this version of llama.cpp is not one that kvforge knows"
    )]
    Unreadable {
        /// Path in the tree, with a line number where one is known.
        file: String,
        /// What should stand there.
        expected: String,
        /// What does.
        found: String,
    },
    /// The tree already has types or patches of another origin.
    #[error(
        "{file}:{line}: expected a stock tree, found `{found}`, which {origin}; use an unpatched llama.cpp"
    )]
    NotStock {
        /// Path in the tree.
        file: String,
        /// Line number, from 1.
        line: usize,
        /// The tell-tale text.
        found: String,
        /// Whose it is.
        origin: &'static str,
    },
    /// A file that a hook is for is not in the tree.
    #[error(
        "{file}: expected this file for hook `{hook}`, found none\n  the hook {reason}\n  use a complete llama.cpp tree of a version that kvforge knows"
    )]
    NoFile {
        /// Path in the tree.
        file: String,
        /// Hook that needs it.
        hook: String,
        /// What the hook is for.
        reason: String,
    },
    /// A hook has no place, or too many.
    #[error("{}", anchor_message(.file, .hook, .reason, .miss))]
    Anchor {
        /// Path in the tree.
        file: String,
        /// Hook whose anchor it is.
        hook: String,
        /// What the hook is for.
        reason: String,
        /// What was looked for and what was found.
        miss: Box<Miss>,
    },
    /// Someone changed lines between kvforge's markers.
    #[error(
        "{file}:{line}: expected the lines that kvforge wrote for hook `{hook}` (hash {recorded}), found edited ones (hash {found})\n  move your change elsewhere, then `kvforge unship --force` and ship again"
    )]
    RegionEdited {
        /// Path in the tree.
        file: String,
        /// Line number of the begin marker, from 1.
        line: usize,
        /// Hook that the region belongs to.
        hook: String,
        /// Hash that the marker states.
        recorded: String,
        /// Hash of what is there.
        found: String,
    },
    /// Markers do not pair up.
    #[error(
        "{file}:{line}: expected kvforge's markers in pairs; {what}\n  restore the file (for example `git checkout -- {file}`) and try again"
    )]
    MarkerDamaged {
        /// Path in the tree.
        file: String,
        /// Line number, from 1.
        line: usize,
        /// What is wrong there.
        what: String,
    },
    /// Someone changed, or put in place, a file in kvforge's own folder.
    #[error(
        "{file}: expected kvforge's own file, found other contents\n  move your change elsewhere, then `kvforge unship --force` and ship again"
    )]
    OwnFileEdited {
        /// Path in the tree.
        file: String,
    },
    /// `manifest.json` in our folder cannot be read.
    #[error(
        "{file}: expected the manifest that kvforge wrote, found {found}\n  restore or delete it; `kvforge unship` works without"
    )]
    Manifest {
        /// Path in the tree.
        file: String,
        /// What is wrong with it.
        found: String,
    },
    /// A file or folder that must be written is write-protected.
    #[error("{}: expected to be writable, found read-only; `chmod u+w` it and try again", path.display())]
    ReadOnly {
        /// The file or folder.
        path: PathBuf,
    },
    /// A symbolic link leads out of the tree.
    #[error(
        "{file}: expected a file inside the tree, found a link to {}; kvforge writes only inside the tree, replace the link by a copy",
        target.display()
    )]
    LeavesTree {
        /// Path in the tree.
        file: String,
        /// Where it leads.
        target: PathBuf,
    },
    /// A file that must be patched is not text.
    #[error("{file}: expected UTF-8 text, found other bytes; restore the file and try again")]
    NotText {
        /// Path in the tree.
        file: String,
    },
    /// A file changed after kvforge had read it. Everything was undone.
    #[error("{}: expected it as it was a moment ago, found it changed by someone else; nothing was kept, try again", path.display())]
    ChangedMeanwhile {
        /// The file.
        path: PathBuf,
    },
    /// The operating system refused something.
    #[error("{}: expected to {doing}, found: {source}; mend that and try again", path.display())]
    Io {
        /// File or folder.
        path: PathBuf,
        /// What kvforge was doing.
        doing: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// A write failed and undoing the earlier ones failed as well.
    #[error(
        "{cause}\n  and these files could not be put back as they were: {}\n  restore them from version control",
        list(.files)
    )]
    RollbackFailed {
        /// What went wrong first.
        cause: Box<Error>,
        /// Files in an unknown state.
        files: Vec<PathBuf>,
    },
    /// The plan found problems; nothing was written.
    #[error("{}", refused_message(.problems))]
    Refused {
        /// All of them.
        problems: Vec<Error>,
    },
    /// `build` wants a tree that `ship` has completed.
    #[error("{}: expected a shipped tree, found one that is {found}; run `kvforge ship` on it first", tree.display())]
    NotShipped {
        /// The tree.
        tree: PathBuf,
        /// Its state, in words.
        found: &'static str,
    },
    /// The build folder holds something that kvforge did not make.
    #[error("{}: expected an empty or absent build folder, or one that `kvforge build` made; give another --build-dir", path.display())]
    ForeignBuildDir {
        /// The folder.
        path: PathBuf,
    },
    /// A program that the build needs is not installed.
    #[error(
        "expected the program {program} on PATH, found none; install the Debian package {package}"
    )]
    NoProgram {
        /// Its name.
        program: &'static str,
        /// Debian package that has it.
        package: &'static str,
    },
    /// CMake, or what it ran, failed.
    #[error("expected `{command}` to succeed, found {status}; its messages above say why")]
    BuildFailed {
        /// The command line.
        command: String,
        /// How it ended.
        status: std::process::ExitStatus,
    },
    /// The patch set itself is wrong.
    #[error("patch set: hook `{hook}`: {what}; mend patchsets/llama-cpp")]
    PatchSet {
        /// Hook, or `(file)`.
        hook: String,
        /// What is wrong.
        what: String,
    },
}

fn anchor_message(file: &str, hook: &str, reason: &str, miss: &Miss) -> String {
    let Miss {
        what,
        text,
        expected,
        found,
        searched: (first, last),
        nearest,
    } = miss;
    let lines = if *expected == 1 { "line" } else { "lines" };
    let mut out = format!(
        "{file}: expected {expected} {lines} for the {what} `{text}` of hook `{hook}`, found {} between lines {first} and {last}",
        found.len()
    );
    if !found.is_empty() {
        let numbers: Vec<String> = found.iter().take(8).map(usize::to_string).collect();
        let more = if found.len() > 8 { ", ..." } else { "" };
        out += &format!("\n  found at {}{more}", numbers.join(", "));
    }
    if let Some((line, text)) = nearest {
        out += &format!("\n  nearest is line {line}: `{text}`");
    }
    out + &format!(
        "\n  the hook {reason}\n  use a llama.cpp version that kvforge knows; to teach it this one, adapt patchsets/llama-cpp"
    )
}

fn refused_message(problems: &[Error]) -> String {
    let count = match problems.len() {
        1 => "1 problem".to_string(),
        n => format!("{n} problems"),
    };
    let mut out = format!("{count}, nothing was written");
    for problem in problems {
        out += &format!("\n\n{problem}");
    }
    out
}

fn list(files: &[PathBuf]) -> impl fmt::Display {
    let names: Vec<String> = files.iter().map(|f| f.display().to_string()).collect();
    names.join(", ")
}
