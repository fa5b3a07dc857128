//! The graphs of a real generation: does llama.cpp by itself take the route to
//! the kernels, in every layer, for every token?
//!
//! `llama-completion` generates a text with the format as its cache type, and
//! the kernels' counters, written by the process when it ends, must be exactly
//! what the model's layers and the number of evaluated tokens imply:
//!
//! ```text
//! encode, in blocks, of layer l:  tokens * n_head_kv(l) * (head_dim_k + head_dim_v) / block_len
//!                                 without head_dim_v, if the format holds no values and V is f16
//! attend, in rows, of layer l:    tokens * n_head(l)
//! ```
//!
//! The numbers of these graphs are not compared with anything, but the same run
//! must give the same text twice.

use std::path::{Path, PathBuf};
use std::process::Command;

use kvforge_evidence::ReachedBy;
use kvforge_formats::{FormatSpec, cache_formats};
use serde::Deserialize;

use super::SmokeError;
use super::routes::Operation;
use super::tally::{Counters, Tally};
use crate::HookStatus;
use crate::gguf::{Header, Layer};

const PROMPT: &str = "The lighthouse keeper wrote in his journal that the storm had come from the \
                      north, and that the ships in the bay had all been driven towards";
const GENERATED: &str = "24";
const CONTEXT: &str = "512";

/// Programs and model of a generation.
pub(crate) struct Generation<'a> {
    /// `llama-completion`.
    pub program: &'a Path,
    pub model: &'a Path,
    /// What [`layers`] read of it.
    pub layers: &'a [Layer],
    pub threads: usize,
    pub isa: &'a str,
    pub hooks: &'a [HookStatus],
}

/// One run of a generation.
struct Run {
    text: String,
    tokens: u64,
    counters: Counters,
}

impl Generation<'_> {
    /// Runs every format that is wanted, and hands over the checks of writing and of reading.
    pub fn run(
        &self,
        wants: impl Fn(&FormatSpec) -> bool,
        done: &mut dyn FnMut(Tally<'_>),
    ) -> Result<(), SmokeError> {
        for format in cache_formats().filter(|f| wants(f)) {
            if let Some(reason) = misfit(format, self.layers) {
                for operation in [Operation::SetRows, Operation::FlashAttn] {
                    let mut tally = self.tally(format, operation);
                    tally.not_run(&reason);
                    done(tally);
                }
                continue;
            }
            for tally in self.format(format, self.layers)? {
                done(tally);
            }
        }
        Ok(())
    }

    fn tally(&self, format: &'static FormatSpec, operation: Operation) -> Tally<'_> {
        let reached_by = ReachedBy::ModelGraph;
        Tally::new(format, operation, reached_by, self.isa, self.hooks)
    }

    fn format(
        &self,
        format: &'static FormatSpec,
        layers: &[Layer],
    ) -> Result<[Tally<'_>; 2], SmokeError> {
        let mut write = self.tally(format, Operation::SetRows);
        let mut read = self.tally(format, Operation::FlashAttn);
        let mut first_text: Option<String> = None;
        for attempt in ["first run", "second run"] {
            let run = match self.generate(format)? {
                Ok(run) => run,
                Err(why) => {
                    write.refused(attempt, &why);
                    read.refused(attempt, why);
                    break;
                }
            };
            let case = format!(
                "{attempt}, {} tokens in {} layers",
                run.tokens,
                layers.len()
            );
            let due = |per_token: fn(&Layer, &FormatSpec) -> u64, kernel: &str| -> Counters {
                let counts = layers.iter().enumerate().map(|(l, layer)| {
                    let slot = l as u32 + 1;
                    (
                        (kernel.to_string(), slot),
                        run.tokens * per_token(layer, format),
                    )
                });
                counts.filter(|(_, n)| *n > 0).collect()
            };
            let due_write = due(blocks, write.kernel());
            let due_read = due(rows, read.kernel());
            // Anything that is neither attention nor expected fails as a write.
            let (of_read, of_write): (Counters, Counters) = run
                .counters
                .into_iter()
                .partition(|((kernel, _), _)| kernel.contains("/attend/"));
            write.count(&case, &of_write, &due_write);
            read.count(&case, &of_read, &due_read);
            match &first_text {
                None => {
                    let told = !run.text.trim().is_empty();
                    read.check(&case, told, || "no text was generated".into());
                    first_text = Some(run.text);
                }
                Some(text) => read.check(&case, *text == run.text, || {
                    format!(
                        "the same run gave another text: {:?}, then {:?}",
                        text, run.text
                    )
                }),
            }
        }
        Ok([write, read])
    }

    /// One run; a run that failed says why.
    fn generate(&self, format: &FormatSpec) -> Result<Result<Run, String>, SmokeError> {
        let io = |cause| SmokeError::Io {
            path: self.program.into(),
            cause,
        };
        let folder = tempfile::tempdir().map_err(io)?;
        let counters = folder.path().join("counters.jsonl");
        let mut command = Command::new(self.program);
        command.arg("-m").arg(self.model);
        command.args(["-p", PROMPT, "-n", GENERATED, "-c", CONTEXT]);
        command.args(["-ctk", format.name, "-ctv", type_v(format), "-fa", "on"]);
        command.args(["--temp", "0", "-s", "1", "-t", &self.threads.to_string()]);
        // A warm-up would run tokens that nothing counts.
        command.args([
            "-no-cnv",
            "--no-warmup",
            "--no-display-prompt",
            "--ignore-eos",
            "--perf",
        ]);
        command
            .env("KVFORGE_COUNTERS", &counters)
            .env("KVFORGE_ISA", self.isa);
        let output = command
            .stdin(std::process::Stdio::null())
            .output()
            .map_err(io)?;
        let log = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            return Ok(Err(format!(
                "llama-completion ended with {}: {}",
                output.status,
                tail(&log)
            )));
        }
        let Some(tokens) = evaluated(&log) else {
            return Err(SmokeError::TokensUnknown {
                program: self.program.into(),
                log: tail(&log),
            });
        };
        let counters = match std::fs::read_to_string(&counters) {
            Ok(text) => parse_counters(&text).map_err(|found| SmokeError::Counters { found })?,
            // Written only once a kernel has been asked for.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Counters::new(),
            Err(cause) => {
                return Err(SmokeError::Io {
                    path: counters,
                    cause,
                });
            }
        };
        Ok(Ok(Run {
            text: String::from_utf8_lossy(&output.stdout).into_owned(),
            tokens,
            counters,
        }))
    }
}

