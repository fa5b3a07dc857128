//! What each format does to captured attention.
//!
//! For every captured layer the keys are coded and decoded, and so are the values, one of
//! the two at a time; attention is then computed in fp64, causally, over the whole
//! capture (a model's sliding window is not in it), and compared with that of the values as
//! captured. With `^` for "coded and decoded":
//!
//! | figure | definition |
//! |---|---|
//! | `k_rel_mse` | `sum abs(k^ - k)^2 / sum abs(k)^2`, `v_rel_mse` likewise |
//! | `attention_kl_*` | of `KL(softmax(s q.k) || softmax(s q.k^))` in nats, over every query head and query |
//! | `output_rel_error_k` | `sqrt(sum abs(o^ - o)^2 / sum abs(o)^2)` with `o^` from `k^` and exact values |
//! | `output_rel_error_v` | the same, with `o^` from exact keys and `v^` |
//!
//! Centring subtracts one constant vector from every key of a head before it is coded. The
//! energy in `k_rel_mse` stays that of the keys as captured, so that the figure shows what
//! centring gains; the softmax does not see the constant.
//!
//! With a [`Window`] each query reads the newest keys before it, its own included, and the
//! first ones as fp16 (centred as well), and all others coded; values likewise. Which they
//! are differs from query to query, so `k_rel_mse` and `v_rel_mse` stay those of all rows
//! coded, and so do the bits.

mod attention;
mod codec;

use kvforge_formats::{f16_to_f32, f32_to_f16};
use rayon::prelude::*;
use serde::Serialize;

use codec::Codec;
pub use codec::names;

use crate::Error;
use crate::capture::{Capture, Layer};
use crate::peers::Role;
use crate::rows::Encoder;
use attention::{Exact, Sums};

/// Which constant is subtracted from the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Center {
    /// None.
    None,
    /// The mean of the captured keys themselves, by layer and head.
    #[serde(rename = "self")]
    Own,
    /// The mean over another text that comes with the capture.
    File,
}

/// Which keys and values a query reads as fp16 instead of coded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Window {
    /// So many of the newest, by position, that of the query included.
    #[serde(rename = "window")]
    pub newest: usize,
    /// So many of the first.
    pub first: usize,
}

impl Window {
    /// All is read coded.
    pub const NONE: Window = Window {
        newest: 0,
        first: 0,
    };

    /// Whether the query at position `query` reads position `key`, not behind it, exact.
    fn holds(self, key: usize, query: usize) -> bool {
        key < self.first || query - key < self.newest
    }
}

/// What one format did, to a layer or to all of them.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// Squared error of the keys, relative to their energy.
    pub k_rel_mse: f64,
    /// The same of the values; none if the format holds keys only.
    pub v_rel_mse: Option<f64>,
    /// Mean divergence of an attention row, in nats.
    pub attention_kl_mean: f64,
    /// Median of it.
    pub attention_kl_median: f64,
    /// The worst row.
    pub attention_kl_max: f64,
    /// Error of the output that coded keys make, relative to the output.
    pub output_rel_error_k: f64,
    /// Error of the output that coded values make; none if the format holds keys only.
    pub output_rel_error_v: Option<f64>,
}

impl Figures {
    fn are_finite(&self) -> bool {
        let always = [
            self.k_rel_mse,
            self.attention_kl_mean,
            self.attention_kl_median,
            self.attention_kl_max,
            self.output_rel_error_k,
        ];
        let of_values = [self.v_rel_mse, self.output_rel_error_v];
        let mut all = always.into_iter().chain(of_values.into_iter().flatten());
        all.all(f64::is_finite)
    }
}

/// The figures of one layer.
#[derive(Clone, Debug, Serialize)]
pub struct LayerFigures {
    /// Number of the layer in the model.
    pub layer: usize,
    /// What the format did to it.
    #[serde(flatten)]
    pub figures: Figures,
}

/// What came of measuring a format.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum Outcome {
    /// It ran.
    Measured {
        /// Over all layers.
        #[serde(flatten)]
        figures: Figures,
        /// Each layer, in the model's order.
        layers: Vec<LayerFigures>,
    },
    /// It cannot hold these heads or values, or what it makes of them is not finite.
    NotRun {
        /// Why.
        not_run: String,
    },
}

/// A format or peer, and what came of it.
#[derive(Clone, Debug, Serialize)]
pub struct Entry {
    /// Its name.
    pub format: &'static str,
    /// Bits per value, scales included.
    pub bits_per_value: f64,
    /// What came of it.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// Every format on one capture.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The model that was captured.
    pub model: String,
    /// Which constant was subtracted from the keys.
    pub center: Center,
    /// What was read exact.
    #[serde(flatten)]
    pub window: Window,
    /// In the order asked for.
    pub formats: Vec<Entry>,
}

/// Measures the formats and peers called `formats` (see [`names`]).
///
/// # Errors
/// [`Error::UnknownFormat`]; [`Error::Mismatch`] if [`Center::File`] is asked for and a
/// layer has no mean. A format that cannot hold the capture is no error, but an
/// [`Outcome::NotRun`].
pub fn measure(
    capture: &Capture,
    formats: &[&str],
    center: Center,
    window: Window,
    encoder: Encoder,
) -> Result<Report, Error> {
    let codecs = formats
        .iter()
        .map(|name| Codec::by_name(name, encoder))
        .collect::<Result<Vec<_>, Error>>()?;
    let heads = capture
        .layers
        .iter()
        .flat_map(|layer| (0..capture.n_kv_heads).map(move |head| (layer, head)))
        .map(|(layer, head)| Head::new(capture, layer, head, center, window))
        .collect::<Result<Vec<_>, Error>>()?;
    // By head, so that the exact attention of few heads is held at a time.
    let measured: Vec<Vec<Result<Sums, String>>> = heads
        .par_iter()
        .map(|head| {
            let exact = Exact::new(head);
            codecs
                .par_iter()
                .map(|codec| head.measure(&exact, codec))
                .collect()
        })
        .collect();

    let entries = codecs.iter().enumerate().map(|(i, codec)| Entry {
        format: codec.name(),
        bits_per_value: codec.bits_per_value(),
        outcome: outcome(capture, measured.iter().map(|codecs| &codecs[i])),
    });
    Ok(Report {
        model: capture.model.clone(),
        center,
        window,
        formats: entries.collect(),
    })
}

