use std::collections::BTreeMap;

use kvforge_calibration::{self as format, NewLayer, Pair, Rope, Step};

use super::Calibration;
use crate::Error;

/// First positions of every sequence that are not summed up: attention sinks, whose keys
/// are like no others.
pub const SINKS: u32 = 4;

/// Largest departure of RoPE at a far position from what follows from position 1, relative
/// to its scale: hosts compute angles in fp32.
const DEPARTURE: f64 = 2e-3;

/// RoPE of a layer at two positions.
#[derive(Clone, Copy, Debug)]
pub struct Turning<'a> {
    /// Facts for people.
    pub rope: Rope,
    /// `[head_dim, head_dim]`, row `i` the image of unit vector `i` at position 1; empty
    /// without RoPE.
    pub step: &'a [f32],
    /// A position far from 1.
    pub check_position: u32,
    /// The same at that position.
    pub check: &'a [f32],
}

/// Sums up queries and keys, and makes a calibration of them.
#[derive(Debug)]
pub struct Builder {
    model: u64,
    name: String,
    layers: BTreeMap<u32, Sums>,
    left_alone: BTreeMap<u32, String>,
}

#[derive(Debug)]
struct Sums {
    rope: Rope,
    head_dim: usize,
    pairs: Vec<Pair>,
    k: Moments,
    q: Moments,
}

impl Builder {
    /// For the model of this identity and name.
    pub fn new(model: u64, name: &str) -> Builder {
        Builder {
            model,
            name: name.replace(char::is_control, " "),
            layers: BTreeMap::new(),
            left_alone: BTreeMap::new(),
        }
    }

    /// Announces a layer: the size of a key, and how RoPE turns it. A layer whose RoPE is not
    /// understood is left alone.
    pub fn layer(&mut self, number: u32, head_dim: usize, turning: Turning<'_>) {
        match pairs_of(head_dim, &turning) {
            Err(reason) => self.leave_alone(number, reason),
            Ok(pairs) => {
                let sums = Sums {
                    rope: match pairs.is_empty() {
                        true => Rope::NONE,
                        false => turning.rope,
                    },
                    head_dim,
                    pairs,
                    k: Moments::default(),
                    q: Moments::default(),
                };
                self.layers.insert(number, sums);
            }
        }
    }

    /// Leaves a layer out, whatever comes of it.
    pub fn leave_alone(&mut self, number: u32, reason: String) {
        self.layers.remove(&number);
        self.left_alone.insert(number, reason);
    }

    /// The layers that are left out, and why.
    pub fn left_alone(&self) -> impl Iterator<Item = (u32, &str)> {
        self.left_alone
            .iter()
            .map(|(n, reason)| (*n, reason.as_str()))
    }

    /// Sums up keys `[n_tokens, n_heads, head_dim]` after RoPE, at positions from `first` on.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if the layer was not announced, its shape changes, or a value is
    /// not finite.
    pub fn keys(
        &mut self,
        number: u32,
        n_heads: usize,
        first: u32,
        keys: &[f32],
    ) -> Result<(), Error> {
        self.add(number, "keys", n_heads, first, keys)
    }

    /// The same for queries.
    ///
    /// # Errors
    /// As [`Builder::keys`].
    pub fn queries(
        &mut self,
        number: u32,
        n_heads: usize,
        first: u32,
        queries: &[f32],
    ) -> Result<(), Error> {
        self.add(number, "queries", n_heads, first, queries)
    }

