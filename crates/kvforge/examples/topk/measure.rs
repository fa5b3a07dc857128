//! Attention over the chosen keys, beside attention over all.

use std::ops::Add;

use kvforge::Error;
use kvforge::capture::Capture;

use crate::select::{By, Selector};

/// How many keys are chosen; the last: all.
pub const BUDGETS: [usize; 7] = [8, 16, 32, 64, 128, 256, usize::MAX];

/// Keys that `--keep` always attends to.
const NEWEST: usize = 32;
const FIRST: usize = 4;

/// One kv head of one layer, with the query heads that belong to it.
pub struct Head<'a> {
    head_dim: usize,
    scale: f64,
    /// Position of each query of a query head.
    positions: &'a [usize],
    /// `[query heads, n_queries, head_dim]`
    q: &'a [f32],
    /// `[n_tokens, head_dim]`
    k: &'a [f32],
    v: &'a [f32],
    /// `[head_dim]`, subtracted from every key before it is coded.
    center: Option<&'a [f32]>,
    keep: bool,
}

impl<'a> Head<'a> {
    pub fn all(capture: &'a Capture, center: bool, keep: bool) -> Result<Vec<Head<'a>>, Error> {
        let mut heads = vec![];
        for layer in &capture.layers {
            let means = match (center, &layer.k_mean_other_text) {
                (true, Some(means)) => Some(means),
                (false, _) => None,
                (true, None) => {
                    return Err(Error::Mismatch {
                        expected: format!("tensor blk.{}.k_mean_other_text", layer.index),
                        found: "none; leave out --center".into(),
                    });
                }
            };
            for index in 0..capture.n_kv_heads {
                let part = |x: &'a [f32]| {
                    let len = x.len() / capture.n_kv_heads;
                    &x[index * len..][..len]
                };
                heads.push(Head {
                    head_dim: capture.head_dim,
                    scale: capture.scale,
                    positions: &capture.q_positions,
                    q: part(&layer.q),
                    k: part(&layer.k),
                    v: part(&layer.v),
                    center: means.map(|m| part(m)),
                    keep,
                });
            }
        }
        Ok(heads)
    }

    pub fn measure(&self, selector: &Selector) -> Result<Sums, Error> {
        let stored = self.stored(selector)?;
        let positions = self.positions.iter().cycle();
        let mut sums = Sums::default();
        for (q, position) in self.q.chunks_exact(self.head_dim).zip(positions) {
            let exact = self.scores(q, self.k, position + 1);
            match selector.by {
                By::Age => {
                    let ages: Vec<f64> = (0..exact.len()).map(|j| j as f64).collect();
                    self.attend(&mut sums, &exact, &ages, None);
                }
                _ => {
                    let own = self.scores(q, &stored, position + 1);
                    self.attend(&mut sums, &exact, &own, Some(&own));
                }
            }
        }
        Ok(sums)
    }

    /// The keys as `selector` knows them, with the constant that it does not store.
    fn stored(&self, selector: &Selector) -> Result<Vec<f32>, Error> {
        let mut k = self.k.to_vec();
        let center = |k: &mut [f32], sign: f32| {
            for (row, c) in k
                .chunks_exact_mut(self.head_dim)
                .zip(self.center.iter().cycle())
            {
                row.iter_mut().zip(*c).for_each(|(k, c)| *k += sign * c);
            }
        };
        center(&mut k, -1.0);
        k = selector.simulate(&k, self.head_dim)?;
        center(&mut k, 1.0);
        Ok(k)
    }

    /// Scores of the first `seen` keys, ready for the softmax.
    fn scores(&self, q: &[f32], k: &[f32], seen: usize) -> Vec<f64> {
        let keys = k.chunks_exact(self.head_dim).take(seen);
        keys.map(|k| self.scale * dot(q, k)).collect()
    }

    fn is_kept(&self, j: usize, seen: usize) -> bool {
        self.keep && (j < FIRST || j + NEWEST >= seen)
    }

