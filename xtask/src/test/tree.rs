//! A llama.cpp tree from end to end: ship, build, smoke, the tree's own tests,
//! text, and back to the first byte.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use kvforge_formats::{FormatSpec, cache_formats};

use super::centre::Calibrations;
use super::{PACKAGES, centre, link, refusals, server, sessions};
use crate::command::Log;
use crate::digest::Digest;
use crate::fetch;
use crate::kvforge::{AMX_NOTE, Kvforge, Tree, cargo, has_amx, threads};
use crate::measure::{self, Bench};
use crate::parse;
use crate::places::Workshop;
use crate::report::{Checked, Report, Step};
use crate::steps::Results;

const PROGRAM: &str = "kvforge";
const FETCH: &str = "fetch";
const SHIP: &str = "ship and unship";
pub const BUILD: &str = "build";
const CALIBRATE: &str = "calibrate";

/// Operations of test-backend-ops that may see our types.
const OPS: &str = "GET_ROWS,SET_ROWS,CPY,FLASH_ATTN_EXT,MUL_MAT,MUL_MAT_ID,OUT_PROD,\
                   ATTN_SCORE_TBQ,ATTN_SCORE_QJL,ATTN_SCORE_POLAR";
/// How the cases begin that must work on every one of our types.
const OPS_REQUIRED: [&str; 5] = [
    "GET_ROWS(",
    "SET_ROWS(",
    "CPY(",
    "FLASH_ATTN_EXT(",
    "ATTN_SCORE_",
];

/// What steps hand to later steps.
#[derive(Default)]
struct Found {
    kvforge: Option<Kvforge>,
    model: Option<PathBuf>,
    wide: Option<PathBuf>,
    pristine: Option<Digest>,
    calibrations: Option<Calibrations>,
}

