//! Reads what other programs print. Everything here is a pure function of
//! text, and an answer that is not there is an error, never a default.

use anyhow::{Context as _, Result, bail};

/// Text after `before` and before `after`, in the last line that has both.
fn between<'t>(text: &'t str, before: &str, after: &str) -> Option<&'t str> {
    text.lines().rev().find_map(|line| {
        let (_, rest) = line.split_once(before)?;
        Some(rest.split_once(after)?.0.trim())
    })
}

fn number(text: &str, before: &str, after: &str) -> Result<f64> {
    let found = between(text, before, after)
        .with_context(|| format!("no `{before}...{after}` in the output"))?;
    found
        .parse()
        .with_context(|| format!("`{before}{found}` is no number"))
}

/// The size of a KV cache as llama.cpp logs it.
#[derive(Debug, PartialEq)]
pub struct CacheSize {
    /// Bytes of the allocated buffers for one token.
    pub bytes_per_token: f64,
    /// Values of K and V, over all layers, for one token.
    pub values_per_token: f64,
}

/// Reads the size of the KV cache from the log of a program that made one.
pub fn cache_size(log: &str) -> Result<CacheSize> {
    let mut mib = 0.0;
    for line in log.lines().filter(|line| line.contains("KV buffer size =")) {
        mib += number(line, "KV buffer size =", "MiB")?;
    }
    let cells = number(log, "MiB (", "cells")?;
    let layers = first_number(log, "n_layer ")?;
    let values =
        layers * (first_number(log, "n_embd_k_gqa ")? + first_number(log, "n_embd_v_gqa ")?);
    if mib <= 0.0 || cells <= 0.0 || values <= 0.0 {
        bail!("the log names a KV cache of {mib} MiB, {cells} cells and {values} values a token");
    }
    Ok(CacheSize {
        bytes_per_token: mib * f64::from(1 << 20) / cells,
        values_per_token: values,
    })
}

/// The number of a line `name = number`.
fn first_number(log: &str, name: &str) -> Result<f64> {
    let line = log
        .lines()
        .find(|line| line.contains(name) && line.contains('='));
    let line = line.with_context(|| format!("no `{name}= ...` in the log"))?;
    let value = line.split_once('=').expect("it has one").1.trim();
    value
        .parse()
        .with_context(|| format!("`{line}` does not end in one number"))
}

/// How far a cache moves a model's predictions from those with the f16 cache.
#[derive(Debug, PartialEq)]
pub struct Divergence {
    /// Mean Kullback-Leibler divergence, in nats.
    pub mean_kld: f64,
    /// Share of positions with the same most likely token, in percent.
    pub same_top: f64,
}

/// Reads what `llama-perplexity --kl-divergence` prints.
pub fn divergence(output: &str) -> Result<Divergence> {
    let found = Divergence {
        mean_kld: number(output, "Mean    KLD:", "±")?,
        same_top: number(output, "Same top p:", "±")?,
    };
    if !(found.mean_kld.is_finite() && found.same_top.is_finite()) {
        bail!("llama-perplexity measured {found:?}");
    }
    Ok(found)
}

/// Tokens a second of a prompt and of a generation, from the JSON of llama-bench.
pub fn speeds(json: &str) -> Result<(f64, f64)> {
    let rows: Vec<serde_json::Value> =
        serde_json::from_str(json).context("llama-bench printed no JSON")?;
    let speed = |prompt: bool| {
        let row = rows.iter().find(|row| (row["n_gen"] == 0) == prompt);
        row.and_then(|row| row["avg_ts"].as_f64())
            .context("llama-bench left out a speed")
    };
    Ok((speed(true)?, speed(false)?))
}

/// How many tokens llama.cpp says it evaluated: those of the prompt and those
/// generated one by one.
pub fn tokens_evaluated(log: &str) -> Result<(usize, usize)> {
    let count = |line: &str, unit: &str| -> Result<usize> {
        let line = log
            .lines()
            .rev()
            .find(|l| l.contains(line))
            .with_context(|| format!("no `{line}` in the log"))?;
        let number = between(line, "ms /", unit)
            .with_context(|| format!("no number of {unit} in `{line}`"))?;
        number
            .parse()
            .with_context(|| format!("`{number}` is no number"))
    };
    Ok((
        count("prompt eval time =", "tokens")?,
        count("       eval time =", "runs")?,
    ))
}

/// How the cases of test-backend-ops on types of ours ended.
#[derive(Debug, Default, PartialEq)]
pub struct OpCases {
    /// Cases that ran and passed.
    pub passed: usize,
    /// Cases that ran and failed, as printed.
    pub failed: Vec<String>,
    /// Cases the backend says it does not support, as printed.
    pub unsupported: Vec<String>,
}

/// Reads what `test-backend-ops test` prints: one line a case,
/// `  OP(params): OK`, and counts those with `word` in their parameters.
pub fn op_cases(output: &str, word: &str) -> OpCases {
    let mut cases = OpCases::default();
    let output = output
        .replace("\x1b[1;32m", "")
        .replace("\x1b[1;31m", "")
        .replace("\x1b[0m", "");
    for line in output
        .lines()
        .filter(|line| line.starts_with("  ") && line.contains(word))
    {
        let Some((case, end)) = line.trim().split_once("): ") else {
            continue;
        };
        match end.trim() {
            "OK" => cases.passed += 1,
            end if end.starts_with("not supported") => cases.unsupported.push(format!("{case})")),
            _ => cases.failed.push(line.trim().into()),
        }
    }
    cases
}

