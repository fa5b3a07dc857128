//! `cargo xtask up`: from a fresh clone to text generated on a compressed
//! cache, and a table that compares cache types.

use std::path::Path;

use anyhow::{Result, bail};

use crate::command::Log;
use crate::kvforge::{AMX_NOTE, Kvforge, Tree, has_amx, threads};
use crate::measure::{self, Bench, PAIRS, Row};
use crate::places::{Workshop, shown};
use crate::steps::{Inputs, Results};
use crate::{fetch, system};

/// What the model is asked to continue.
const PROMPT: &str = "The three most important things to know about the sea are";

const STEPS: usize = 9;

struct Up {
    workshop: Workshop,
    results: Results,
    step: usize,
}

/// Runs every step. Steps whose result is there are not done again.
pub fn run(workshop: Workshop) -> Result<()> {
    let results = Results::new(workshop.folder("results")?);
    let mut up = Up {
        workshop,
        results,
        step: 0,
    };
    println!("everything goes into {}", shown(up.workshop.dir()));

    let log = up.begin("system packages")?;
    up.end(&system::ensure_programs(&log)?);

    let log = up.begin("kvforge")?;
    let kvforge = Kvforge::build(&log)?;
    up.end("built");

    let log = up.begin("llama.cpp source tree")?;
    let tree = Tree {
        root: up.workshop.path("llama.cpp"),
    };
    up.end(&fetch::tree(&up.workshop, &log, &tree.root)?);

    let log = up.begin("model")?;
    let (model, done) = fetch::model(&up.workshop, &log, &fetch::SMALL)?;
    up.end(&done);

    let log = up.begin("kvforge ship")?;
    let shipped = log.run(&mut kvforge.on("ship", &tree))?;
    up.end(after_colon(&shipped.log, &tree.root));

    let log = up.begin("kvforge build")?;
    if has_amx() {
        up.end(AMX_NOTE);
    }
    log.run(&mut kvforge.build_tree(&tree))?;
    up.end(&format!("in {}", shown(&tree.build_dir())));

    let log = up.begin("kvforge smoke")?;
    up.smoke(&log, &kvforge, &tree, &model)?;

    let bench = Bench {
        tree: &tree,
        model: &model,
        folder: up.workshop.folder("measured")?,
    };
    let log = up.begin("text on a compressed cache")?;
    up.generate(&log, &bench)?;

    let log = up.begin("comparison of cache types")?;
    let rows = up.compare(&log, &bench)?;
    println!("\n{}", measure::table(&rows));
    println!(
        "  SmolLM2-135M-Instruct Q4_1, {} threads. KV bytes are those of the allocated buffers. KLD is against the f16\n  \
         cache, over 8 chunks of 512 tokens: enough to see that it works. For what the types cost in quality, over\n  \
         longer texts and larger models, see docs/quality.md.",
        threads(),
    );
    Ok(())
}

impl Up {
    /// Says which step begins, and opens its log.
    fn begin(&mut self, name: &str) -> Result<Log> {
        self.step += 1;
        println!("[{}/{STEPS}] {name}", self.step);
        Log::new(self.workshop.path("logs").join(format!(
            "up-{}-{}.log",
            self.step,
            name.replace(' ', "-")
        )))
    }

    fn end(&self, done: &str) {
        println!("      {done}");
    }

    /// The built kernels against the oracle, and in a real generation.
    fn smoke(&self, log: &Log, kvforge: &Kvforge, tree: &Tree, model: &Path) -> Result<()> {
        let mut inputs = Inputs::of("smoke").file(kvforge.program())?.file(model)?;
        for file in tree.built_files(&["llama-completion"])? {
            inputs = inputs.file(&file)?;
        }
        let evidence = tree.build_dir().join("kvforge-evidence.json");
        if !evidence.exists() {
            self.results.forget("smoke");
        }
        let (end, new) = self.results.get("smoke", inputs, || {
            let mut smoke = kvforge.on("smoke", tree);
            let printed = log
                .run(smoke.args(["--backend", "cpu", "--model"]).arg(model))?
                .log;
            match printed
                .lines()
                .rev()
                .find(|line| line.starts_with("smoke: "))
            {
                Some(line) => Ok(line.to_string()),
                None => bail!("kvforge smoke ended well but did not say what it checked"),
            }
        })?;
        self.end(&reused(&end, new));
        self.end(&format!("evidence: {}", shown(&evidence)));
        Ok(())
    }

    fn generate(&self, log: &Log, bench: &Bench<'_>) -> Result<()> {
        let mut command = bench.on("llama-completion", "tbq4_0", "tbq4_0");
        command.args([
            "-p", PROMPT, "-n", "48", "-c", "512", "--temp", "0", "--seed", "1", "-no-cnv",
        ]);
        let text = log.run_apart(&mut command)?.stdout;
        self.end(&format!("$ {}", crate::command::in_words(&command)));
        for line in text.trim().lines() {
            println!("      | {line}");
        }
        if !text.contains(PROMPT) || text.trim().len() < PROMPT.len() + 40 {
            bail!("the model generated no text");
        }
        Ok(())
    }

    fn compare(&self, log: &Log, bench: &Bench<'_>) -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        for (n, (k, v)) in PAIRS.iter().enumerate() {
            let (row, new) = bench.row(&self.results, log, k, v)?;
            self.end(&reused(
                &format!("{}/{} {k} / {v}", n + 1, PAIRS.len()),
                new,
            ));
            rows.push(row);
        }
        Ok(rows)
    }
}

fn reused(what: &str, new: bool) -> String {
    if new {
        what.into()
    } else {
        format!("{what} (kept from an earlier run)")
    }
}

/// What `kvforge` says of a tree, without the tree.
fn after_colon<'t>(printed: &'t str, tree: &Path) -> &'t str {
    let begin = format!("{}: ", tree.display());
    printed
        .lines()
        .find_map(|line| line.strip_prefix(&begin))
        .unwrap_or("done")
}
