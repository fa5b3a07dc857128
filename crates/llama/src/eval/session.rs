//! The runs of an evaluation, one after the other.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use kvforge_evidence::digest;

use super::copy;
use super::parse::{self, Estimate, Figures, Said};
use super::plan::{F16, Pair, Run};
use super::program::{Ended, Program};
use super::report::{Copy, Outcome, Ratios, Row, Task, fill_in_ratios};
use super::state::{SavedBase, SavedPassage, SavedRun, State, key};
use super::{EvalError, EvalOptions, Progress};

/// Folder of the logs, in that of the evaluation.
pub(super) const LOGS: &str = "logs";

/// How often the length of a passage is tried.
const TRIES: usize = 6;

/// What a text is scored in.
struct Text<'a> {
    /// Beginning of the names of its files.
    name: &'static str,
    path: &'a Path,
    digest: &'a str,
    ctx: usize,
    chunks: usize,
}

impl Text<'_> {
    fn tokens(&self) -> usize {
        self.ctx * self.chunks
    }
}

pub(super) struct Session<'a> {
    options: &'a EvalOptions,
    program: &'a Program,
    /// The lock on the folder.
    lock: &'a File,
    runs: &'a [Run],
    progress: &'a mut dyn FnMut(Progress<'_>),
    state: State,
    /// Digest of the model.
    pub model: String,
    /// Digest of the calibration.
    pub calibration: Option<String>,
    /// Runs that began, reused ones included.
    number: usize,
    /// Tokens that runs are still to read.
    left: usize,
    /// Tokens and seconds of the runs that were really made.
    made: (usize, f64),
}