/// Sums up a format's results, which come layer by layer and in it head by head.
fn outcome<'a>(
    capture: &Capture,
    heads: impl Iterator<Item = &'a Result<Sums, String>>,
) -> Outcome {
    let heads: Vec<&Sums> = match heads.map(Result::as_ref).collect() {
        Ok(heads) => heads,
        Err(why) => {
            return Outcome::NotRun {
                not_run: why.clone(),
            };
        }
    };
    let by_layer = heads.chunks(capture.n_kv_heads);
    let layers = capture.layers.iter().zip(by_layer);
    let layers: Vec<LayerFigures> = layers
        .map(|(layer, heads)| LayerFigures {
            layer: layer.index,
            figures: Sums::total(heads).figures(),
        })
        .collect();
    if let Some(l) = layers.iter().find(|l| !l.figures.are_finite()) {
        let not_run = format!("layer {}: its scores are not finite", l.layer);
        return Outcome::NotRun { not_run };
    }
    let figures = Sums::total(&heads).figures();
    if !figures.are_finite() {
        let not_run = "the sums over all layers are not finite".into();
        return Outcome::NotRun { not_run };
    }
    Outcome::Measured { figures, layers }
}

/// One kv head of one layer, with the query heads that belong to it.
struct Head<'a> {
    layer: usize,
    index: usize,
    head_dim: usize,
    scale: f64,
    /// Position of each query of a query head.
    positions: &'a [usize],
    /// `[query heads, n_queries, head_dim]`
    q: &'a [f32],
    /// `[n_tokens, head_dim]`
    k: &'a [f32],
    v: &'a [f32],
    /// `[head_dim]`, subtracted from every key.
    center: Option<Vec<f32>>,
    window: Window,
}

impl<'a> Head<'a> {
    fn new(
        capture: &'a Capture,
        layer: &'a Layer,
        index: usize,
        center: Center,
        window: Window,
    ) -> Result<Head<'a>, Error> {
        let part = |x: &'a [f32]| {
            let len = x.len() / capture.n_kv_heads;
            &x[index * len..][..len]
        };
        let k = part(&layer.k);
        let center = match center {
            Center::None => None,
            Center::Own => Some(mean(k, capture.head_dim)),
            Center::File => match &layer.k_mean_other_text {
                Some(means) => Some(part(means).to_vec()),
                None => {
                    return Err(Error::Mismatch {
                        expected: format!(
                            "tensor blk.{}.k_mean_other_text to centre with",
                            layer.index
                        ),
                        found: "none; centre with the captured keys' own mean instead (`self`)"
                            .into(),
                    });
                }
            },
        };
        Ok(Head {
            layer: layer.index,
            index,
            head_dim: capture.head_dim,
            scale: capture.scale,
            positions: &capture.q_positions,
            q: part(&layer.q),
            k,
            v: part(&layer.v),
            center,
            window,
        })
    }

    /// What `codec` does to this head, or why it cannot hold it.
    fn measure(&self, exact: &Exact, codec: &Codec) -> Result<Sums, String> {
        let at = |e| format!("layer {}, kv head {}: {e}", self.layer, self.index);
        codec.fits(self.head_dim)?;
        let mut k = self.k.to_vec();
        self.shift(&mut k, |k, c| k - c);
        codec.simulate(&mut k, self.head_dim, Role::K).map_err(at)?;
        self.shift(&mut k, |k, c| k + c);
        let v = if codec.holds_v() {
            let mut v = self.v.to_vec();
            codec.simulate(&mut v, self.head_dim, Role::V).map_err(at)?;
            Some(v)
        } else {
            None
        };
        Ok(exact.compare(self, &k, v.as_deref()))
    }

    /// Keys and values as a window keeps them: fp16, the keys as they are stored.
    fn kept(&self) -> (Vec<f32>, Vec<f32>) {
        let round = |x: &mut f32| *x = f16_to_f32(f32_to_f16(*x));
        let (mut k, mut v) = (self.k.to_vec(), self.v.to_vec());
        self.shift(&mut k, |k, c| k - c);
        k.iter_mut().chain(&mut v).for_each(round);
        self.shift(&mut k, |k, c| k + c);
        (k, v)
    }

    fn shift(&self, k: &mut [f32], by: impl Fn(f32, f32) -> f32) {
        if let Some(center) = &self.center {
            for row in k.chunks_exact_mut(self.head_dim) {
                row.iter_mut()
                    .zip(center)
                    .for_each(|(k, c)| *k = by(*k, *c));
            }
        }
    }
}

/// The mean of rows of `n` values.
fn mean(rows: &[f32], n: usize) -> Vec<f32> {
    let mut sum = vec![0.0; n];
    for row in rows.chunks_exact(n) {
        sum.iter_mut().zip(row).for_each(|(s, x)| *s += *x as f64);
    }
    let count = (rows.len() / n) as f64;
    sum.iter().map(|s| (s / count) as f32).collect()
}