pub fn steps(report: &mut Report, workshop: &Workshop, full: bool, reuse: bool) {
    let tree = Tree {
        root: workshop.path("test/llama.cpp"),
    };
    let mut found = Found::default();
    report.step(
        Step {
            name: PROGRAM,
            after: &[PACKAGES],
            repair: "run `cargo build --release`",
        },
        |log| {
            found.kvforge = Some(Kvforge::build(log)?);
            Ok(Checked::new(1, "program built"))
        },
    );
    report.step(
        Step {
            name: FETCH,
            after: &[PACKAGES],
            repair: "see the log: the registries of Debian, Python and Rust must be reachable",
        },
        |log| {
            workshop.folder("test")?;
            if !reuse {
                // from the first byte: what an earlier run left proves nothing
                fetch::remove_folder(&tree.root)?;
            }
            fetch::tree(workshop, log, &tree.root)?;
            found.model = Some(fetch::model(workshop, log, &fetch::SMALL)?.0);
            found.wide = Some(fetch::model(workshop, log, &fetch::WIDE)?.0);
            if !reuse {
                found.pristine = Some(Digest::of(&tree.root)?);
            }
            Ok(Checked::new(3, "downloads with the right SHA-256"))
        },
    );
    if !reuse {
        report.step(
            Step {
                name: "ship, as cargo tests it",
                after: &[FETCH],
                repair: "run the command in the log by hand",
            },
            |log| {
                let mut test = cargo();
                test.args(["test", "--package", "kvforge-cli", "--test", "ship", "--"])
                    .args(["--show-output", "a_real_tree_is_shipped_and_given_back"])
                    .env("KVFORGE_TREE", fs::canonicalize(&tree.root)?);
                match parse::cargo_tests(&log.run(&mut test)?.log) {
                    (count, not_run) if not_run.is_empty() => Ok(Checked::new(count, "test")),
                    (_, not_run) => bail!("{}", not_run.join(", ")),
                }
            },
        );
    }
    report.step(
        Step {
            name: SHIP,
            after: &[PROGRAM, FETCH],
            repair: "see `kvforge status TREE`, and the hook or file that it names",
        },
        |log| match &found.pristine {
            Some(pristine) => ship(log, found.kvforge()?, &tree, pristine),
            None => {
                log.run(&mut found.kvforge()?.on("ship", &tree))?;
                Ok(Checked::new(1, "tree shipped, of an earlier run"))
            }
        },
    );
    report.step(
        Step {
            name: BUILD,
            after: &[SHIP],
            repair: "the compiler's words are in the log",
        },
        |log| {
            if has_amx() {
                println!("      {AMX_NOTE}");
            }
            log.run(&mut found.kvforge()?.build_tree(&tree))?;
            let programs = fs::read_dir(tree.build_dir().join("bin"))?.count();
            Ok(Checked::new(programs, "programs and libraries built"))
        },
    );
    report.step(
        Step {
            name: "smoke",
            after: &[BUILD],
            repair: "each failed check above names its operation, type and kernel",
        },
        |log| {
            let mut smoke = found.kvforge()?.on("smoke", &tree);
            let printed = log.run(
                smoke
                    .args(["--backend", "cpu", "--model"])
                    .arg(found.model()?)
                    .arg("--model")
                    .arg(found.wide()?),
            )?;
            let line = printed
                .log
                .lines()
                .rev()
                .find_map(|line| line.strip_prefix("smoke: "));
            let count = line.and_then(|line| line.split_once(" checks passed, 0 failed"));
            let (count, _) = count.context("kvforge smoke did not say how many checks passed")?;
            Ok(Checked::new(count.parse()?, "checks"))
        },
    );
    report.step(
        Step {
            name: "contract",
            after: &["smoke"],
            repair: "each line above names what is claimed and what is proved",
        },
        |log| {
            let kvforge = found.kvforge()?;
            log.run(&mut kvforge.contract("write", &tree))?;
            log.run(&mut kvforge.contract("check", &tree))?;
            Ok(Checked::new(2, "commands: written, checked"))
        },
    );
    report.step(
        Step {
            name: "test-quantize-fns",
            after: &[BUILD],
            repair: "a constant or a codec is wrong; the line above says which type",
        },
        |log| quantize_fns(log, &tree),
    );
    report.step(
        Step {
            name: "test-backend-ops",
            after: &[BUILD],
            repair: "the operation above differs from the oracle",
        },
        |log| backend_ops(log, &tree),
    );
    report.step(
        Step {
            name: "text",
            after: &[BUILD],
            repair: "run the command in the log by hand",
        },
        |log| text(log, &found.bench(workshop, &tree)?),
    );
    report.step(
        Step {
            name: "context shift",
            after: &[BUILD],
            repair: "look at the hook cache-shift",
        },
        |log| context_shift(log, &found.bench(workshop, &tree)?),
    );
    report.step(
        Step {
            name: "refusals",
            after: &[BUILD],
            repair: "look at the hooks context-check and gguf-refuse",
        },
        |log| {
            let id = first_id(log, found.kvforge()?, &tree)?;
            refusals::check(log, &found.bench(workshop, &tree)?, id)
        },
    );
    report.step(
        Step {
            name: "sessions",
            after: &[BUILD],
            repair: "look at the hooks cache-shift, cache-can-shift, state-* and *-window*; the check above is one of tests/llama",
        },
        |log| sessions::check(log, workshop, &tree, found.model()?, found.wide()?),
    );
    report.step(
        Step {
            name: CALIBRATE,
            after: &[BUILD],
            repair: "run the command in the log by hand; llama-kvforge-probe says on stderr what it misses",
        },
        |log| {
            let kvforge = found.kvforge()?;
            let made = centre::calibrate(log, workshop, kvforge, &tree, found.models()?)?;
            found.calibrations = Some(made);
            Ok(Checked::new(2, "models calibrated"))
        },
    );
    report.step(
        Step {
            name: "centred keys",
            after: &[CALIBRATE],
            repair: "look at the hooks cache-centre, cache-shift and state-*-centre*; the check above is one of tests/llama",
        },
        |log| {
            let calibrations = found.calibrations()?;
            centre::check(log, workshop, &tree, found.models()?, calibrations)
        },
    );
    report.step(
        Step {
            name: "llama-server",
            after: &[CALIBRATE],
            repair: "what the server said is in the log, and each request can be sent by hand",
        },
        |log| {
            let bench = found.bench(workshop, &tree)?;
            server::check(log, workshop, &bench, found.calibrations()?)
        },
    );
    report.step(
        Step {
            name: "smoke of broken trees",
            after: &[BUILD],
            repair: "kvforge smoke accepts a kernel that is wrong, or a tree without one of its hooks",
        },
        |log| {
            let mut test = cargo();
            test.args(["test", "--package", "kvforge-cli", "--test", "smoke", "--"])
                .args(["--nocapture", "defects_of_a_built_tree_are_found"])
                .env("KVFORGE_BUILT_TREE", fs::canonicalize(&tree.root)?);
            let printed = log.run(&mut test)?;
            // the test prints what a smoke run says of each tree
            let said = |line: &&str| line.starts_with("smoke: ");
            let broken = printed.log.lines().filter(said).count();
            if broken == 0 {
                bail!("the test found no built tree");
            }
            Ok(Checked::new(broken, "broken trees noticed"))
        },
    );
    link::steps(report, workshop, &tree, || found.kvforge());
    if full {
        report.step(
            Step {
                name: "perplexity",
                after: &[BUILD],
                repair: "compare with docs/quality.md",
            },
            |log| perplexity(log, workshop, &found.bench(workshop, &tree)?),
        );
    } else {
        report.skip("perplexity", "only with --full");
    }
    let unship = "unship after the build";
    let Some(pristine) = &found.pristine else {
        return report.skip(unship, "the tree is that of an earlier run and stays");
    };
    report.step(
        Step {
            name: unship,
            after: &[BUILD],
            repair: "each path above is not as it was before kvforge came",
        },
        |log| {
            log.run(&mut found.kvforge()?.on("unship", &tree))?;
            pristine.expect_same(&Digest::of(&tree.root)?)?;
            Ok(Checked::new(
                pristine.len(),
                "files and folders as they were",
            ))
        },
    );
}

