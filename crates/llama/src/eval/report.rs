//! What an evaluation found, as data. `eval.json` is a [`Report`], written as it is.

use std::collections::BTreeMap;

use kvforge::quality;
use kvforge_evidence::{Hashed, Host};
use serde::Serialize;

use super::parse::{Estimate, Figures};
use super::plan::{F16, Pair, Q4_0, Q8_0, Run};

/// Name and version of the layout of `eval.json`; another layout gets another number.
pub const SCHEMA: &str = "kvforge-eval/1";

/// All of an evaluation: how it was made, and what it found. Names are in camelCase in
/// the file; an absent value is `null`.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// Version of kvforge.
    pub kvforge: &'static str,
    /// When the last run ended, RFC 3339 in UTC.
    pub date: String,
    /// The command line of the whole.
    pub command: String,
    /// The machine.
    pub host: Host,
    /// Threads of every run.
    pub threads: usize,
    /// The tree, such as `ggml 0.25.3`.
    pub tree: String,
    /// BLAKE3 of llama-perplexity and the libraries beside it, by name.
    pub program: BTreeMap<String, String>,
    /// Environment variables that choose kernels or encoders, where set.
    pub settings: BTreeMap<String, String>,
    /// The model.
    pub model: Hashed,
    /// The text.
    pub text: Hashed,
    /// The key means that centred runs subtract.
    pub calibration: Option<Hashed>,
    /// Tokens of a chunk; the second half of each is scored.
    pub ctx: usize,
    /// Chunks of the text.
    pub chunks: usize,
    /// The text: how far predictions move.
    pub divergence: Task,
    /// The copy task: whether the cache can still be read.
    pub copy: Copy,
    /// Captured attention, by layer.
    pub layers: Option<Layers>,
}

/// One text, scored with every pair of types.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Task {
    /// The command that saved the predictions with the f16 cache.
    pub base_command: String,
    /// Perplexity with the f16 cache.
    pub base_ppl: Estimate,
    /// The floor (f16 against itself), the peers, then what was asked for.
    pub rows: Vec<Row>,
}

/// One pair of types.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// Types of K and V.
    pub types: Pair,
    /// Bits a value of the types, scales included, K and V averaged.
    pub bits_per_value: f64,
    /// The same with the exact copies of `window` and `first` in a full context: 16 bits
    /// for that share of its tokens.
    pub effective_bits: f64,
    /// Whether a mean was subtracted from the keys.
    pub centred: bool,
    /// Newest tokens that each query reads exact, from f16 copies; 0: none.
    pub window: u32,
    /// First tokens of the context that are read exact, too.
    pub first: u32,
    /// What was run.
    pub command: String,
    /// What it printed: a file in the evaluation's folder.
    pub log: String,
    /// What came of it.
    #[serde(flatten)]
    pub outcome: Outcome,
}

impl Row {
    /// A run of a context of `ctx` tokens that has not begun.
    pub(crate) fn new(run: &Run, ctx: usize, command: String, log: String) -> Row {
        Row {
            types: run.pair.clone(),
            bits_per_value: run.pair.bits_per_value(),
            effective_bits: run.effective_bits(ctx),
            centred: run.centred,
            window: run.window,
            first: run.first,
            command,
            log,
            outcome: Outcome::Failed {
                failed: "not begun".into(),
            },
        }
    }

    /// `tbq4_0/tbq3_0, centred, window 32, first 4`
    pub fn name(&self) -> String {
        let centred = if self.centred { ", centred" } else { "" };
        format!("{}{centred}{}", self.types, self.exact())
    }

    /// `tbq4_0/tbq3_0, window 32`, where a mark says whether it is centred.
    pub(crate) fn name_beside_mark(&self) -> String {
        format!("{}{}", self.types, self.exact())
    }

    fn exact(&self) -> String {
        let parts = [("window", self.window), ("first", self.first)];
        let parts = parts.into_iter().filter(|(_, n)| *n > 0);
        parts.map(|(name, n)| format!(", {name} {n}")).collect()
    }

    /// `effective_bits` to four places: `4.5`, `4`, `4.1875`.
    pub fn bits(&self) -> String {
        ((self.effective_bits * 1e4).round() / 1e4).to_string()
    }

    /// What was measured, if it was.
    pub fn figures(&self) -> Option<&Figures> {
        match &self.outcome {
            Outcome::Measured { figures, .. } => Some(figures),
            _ => None,
        }
    }

