use super::{Figures, Head};

/// What a codec did to one head, or to several: sums that can be added up.
#[derive(Clone, Debug, Default)]
pub(super) struct Sums {
    k_error: f64,
    k_energy: f64,
    /// Squared error of the values, and of the outputs that they make.
    v: Option<(f64, f64)>,
    v_energy: f64,
    output_error_k: f64,
    output_energy: f64,
    /// One divergence for each query head and query.
    kl: Vec<f64>,
}

impl Sums {
    /// Everything in `parts` together.
    pub fn total(parts: &[&Sums]) -> Sums {
        let sum = |of: fn(&Sums) -> f64| parts.iter().map(|p| of(p)).sum();
        Sums {
            k_error: sum(|p| p.k_error),
            k_energy: sum(|p| p.k_energy),
            v: parts
                .iter()
                .map(|p| p.v)
                .reduce(|a, b| a.zip(b).map(|((a, c), (b, d))| (a + b, c + d)))
                .flatten(),
            v_energy: sum(|p| p.v_energy),
            output_error_k: sum(|p| p.output_error_k),
            output_energy: sum(|p| p.output_energy),
            kl: parts.iter().flat_map(|p| &p.kl).copied().collect(),
        }
    }

    pub fn figures(mut self) -> Figures {
        self.kl.sort_unstable_by(f64::total_cmp);
        let kl = &self.kl;
        let middle = kl.len() / 2;
        Figures {
            k_rel_mse: ratio(self.k_error, self.k_energy),
            v_rel_mse: self.v.map(|(error, _)| ratio(error, self.v_energy)),
            attention_kl_mean: kl.iter().sum::<f64>() / kl.len() as f64,
            attention_kl_median: (kl[middle] + kl[(kl.len() - 1) / 2]) / 2.0,
            attention_kl_max: kl[kl.len() - 1],
            output_rel_error_k: ratio(self.output_error_k, self.output_energy).sqrt(),
            output_rel_error_v: self
                .v
                .map(|(_, error)| ratio(error, self.output_energy).sqrt()),
        }
    }
}

/// `error / energy`; nothing lost of nothing is no error.
fn ratio(error: f64, energy: f64) -> f64 {
    if error == 0.0 { 0.0 } else { error / energy }
}

/// The attention of a head as captured.
pub(super) struct Exact {
    q: Vec<f64>,
    v: Vec<f64>,
    /// Keys and values as a window keeps them, `[n_tokens, head_dim]`.
    kept: [Vec<f64>; 2],
    rows: Vec<Row>,
}

/// One query of one query head.
struct Row {
    /// Logarithm of the weight of each key that the query sees.
    log_weights: Vec<f64>,
    /// `[head_dim]`
    output: Vec<f64>,
}

impl Exact {
    pub fn new(head: &Head<'_>) -> Exact {
        let (q, k, v) = (widen(head.q), widen(head.k), widen(head.v));
        let rows = queries(head, &q).map(|(q, seen)| {
            let log_weights = log_softmax(head, q, k.chunks_exact(head.head_dim).take(seen));
            let output = mix(head, &log_weights, v.chunks_exact(head.head_dim));
            Row {
                log_weights,
                output,
            }
        });
        let (kept_k, kept_v) = head.kept();
        Exact {
            rows: rows.collect(),
            kept: [widen(&kept_k), widen(&kept_v)],
            q,
            v,
        }
    }

    /// What becomes of it with other keys `k` and, apart from that, other values `v`, where
    /// the window does not keep them.
    pub fn compare(&self, head: &Head<'_>, k: &[f32], v: Option<&[f32]>) -> Sums {
        let mut sums = Sums {
            k_error: squared_distance(&widen(k), &widen(head.k)),
            k_energy: energy(&widen(head.k)),
            v_energy: energy(&self.v),
            ..Sums::default()
        };
        let k = widen(k);
        for ((q, seen), exact) in queries(head, &self.q).zip(&self.rows) {
            let log_weights = log_softmax(head, q, read(head, seen, &k, &self.kept[0]));
            let output = mix(head, &log_weights, self.v.chunks_exact(head.head_dim));
            sums.kl.push(divergence(&exact.log_weights, &log_weights));
            sums.output_error_k += squared_distance(&output, &exact.output);
            sums.output_energy += energy(&exact.output);
        }
        if let Some(v) = v.map(widen) {
            let output_error = self.rows.iter().map(|exact| {
                let seen = exact.log_weights.len();
                let output = mix(
                    head,
                    &exact.log_weights,
                    read(head, seen, &v, &self.kept[1]),
                );
                squared_distance(&output, &exact.output)
            });
            sums.v = Some((squared_distance(&v, &self.v), output_error.sum()));
        }
        sums
    }
}

/// Every query of every query head, and how many keys it sees.
fn queries<'a>(head: &Head<'a>, q: &'a [f64]) -> impl Iterator<Item = (&'a [f64], usize)> {
    let seen = head.positions.iter().map(|p| p + 1).cycle();
    q.chunks_exact(head.head_dim).zip(seen)
}

/// The `seen` rows that the query behind them reads: of `kept` where its window is.
fn read<'a>(
    head: &Head<'_>,
    seen: usize,
    coded: &'a [f64],
    kept: &'a [f64],
) -> impl Iterator<Item = &'a [f64]> {
    let (n, window) = (head.head_dim, head.window);
    let rows = coded.chunks_exact(n).zip(kept.chunks_exact(n)).take(seen);
    rows.enumerate()
        .map(move |(i, (coded, kept))| match window.holds(i, seen - 1) {
            true => kept,
            false => coded,
        })
}

/// Logarithms of the attention weights of a query on the keys that it sees.
fn log_softmax<'a>(head: &Head<'_>, q: &[f64], keys: impl Iterator<Item = &'a [f64]>) -> Vec<f64> {
    let mut scores: Vec<f64> = keys.map(|k| head.scale * dot(q, k)).collect();
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = scores.iter().map(|s| (s - max).exp()).sum();
    let normaliser = max + sum.ln();
    scores.iter_mut().for_each(|s| *s -= normaliser);
    scores
}

/// `sum w v` over the first rows of `v`.
fn mix<'a>(head: &Head<'_>, log_weights: &[f64], v: impl Iterator<Item = &'a [f64]>) -> Vec<f64> {
    let mut output = vec![0.0; head.head_dim];
    for (log_weight, v) in log_weights.iter().zip(v) {
        let weight = log_weight.exp();
        output.iter_mut().zip(v).for_each(|(o, v)| *o += weight * v);
    }
    output
}

/// `KL(p || q)` in nats, never below zero by rounding; NaN stays NaN.
fn divergence(log_p: &[f64], log_q: &[f64]) -> f64 {
    let terms = log_p.iter().zip(log_q).map(|(p, q)| p.exp() * (p - q));
    match terms.sum::<f64>() {
        below if below < 0.0 => 0.0,
        sum => sum,
    }
}

/// Eight sums side by side, so that the compiler can use vectors.
fn dot(a: &[f64], b: &[f64]) -> f64 {
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<8>(), b.as_chunks::<8>());
    let mut sums = [0.0; 8];
    for (a, b) in a.iter().zip(b) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += a * b;
        }
    }
    let rest = a_rest.iter().zip(b_rest).map(|(a, b)| a * b);
    sums.iter().sum::<f64>() + rest.sum::<f64>()
}

fn squared_distance(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum()
}

fn energy(a: &[f64]) -> f64 {
    a.iter().map(|a| a * a).sum()
}

fn widen(x: &[f32]) -> Vec<f64> {
    x.iter().map(|x| *x as f64).collect()
}