    fn add(
        &mut self,
        number: u32,
        what: &'static str,
        n_heads: usize,
        first: u32,
        values: &[f32],
    ) -> Result<(), Error> {
        if self.left_alone.contains_key(&number) {
            return Ok(());
        }
        let Some(sums) = self.layers.get_mut(&number) else {
            let expected = format!("the RoPE of layer {number} before its {what}");
            return Err(Error::mismatch(expected, "none"));
        };
        let Sums {
            head_dim,
            pairs,
            k,
            q,
            ..
        } = sums;
        let (head_dim, row) = (*head_dim, n_heads * *head_dim);
        if row == 0 || !values.len().is_multiple_of(row) {
            let expected =
                format!("{what} of {n_heads} heads of {head_dim} values in layer {number}");
            return Err(Error::mismatch(
                expected,
                format!("{} values", values.len()),
            ));
        }
        if let Some(at) = values.iter().position(|x| !x.is_finite()) {
            return Err(Error::mismatch(
                format!("finite {what} in layer {number}"),
                format!(
                    "{} at position {}",
                    values[at],
                    u64::from(first) + (at / row) as u64
                ),
            ));
        }
        let moments = match what {
            "keys" => k,
            _ => q,
        };
        if moments.n_tokens == 0 {
            *moments = Moments::new(n_heads, head_dim, pairs.len());
        } else if moments.n_heads != n_heads {
            return Err(Error::mismatch(
                format!(
                    "{} heads of {what} in layer {number} as before",
                    moments.n_heads
                ),
                n_heads.to_string(),
            ));
        }
        for (position, token) in (u64::from(first)..).zip(values.chunks_exact(row)) {
            if position >= u64::from(SINKS) {
                let back = backwards(pairs, position);
                token
                    .chunks_exact(head_dim)
                    .enumerate()
                    .for_each(|(head, vector)| {
                        moments.add(head, vector, pairs, &back);
                    });
                moments.n_tokens += 1;
            }
        }
        Ok(())
    }

    /// The calibration of everything summed up.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if there is no layer to calibrate, or one had other tokens than
    /// another.
    pub fn finish(self) -> Result<Calibration, Error> {
        let Some(n_tokens) = self.layers.values().next().map(|l| l.k.n_tokens) else {
            let reasons = self
                .left_alone()
                .map(|(n, why)| format!("layer {n}: {why}"));
            let found = kvforge_files::excerpt(&reasons.collect::<Vec<_>>().join("; "));
            return Err(Error::mismatch(
                "a layer that can be calibrated",
                format!("none; {found}"),
            ));
        };
        let mut arrays = vec![];
        for (number, sums) in &self.layers {
            let of = [sums.k.n_tokens, sums.q.n_tokens];
            if n_tokens == 0 || of != [n_tokens; 2] {
                return Err(Error::mismatch(
                    format!(
                        "keys and queries of the same tokens in layer {number} as in the others, \
                         at least one behind position {SINKS}"
                    ),
                    format!("{} and {} instead of {n_tokens}", of[0], of[1]),
                ));
            }
            let (n_head, n_head_kv) = (sums.q.n_heads, sums.k.n_heads);
            if !n_head.is_multiple_of(n_head_kv) {
                let expected = format!("query heads in layer {number} in groups of {n_head_kv}");
                return Err(Error::mismatch(expected, n_head.to_string()));
            }
            arrays.push([
                sums.k.means(&sums.k.sum, n_head_kv),
                sums.k.means(&sums.k.square, n_head_kv),
                sums.q.means(&sums.q.square, n_head_kv),
                sums.k.means(&sums.k.cross, n_head_kv),
                sums.q.means(&sums.q.cross, n_head_kv),
            ]);
        }
        let layers = self
            .layers
            .iter()
            .zip(&arrays)
            .map(|((number, sums), arrays)| {
                let [k_mean, k_square, q_square, k_cross, q_cross] = arrays;
                NewLayer {
                    index: *number,
                    n_head_kv: sums.k.n_heads as u32,
                    n_head: sums.q.n_heads as u32,
                    head_dim: sums.head_dim as u32,
                    rope: sums.rope,
                    pairs: &sums.pairs,
                    k_mean,
                    k_square,
                    q_square,
                    k_cross,
                    q_cross,
                }
            });
        let layers: Vec<NewLayer> = layers.collect();
        let mut bytes = vec![];
        format::write(self.model, &self.name, n_tokens, &layers, &mut |part| {
            bytes.extend_from_slice(part);
        });
        Calibration::from_bytes(bytes)
            .map_err(|e| Error::mismatch("what a calibration can hold", e.to_string()))
    }
}

/// Sums over tokens, by head.
#[derive(Debug, Default)]
struct Moments {
    n_heads: usize,
    n_tokens: u64,
    /// `[n_heads, head_dim]`
    sum: Vec<f64>,
    /// `[n_heads, head_dim]`
    square: Vec<f64>,
    /// `[n_heads, n_pairs]`
    cross: Vec<f64>,
}