/// Sums what cargo's test programs print: tests passed, and every line
/// `not run: ...` of a test that could not run here.
pub fn cargo_tests(output: &str) -> (usize, Vec<String>) {
    let passed = output.lines().filter_map(|line| {
        line.strip_prefix("test result: ok. ")?
            .split_once(" passed")?
            .0
            .parse::<usize>()
            .ok()
    });
    let mut not_run: Vec<String> = output
        .lines()
        .filter_map(|line| line.trim().strip_prefix("not run: "))
        .map(str::to_string)
        .collect();
    not_run.sort();
    not_run.dedup();
    (passed.sum(), not_run)
}

/// Calls of one kernel, from the file that KVFORGE_COUNTERS names: a JSON
/// object a line, with the layer + 1 as slot.
pub fn layer_counts(counters: &str, kernel: &str) -> Result<Vec<(u64, u64)>> {
    let mut counts = Vec::new();
    for line in counters.lines() {
        let object: serde_json::Value =
            serde_json::from_str(line).with_context(|| format!("`{line}` is no JSON"))?;
        let field = |name: &str| {
            object[name]
                .as_u64()
                .with_context(|| format!("no {name} in `{line}`"))
        };
        if object["kernel"]
            .as_str()
            .is_some_and(|name| name.starts_with(kernel))
        {
            counts.push((field("slot")?, field("count")?));
        }
    }
    counts.sort_unstable();
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_size_is_read() {
        let log = "\
print_info: n_layer               = 30
print_info: n_embd_k_gqa          = 192
print_info: n_embd_v_gqa          = 192
llama_kv_cache:        CPU KV buffer size =   101.25 MiB
llama_kv_cache: size =  101.25 MiB (  8192 cells,  30 layers,  1/1 seqs), K (q8_0):   50.62 MiB, V (q4_0):   50.62 MiB
";
        let size = cache_size(log).unwrap();
        assert_eq!(
            size,
            CacheSize {
                bytes_per_token: 12960.0,
                values_per_token: 11520.0
            }
        );
        assert!(cache_size(&log.replace("KV buffer", "buffer")).is_err());
        assert!(cache_size(&log.replace("= 192", "= [192, 64]")).is_err());
    }

    #[test]
    fn divergence_is_read() {
        let output = "Mean    KLD:   0.001234 ±   0.000056\nSame top p: 97.451 ± 0.204 %\n";
        assert_eq!(
            divergence(output).unwrap(),
            Divergence {
                mean_kld: 0.001234,
                same_top: 97.451
            }
        );
        assert!(divergence(&output.replace("0.001234", "nan")).is_err());
        assert!(divergence("").is_err());
    }

    #[test]
    fn speeds_are_read() {
        let json = r#"[{"n_prompt": 512, "n_gen": 0, "avg_ts": 300.5}, {"n_prompt": 0, "n_gen": 32, "avg_ts": 40.25}]"#;
        assert_eq!(speeds(json).unwrap(), (300.5, 40.25));
        assert!(speeds("[]").is_err());
    }

    #[test]
    fn evaluated_tokens_are_read() {
        let log = "\
x: prompt eval time =      20.00 ms /     5 tokens (    4.00 ms per token,   250.00 tokens per second)
x:        eval time =     700.00 ms /    31 runs   (   22.58 ms per token,    44.29 tokens per second)
";
        assert_eq!(tokens_evaluated(log).unwrap(), (5, 31));
        assert!(tokens_evaluated("").is_err());
    }

    #[test]
    fn op_cases_are_counted() {
        let output = concat!(
            "  CPY(type_src=f32,type_dst=tbq3_0): \x1b[1;32mOK\x1b[0m\n",
            "  CPY(type_src=tbq3_0): not supported [CPU] \n",
            "  CPY(type_src=f32,type_dst=q4_0): \x1b[1;31mFAIL\x1b[0m\n",
            "  SET_ROWS(type=tbq4_0,n=3): [SET_ROWS] NMSE = 0.1 > 0.0001 \x1b[1;31mFAIL\x1b[0m\n",
            "  3/4 tests passed\n\nFailing tests:\n  SET_ROWS(type=tbq4_0,n=3)\n",
        );
        let cases = op_cases(output, "tbq");
        assert_eq!(cases.passed, 1);
        assert_eq!(cases.failed.len(), 1);
        assert_eq!(cases.unsupported, ["CPY(type_src=tbq3_0)"]);
    }

    #[test]
    fn cargo_tests_are_counted() {
        let output = "test result: ok. 12 passed; 0 failed; 0 ignored\nnot run: no AVX2\n  not run: no AVX2\ntest result: ok. 3 passed; 0 failed\n";
        assert_eq!(cargo_tests(output), (15, vec!["no AVX2".to_string()]));
    }

    #[test]
    fn layer_counts_are_read() {
        let lines = r#"{"kernel":"tbq4_0/decode/avx2","slot":2,"count":7}
{"kernel":"tbq4_0/attend/avx2","slot":1,"count":9}
{"kernel":"tbq4_0/decode/avx2","slot":1,"count":7}
"#;
        assert_eq!(
            layer_counts(lines, "tbq4_0/decode/").unwrap(),
            [(1, 7), (2, 7)]
        );
        assert!(layer_counts("{", "x").is_err());
    }
}
