//! Does the built tree really run our kernels, and are their numbers right?
//!
//! The smoke loads the libraries of a built tree, has ggml run graphs of every
//! operation on every format, compares the numbers with the oracle, and reads
//! the kernels' own counters before and after each graph: a right result that
//! did not come from the kernel is a failure too. With a model it also counts
//! what a real generation of llama.cpp does. What it found is left in the build
//! folder as evidence, bound to the hashes of sources and libraries.

mod attention;
mod ggml;
mod inputs;
mod library;
mod machine;
mod model;
mod predict;
mod routes;
mod rows;
mod scores;
mod tally;

use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use kvforge_evidence::{Evidence, FILE_NAME, Hashed, Host, ReachedBy, Record, Run, TreeId, utc};
use kvforge_formats::{FormatSpec, cache_formats};

use crate::gguf::GgufError;
use crate::{HookState, OWN_DIR, Payload, Status, Tree, status};
use ggml::{Ggml, LoadError};
pub(crate) use library::{Built, FOLDERS, made_from};
use machine::Machine;
use routes::Operation;
use tally::Tally;

/// The only backend there is so far.
pub const BACKEND: &str = "cpu";

/// What to check.
#[derive(Clone, Debug, Default)]
pub struct SmokeOptions {
    /// Where the tree was built, if not in [`BUILD_DIR`](crate::BUILD_DIR).
    pub build_dir: Option<PathBuf>,
    /// Formats to check; all if empty.
    pub formats: Vec<&'static FormatSpec>,
    /// GGUF models to generate text with. Each shows the formats that fit its heads.
    pub models: Vec<PathBuf>,
    /// The command line, for the evidence.
    pub command: String,
    /// A file to keep up to date with what is about to run, in words. If the
    /// process does not survive it, the file says what it was; see [`smoke`].
    pub trace: Option<PathBuf>,
}

impl SmokeOptions {
    fn wants(&self, format: &FormatSpec) -> bool {
        self.formats.is_empty() || self.formats.contains(&format)
    }
}

/// The checks of one group, such as one operation on one format.
#[derive(Clone, Debug)]
pub struct Group {
    /// What was checked.
    pub name: String,
    /// Checks that passed.
    pub passed: usize,
    /// Checks that failed, each with its name and why.
    pub failures: Vec<String>,
    /// What the evidence will say, if the group is about a kernel.
    pub record: Option<Record>,
}

/// What the smoke found.
#[derive(Debug)]
pub struct Smoke {
    /// Every group, in the order in which they ran.
    pub groups: Vec<Group>,
    /// Instruction set that the kernels took.
    pub isa: String,
    /// What was written to [`Smoke::file`].
    pub evidence: Evidence,
    /// The evidence.
    pub file: PathBuf,
}

impl Smoke {
    /// Checks that passed.
    pub fn passed(&self) -> usize {
        self.groups.iter().map(|g| g.passed).sum()
    }

    /// Every check that failed.
    pub fn failures(&self) -> impl Iterator<Item = &str> {
        self.groups
            .iter()
            .flat_map(|g| &g.failures)
            .map(String::as_str)
    }
}

