use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Error, Record, Status, digest, json};

/// Version of the file's layout.
const SCHEMA: u64 = 2;

/// Name of the file in a build folder.
pub const FILE_NAME: &str = "kvforge-evidence.json";

/// What one smoke run proved.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Evidence {
    schema_version: u64,
    /// BLAKE3 of the rest; see [`content_digest`].
    digest: String,
    run: Run,
    records: Vec<Record>,
}

/// What was run, when and where: true of every record of the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Run {
    /// Version of kvforge that ran it.
    pub kvforge: String,
    /// UTC, RFC 3339; see [`utc`](crate::utc).
    pub date: String,
    /// The command line.
    pub command: String,
    /// The machine.
    pub host: Host,
    /// The tree.
    pub tree: TreeId,
    /// The folder of kernel sources, relative to the tree; absent if the tree
    /// has none.
    pub kernel_source: Option<Hashed>,
    /// The built files that ran, relative to the build folder.
    pub libraries: Vec<Hashed>,
}

/// The machine of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Host {
    /// Name of the processor.
    pub cpu: String,
    /// Operating system.
    pub os: String,
    /// Architecture.
    pub arch: String,
}

/// Which tree it was.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct TreeId {
    /// Whose tree, and its version, such as `ggml 0.25.3`.
    pub version: String,
    /// Version of kvforge that shipped into it, if it is known.
    pub shipped_by: Option<String>,
    /// Type ids that the formats have in it.
    pub type_ids: BTreeMap<String, u32>,
}

/// A file or folder and its BLAKE3.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Hashed {
    /// Where it is, with `/`.
    pub path: String,
    /// Digest as hex; see [`digest`].
    pub blake3: String,
}

impl Hashed {
    /// Hashes the file or folder `path` of `base`.
    ///
    /// # Errors
    /// [`Error::Io`] if it cannot be read.
    pub fn of(base: &Path, path: &str) -> Result<Hashed, Error> {
        Ok(Hashed {
            path: path.into(),
            blake3: hash(&base.join(path))?,
        })
    }
}

/// Something that is no longer what a run saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stale {
    /// The file or folder.
    pub path: PathBuf,
    /// Its digest when the run saw it.
    pub expected: String,
    /// Its digest now; `None` if it is gone.
    pub found: Option<String>,
}

impl Evidence {
    /// Binds records to a run: each gets the status that its numbers support.
    pub fn new(run: Run, mut records: Vec<Record>) -> Evidence {
        for record in &mut records {
            record.status = Some(run.supported(record));
        }
        Evidence {
            schema_version: SCHEMA,
            digest: content_digest(&run, &records),
            run,
            records,
        }
    }

    /// What was run.
    pub fn run(&self) -> &Run {
        &self.run
    }

    /// What it showed.
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// What the run reached with a graph of its own and did not prove, such as
    /// `FLASH_ATTN_EXT on tbq4_0`.
    pub fn unproved(&self) -> impl Iterator<Item = String> {
        let bad = |r: &&Record| {
            r.reached_by == crate::ReachedBy::SmokeGraph
                && !matches!(r.status(), Status::Verified | Status::NotRun(_))
        };
        let failed = self.records.iter().filter(bad);
        failed.map(|r| format!("{} on {}", r.operation, r.format))
    }

