//! What `llama-perplexity` says, read strictly: a figure that is missing, stands
//! there twice or is not finite is an error, never a default.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A figure and its standard error, as the program works it out over all scored
/// tokens.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// The figure.
    pub value: f64,
    /// Its standard error.
    pub error: f64,
}

impl Estimate {
    /// This over another one. The errors count as independent; of runs over the same
    /// tokens they are not, and the true error is then smaller.
    pub fn over(self, other: Estimate) -> Option<Estimate> {
        if self.value <= 0.0 || other.value <= 0.0 {
            return None;
        }
        let value = self.value / other.value;
        let error = value * (self.error / self.value).hypot(other.error / other.value);
        Some(Estimate { value, error })
    }
}

/// What one run measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Figures {
    /// Mean Kullback-Leibler divergence from the f16 cache, in nats a token.
    pub mean_kld: Estimate,
    /// Median of it.
    pub median_kld: f64,
    /// 99 % of the tokens are below.
    pub p99_kld: f64,
    /// The worst token.
    pub max_kld: f64,
    /// How often the most likely token is the same, in percent.
    pub same_top: Estimate,
    /// Root mean square change of the right token's probability, in percentage points.
    pub rms_dp: Estimate,
    /// Perplexity over that with the f16 cache.
    pub ppl_ratio: Estimate,
    /// Perplexity.
    pub ppl: Estimate,
    /// Size of the whole KV cache in MiB, if the log says it; it holds several chunks
    /// where these are short.
    pub cache_mib: Option<f64>,
}

/// What a run without `--kl-divergence` says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Base {
    pub ppl: Estimate,
    pub chunks: usize,
}

/// The statistics at the end of a run with `--kl-divergence`.
pub(crate) fn figures(log: &str) -> Result<Figures, String> {
    Ok(Figures {
        mean_kld: estimate(log, "Mean    KLD:", "±")?,
        median_kld: number(log, "Median  KLD:")?,
        p99_kld: number(log, "99.0%   KLD:")?,
        max_kld: number(log, "Maximum KLD:")?,
        same_top: percent(log, "Same top p:")?,
        rms_dp: percent(log, "RMS Δp    :")?,
        ppl_ratio: ppl_ratio(log)?,
        ppl: estimate(log, "Mean PPL(Q)                   :", "±")?,
        cache_mib: cache_mib(log)?,
    })
}

/// The end of a run that only scores.
pub(crate) fn base(log: &str) -> Result<Base, String> {
    let ppl = estimate(log, "Final estimate: PPL =", "+/-")?;
    let chunks = between(log, "calculating perplexity over", "chunks");
    let chunks = chunks.and_then(|n| n.parse().ok());
    let chunks = chunks.ok_or("the number of chunks is missing")?;
    Ok(Base { ppl, chunks })
}

/// How many tokens a text has that is too short to be scored.
pub(crate) fn tokens_of_short_text(log: &str) -> Option<usize> {
    between(log, "tokenizes to only", "tokens")?.parse().ok()
}

/// The minutes that a run will take by its own estimate.
pub(crate) fn minutes(log: &str) -> Option<f64> {
    let eta = between(log, "ETA", "minutes")?;
    let (hours, minutes) = eta.split_once("hours").unwrap_or(("0", eta));
    let minutes: f64 = minutes.trim().parse().ok()?;
    Some(60.0 * hours.trim().parse::<f64>().ok()? + minutes)
}

/// Why the program would not take a cache type, in its own words.
pub(crate) fn refusal(log: &str) -> Option<String> {
    ["K cache type ", "V cache type "]
        .iter()
        .find_map(|start| {
            log.lines()
                .find_map(|line| Some(line.split_at(line.find(start)?).1))
        })
        .map(|sentence| kvforge_files::excerpt(sentence.trim()))
}

/// Whether the keys of the run were centred, and those of how many layers is not 0.
pub(crate) fn says_centred(log: &str) -> bool {
    between(log, "kvforge: keys centred in ", " of ").is_some_and(|n| n != "0")
}