    /// Adds up attention over the keys that come first by `rank`, with their `exact`
    /// scores, and with the selector's `own` for those that are not kept.
    fn attend(&self, sums: &mut Sums, exact: &[f64], rank: &[f64], own: Option<&[f64]>) {
        let seen = exact.len();
        let (kept, mut chosen): (Vec<usize>, Vec<usize>) =
            (0..seen).partition(|j| self.is_kept(*j, seen));
        // ties go to the older key, in both orders
        let mut place = vec![0; seen];
        chosen.sort_by(|a, b| exact[*b].total_cmp(&exact[*a]));
        chosen.iter().enumerate().for_each(|(i, j)| place[*j] = i);
        chosen.sort_by(|a, b| rank[*b].total_cmp(&rank[*a]));

        let all = self.mix(exact, 0..seen);
        let output = all.output();
        let mut own_scores = own.map(<[f64]>::to_vec);
        if let Some(own) = &mut own_scores {
            kept.iter().for_each(|j| own[*j] = exact[*j]);
        }
        sums.queries += 1;
        sums.output_energy += energy(&output);
        let mut partial = self.mix(exact, kept.iter().copied());
        let mut own_partial = own_scores
            .as_deref()
            .map(|own| self.mix(own, kept.iter().copied()));
        let mut done = 0;
        for (i, budget) in BUDGETS.into_iter().enumerate() {
            let budget = budget.min(chosen.len());
            for j in &chosen[done..budget] {
                partial.add(exact[*j], self.value(*j));
                if let (Some(partial), Some(own)) = (&mut own_partial, &own_scores) {
                    partial.add(own[*j], self.value(*j));
                }
            }
            done = budget;
            let found = chosen[..budget].iter().filter(|j| place[**j] < budget);
            sums.recall[i] += found.count() as f64 / budget.max(1) as f64;
            sums.divergence[i] += (all.log_sum() - partial.log_sum()).max(0.0);
            sums.output_error[i] += squared_distance(&partial.output(), &output);
            if let Some(own) = &own_partial {
                let error = squared_distance(&own.output(), &output);
                *sums.own_output_error[i].get_or_insert(0.0) += error;
            }
        }
    }

    fn mix(&self, scores: &[f64], keys: impl Iterator<Item = usize>) -> Partial {
        let mut partial = Partial {
            max: scores.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            sum: 0.0,
            accumulator: vec![0.0; self.head_dim],
        };
        keys.for_each(|j| partial.add(scores[j], self.value(j)));
        partial
    }

    fn value(&self, j: usize) -> &[f32] {
        &self.v[j * self.head_dim..][..self.head_dim]
    }
}

/// An attention that is not ended yet.
struct Partial {
    max: f64,
    sum: f64,
    /// `[head_dim]`
    accumulator: Vec<f64>,
}

impl Partial {
    fn add(&mut self, score: f64, value: &[f32]) {
        let weight = (score - self.max).exp();
        self.sum += weight;
        let pairs = self.accumulator.iter_mut().zip(value);
        pairs.for_each(|(a, v)| *a += weight * f64::from(*v));
    }

    fn output(&self) -> Vec<f64> {
        self.accumulator.iter().map(|a| a / self.sum).collect()
    }

    fn log_sum(&self) -> f64 {
        self.max + self.sum.ln()
    }
}

/// Sums over queries, by budget.
#[derive(Default)]
pub struct Sums {
    queries: usize,
    output_energy: f64,
    recall: [f64; BUDGETS.len()],
    divergence: [f64; BUDGETS.len()],
    output_error: [f64; BUDGETS.len()],
    own_output_error: [Option<f64>; BUDGETS.len()],
}

impl Sums {
    pub fn recall(&self, i: usize) -> f64 {
        self.recall[i] / self.queries as f64
    }

    pub fn divergence(&self, i: usize) -> f64 {
        self.divergence[i] / self.queries as f64
    }

    pub fn output_error(&self, i: usize) -> f64 {
        (self.output_error[i] / self.output_energy).sqrt()
    }

    pub fn own_output_error(&self, i: usize) -> Option<f64> {
        self.own_output_error[i].map(|error| (error / self.output_energy).sqrt())
    }
}

impl Add for Sums {
    type Output = Sums;