/// Why the smoke could not run. A check that failed is no error but a result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SmokeError {
    /// There is no built library or program.
    #[error("{}: expected {missing} of a built tree, found none; run `kvforge build` first", build_dir.display())]
    NotBuilt {
        /// The build folder.
        build_dir: PathBuf,
        /// The file that is missing.
        missing: String,
    },
    /// The tree was built without shared libraries.
    #[error(
        "{}: expected shared libraries, found a static build; the smoke loads what was built, so build with -DBUILD_SHARED_LIBS=ON",
        found.display()
    )]
    StaticOnly {
        /// The static library.
        found: PathBuf,
    },
    /// A library cannot be loaded.
    #[error("{}: expected the libraries of a shipped and built tree, found: {cause}", folder.display())]
    Load {
        /// Folder of the libraries.
        folder: PathBuf,
        /// What is wrong with them.
        cause: LoadError,
    },
    /// A format is no type of the built ggml.
    #[error("expected the built ggml to have the type {name}, found none; ship and build again")]
    NoType {
        /// Name of the type.
        name: &'static str,
    },
    /// The model cannot be used.
    #[error("{}: {cause}", path.display())]
    Model {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        cause: GgufError,
    },
    /// How many tokens a run evaluated is not to be known.
    #[error(
        "{}: expected its report of evaluated tokens, `prompt eval time` and `eval time`, once each and above 1, found: {log}",
        program.display()
    )]
    TokensUnknown {
        /// The program.
        program: PathBuf,
        /// The end of what it said.
        log: String,
    },
    /// The counters that a run left are not to be read.
    #[error("expected counters, one JSON object a line, found {found}; ship and build again")]
    Counters {
        /// The line that is wrong.
        found: String,
    },
    /// The operating system refused something.
    #[error("{}: {cause}", path.display())]
    Io {
        /// File, folder or program.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// The tree cannot be read.
    #[error(transparent)]
    Tree(#[from] crate::Error),
    /// The evidence cannot be written.
    #[error(transparent)]
    Evidence(#[from] kvforge_evidence::Error),
}

/// Runs everything, calls `done` with each group as it ends, and leaves the
/// evidence in the build folder. Evidence of an earlier run is removed first, so
/// that a run that does not end leaves none.
///
/// The built libraries run in this process, and a defect in them may end it, by
/// an assertion of ggml or by a signal. Who must survive that calls it in a
/// process of its own, and reads [`SmokeOptions::trace`] if that one dies.
///
/// # Errors
/// [`SmokeError`] if it could not run.
pub fn smoke(
    tree: &Tree,
    payload: &Payload,
    options: &SmokeOptions,
    done: &mut dyn FnMut(&Group),
) -> Result<Smoke, SmokeError> {
    // A wrong model is told before the evidence of an earlier run is given up.
    let layers = options.models.iter().map(|model| model::layers(model));
    let layers = layers.collect::<Result<Vec<_>, _>>()?;
    let build_dir = options
        .build_dir
        .clone()
        .unwrap_or_else(|| tree.root().join(crate::BUILD_DIR));
    let built = Built::find(&build_dir)?;
    let file = build_dir.join(FILE_NAME);
    remove(&file)?;
    let program = match options.models.is_empty() {
        true => None,
        false => Some(model::program(&build_dir, &built.folder)?),
    };

    let mut groups = vec![];
    let mut finish = |group: Group| {
        done(&group);
        groups.push(group);
    };
    let status = status(tree, payload)?;
    finish(tree_group(tree, &status, &build_dir, &built)?);

    let libraries = hash_libraries(&build_dir, &built, !options.models.is_empty())?;
    let machine = load(&build_dir, &built, options.trace.clone())?;
    let isa = machine.ggml.isa();
    let kernels: [fn(&Machine, &mut Tally<'_>); Operation::ALL.len()] = [
        rows::set_rows,
        rows::get_rows,
        rows::copy_to,
        rows::copy_from,
        scores::mul_mat,
        scores::attn_score,
        attention::flash_attn,
    ];
    for format in cache_formats().filter(|f| options.wants(f)) {
        for (operation, check) in Operation::ALL.into_iter().zip(kernels) {
            let mut tally = Tally::new(
                format,
                operation,
                ReachedBy::SmokeGraph,
                &isa,
                &status.hooks,
            );
            check(&machine, &mut tally);
            finish(group(tally));
        }
    }
    let models = options.models.iter().zip(&layers);
    for ((model, layers), program) in models.zip(program.iter().cycle()) {
        let generation = model::Generation {
            program,
            model,
            layers,
            threads: machine.threads[1],
            isa: &isa,
            hooks: &status.hooks,
        };
        let wants = |format: &FormatSpec| options.wants(format);
        generation.run(wants, &mut |tally| finish(group(tally)))?;
    }

    let mut records: Vec<Record> = groups.iter().filter_map(|g| g.record.clone()).collect();
    let left_out = |f: &&'static FormatSpec| !options.wants(f);
    for format in cache_formats().filter(left_out) {
        for operation in Operation::ALL {
            let why = "another format was asked for";
            records.push(not_run(format, operation, ReachedBy::SmokeGraph, &isa, why));
        }
    }
    if options.models.is_empty() {
        for format in cache_formats() {
            for operation in [Operation::SetRows, Operation::FlashAttn] {
                let why = "no model was given";
                records.push(not_run(format, operation, ReachedBy::ModelGraph, &isa, why));
            }
        }
    }
    let run = describe(tree, &status, options, libraries, machine.ggml.device())?;
    let evidence = Evidence::new(run, records);
    evidence.write(&file)?;
    Ok(Smoke {
        groups,
        isa,
        evidence,
        file,
    })
}

fn load(build_dir: &Path, built: &Built, trace: Option<PathBuf>) -> Result<Machine, SmokeError> {
    let folder = build_dir.join(&built.folder);
    let base = folder.join(library::file_name("ggml-base"));
    let registry = folder.join(library::file_name("ggml"));
    let ggml = Ggml::load(&base, &registry, &folder)
        .map_err(|cause| SmokeError::Load { folder, cause })?;
    for name in ["f32", "f16", "q8_0", "i32", "i64"]
        .into_iter()
        .chain(cache_formats().map(|f| f.name))
    {
        ggml.type_named(name).ok_or(SmokeError::NoType { name })?;
    }
    let processors = std::thread::available_parallelism().map_or(2, usize::from);
    Ok(Machine {
        ggml,
        threads: [1, processors.clamp(2, 4)],
        trace,
    })
}

/// Is everything in the tree that should be, and are the libraries made of it?
fn tree_group(
    tree: &Tree,
    status: &Status,
    build_dir: &Path,
    built: &Built,
) -> Result<Group, SmokeError> {
    let mut group = Group {
        name: "tree".into(),
        passed: 0,
        failures: vec![],
        record: None,
    };
    let mut check = |failure: Option<String>| match failure {
        None => group.passed += 1,
        Some(failure) => group.failures.push(format!("tree: {failure}")),
    };
    for hook in &status.hooks {
        check((hook.state != HookState::Applied).then(|| {
            format!(
                "{}; run `kvforge ship` and `kvforge build`",
                routes::in_words(&[&hook.id], &status.hooks)
            )
        }));
    }
    let wrong: Vec<&str> = status.files.iter().map(|f| f.path.as_str()).collect();
    check(
        (!wrong.is_empty()).then(|| format!("not as this kvforge ships it: {}", wrong.join(", "))),
    );
    let made_from = library::made_from(build_dir);
    check((made_from.as_deref() != Some(tree.root())).then(|| {
        let build_dir = build_dir.display();
        match made_from {
            Some(other) => format!("{build_dir} was built from {}", other.display()),
            None => format!("{build_dir} does not say what it was built from"),
        }
    }));
    let sources = tree.root().join(OWN_DIR);
    for library in &built.libraries {
        let library = build_dir.join(built.inside(library));
        let newer = match sources.is_dir() {
            true => library::newer_source(&sources, &library),
            false => Ok(None),
        };
        let newer = newer.map_err(|cause| SmokeError::Io {
            path: sources.clone(),
            cause,
        })?;
        check(newer.map(|source| {
            let (source, library) = (source.display(), library.display());
            format!("{source} is newer than {library}; run `kvforge build`")
        }));
    }
    Ok(group)
}

fn group(tally: Tally<'_>) -> Group {
    let record = tally.record(BACKEND);
    let of_model = match record.reached_by {
        ReachedBy::SmokeGraph => "",
        ReachedBy::ModelGraph => "model ",
    };
    Group {
        name: format!("{of_model}{} {}", tally.format.name, tally.operation()),
        passed: tally.passed,
        failures: tally.failures,
        record: Some(record),
    }
}

/// What was left out, and why.
fn not_run(
    format: &'static FormatSpec,
    operation: Operation,
    reached_by: ReachedBy,
    isa: &str,
    why: &str,
) -> Record {
    let mut tally = Tally::new(format, operation, reached_by, isa, &[]);
    tally.not_run(why);
    tally.record(BACKEND)
}

/// Hashes what is going to run.
fn hash_libraries(
    build_dir: &Path,
    built: &Built,
    with_model: bool,
) -> Result<Vec<Hashed>, SmokeError> {
    let mut files = built.libraries.clone();
    if with_model {
        files.push(library::file_name("llama"));
    }
    let hashed = files
        .iter()
        .map(|name| Hashed::of(build_dir, &built.inside(name)));
    Ok(hashed.collect::<Result<_, _>>()?)
}

fn describe(
    tree: &Tree,
    status: &Status,
    options: &SmokeOptions,
    libraries: Vec<Hashed>,
    cpu: String,
) -> Result<Run, SmokeError> {
    let kernel_source = match tree.root().join(OWN_DIR).is_dir() {
        true => Some(Hashed::of(tree.root(), OWN_DIR)?),
        false => None,
    };
    Ok(Run {
        kvforge: env!("CARGO_PKG_VERSION").into(),
        date: utc(SystemTime::now()),
        command: options.command.clone(),
        host: Host {
            cpu,
            os: std::env::consts::OS.into(),
            arch: std::env::consts::ARCH.into(),
        },
        tree: TreeId {
            version: format!("ggml {}", tree.ggml_version()),
            shipped_by: status.shipped_by.clone(),
            type_ids: status
                .types
                .iter()
                .map(|t| (t.name.clone(), t.ggml_id))
                .collect(),
        },
        kernel_source,
        libraries,
    })
}

fn remove(file: &Path) -> Result<(), SmokeError> {
    match std::fs::remove_file(file) {
        Err(cause) if cause.kind() != io::ErrorKind::NotFound => Err(SmokeError::Io {
            path: file.into(),
            cause,
        }),
        _ => Ok(()),
    }
}
