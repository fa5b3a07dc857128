use std::env;
use std::io::Write as _;
use std::iter;
use std::path::PathBuf;
use std::thread::available_parallelism;
use std::time::Instant;

use anyhow::Result;
use kvforge_llama::Tree;
use kvforge_llama::eval::{Copy, EvalOptions, Outcome as Of, Pair, Progress, Report, Task, eval};

use crate::say::say;
use crate::ship::print_json;
use crate::{Outcome, count};

/// Measure how far compressed caches move a real model, beside llama.cpp's own types
///
/// The built tree's llama-perplexity compares the predictions with each cache with those
/// with an f16 cache: on a text, and on a copy task that needs the cache alone. f16 against
/// itself, q8_0, q4_0 and iq4_nl run in every evaluation. The folder gets eval.json, eval.md,
/// eval.html and all logs; a stopped evaluation goes on when it is started again. Exit code
/// 1 if a run failed; types that the tree refuses for this model are no failure.
#[derive(clap::Args)]
#[command(after_help = "\
Example:
  kvforge eval --tree ~/llama.cpp --model model.gguf --text book.txt --types tbq4_0,tbq4_0/tbq3_0 -o eval

The folder also holds the predictions with the f16 cache, 2 bytes for each scored token and
entry of the vocabulary; base-*.bin may be deleted when all runs are done. The copy task holds
4 bytes for each in memory: 2.5 GB with --copy 8192 and a vocabulary of 152,000.")]
pub struct Args {
    /// Folder of a llama.cpp source tree that was built
    #[arg(long, value_name = "TREE")]
    tree: PathBuf,
    /// GGUF model
    #[arg(long, value_name = "GGUF")]
    model: PathBuf,
    /// Text to score, at least CTX * CHUNKS tokens
    #[arg(long, value_name = "FILE")]
    text: PathBuf,
    /// Cache types of K and V, separated by commas; one name means both
    #[arg(long, value_name = "K/V,K/V", value_delimiter = ',')]
    types: Vec<Pair>,
    /// Newest tokens that are kept exact beside the cache, for types of kvforge; 0 is none.
    /// A run for each, with --cal keys centred (without a window both ways)
    #[arg(
        long,
        value_name = "N,N",
        value_delimiter = ',',
        default_value = "0,32"
    )]
    window: Vec<u32>,
    /// First tokens that are kept exact, too: a run for each, with each --window but 0
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "4")]
    first: Vec<u32>,
    /// Tokens of a chunk; the second half of each is scored
    #[arg(long, value_name = "N", default_value_t = 1024)]
    ctx: usize,
    /// Chunks of the text
    #[arg(long, value_name = "N", default_value_t = 8)]
    chunks: usize,
    /// Key means that `kvforge calibrate` wrote: everything without a window runs a second
    /// time, keys centred
    #[arg(long, value_name = "FILE")]
    cal: Option<PathBuf>,
    /// Tokens of the copy task; 0 leaves it out
    #[arg(long, value_name = "N", default_value_t = 8192)]
    copy: usize,
    /// Captured attention (see `kvforge quality`), for the error by layer
    #[arg(long, value_name = "KV.safetensors")]
    capture: Option<PathBuf>,
    /// Folder for everything that is written
    #[arg(short, long, value_name = "DIR")]
    out: PathBuf,
    /// Threads of every run [default: one for each core]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> Result<Outcome> {
    let tree = Tree::open(&args.tree)?;
    let options = EvalOptions {
        model: args.model,
        text: args.text,
        types: args.types,
        windows: args.window,
        firsts: args.first,
        ctx: args.ctx,
        chunks: args.chunks,
        calibration: args.cal,
        copy: args.copy,
        capture: args.capture,
        out: args.out,
        threads: match args.threads {
            Some(threads) => threads,
            None => available_parallelism().map_or(1, |n| n.get()),
        },
        command: iter::once("kvforge".into())
            .chain(env::args_os().skip(1).map(|a| a.display().to_string()))
            .collect::<Vec<_>>()
            .join(" "),
    };
    let start = Instant::now();
    let report = eval(&tree, &options, &mut |progress| show(progress, start))?;
    if args.json {
        print_json(&serde_json::to_value(&report)?)?;
    } else {
        print(&report);
        say!("\nreport: {}", options.out.join("eval.html").display());
    }
    Ok(match report.has_failures() {
        true => Outcome::CheckFailed,
        false => Outcome::Done,
    })
}

/// On standard error, where it disturbs no output; it matters to nobody if it fails.
fn show(progress: Progress<'_>, start: Instant) {
    let mut err = std::io::stderr().lock();
    let _ = match progress {
        Progress::Started {
            number,
            of,
            name,
            rest,
        } => {
            let rest = rest.map_or(String::new(), |s| format!(", about {} left", time(s)));
            let elapsed = time(start.elapsed().as_secs_f64());
            writeln!(err, "[{number}/{of}] {name} ({elapsed} so far{rest})")
        }
        Progress::Expected { seconds } => writeln!(err, "    will take about {}", time(seconds)),
        Progress::Ended { how, seconds } => match seconds {
            Some(seconds) => writeln!(err, "    {how}; took {}", time(seconds)),
            None => writeln!(err, "    {how}; done before"),
        },
    };
}

/// `42 s`, `12 min`, `3 h 20 min`
fn time(seconds: f64) -> String {
    let minutes = (seconds / 60.0).round() as u64;
    match (seconds, minutes) {
        (s, _) if s < 99.5 => format!("{s:.0} s"),
        (_, m) if m < 100 => format!("{m} min"),
        (_, m) => format!("{} h {} min", m / 60, m % 60),
    }
}

fn print(report: &Report) {
    say!(
        "{}, {} of {} tokens",
        report.text.path,
        count(report.chunks, "chunk"),
        report.ctx
    );
    print_task(&report.divergence);
    match &report.copy {
        Copy::NotRun { not_run, .. } => say!("\ncopy task: not run: {not_run}"),
        Copy::Measured {
            window,
            model_copies,
            task,
            ..
        } => {
            say!("\ncopy task in {window} tokens");
            print_task(task);
            if !model_copies {
                say!("this model does not copy even with the f16 cache: the rows prove nothing");
            }
        }
    }
}

fn print_task(task: &Task) {
    say!(
        "K / V                                  bits    mean KLD               same top token    / q4_0   PPL"
    );
    for row in &task.rows {
        let start = format!("{:<37}  {:<6}", row.name(), row.bits());
        match &row.outcome {
            Of::Measured {
                figures: f, ratios, ..
            } => {
                let (kld, top) = (f.mean_kld, f.same_top);
                let kld = format!("{:.6} ± {:.6}", kld.value, kld.error);
                let top = format!("{:.2} ± {:.2} %", top.value, top.error);
                let ratio = ratios
                    .to_q4_0
                    .map_or("-".into(), |r| format!("{:.3}", r.value));
                let ppl = f.ppl.value;
                say!("{start}  {kld:<21}  {top:<16}  {ratio:<7}  {ppl:.3}");
            }
            Of::Refused { refused } => say!("{start}  refused: {refused}"),
            Of::Failed { failed } => say!("{start}  failed: {failed}"),
        }
    }
}