impl<'a> Session<'a> {
    pub fn new(
        options: &'a EvalOptions,
        program: &'a Program,
        lock: &'a File,
        runs: &'a [Run],
        progress: &'a mut dyn FnMut(Progress<'_>),
    ) -> Result<Self, EvalError> {
        let tokens = options.ctx * options.chunks + options.copy;
        Ok(Session {
            options,
            program,
            lock,
            runs,
            progress,
            state: State::open(&options.out)?,
            model: String::new(),
            calibration: None,
            number: 0,
            left: tokens * (1 + runs.len()),
            made: (0, 0.0),
        })
    }

    /// The text that the user gave.
    pub fn divergence(&mut self, digest: &str) -> Result<Task, EvalError> {
        let options = self.options;
        self.task(&Text {
            name: "text",
            path: &options.text,
            digest,
            ctx: options.ctx,
            chunks: options.chunks,
        })
    }

    /// The copy task. If it cannot begin, that does not take away what was measured.
    pub fn copy(&mut self) -> Result<Copy, EvalError> {
        let window = self.options.copy;
        if window == 0 {
            let not_run = "--copy 0".into();
            return Ok(Copy::NotRun {
                not_run,
                failed: false,
            });
        }
        match self.copy_task(window) {
            Err(e @ (EvalError::Base { .. } | EvalError::TextShort { .. })) => Ok(Copy::NotRun {
                not_run: e.to_string(),
                failed: true,
            }),
            copied => copied,
        }
    }

    fn copy_task(&mut self, window: usize) -> Result<Copy, EvalError> {
        let passage = self.passage(window)?;
        // What llama-perplexity asks for at least.
        let text = copy::text(passage.words, passage.tokens, 2 * window);
        let path = self.options.out.join("copy.txt");
        kvforge_files::write(&path, text.as_bytes())
            .map_err(EvalError::io(&path, "write the file"))?;
        let task = self.task(&Text {
            name: "copy",
            path: &path,
            digest: &digest::bytes(text.as_bytes()),
            ctx: window,
            chunks: 1,
        })?;
        Ok(Copy::Measured {
            window,
            passage_tokens: passage.tokens,
            passage_words: passage.words,
            model_copies: task.base_ppl.value <= copy::COPIES_BELOW,
            task,
        })
    }

    /// A passage of as many tokens of this model as half a window takes.
    fn passage(&mut self, window: usize) -> Result<SavedPassage, EvalError> {
        let identity = self.program.identity();
        let key = key(&["passage/1", &self.model, &identity, &window.to_string()]);
        if let Some(passage) = self.state.passage(&key) {
            return Ok(passage);
        }
        let mut words = copy::first_guess(window);
        let mut best = None;
        for _ in 0..TRIES {
            let tokens = self.count_tokens(window, words)?;
            if tokens <= copy::most_tokens(window) {
                let passage = SavedPassage { words, tokens };
                best = Some(passage);
                if tokens * 10 >= copy::most_tokens(window) * 9 {
                    break;
                }
            }
            words = copy::next_guess(window, words, tokens);
        }
        let passage = best.ok_or_else(|| EvalError::Base {
            log: self.log("copy-passage"),
            expected: "a passage of half a window",
            found: format!("none among {TRIES} of different lengths"),
        })?;
        self.state.add_passage(&key, passage)?;
        Ok(passage)
    }

    /// The program refuses to score so short a text, and says how long it is.
    fn count_tokens(&self, window: usize, words: usize) -> Result<usize, EvalError> {
        let path = self.options.out.join("passage.txt");
        kvforge_files::write(&path, copy::passage(words).as_bytes())
            .map_err(EvalError::io(&path, "write the file"))?;
        let text = Text {
            name: "copy",
            path: &path,
            digest: "",
            ctx: window,
            chunks: 1,
        };
        let log = self.log("copy-passage");
        let args = self.args(&text, &Pair::both(F16));
        let ended = self.program.run(&args, &log, self.lock, &mut |_| {})?;
        // The text that is scored gets a file of its own.
        fs::remove_file(&path).map_err(EvalError::io(&path, "delete the file"))?;
        let tokens = parse::tokens_of_short_text(&ended.log);
        tokens.ok_or_else(|| EvalError::Base {
            log,
            expected: "the number of tokens of a passage, with a context of --copy",
            found: in_words(&ended),
        })
    }

    fn task(&mut self, text: &Text<'_>) -> Result<Task, EvalError> {
        let base_key = self.base_key(text);
        let keys: Vec<String> = self
            .runs
            .iter()
            .map(|r| self.run_key(r, &base_key))
            .collect();
        let anything_left = keys.iter().any(|key| self.state.run(key).is_none());
        let logits = self.options.out.join(format!("base-{}.bin", text.name));
        let base_ppl = self.base(text, &base_key, &logits, anything_left)?;
        let mut rows = vec![];
        for (run, key) in self.runs.iter().zip(&keys) {
            rows.push(self.row(text, run, key, &logits)?);
        }
        fill_in_ratios(&mut rows);
        let base_command = self.program.in_words(&self.base_args(text, &logits));
        Ok(Task {
            base_command,
            base_ppl,
            rows,
        })
    }

    /// Saves the predictions with the f16 cache, unless they are there or nothing
    /// is left that needs them.
    fn base(
        &mut self,
        text: &Text<'_>,
        key: &str,
        logits: &Path,
        needed: bool,
    ) -> Result<Estimate, EvalError> {
        self.start(&format!("{}: f16, saved to compare with", text.name));
        if let Some(saved) = self.state.base(key) {
            let is_there = || digest::file(logits).is_ok_and(|found| found == saved.logits);
            if !needed || is_there() {
                let ppl = saved.ppl;
                self.end(text, "as before", None, false);
                return Ok(ppl);
            }
        }
        let part = logits.with_extension("part");
        let log = self.log(&format!("{}-base", text.name));
        let ended = self.run(&self.base_args(text, &part), &log)?;
        let fail = |found: String| EvalError::Base {
            log: log.clone(),
            expected: "the predictions",
            found,
        };
        if let Some(tokens) = parse::tokens_of_short_text(&ended.log) {
            return Err(EvalError::TextShort {
                text: text.path.into(),
                needed: 2 * text.ctx,
                why: "twice the context".into(),
                found: tokens.to_string(),
            });
        }
        if !ended.status.success() {
            return Err(fail(in_words(&ended)));
        }
        let found = parse::base(&ended.log).map_err(fail)?;
        if found.chunks != text.chunks {
            return Err(EvalError::TextShort {
                text: text.path.into(),
                needed: text.tokens(),
                why: format!("{} chunks of {}", text.chunks, text.ctx),
                found: format!("{} chunks", found.chunks),
            });
        }
        let saved = SavedBase {
            ppl: found.ppl,
            logits: digest::file(&part).map_err(EvalError::io(&part, "read the file"))?,
        };
        fs::rename(&part, logits).map_err(EvalError::io(&part, "rename the file"))?;
        self.state.add_base(key, saved)?;
        let how = format!("PPL {:.4}", found.ppl.value);
        self.end(text, &how, Some(ended.seconds), true);
        Ok(found.ppl)
    }

    fn row(
        &mut self,
        text: &Text<'_>,
        run: &Run,
        key: &str,
        logits: &Path,
    ) -> Result<Row, EvalError> {
        let stem = format!("{}-{}", text.name, run.file_stem());
        let args = self.run_args(text, run, logits);
        let command = self.program.in_words(&args);
        let mut row = Row::new(run, text.ctx, command, format!("{LOGS}/{stem}.log"));
        self.start(&format!("{}: {}", text.name, row.name()));
        let (saved, seconds) = match self.state.run(key) {
            Some(saved) => (Ok(saved.clone()), None),
            None => {
                let ended = self.run(&args, &self.log(&stem))?;
                let seconds = ended.seconds;
                let result = judge(&ended, run, text.ctx);
                if let Ok(saved) = &result {
                    self.state.add_run(key, saved.clone())?;
                }
                (result, Some(seconds))
            }
        };
        let (outcome, how) = match saved {
            Ok(SavedRun::Measured { figures, seconds }) => {
                let how = in_short(&figures);
                let ratios = Ratios::default();
                let outcome = Outcome::Measured {
                    figures,
                    ratios,
                    seconds,
                };
                (outcome, how)
            }
            Ok(SavedRun::Refused(refused)) => {
                let how = format!("refused: {refused}");
                (Outcome::Refused { refused }, how)
            }
            Err(why) => {
                let failed = format!("{}: {why}", row.log);
                let how = format!("failed: {failed}");
                (Outcome::Failed { failed }, how)
            }
        };
        row.outcome = outcome;
        self.end(text, &how, seconds, row.figures().is_some());
        Ok(row)
    }

    fn log(&self, stem: &str) -> PathBuf {
        self.options.out.join(LOGS).join(format!("{stem}.log"))
    }

    fn args(&self, text: &Text<'_>, pair: &Pair) -> Vec<OsString> {
        let o = self.options;
        let mut args: Vec<OsString> = vec!["-m".into(), o.model.clone().into()];
        args.extend(["-f".into(), text.path.into()]);
        let numbers = [
            ("-c", text.ctx),
            ("--chunks", text.chunks),
            ("-t", o.threads),
        ];
        args.extend(
            numbers
                .map(|(name, n)| [name.into(), n.to_string().into()])
                .concat(),
        );
        // At level 4 the log names the size of the cache.
        args.extend(["-fa", "on", "-lv", "4", "-ctk", &pair.k, "-ctv", &pair.v].map(Into::into));
        args
    }

    fn base_args(&self, text: &Text<'_>, logits: &Path) -> Vec<OsString> {
        let mut args = self.args(text, &Pair::both(F16));
        args.extend(["--kl-divergence-base".into(), logits.into()]);
        args
    }

    fn run_args(&self, text: &Text<'_>, run: &Run, logits: &Path) -> Vec<OsString> {
        let mut args = self.args(text, &run.pair);
        if let Some(calibration) = self.options.calibration.as_ref().filter(|_| run.centred) {
            args.extend(["--kv-cal".into(), calibration.into()]);
        }
        if run.pair.is_ours() {
            // Said even if it is 0: the tree has a default of its own.
            for (name, n) in [("--kv-window", run.window), ("--kv-first", run.first)] {
                args.extend([name.into(), n.to_string().into()]);
            }
        }
        args.extend(["--kl-divergence-base".into(), logits.into()]);
        args.push("--kl-divergence".into());
        args
    }

    fn base_key(&self, text: &Text<'_>) -> String {
        let (ctx, chunks) = (text.ctx.to_string(), text.chunks.to_string());
        let identity = self.program.identity();
        key(&["base/1", &self.model, &identity, text.digest, &ctx, &chunks])
    }

    fn run_key(&self, run: &Run, base_key: &str) -> String {
        let calibration = self.calibration.as_deref().filter(|_| run.centred);
        let calibration = calibration.unwrap_or_default();
        let plain = ["run/1", base_key, &run.pair.k, &run.pair.v, calibration];
        let exact = [run.window, run.first].map(|n| n.to_string());
        match run.pair.is_ours() {
            false => key(&plain),
            // Also if they are 0: without them it is the tree's default that ran.
            true => key(&[&plain[..], &[&exact[0], &exact[1]]].concat()),
        }
    }

    fn run(&mut self, args: &[OsString], log: &Path) -> Result<Ended, EvalError> {
        let progress = &mut self.progress;
        let mut expected = |seconds| progress(Progress::Expected { seconds });
        self.program.run(args, log, self.lock, &mut expected)
    }

    fn start(&mut self, name: &str) {
        self.number += 1;
        let (tokens, seconds) = self.made;
        let rest = (tokens > 0).then(|| seconds / tokens as f64 * self.left as f64);
        let tasks = if self.options.copy == 0 { 1 } else { 2 };
        (self.progress)(Progress::Started {
            number: self.number,
            of: tasks * (1 + self.runs.len()),
            name,
            rest,
        });
    }

    /// What did not run through says nothing of how long others take.
    fn end(&mut self, text: &Text<'_>, how: &str, seconds: Option<f64>, complete: bool) {
        self.left -= text.tokens();
        if let Some(seconds) = seconds.filter(|_| complete) {
            self.made.0 += text.tokens();
            self.made.1 += seconds;
        }
        (self.progress)(Progress::Ended { how, seconds });
    }
}