/// What a tree says of the tokens that are read exact.
#[derive(Debug, PartialEq)]
pub(crate) enum Said {
    /// So many of the newest and of the first ones.
    Of { window: u32, first: u32, mib: f64 },
    /// None, and why.
    None(String),
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Said::Of { window, first, .. } => write!(f, "{window} and {first}"),
            Said::None(why) => f.write_str(why),
        }
    }
}

/// The last that is said of them: a context begins with its default.
pub(crate) fn window(log: &str) -> Result<Option<Said>, String> {
    const OF: &str = "window of ";
    let said = log.lines().rev().find_map(|line| {
        let (_, said) = line.split_once("kvforge: ")?;
        (said.starts_with(OF) || said.starts_with("no window")).then_some(said.trim())
    });
    let Some(said) = said else {
        return Ok(None);
    };
    if !said.starts_with(OF) {
        return Ok(Some(Said::None(kvforge_files::excerpt(said))));
    }
    let of = || {
        Some(Said::Of {
            window: between(said, OF, " tokens")?.parse().ok()?,
            first: between(said, "the first ", ",")?.parse().ok()?,
            mib: between(said, "sequence:", " MiB")?.parse().ok()?,
        })
    };
    let unread = || format!("`{}` is no window", kvforge_files::excerpt(said));
    of().map(Some).ok_or_else(unread)
}

/// The last lines that say something.
pub(crate) fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().filter(|l| !l.trim().is_empty()).collect();
    let last = &lines[lines.len().saturating_sub(3)..];
    match last.is_empty() {
        true => "it printed nothing".into(),
        false => last
            .iter()
            .map(|line| kvforge_files::excerpt(line.trim()))
            .collect::<Vec<_>>()
            .join(" | "),
    }
}

/// Text between two others, in the first line that has both.
fn between<'t>(log: &'t str, before: &str, after: &str) -> Option<&'t str> {
    log.lines().find_map(|line| {
        let (_, rest) = line.split_once(before)?;
        Some(rest.split_once(after)?.0.trim())
    })
}

/// What stands after `label` in the one line that has it.
fn after<'t>(log: &'t str, label: &str) -> Result<&'t str, String> {
    let mut found = log
        .lines()
        .filter_map(|line| Some(line.split_once(label)?.1));
    let name = label.trim_end_matches([':', '=', ' ']);
    match (found.next(), found.next()) {
        (Some(rest), None) => Ok(rest),
        (None, _) => Err(format!("`{name}` is missing")),
        (Some(_), Some(_)) => Err(format!("`{name}` is there twice")),
    }
}

fn finite(label: &str, text: &str) -> Result<f64, String> {
    let text = text.trim();
    let number = text.parse().ok().filter(|x: &f64| x.is_finite());
    let name = label.trim_end_matches([':', '=', ' ']);
    number.ok_or_else(|| format!("`{name}` is `{}`, no number", kvforge_files::excerpt(text)))
}

fn number(log: &str, label: &str) -> Result<f64, String> {
    finite(label, after(log, label)?)
}

fn estimate(log: &str, label: &str, between: &str) -> Result<Estimate, String> {
    estimate_of(label, after(log, label)?, between)
}

/// The program takes the root of a difference of variances. Where both perplexities are
/// the same, as with f16 against itself, rounding can put it below zero: then the error
/// is zero, printed as NaN. Anywhere else a NaN stays one.
fn ppl_ratio(log: &str) -> Result<Estimate, String> {
    const LABEL: &str = "Mean PPL(Q)/PPL(base)         :";
    const SAME: f64 = 1e-5;
    let rest = after(log, LABEL)?;
    match rest.split_once('±') {
        Some((value, error)) if error.trim().ends_with("nan") => {
            let value = finite(LABEL, value)?;
            match (value - 1.0).abs() <= SAME {
                true => Ok(Estimate { value, error: 0.0 }),
                false => Err(finite(LABEL, error).expect_err("it is NaN")),
            }
        }
        _ => estimate_of(LABEL, rest, "±"),
    }
}

