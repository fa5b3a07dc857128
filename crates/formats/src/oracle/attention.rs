use std::{vec, vec::Vec};

use super::Tensor;

/// One attention over the keys and values of all segments together.
///
/// For query position `q`, head `h` and a key of `h`'s kv head:
///
/// ```text
/// s = dot(q, k) * scale
/// s = softcap * tanh(s / softcap)            if there is a soft-cap
/// s = s + slope[h] * mask[q, key]            if the segment has a mask
/// ```
///
/// A key is hidden if its mask is minus infinity, or if it is causal and stands
/// after the query; a hidden key takes no part, whatever its bytes are. Then
/// `out = sum p v` with `p` the softmax of `s` over the visible keys of all
/// segments, `exp(sink[h])` added to its denominator. A query that sees no key
/// gives zeros.
#[derive(Clone, Debug)]
pub struct Problem {
    /// Values of a query and of a key.
    pub head_dim_k: usize,
    /// Values of a value and of an output.
    pub head_dim_v: usize,
    /// Query heads. Head `h` reads kv head `h / (n_heads / n_kv_heads)`.
    pub n_heads: usize,
    /// Heads of K and V.
    pub n_kv_heads: usize,
    /// Query positions.
    pub n_q: usize,
    /// `[n_q, n_heads, head_dim_k]`.
    pub q: Tensor,
    /// Parts of the cache, in any order and of any types.
    pub segments: Vec<Segment>,
    /// Factor on every dot product.
    pub scale: f32,
    /// Soft-cap of the scores.
    pub softcap: Option<f32>,
    /// ALiBi slopes, factors on the mask, `[n_heads]`; all 1 if absent.
    pub slopes: Option<Vec<f32>>,
    /// Logits of keys that have no value, `[n_heads]`.
    pub sinks: Option<Vec<f32>>,
    /// Position of the first query, if keys after the query are hidden.
    pub causal: Option<i64>,
}

impl Default for Problem {
    /// No query, no key, scale 1, nothing switched on.
    fn default() -> Self {
        Problem {
            head_dim_k: 0,
            head_dim_v: 0,
            n_heads: 0,
            n_kv_heads: 0,
            n_q: 0,
            q: Tensor::default(),
            segments: vec![],
            scale: 1.0,
            softcap: None,
            slopes: None,
            sinks: None,
            causal: None,
        }
    }
}

/// A run of keys and values of the same two types.
#[derive(Clone, Debug, Default)]
pub struct Segment {
    /// Keys in the segment.
    pub n_kv: usize,
    /// `[n_kv, n_kv_heads, head_dim_k]`.
    pub k: Tensor,
    /// `[n_kv, n_kv_heads, head_dim_v]`.
    pub v: Tensor,
    /// Added to the scores.
    pub mask: Option<Mask>,
    /// Position of the first key; they follow one another.
    pub pos0: i64,
}

/// An additive mask.
#[derive(Clone, Debug)]
pub struct Mask {
    /// `[n_q, heads, n_kv]`.
    pub values: Tensor,
    /// Heads of the mask; query head `h` reads `h % heads`.
    pub heads: usize,
}

/// Attention outputs, dense `[n_q, n_heads, head_dim_v]`.
///
/// # Panics
/// If the parts of the problem do not fit together.
pub fn attention(p: &Problem) -> Vec<f64> {
    let group = group(p.n_heads, p.n_kv_heads);
    let mut out = vec![0.0; p.n_q * p.n_heads * p.head_dim_v];
    for kv_head in 0..p.n_kv_heads {
        let decode = |part: fn(&Segment) -> &Tensor, len| {
            let rows = |s: &Segment| rows(part(s), kv_head, s.n_kv, len);
            p.segments.iter().map(rows).collect::<Vec<_>>()
        };
        let keys = decode(|s| &s.k, p.head_dim_k);
        let values = decode(|s| &s.v, p.head_dim_v);
        for (position, head) in pairs(p.n_q, kv_head * group..(kv_head + 1) * group) {
            let query = p.q.row(head, position, p.head_dim_k);
            let mut visible = vec![];
            for (s, (keys, values)) in p.segments.iter().zip(keys.iter().zip(&values)) {
                let biases = biases(p, s, position, head);
                for ((key, value), bias) in keys.iter().zip(values).zip(biases) {
                    if let Some(bias) = bias {
                        visible.push((logit(p, dot(&query, key)) + bias, &value[..]));
                    }
                }
            }
            let sink = p.sinks.as_ref().map(|s| f64::from(s[head]));
            let at = (position * p.n_heads + head) * p.head_dim_v;
            mix(&visible, sink, &mut out[at..at + p.head_dim_v]);
        }
    }
    out
}