    /// The floor: nothing but rounding.
    pub(crate) fn is_floor(&self) -> bool {
        self.types == Pair::both(F16) && !self.centred
    }
}

/// What came of a run.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum Outcome {
    /// It ran to its end.
    Measured {
        /// What it measured.
        figures: Figures,
        /// Its mean KLD over that of others.
        ratios: Ratios,
        /// How long it took.
        seconds: f64,
    },
    /// The tree does not take these types on this model.
    Refused {
        /// Why, in the tree's words.
        refused: String,
    },
    /// It ended without all figures.
    Failed {
        /// How, with the name of its log.
        failed: String,
    },
}

/// Mean KLD over that of other rows; `null` where a row was not measured or is not
/// above zero. Errors as [`Estimate::over`] works them out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Ratios {
    /// Over q4_0, not centred: llama.cpp as it comes.
    #[serde(rename = "toQ4_0")]
    pub to_q4_0: Option<Estimate>,
    /// Over q8_0, not centred.
    #[serde(rename = "toQ8_0")]
    pub to_q8_0: Option<Estimate>,
    /// Of a centred row over the same types, with the same exact tokens, not centred.
    pub to_not_centred: Option<Estimate>,
}

/// The copy task, or why there is none.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum Copy {
    /// It ran.
    #[serde(rename_all = "camelCase")]
    Measured {
        /// Tokens of the one chunk.
        window: usize,
        /// Tokens of the passage, at most half of them.
        passage_tokens: usize,
        /// Its words.
        passage_words: usize,
        /// Whether the model copies at all, with the f16 cache; if not, the rows
        /// prove nothing.
        model_copies: bool,
        /// The rows.
        #[serde(flatten)]
        task: Task,
    },
    /// It was not asked for, or could not begin.
    #[serde(rename_all = "camelCase")]
    NotRun {
        /// Why.
        not_run: String,
        /// Whether that is a failure.
        failed: bool,
    },
}

/// What `kvforge quality` finds in a capture.
#[derive(Clone, Debug, Serialize)]
pub struct Layers {
    /// The capture.
    pub capture: Hashed,
    /// Without a centre, then, if the capture has one, with it.
    pub reports: Vec<quality::Report>,
}

impl Report {
    /// Every row of both tasks.
    pub fn rows(&self) -> impl Iterator<Item = &Row> {
        let copied = match &self.copy {
            Copy::Measured { task, .. } => &task.rows[..],
            Copy::NotRun { .. } => &[],
        };
        self.divergence.rows.iter().chain(copied)
    }

    /// Whether anything that should have been measured was not.
    pub fn has_failures(&self) -> bool {
        let row_failed = |row: &Row| matches!(row.outcome, Outcome::Failed { .. });
        self.rows().any(row_failed) || matches!(self.copy, Copy::NotRun { failed: true, .. })
    }
}

/// Works the ratios out, row by row.
pub(super) fn fill_in_ratios(rows: &mut [Row]) {
    type Exact = (u32, u32);
    let measured: Vec<(Pair, Exact, Estimate)> = rows
        .iter()
        .filter(|row| !row.centred)
        .filter_map(|row| {
            let exact = (row.window, row.first);
            Some((row.types.clone(), exact, row.figures()?.mean_kld))
        })
        .collect();
    let of = |types: &Pair, exact: Exact| {
        let plain = measured.iter().find(|(t, e, _)| t == types && *e == exact);
        plain.map(|(.., kld)| *kld)
    };
    for row in rows.iter_mut().filter(|row| !row.is_floor()) {
        let not_itself = |name| {
            let peer = Pair::both(name);
            (row.centred || row.types != peer).then(|| of(&peer, (0, 0)))?
        };
        let (q4_0, q8_0) = (not_itself(Q4_0), not_itself(Q8_0));
        let exact = (row.window, row.first);
        let plain = row.centred.then(|| of(&row.types, exact)).flatten();
        if let Outcome::Measured {
            figures, ratios, ..
        } = &mut row.outcome
        {
            let over = |other: Option<Estimate>| figures.mean_kld.over(other?);
            *ratios = Ratios {
                to_q4_0: over(q4_0),
                to_q8_0: over(q8_0),
                to_not_centred: over(plain),
            };
        }
    }
}