/// The sign at the end shows that the line, the last of all, is complete.
fn percent(log: &str, label: &str) -> Result<Estimate, String> {
    let rest = after(log, label)?;
    let number = rest.trim_end().strip_suffix('%');
    estimate_of(
        label,
        number.ok_or(format!("`{label}{rest}` is no percentage"))?,
        "±",
    )
}

fn estimate_of(label: &str, rest: &str, between: &str) -> Result<Estimate, String> {
    let (value, error) = rest
        .split_once(between)
        .ok_or_else(|| format!("`{label}{rest}` has no standard error"))?;
    Ok(Estimate {
        value: finite(label, value)?,
        error: finite(label, error)?,
    })
}

/// Sum over the buffers of all caches (a model with a sliding window has two), and the
/// exact copies beside them.
fn cache_mib(log: &str) -> Result<Option<f64>, String> {
    const LABEL: &str = "KV buffer size =";
    let sizes = log.lines().filter_map(|line| line.split_once(LABEL));
    let sizes: Result<Vec<f64>, String> = sizes
        .map(|(_, rest)| finite(LABEL, rest.trim().trim_end_matches("MiB")))
        .collect();
    let copies = match window(log)? {
        Some(Said::Of { mib, .. }) => mib,
        _ => 0.0,
    };
    sizes.map(|all| (!all.is_empty()).then(|| all.iter().sum::<f64>() + copies))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\
0.00.276.586 I llama_kv_cache:        CPU KV buffer size =    18.28 MiB
0.00.276.586 I llama_kv_cache:        CPU KV buffer size =     1.72 MiB
0.22.831.086 I kl_divergence: 21.97 seconds per pass - ETA 1 hours 0.72 minutes
chunk             PPL               ln(PPL(Q)/PPL(base))          KL Divergence              Δp RMS            Same top p
   1      61.7477 ±    8.6038       0.05120 ±        nan       0.05719 ±    0.00361     4.554 ±  0.423 %    84.932 ±  1.584 %
====== Perplexity statistics ======
Mean PPL(Q)                   :  56.094258 ±   3.909967
Mean PPL(base)                :  53.598896 ±   3.752038
Cor(ln(PPL(Q)), ln(PPL(base))):  99.33%
Mean ln(PPL(Q)/PPL(base))     :   0.045505 ±   0.008069
Mean PPL(Q)/PPL(base)         :   1.046556 ±   0.008445
Mean PPL(Q)-PPL(base)         :   2.495362 ±   0.469501
====== KL divergence statistics ======
Mean    KLD:   0.055903 ±   0.001558
Maximum KLD:   1.130937
99.9%   KLD:   0.945649
99.0%   KLD:   0.287537
Median  KLD:   0.039223
====== Token probability statistics ======
Mean    Δp: -0.873 ± 0.100 %
RMS Δp    :  4.621 ± 0.225 %
Same top p: 84.785 ± 0.795 %
";

    #[test]
    fn all_figures_are_read() {
        let e = |value, error| Estimate { value, error };
        let expected = Figures {
            mean_kld: e(0.055903, 0.001558),
            median_kld: 0.039223,
            p99_kld: 0.287537,
            max_kld: 1.130937,
            same_top: e(84.785, 0.795),
            rms_dp: e(4.621, 0.225),
            ppl_ratio: e(1.046556, 0.008445),
            ppl: e(56.094258, 3.909967),
            cache_mib: Some(20.0),
        };
        assert_eq!(figures(LOG), Ok(expected));
        assert_eq!(minutes(LOG), Some(60.72));
    }

    #[test]
    fn a_figure_that_is_not_there_once_and_finite_is_an_error() {
        for line in LOG.lines().filter(|l| {
            let unused = [
                "KV buffer",
                "ETA",
                "chunk  ",
                "   1  ",
                "===",
                "base)):",
                "ln(",
                "-PPL",
                "Mean PPL(base) ",
                "99.9%",
                "Mean    Δp",
            ];
            !unused.iter().any(|u| l.contains(u))
        }) {
            let number = line
                .rsplit(['±', ':'])
                .next()
                .unwrap()
                .trim_end_matches(" %")
                .trim();
            for (bad, says) in [
                (LOG.replace(line, ""), "missing"),
                (
                    LOG.replace(line, &line.replace(number, "-nan")),
                    "no number",
                ),
                (LOG.replace(line, &line.replace(number, "inf")), "no number"),
                (format!("{LOG}{line}\n"), "twice"),
            ] {
                let said = figures(&bad).unwrap_err();
                assert!(said.contains(says), "{line}: {said}");
            }
        }
        // Cut off anywhere, it is never complete.
        for end in LOG
            .char_indices()
            .map(|(at, _)| at)
            .filter(|&at| at + 2 < LOG.len())
        {
            assert!(figures(&LOG[..end]).is_err(), "{}", &LOG[..end]);
        }
    }

    #[test]
    fn the_last_word_on_the_window_counts() {
        let of = |n: u32, mib: &str| {
            format!(
                "0.1 I kvforge: window of {n} tokens, and the first 4, of every sequence: \
                 {mib} MiB of exact copies beside 20.00 MiB of cache\n"
            )
        };
        let none = "0.2 I kvforge: no window: all tokens are read from the cache\n";
        assert_eq!(window(LOG), Ok(None));
        let said = Said::Of {
            window: 128,
            first: 4,
            mib: 0.5,
        };
        let log = LOG.to_string() + &of(32, "0.25") + none + &of(128, "0.50");
        assert_eq!(window(&log), Ok(Some(said)));
        assert_eq!(
            figures(&log).unwrap().cache_mib,
            Some(20.5),
            "with the copies"
        );
        let log = log + none;
        assert!(
            matches!(window(&log), Ok(Some(Said::None(why))) if why == "no window: all tokens are read from the cache")
        );
        assert_eq!(figures(&log).unwrap().cache_mib, Some(20.0));
        assert!(
            window(&of(32, "many"))
                .unwrap_err()
                .contains("is no window")
        );
    }

    #[test]
    fn an_error_of_nothing_is_zero_and_no_other() {
        let same = LOG.replace("1.046556 ±   0.008445", "0.999999 ±       -nan");
        let ratio = figures(&same).unwrap().ppl_ratio;
        assert_eq!((ratio.value, ratio.error), (0.999999, 0.0));
        let other = same.replace("0.999999", "1.000100");
        assert!(figures(&other).unwrap_err().contains("no number"));
        assert!(figures(&same.replace("0.999999", "nan")).is_err());
    }

    #[test]
    fn a_base_run_is_read() {
        let log = "x I perplexity: calculating perplexity over 4 chunks, n_ctx=1024\n[1]58.6657,\n0.29.065.880 I Final estimate: PPL = 53.5990 +/- 3.75204\n";
        let found = base(log).unwrap();
        assert_eq!(
            (found.ppl.value, found.ppl.error, found.chunks),
            (53.599, 3.75204, 4)
        );
        assert!(base(&log.replace("Final", "")).is_err());
        assert!(base(&log.replace("53.5990", "nan")).is_err());
        let short = "E perplexity: the data file you provided tokenizes to only 37 tokens\n";
        assert_eq!(tokens_of_short_text(short), Some(37));
    }

    #[test]
    fn a_refusal_is_passed_on() {
        let log = "0.00.017.625 E cmn  common_init_: common_init_result: K cache type q4_polar takes heads whose size is a multiple of 128, this model's is 64\nE failed\n";
        let said = refusal(log).unwrap();
        assert!(
            said.starts_with("K cache type q4_polar takes") && said.ends_with("is 64"),
            "{said}"
        );
        assert_eq!(refusal("E failed to load model"), None);
    }

    #[test]
    fn ratios_have_errors() {
        let e = |value, error| Estimate { value, error };
        let ratio = e(3.0, 0.3).over(e(2.0, 0.2)).unwrap();
        assert!(
            (ratio.value - 1.5).abs() < 1e-12 && (ratio.error - 0.15 * 2f64.sqrt()).abs() < 1e-12
        );
        assert_eq!(e(1.0, 0.1).over(e(-1e-6, 1e-6)), None);
    }
}
