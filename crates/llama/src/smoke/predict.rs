//! How far fused attention on a compressed cache must be from attention on the
//! uncompressed one.
//!
//! For one query position and head let `p_t` be the softmax weights of the
//! uncompressed keys, `v_t` the values and `o = sum p_t v_t` the output; a sink
//! takes part in the weights and has no value. Let `a_t` and `b_t` be the errors
//! of key and value, with `E|a_t|^2 = mse_k |k_t|^2` and `E|b_t|^2 = mse_v |v_t|^2`
//! by the specification of the formats. A logit moves by
//!
//! ```text
//! d_t = w_t scale (q . a_t),   w_t = 1, or 1 - tanh^2 under a soft-cap
//! ```
//!
//! and, to first order, the output moves by
//!
//! ```text
//! sum p_t b_t + sum p_t (d_t - sum p_u d_u) v_t = sum p_t b_t + sum p_t d_t (v_t - o)
//! ```
//!
//! Queries are Gaussian, so `E d_t^2 = w_t^2 scale^2 mse_k |k_t|^2 |q|^2 / d`, and
//! errors of different keys have nothing to do with each other. The squared
//! error of the output is then expected to be
//!
//! ```text
//! sum p_t^2 (mse_v |v_t|^2 + w_t^2 scale^2 mse_k |k_t|^2 |q|^2 / d |v_t - o|^2)
//! ```
//!
//! This is added up over all positions and heads of a problem and compared with
//! the squared error found. What is left out: higher orders (a few per cent, as
//! the logits move by less than 0.2), the few rows that are not Gaussian, and
//! chance. The smallest cases have about a hundred effective terms, so chance is a
//! tenth or so, and a factor of 1.6 is more than four times that.

use kvforge_formats::oracle::{Problem, Tensor, dot};

/// Allowed factor between predicted and found squared error, both ways. A format
/// with a bit more or less is off by 4, a cache that is secretly f16 by thousands.
pub(crate) const SPREAD: f64 = 1.6;

/// Expected squared error of all outputs of `problem`, which holds uncompressed
/// tensors in one segment, when keys and values have these relative squared
/// errors.
pub(crate) fn squared_error(problem: &Problem, mse_k: f64, mse_v: f64) -> f64 {
    let segment = &problem.segments[0];
    let (dim_k, dim_v) = (problem.head_dim_k, problem.head_dim_v);
    let group = problem.n_heads / problem.n_kv_heads;
    let scale = f64::from(problem.scale);
    let mask = segment
        .mask
        .as_ref()
        .expect("the smoke's problems are masked");
    let mut total = 0.0;
    for head in 0..problem.n_heads {
        let rows = |t: &Tensor, dim| -> Vec<Vec<f64>> {
            (0..segment.n_kv)
                .map(|i| t.row(head / group, i, dim))
                .collect()
        };
        let (keys, values) = (rows(&segment.k, dim_k), rows(&segment.v, dim_v));
        let slope = problem.slopes.as_ref().map_or(1.0, |s| s[head].into());
        for position in 0..problem.n_q {
            let q = problem.q.row(head, position, dim_k);
            let bias = mask.values.row(head % mask.heads, position, segment.n_kv);
            // Key, weight of the softmax (not normalised), slope of the soft-cap.
            let mut terms: Vec<(usize, f64, f64)> = vec![];
            for (t, key) in keys.iter().enumerate() {
                if bias[t] == f64::NEG_INFINITY {
                    continue;
                }
                let s = dot(&q, key) * scale;
                let (s, w) = match problem.softcap.map(f64::from) {
                    Some(cap) => (cap * (s / cap).tanh(), 1.0 - (s / cap).tanh().powi(2)),
                    None => (s, 1.0),
                };
                // The smoke's logits are small: no maximum needs subtracting.
                terms.push((t, (s + slope * bias[t]).exp(), w));
            }
            let sink = problem
                .sinks
                .as_ref()
                .map_or(0.0, |s| f64::from(s[head]).exp());
            let sum = sink + terms.iter().map(|t| t.1).sum::<f64>();
            let mut out = vec![0.0; dim_v];
            for &(t, p, _) in &terms {
                for (o, v) in out.iter_mut().zip(&values[t]) {
                    *o += p / sum * v;
                }
            }
            let qq = dot(&q, &q);
            for &(t, p, w) in &terms {
                let away: f64 = values[t]
                    .iter()
                    .zip(&out)
                    .map(|(v, o)| (v - o) * (v - o))
                    .sum();
                let of_key = mse_k * dot(&keys[t], &keys[t]) * qq / dim_k as f64;
                let of_value = mse_v * dot(&values[t], &values[t]);
                total += (p / sum).powi(2) * (of_value + (w * scale).powi(2) * of_key * away);
            }
        }
    }
    total
}
