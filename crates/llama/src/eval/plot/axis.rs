//! From values to places.

/// An axis of a plot.
pub(super) struct Axis {
    low: f64,
    high: f64,
    /// Places of `low` and `high`.
    from: f64,
    to: f64,
    is_logarithmic: bool,
    ticks: Vec<f64>,
}

impl Axis {
    /// From the largest tick below all values to the smallest above.
    pub fn linear(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Axis {
        let (low, high) = range(values).unwrap_or((0.0, 1.0));
        // 1, 2 or 5 times a power of ten, for about six ticks.
        let rough = ((high - low) / 6.0).max(1e-9);
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|m| m * power);
        let step = step
            .into_iter()
            .find(|s| *s >= rough)
            .unwrap_or(10.0 * power);
        let (first, last) = (
            (low / step).floor(),
            (high / step).ceil().max((low / step).floor() + 1.0),
        );
        let ticks = (0..=(last - first) as usize).map(|i| {
            // Without the noise of the multiplication.
            let tick = (first + i as f64) * step;
            (tick / power).round() * power
        });
        Axis {
            low: first * step,
            high: last * step,
            from,
            to,
            is_logarithmic: false,
            ticks: ticks.map(|t| (t * 1e9).round() / 1e9).collect(),
        }
    }

    /// The same with factors, for values above zero.
    pub fn logarithmic(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Axis {
        let (low, high) = range(values).unwrap_or((0.1, 1.0));
        let decades = low.log10().floor() as i32..=high.log10().ceil() as i32;
        let wide = high / low > 1e4;
        let steps: &[u32] = if wide { &[1] } else { &[1, 2, 5] };
        let all: Vec<f64> = decades
            .flat_map(|d| steps.iter().map(move |s| format!("{s}e{d}")))
            .map(|text| text.parse().expect("it is a number"))
            .collect();
        let first = all.iter().rposition(|t| *t <= low).unwrap_or(0);
        let last = all.iter().position(|t| *t >= high).unwrap_or(all.len() - 1);
        let last = last.max(first + 1).min(all.len() - 1);
        Axis {
            low: all[first],
            high: all[last],
            from,
            to,
            is_logarithmic: true,
            ticks: all[first..=last].to_vec(),
        }
    }

    /// Where a value lies.
    pub fn at(&self, value: f64) -> f64 {
        let scale = |x: f64| if self.is_logarithmic { x.ln() } else { x };
        let share = (scale(value) - scale(self.low)) / (scale(self.high) - scale(self.low));
        self.from + (self.to - self.from) * share
    }

    /// Values to write on the axis, with their places.
    pub fn ticks(&self) -> impl Iterator<Item = (f64, f64)> + '_ {
        self.ticks.iter().map(|t| (*t, self.at(*t)))
    }
}

fn range(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.fold(None, |range, v| match range {
        None => Some((v, v)),
        Some((low, high)) => Some((low.min(v), high.max(v))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_lies_between_the_first_and_the_last_tick() {
        for values in [
            vec![3.1, 16.4],
            vec![84.0, 100.0],
            vec![99.999, 100.0],
            vec![0.0042],
            vec![1e-7, 6.5],
            vec![],
        ] {
            for axis in [
                Axis::linear(values.iter().copied(), 10.0, 110.0),
                Axis::logarithmic(values.iter().copied(), 10.0, 110.0),
            ] {
                let ticks: Vec<(f64, f64)> = axis.ticks().collect();
                assert!((2..=16).contains(&ticks.len()), "{ticks:?}");
                assert!(
                    ticks.is_sorted_by(|a, b| a.0 < b.0 && a.1 < b.1),
                    "{ticks:?}"
                );
                let (first, last) = (ticks[0], ticks[ticks.len() - 1]);
                assert!(
                    (first.1 - 10.0).abs() < 1e-6 && (last.1 - 110.0).abs() < 1e-6,
                    "{ticks:?}"
                );
                assert!(
                    values
                        .iter()
                        .all(|v| (10.0 - 1e-6..=110.0 + 1e-6).contains(&axis.at(*v)))
                );
            }
        }
    }
}