    /// Writes the file as a whole or, if that fails, leaves the old one.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        write(path, self)
    }

    /// Reads a file that [`write`](Evidence::write) wrote.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Malformed`] if it is cut off, has a field twice or
    /// one that this version does not know, or another schema;
    /// [`Error::Overclaimed`] and [`Error::Edited`] if someone changed it.
    pub fn read(path: &Path) -> Result<Evidence, Error> {
        let bytes = kvforge_files::read(path).map_err(io_error(path, "read the file"))?;
        let malformed = |what: String| Error::Malformed {
            path: path.into(),
            what: kvforge_files::excerpt(&what),
        };
        let json = json::parse(&bytes).map_err(|e| malformed(e.to_string()))?;
        if let Some(key) = json.duplicates.first() {
            return Err(malformed(format!("`{key}` twice")));
        }
        // Before the fields, which another schema has others of.
        match json.value["schemaVersion"].as_u64() {
            Some(found) if found != SCHEMA => {
                return Err(malformed(format!(
                    "schema {found}, this kvforge reads {SCHEMA}"
                )));
            }
            _ => {}
        }
        let evidence: Evidence =
            serde_json::from_value(json.value).map_err(|e| malformed(e.to_string()))?;
        for record in &evidence.records {
            let supported = evidence.run.supported(record);
            if *record.status() != supported {
                return Err(Error::Overclaimed {
                    path: path.into(),
                    format: record.format.clone(),
                    operation: record.operation.clone(),
                    claimed: record.status().clone(),
                    supported,
                });
            }
        }
        let found = content_digest(&evidence.run, &evidence.records);
        if found != evidence.digest {
            return Err(Error::Edited {
                path: path.into(),
                expected: evidence.digest,
                found,
            });
        }
        Ok(evidence)
    }

    /// Hashes everything again that the run was about.
    ///
    /// # Errors
    /// [`Error::Io`] if something is there and cannot be read.
    pub fn check(&self, tree: &Path, build_dir: &Path) -> Result<Checked<'_>, Error> {
        let sources = self.run.kernel_source.iter().map(|h| (tree, h));
        let libraries = self.run.libraries.iter().map(|h| (build_dir, h));
        let mut stale = vec![];
        for (base, hashed) in sources.chain(libraries) {
            let path = base.join(&hashed.path);
            let found = if path.exists() {
                Some(hash(&path)?)
            } else {
                None
            };
            if found.as_ref() != Some(&hashed.blake3) {
                let expected = hashed.blake3.clone();
                stale.push(Stale {
                    path,
                    expected,
                    found,
                });
            }
        }
        Ok(Checked {
            evidence: self,
            stale,
        })
    }
}

impl Run {
    fn supported(&self, record: &Record) -> Status {
        record.supported(self.kernel_source.is_some(), !self.libraries.is_empty())
    }
}

/// Evidence whose hashes were compared with what is on disk.
#[derive(Clone, Debug)]
pub struct Checked<'a> {
    evidence: &'a Evidence,
    stale: Vec<Stale>,
}

impl Checked<'_> {
    /// What has changed since the run; all of the evidence is stale if anything
    /// has.
    pub fn stale(&self) -> &[Stale] {
        &self.stale
    }

    /// Whether the operation may be relied on: nothing is stale, there is a
    /// record of a graph whose numbers were compared, and every such record is
    /// verified.
    pub fn ready(&self, format: &str, operation: &str, backend: &str) -> bool {
        let mut records = self
            .evidence
            .records
            .iter()
            .filter(|r| r.format == format && r.operation == operation && r.backend == backend)
            .filter(|r| r.reached_by == crate::ReachedBy::SmokeGraph)
            .peekable();
        self.stale.is_empty()
            && records.peek().is_some()
            && records.all(|r| *r.status() == Status::Verified)
    }
}

/// BLAKE3 of run and records as compact JSON. It shows that a file was edited; it
/// is no signature, and whoever means to deceive can work it out as well.
fn content_digest(run: &Run, records: &[Record]) -> String {
    digest::bytes(&serde_json::to_vec(&(run, records)).expect("evidence is JSON"))
}

/// Writes a JSON file as a whole or, if that fails, leaves the old one.
pub(crate) fn write(path: &Path, content: &impl Serialize) -> Result<(), Error> {
    let mut text = serde_json::to_vec_pretty(content).expect("it is JSON");
    text.push(b'\n');
    kvforge_files::write(path, &text).map_err(io_error(path, "write the file"))
}

fn hash(path: &Path) -> Result<String, Error> {
    let hashed = if path.is_dir() {
        digest::folder(path)
    } else {
        digest::file(path)
    };
    hashed.map_err(io_error(path, "read it"))
}

pub(crate) fn io_error(path: &Path, doing: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |cause| Error::Io {
        path: path.into(),
        doing,
        cause,
    }
}