impl Moments {
    fn new(n_heads: usize, head_dim: usize, n_pairs: usize) -> Moments {
        Moments {
            n_heads,
            n_tokens: 0,
            sum: vec![0.0; n_heads * head_dim],
            square: vec![0.0; n_heads * head_dim],
            cross: vec![0.0; n_heads * n_pairs],
        }
    }

    /// Adds a vector of a head, turned back.
    fn add(&mut self, head: usize, vector: &[f32], pairs: &[Pair], back: &[[f64; 2]]) {
        let mut plain: Vec<f64> = vector.iter().map(|x| f64::from(*x)).collect();
        for ((pair, [re, im]), cross) in pairs
            .iter()
            .zip(back)
            .zip(&mut self.cross[head * pairs.len()..])
        {
            let (a, b) = (pair.a as usize, pair.b as usize);
            let (x, y) = (plain[a], plain[b]);
            (plain[a], plain[b]) = (x * re - y * im, x * im + y * re);
            *cross += plain[a] * plain[b];
        }
        let at = head * plain.len();
        let sums = self.sum[at..].iter_mut().zip(&mut self.square[at..]);
        for (x, (sum, square)) in plain.iter().zip(sums) {
            *sum += x;
            *square += x * x;
        }
    }

    /// Means over the tokens and over the heads of each of `n` groups.
    fn means(&self, sums: &[f64], n: usize) -> Vec<f32> {
        let per_head = sums.len() / self.n_heads;
        let group = self.n_heads / n;
        let of = group as f64 * self.n_tokens as f64;
        let mean = |at: usize| {
            let (kv_head, channel) = (at / per_head, at % per_head);
            let heads = kv_head * group..(kv_head + 1) * group;
            (heads.map(|h| sums[h * per_head + channel]).sum::<f64>() / of) as f32
        };
        (0..n * per_head).map(mean).collect()
    }
}

/// What takes each pair from a position back to before RoPE, as a complex factor.
fn backwards(pairs: &[Pair], position: u64) -> Vec<[f64; 2]> {
    let factor = |pair: &Pair| {
        let [re, im] = at(pair, position);
        let square = re * re + im * im;
        [re / square, -im / square]
    };
    pairs.iter().map(factor).collect()
}

/// What a pair is multiplied by at a position.
fn at(pair: &Pair, position: u64) -> [f64; 2] {
    let [cos, sin] = pair.angle();
    let (sin, cos) = (sin.atan2(cos) * position as f64).sin_cos();
    [pair.scale() * cos, pair.scale() * sin]
}

/// The pairs that RoPE turns, or why that is not known.
fn pairs_of(head_dim: usize, turning: &Turning<'_>) -> Result<Vec<Pair>, String> {
    if turning.step.is_empty() {
        return Ok(vec![]);
    }
    let step = Step::new(turning.step, head_dim).map_err(|e| e.to_string())?;
    let pairs: Vec<Pair> = step.pairs().collect();
    if pairs.is_empty() {
        return Err("its RoPE turns nothing".into());
    }
    if turning.check.len() != turning.step.len() {
        return Err("its RoPE at a second position has another size".into());
    }
    let position = turning.check_position;
    let mut expected = vec![0.0; turning.step.len()];
    for i in 0..head_dim {
        expected[i * head_dim + i] = 1.0;
    }
    let mut scale = 1.0_f64;
    for pair in &pairs {
        let (a, b) = (pair.a as usize, pair.b as usize);
        let [cos, sin] = at(pair, position.into());
        (expected[a * head_dim + a], expected[b * head_dim + b]) = (cos, cos);
        (expected[a * head_dim + b], expected[b * head_dim + a]) = (sin, -sin);
        scale = scale.max(pair.scale());
    }
    let departures = turning
        .check
        .iter()
        .zip(&expected)
        .map(|(x, e)| (f64::from(*x) - e).abs());
    let worst = departures.fold(
        0.0,
        |worst, d| if d > worst || d.is_nan() { d } else { worst },
    );
    match worst <= DEPARTURE * scale {
        true => Ok(pairs),
        false => Err(format!(
            "its RoPE at position {position} departs by {worst:.1e} from what follows from \
             position 1; at most {DEPARTURE:.0e} would be rounding"
        )),
    }
}