impl Found {
    fn kvforge(&self) -> Result<&Kvforge> {
        self.kvforge.as_ref().context("kvforge is not built")
    }

    fn model(&self) -> Result<&PathBuf> {
        self.model.as_ref().context("there is no model")
    }

    fn wide(&self) -> Result<&PathBuf> {
        self.wide
            .as_ref()
            .context("there is no model with wide heads")
    }

    /// The small one, and the one with wide heads.
    fn models(&self) -> Result<[&Path; 2]> {
        Ok([self.model()?, self.wide()?])
    }

    fn calibrations(&self) -> Result<&Calibrations> {
        self.calibrations.as_ref().context("nothing is calibrated")
    }

    fn bench<'a>(&'a self, workshop: &Workshop, tree: &'a Tree) -> Result<Bench<'a>> {
        Ok(Bench {
            tree,
            model: self.model()?,
            folder: workshop.folder("test/measured")?,
        })
    }
}

/// Ship changes what it says and nothing twice; unship gives every byte back.
fn ship(log: &Log, kvforge: &Kvforge, tree: &Tree, pristine: &Digest) -> Result<Checked> {
    let now = || Digest::of(&tree.root);
    let status = || {
        log.run_any(&mut kvforge.on("status", tree))
            .map(|(status, _)| status.code())
    };

    let dry = log.run(kvforge.on("ship", tree).arg("--dry-run"))?;
    pristine
        .expect_untouched(&now()?)
        .context("a dry run wrote to the tree")?;
    let lines = dry
        .stdout
        .lines()
        .filter(|line| line.starts_with('+'))
        .count();
    if lines == 0 {
        bail!("a dry run showed no change");
    }
    if status()? != Some(1) {
        bail!("`kvforge status` takes an untouched tree for a shipped one");
    }

    log.run(&mut kvforge.on("ship", tree))?;
    let shipped = now()?;
    if pristine.expect_same(&shipped).is_ok() {
        bail!("`kvforge ship` changed nothing");
    }
    if status()? != Some(0) {
        bail!("`kvforge status` does not find the tree shipped");
    }
    log.run(&mut kvforge.on("ship", tree))?;
    shipped
        .expect_untouched(&now()?)
        .context("a second `kvforge ship` wrote to the tree")?;

    log.run(&mut kvforge.on("unship", tree))?;
    pristine
        .expect_same(&now()?)
        .context("`kvforge unship` did not restore the tree")?;
    log.run(&mut kvforge.on("ship", tree))?;
    shipped
        .expect_same(&now()?)
        .context("the tree is another one after ship, unship, ship")?;
    Ok(Checked::new(8, "states of the tree"))
}