/// Blocks that a token costs a layer.
fn blocks(layer: &Layer, format: &FormatSpec) -> u64 {
    let v = if format.holds_values() {
        layer.head_dim_v
    } else {
        0
    };
    layer.n_head_kv * (layer.head_dim_k + v) / format.block_len as u64
}

/// Rows of attention that a token costs a layer.
fn rows(layer: &Layer, _: &FormatSpec) -> u64 {
    if layer.n_head_kv == 0 {
        0
    } else {
        layer.n_head
    }
}

/// One line of what KVFORGE_COUNTERS names.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Count {
    kernel: String,
    slot: u32,
    count: u64,
}

fn parse_counters(text: &str) -> Result<Counters, String> {
    let mut all = Counters::new();
    for line in text.lines() {
        let Count {
            kernel,
            slot,
            count,
        } = serde_json::from_str(line).map_err(|e| format!("`{line}`: {e}"))?;
        if all.insert((kernel, slot), count).is_some() {
            return Err(format!("`{line}`: the counter is there twice"));
        }
    }
    Ok(all)
}

/// Tokens that a run evaluated, from its report at the end:
///
/// ```text
/// ... prompt eval time = ... ms / <tokens of batches> tokens (...
/// ...        eval time = ... ms / <single tokens> runs (...
/// ```
///
/// `None` if it is not there just once, or if a number is 1, which llama.cpp
/// also prints for 0.
fn evaluated(log: &str) -> Option<u64> {
    let number = |before: &str, unit: &str| {
        let mut found = log.lines().filter_map(|line| {
            let (head, rest) = line.split_once("eval time =")?;
            if head.trim_end().ends_with("prompt") != (before == "prompt") {
                return None;
            }
            let (_, count) = rest.split_once('/')?;
            let mut words = count.split_whitespace();
            let count: u64 = words.next()?.parse().ok()?;
            (words.next()? == unit).then_some(count)
        });
        found.next().filter(|&n| n > 1 && found.next().is_none())
    };
    Some(number("prompt", "tokens")? + number("", "runs")?)
}