/// What came of a run with `--kl-divergence`, if it is worth keeping.
fn judge(ended: &Ended, run: &Run, ctx: usize) -> Result<SavedRun, String> {
    if !ended.status.success() {
        let refusal = parse::refusal(&ended.log);
        return refusal
            .map(SavedRun::Refused)
            .ok_or_else(|| in_words(ended));
    }
    if run.centred && !parse::says_centred(&ended.log) {
        return Err("expected a line that keys are centred, found none".into());
    }
    let said = parse::window(&ended.log)?;
    // A cache takes no more than it has room for, which is at least a context.
    let agrees = |said: u32, asked: u32| said == asked || said < asked && said as usize >= ctx;
    let agrees = match &said {
        None => !run.has_window(),
        Some(Said::None(why)) if run.has_window() => return Ok(SavedRun::Refused(why.clone())),
        Some(Said::None(_)) => true,
        Some(Said::Of { window, first, .. }) => {
            agrees(*window, run.window) && agrees(*first, run.first)
        }
    };
    if !agrees {
        return Err(format!(
            "expected a line that the newest {} and the first {} tokens are read exact, found {}",
            run.window,
            run.first,
            said.map_or("none".into(), |said| said.to_string())
        ));
    }
    let figures = parse::figures(&ended.log)?;
    Ok(SavedRun::Measured {
        figures,
        seconds: ended.seconds,
    })
}

fn in_words(ended: &Ended) -> String {
    format!("ended with {}: {}", ended.status, parse::tail(&ended.log))
}

fn in_short(figures: &Figures) -> String {
    let (kld, top) = (figures.mean_kld, figures.same_top);
    format!(
        "KLD {:.6} ± {:.6}, same top token {:.2} ± {:.2} %",
        kld.value, kld.error, top.value, top.error
    )
}