/// The ggml type id that the tree has for the first of our formats.
fn first_id(log: &Log, kvforge: &Kvforge, tree: &Tree) -> Result<u32> {
    let printed = log.run(&mut kvforge.on("status", tree))?;
    let first = cache_formats().next().context("there are no formats")?;
    let before = format!("{} = ", first.name);
    let id = printed.stdout.split(&before).nth(1);
    let id = id.and_then(|rest| rest.split([',', '\n']).next());
    id.and_then(|id| id.parse().ok())
        .context("`kvforge status` names no type ids")
}

/// The tree's test of codecs, with thresholds from the formats' specifications.
fn quantize_fns(log: &Log, tree: &Tree) -> Result<Checked> {
    let printed = log.run(tree.built("test-quantize-fns").arg("-v"))?;
    let mut count = 0;
    for format in cache_formats() {
        let of_format = |line: &&str| line.trim_start().starts_with(&format!("{} ", format.name));
        let lines: Vec<&str> = printed.stdout.lines().filter(of_format).collect();
        if let Some(line) = lines.iter().find(|line| !line.contains("ok (")) {
            bail!("{line}");
        }
        if lines.is_empty() {
            bail!("test-quantize-fns does not know {}", format.name);
        }
        count += lines.len();
    }
    Ok(Checked::new(count, "errors within specification"))
}

/// The tree's test of operations, with our oracle as the reference.
fn backend_ops(log: &Log, tree: &Tree) -> Result<Checked> {
    let names: Vec<&str> = cache_formats().map(|f| f.name).collect();
    let mut command = tree.built("test-backend-ops");
    command.args([
        "test",
        "-b",
        "CPU",
        "-o",
        OPS,
        "-p",
        &names.join("|"),
        "-j",
        &threads().to_string(),
    ]);
    let printed = log.run(&mut command)?;
    let mut passed = 0;
    let mut not_run = Vec::new();
    for format in cache_formats() {
        let cases = parse::op_cases(&printed.stdout, format.name);
        if let Some(case) = cases.failed.first() {
            bail!(
                "{} cases on {} failed; the first: {case}",
                cases.failed.len(),
                format.name
            );
        }
        for op in OPS_REQUIRED {
            let ran = |line: &&str| line.trim_start().starts_with(op) && line.contains(format.name);
            if !printed
                .stdout
                .lines()
                .any(|line| ran(&line) && line.contains("OK"))
            {
                bail!("no case of {op}...) on {} ran", format.name);
            }
        }
        let required = |case: &&String| OPS_REQUIRED.iter().any(|op| case.starts_with(op));
        not_run.extend(
            cases
                .unsupported
                .iter()
                .filter(required)
                .map(|case| format!("refused by the backend: {case}")),
        );
        passed += cases.passed;
    }
    Ok(Checked::new(passed, "cases on our types").without(not_run))
}

/// The formats that fit the small model's heads.
pub fn fitting() -> Vec<&'static FormatSpec> {
    let head = fetch::SMALL.head;
    let fits = |format: &&FormatSpec| head.is_multiple_of(format.block_len);
    cache_formats().filter(fits).collect()
}