    fn add(self, other: Sums) -> Sums {
        let add =
            |a: [f64; BUDGETS.len()], b: [f64; BUDGETS.len()]| std::array::from_fn(|i| a[i] + b[i]);
        Sums {
            queries: self.queries + other.queries,
            output_energy: self.output_energy + other.output_energy,
            recall: add(self.recall, other.recall),
            divergence: add(self.divergence, other.divergence),
            output_error: add(self.output_error, other.output_error),
            own_output_error: std::array::from_fn(|i| {
                match (self.own_output_error[i], other.own_output_error[i]) {
                    (Some(a), Some(b)) => Some(a + b),
                    (a, b) => a.or(b),
                }
            }),
        }
    }
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    let products = a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b));
    products.sum()
}

fn squared_distance(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum()
}

fn energy(a: &[f64]) -> f64 {
    a.iter().map(|a| a * a).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::select::SELECTORS;

    /// Sums of one query at position 79, of one head whose key `j` scores `sin(j)`.
    fn sums(by: &By, keep: bool) -> Sums {
        let (n, head_dim) = (80, 128);
        let unit = |i: usize, x: f32| (0..head_dim).map(move |c| if c == i { x } else { 0.0 });
        let k: Vec<f32> = (0..n).flat_map(|j| unit(0, (j as f32).sin())).collect();
        let v: Vec<f32> = (0..n).flat_map(|j| unit(j % 7, 1.0)).collect();
        let q: Vec<f32> = unit(0, 1.0).collect();
        let head = Head {
            head_dim,
            scale: 1.0,
            positions: &[n - 1],
            q: &q,
            k: &k,
            v: &v,
            center: None,
            keep,
        };
        let wanted = std::mem::discriminant(by);
        let selector = SELECTORS
            .iter()
            .find(|s| std::mem::discriminant(&s.by) == wanted);
        head.measure(selector.unwrap()).unwrap()
    }

    /// `-ln(mass)` and the output error over `chosen` keys, the plain way.
    fn expected(chosen: impl Fn(usize) -> bool) -> (f64, f64) {
        let weight = |j: usize| f64::from((j as f32).sin()).exp();
        let output = |chosen: &dyn Fn(usize) -> bool| {
            let mut o = [0.0; 7];
            (0..80)
                .filter(|j| chosen(*j))
                .for_each(|j| o[j % 7] += weight(j));
            let sum: f64 = o.iter().sum();
            (o.map(|o| o / sum), sum)
        };
        let ((all, total), (some, mass)) = (output(&|_| true), output(&chosen));
        let error = squared_distance(&some, &all) / energy(&all);
        ((total / mass).ln(), error.sqrt())
    }

    #[test]
    fn chosen_keys_and_no_others_count() {
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-6, "{a} is not {b}");
        for keep in [false, true] {
            let newest = sums(&By::Age, keep);
            let kept = |j: usize| keep && (j < FIRST || j + NEWEST >= 80);
            let reach = if keep { NEWEST + 16 } else { 16 };
            let (divergence, error) = expected(|j| kept(j) || j + reach >= 80);
            near(newest.divergence(1), divergence);
            near(newest.output_error(1), error);
            assert!(newest.own_output_error(1).is_none());

            let exact = sums(&By::Exact, keep);
            let mut order: Vec<usize> = (0..80).filter(|j| !kept(*j)).collect();
            order.sort_by(|a, b| (*b as f32).sin().total_cmp(&(*a as f32).sin()));
            let (divergence, error) = expected(|j| kept(j) || order[..16].contains(&j));
            near(exact.divergence(1), divergence);
            near(exact.output_error(1), error);
            near(exact.own_output_error(1).unwrap(), error);
            assert_eq!(exact.recall(1), 1.0);

            let newest_16 = order.iter().filter(|j| **j + reach >= 80);
            let both = newest_16.filter(|j| order[..16].contains(j)).count();
            assert!(both < 16, "a recall of 1 would show nothing");
            near(newest.recall(1), both as f64 / 16.0);
            near(newest.output_error(BUDGETS.len() - 1), 0.0);
        }
    }
}