/// What mask and slope add to the score of each key of a segment; `None` if the
/// key is hidden.
fn biases(p: &Problem, s: &Segment, position: usize, head: usize) -> Vec<Option<f64>> {
    let mask = s
        .mask
        .as_ref()
        .map(|m| m.values.row(head % m.heads, position, s.n_kv));
    let slope = p.slopes.as_ref().map_or(1.0, |slopes| slopes[head].into());
    let bias = |t: usize| {
        let later = |first: i64| s.pos0 + t as i64 > first + position as i64;
        let mask = mask.as_ref().map(|m| m[t]);
        if p.causal.is_some_and(later) || mask == Some(f64::NEG_INFINITY) {
            return None;
        }
        Some(mask.map_or(0.0, |mask| slope * mask))
    };
    (0..s.n_kv).map(bias).collect()
}

/// Score of a key before its mask.
fn logit(p: &Problem, dot: f64) -> f64 {
    let scaled = dot * f64::from(p.scale);
    match p.softcap.map(f64::from) {
        Some(cap) => cap * (scaled / cap).tanh(),
        None => scaled,
    }
}

/// `out += sum softmax(logit) value`, with a sink in the denominator. `out`
/// comes in as zeros.
fn mix(visible: &[(f64, &[f64])], sink: Option<f64>, out: &mut [f64]) {
    let logits = || visible.iter().map(|v| v.0);
    let largest = logits().chain(sink).fold(f64::NEG_INFINITY, f64::max);
    let total: f64 = logits().chain(sink).map(|s| (s - largest).exp()).sum();
    for &(logit, value) in visible {
        let p = (logit - largest).exp() / total;
        for (o, v) in out.iter_mut().zip(value) {
            *o += p * v;
        }
    }
}

/// Plain dot products of queries and keys.
#[derive(Clone, Debug, Default)]
pub struct Scores {
    /// Values of a query and of a key.
    pub head_dim: usize,
    /// Query heads. Head `h` reads kv head `h / (n_heads / n_kv_heads)`.
    pub n_heads: usize,
    /// Heads of K.
    pub n_kv_heads: usize,
    /// Query positions.
    pub n_q: usize,
    /// Keys.
    pub n_kv: usize,
    /// `[n_q, n_heads, head_dim]`.
    pub q: Tensor,
    /// `[n_kv, n_kv_heads, head_dim]`.
    pub k: Tensor,
}

/// Raw query times decoded key, neither scaled nor masked, dense
/// `[n_q, n_heads, n_kv]`.
///
/// # Panics
/// If the parts do not fit together.
pub fn scores(s: &Scores) -> Vec<f64> {
    let group = group(s.n_heads, s.n_kv_heads);
    let keys: Vec<_> = (0..s.n_kv_heads)
        .map(|head| rows(&s.k, head, s.n_kv, s.head_dim))
        .collect();
    let mut out = vec![];
    for (position, h) in pairs(s.n_q, 0..s.n_heads) {
        let query = s.q.row(h, position, s.head_dim);
        out.extend(keys[h / group].iter().map(|key| dot(&query, key)));
    }
    out
}

/// Query heads that share a kv head.
fn group(n_heads: usize, n_kv_heads: usize) -> usize {
    assert!(
        n_kv_heads > 0 && n_heads.is_multiple_of(n_kv_heads),
        "{n_heads} query heads over {n_kv_heads} kv heads"
    );
    n_heads / n_kv_heads
}

/// Rows `0..n` of a head.
fn rows(x: &Tensor, head: usize, n: usize, len: usize) -> Vec<Vec<f64>> {
    (0..n).map(|row| x.row(head, row, len)).collect()
}

/// All positions with all `heads`, heads innermost.
fn pairs(n: usize, heads: core::ops::Range<usize>) -> impl Iterator<Item = (usize, usize)> {
    (0..n).flat_map(move |position| heads.clone().map(move |h| (position, h)))
}

/// Dot product, in eight sums, so that one addition need not wait for the last.
pub fn dot(a: &[f64], b: &[f64]) -> f64 {
    let mut sums = [0.0; 8];
    for (a, b) in a.chunks(8).zip(b.chunks(8)) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += a * b;
        }
    }
    sums.iter().sum()
}