/// Pairs of cache types that are tried on a model: ours with itself, and with
/// what may be on the other side.
fn pairs() -> Vec<(&'static str, &'static str)> {
    let mut pairs = Vec::new();
    for format in fitting() {
        pairs.push((format.name, format.name));
        for other in ["f16", "q8_0"] {
            pairs.push((format.name, other));
            pairs.push((other, format.name));
        }
    }
    pairs.extend(
        fitting()
            .windows(2)
            .flat_map(|two| [(two[0].name, two[1].name), (two[1].name, two[0].name)]),
    );
    pairs
}

/// A real model writes English with every pair of types.
fn text(log: &Log, bench: &Bench<'_>) -> Result<Checked> {
    let pairs = pairs();
    for (k, v) in &pairs {
        let mut command = bench.on("llama-completion", k, v);
        command.args([
            "-p",
            "The capital of France is",
            "-n",
            "24",
            "-c",
            "256",
            "--temp",
            "0",
            "-no-cnv",
            "--no-warmup",
        ]);
        let text = log.run_apart(&mut command)?.stdout;
        if !text.contains("Paris") {
            bail!("with K {k} and V {v}, the model says: {}", text.trim());
        }
    }
    Ok(Checked::new(pairs.len(), "pairs of cache types"))
}

/// More tokens than the cache holds: old ones are dropped and the positions of
/// the rest are shifted, in the cache, by decoding, rotating and encoding again.
fn context_shift(log: &Log, bench: &Bench<'_>) -> Result<Checked> {
    const CELLS: u64 = 256;
    const TOKENS: u64 = 400;
    for format in fitting() {
        let counters = bench
            .folder
            .join(format!("context-shift-{}.jsonl", format.name));
        let mut command = bench.on("llama-completion", format.name, format.name);
        command.env("KVFORGE_COUNTERS", &counters);
        command.args([
            "-p",
            "Once upon a time",
            "-n",
            &TOKENS.to_string(),
            "-c",
            &CELLS.to_string(),
        ]);
        command.args([
            "--context-shift",
            "--temp",
            "0",
            "--ignore-eos",
            "-no-cnv",
            "--no-warmup",
        ]);
        let log = log.run_apart(&mut command)?.log;
        let (_, generated) = parse::tokens_evaluated(&log)?;
        if (generated as u64) < TOKENS - 1 {
            bail!(
                "{}: only {generated} of {TOKENS} tokens were generated",
                format.name
            );
        }
        let text = fs::read_to_string(&counters).context("no counters were written")?;
        shifted(format, &text, CELLS).with_context(|| format!("K-shift with {}", format.name))?;
    }
    Ok(Checked::new(fitting().len(), "types with shifted caches"))
}

/// The counters show that every layer's whole K cache was decoded, the same
/// number of times.
fn shifted(format: &FormatSpec, counters: &str, cells: u64) -> Result<()> {
    let layers = parse::layer_counts(counters, &format!("{}/decode/", format.name))?;
    let blocks = layers
        .first()
        .context("nothing was decoded: the route of hook cache-shift was not taken")?
        .1;
    if layers.iter().any(|layer| layer.1 != blocks) || blocks % cells != 0 {
        bail!("layers did not decode all of {cells} cells the same number of times: {layers:?}");
    }
    Ok(())
}

/// Predictions with our types stay near those with the f16 cache: nearer with
/// more bits, and not at all as far as with a broken cache, which costs nats.
fn perplexity(log: &Log, workshop: &Workshop, bench: &Bench<'_>) -> Result<Checked> {
    let results = Results::new(workshop.folder("test/results")?);
    let mut formats = fitting();
    formats.sort_by_key(|format| format.code.bits());
    let mut limit = 1.0;
    for format in &formats {
        let (row, _) = bench.row(&results, log, format.name, format.name)?;
        let kld = row.mean_kld();
        println!("{}", measure::table(&[row]));
        if !(0.0 < kld && kld < limit) {
            bail!(
                "the mean KLD of {} is {kld}, but must be above 0 and below {limit}",
                format.name
            );
        }
        limit = kld;
    }
    Ok(Checked::new(formats.len(), "types measured"))
}