/// Cache type of V beside K of a format.
fn type_v(format: &FormatSpec) -> &'static str {
    match format.holds_values() {
        true => format.name,
        false => "f16",
    }
}

/// Why a model's heads do not fit a format, if they do not.
fn misfit(format: &FormatSpec, layers: &[Layer]) -> Option<String> {
    let mut heads = layers.iter().filter(|l| l.n_head_kv > 0).flat_map(|l| {
        let v = format.holds_values().then_some(l.head_dim_v);
        [Some(l.head_dim_k), v].into_iter().flatten()
    });
    let block = format.block_len as u64;
    let odd = heads.find(|head| !head.is_multiple_of(block))?;
    Some(format!(
        "the model has heads of {odd} values, {} takes multiples of {block}",
        format.name
    ))
}

/// The last lines of a log.
fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().filter(|l| !l.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(4)..].join(" | ")
}

/// The layers of a model that a generation will go through.
pub(crate) fn layers(model: &Path) -> Result<Vec<Layer>, SmokeError> {
    let layers = Header::open(model).and_then(|header| header.layers());
    layers.map_err(|cause| SmokeError::Model {
        path: model.into(),
        cause,
    })
}

/// The program of a build that generates text.
pub(crate) fn program(build_dir: &Path, folder: &str) -> Result<PathBuf, SmokeError> {
    let name = format!("llama-completion{}", std::env::consts::EXE_SUFFIX);
    let path = build_dir.join(folder).join(&name);
    match path.is_file() {
        true => Ok(path),
        false => Err(SmokeError::NotBuilt {
            build_dir: build_dir.into(),
            missing: name,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvforge_formats::tbq4_0;

    const LOG: &str = "\
common_perf_print:        load time =      49.12 ms
common_perf_print: prompt eval time =     102.50 ms /    29 tokens (    3.53 ms per token,   282.93 tokens per second)
common_perf_print:        eval time =     170.33 ms /    23 runs   (    7.41 ms per token,   135.03 tokens per second)
common_perf_print:       total time =     280.00 ms /    52 tokens
";

    #[test]
    fn evaluated_tokens_are_read_from_the_report() {
        assert_eq!(evaluated(LOG), Some(52));
        let unknown = [
            String::new(),
            format!("{LOG}{LOG}"),
            LOG.replace("23 runs", " 1 runs"),
            LOG.replace("29 tokens (", " 1 tokens ("),
            LOG.replace("29 tokens (", "many tokens ("),
            LOG.replace("23 runs", "23 laps"),
            LOG.lines()
                .filter(|l| !l.contains("runs"))
                .collect::<Vec<_>>()
                .join("\n"),
        ];
        for log in unknown {
            assert_eq!(evaluated(&log), None, "{log}");
        }
    }

    #[test]
    fn counters_are_read() {
        let good = "{\"kernel\":\"a/encode/x\",\"slot\":1,\"count\":7}\n{\"kernel\":\"a/encode/x\",\"slot\":2,\"count\":9}\n";
        let counters = parse_counters(good).unwrap();
        assert_eq!(counters[&("a/encode/x".to_string(), 1)], 7);
        assert_eq!(counters.len(), 2);
        for bad in [
            "{\"kernel\":\"a\",\"slot\":1}",
            "{\"kernel\":\"a\",\"slot\":1,\"count\":7,\"more\":0}",
            "{\"kernel\":\"a\",\"slot\":1,\"count\":7}\n{\"kernel\":\"a\",\"slot\":1,\"count\":7}",
            "{\"kernel\":\"a\",\"slot\":",
        ] {
            assert!(parse_counters(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn counts_follow_from_the_layer() {
        let layer = Layer {
            n_head: 9,
            n_head_kv: 3,
            head_dim_k: 64,
            head_dim_v: 64,
        };
        assert_eq!(blocks(&layer, &tbq4_0::SPEC), 12);
        assert_eq!(rows(&layer, &tbq4_0::SPEC), 9);
        let without_cache = Layer {
            n_head_kv: 0,
            ..layer
        };
        assert_eq!(blocks(&without_cache, &tbq4_0::SPEC), 0);
        assert_eq!(rows(&without_cache, &tbq4_0::SPEC), 0);
    }
}
