//! Numbers that look like what a cache holds, the same in every run.

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// In (0, 1].
    fn uniform(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// Mean 0, variance 1.
    pub fn gaussian(&mut self) -> f64 {
        let (radius, angle) = (self.uniform(), self.uniform());
        (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos()
    }

    /// `n` Gaussian values.
    pub fn gaussians(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.gaussian() as f32).collect()
    }

    /// The numbers below `n` in a random order.
    pub fn shuffled(&mut self, n: usize) -> Vec<usize> {
        let mut all: Vec<usize> = (0..n).collect();
        for i in (1..n).rev() {
            all.swap(i, self.next() as usize % (i + 1));
        }
        all
    }
}

/// Rows of K or V.
pub struct Rows {
    /// `[n, len]`.
    pub values: Vec<f32>,
    /// Values of a row.
    pub len: usize,
}

/// Rows that are no sample of a Gaussian, in every set of at least eight.
const CONSTANT: usize = 2;
const OUTLIER: usize = 3;
const ZERO: usize = 5;
/// Standard deviations of the outlier: like the outlier channels of real keys.
const FAR: f32 = 10.0;

impl Rows {
    /// `n` Gaussian rows, each with a gain of its own; among eight or more, one
    /// is constant, one has an outlier and one is zero.
    pub fn new(random: &mut Random, n: usize, len: usize) -> Rows {
        let mut values = vec![];
        for i in 0..n {
            let gain = (0.3 * random.gaussian()).exp();
            let mut row: Vec<f32> = (0..len)
                .map(|_| (gain * random.gaussian()) as f32)
                .collect();
            if n >= 8 {
                match i {
                    CONSTANT => row.fill(0.75),
                    OUTLIER => row[len / 3] = FAR,
                    ZERO => row.fill(0.0),
                    _ => {}
                }
            }
            values.extend(row);
        }
        Rows { values, len }
    }

    /// The same without the constant row. A rotation without signs turns such a row
    /// into one spike, which no code can hold, so that a specified error on other
    /// rows says nothing of it.
    pub fn without_constant(random: &mut Random, n: usize, len: usize) -> Rows {
        let mut rows = Rows::new(random, n, len);
        if n >= 8 {
            let row = &mut rows.values[CONSTANT * len..][..len];
            row.copy_from_slice(&random.gaussians(len));
        }
        rows
    }

    /// The same with another first value.
    pub fn damaged(&self) -> Rows {
        let mut values = self.values.clone();
        values[0] += FAR;
        Rows {
            values,
            len: self.len,
        }
    }

    /// Rows of `len` values, those of one head after those of another.
    pub fn by_heads(&self, len: usize) -> Rows {
        let heads = self.len / len;
        let values = (0..heads * self.n()).flat_map(|i| {
            let (head, row) = (i / self.n(), i % self.n());
            self.row(row)[head * len..][..len].iter().copied()
        });
        Rows {
            values: values.collect(),
            len,
        }
    }

    /// How many there are.
    pub fn n(&self) -> usize {
        self.values.len() / self.len
    }

    /// One of them.
    pub fn row(&self, i: usize) -> &[f32] {
        &self.values[i * self.len..][..self.len]
    }

    /// Whether a row is a sample of a Gaussian, so that the specified error
    /// applies to it.
    pub fn is_gaussian(&self, i: usize) -> bool {
        self.n() < 8 || ![CONSTANT, OUTLIER, ZERO].contains(&i)
    }
}

/// Little-endian bytes.
pub fn f32_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// Values of little-endian bytes.
pub fn f32_values(bytes: &[u8]) -> Vec<f32> {
    let (values, _) = bytes.as_chunks();
    values.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaussians_have_their_moments() {
        let all = Random(1).gaussians(100_000);
        let moment = |k| all.iter().map(|&v| f64::from(v).powi(k)).sum::<f64>() / 1e5;
        assert!(moment(1).abs() < 0.02, "{}", moment(1));
        assert!((moment(2) - 1.0).abs() < 0.02, "{}", moment(2));
        assert!((moment(4) - 3.0).abs() < 0.1, "{}", moment(4));
    }

    #[test]
    fn shuffles_are_permutations() {
        let shuffled = Random(2).shuffled(100);
        let mut sorted = shuffled.clone();
        sorted.sort_unstable();
        assert_ne!(shuffled, sorted);
        assert!(sorted.into_iter().eq(0..100));
    }

    #[test]
    fn special_rows_are_there() {
        let rows = Rows::new(&mut Random(3), 8, 64);
        assert!(rows.row(CONSTANT).iter().all(|&v| v == 0.75));
        assert!(rows.row(OUTLIER).contains(&FAR));
        assert!(rows.row(ZERO).iter().all(|&v| v == 0.0));
        assert_eq!((0..8).filter(|&i| rows.is_gaussian(i)).count(), 5);
        assert!(Rows::new(&mut Random(3), 7, 64).is_gaussian(2));
    }
}
