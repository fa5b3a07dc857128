//! The checks of one operation on one format: what passed, what failed, what
//! was measured and counted.

use std::collections::BTreeMap;

use kvforge_evidence::{Against, Measure, ReachedBy, Record};
use kvforge_formats::oracle::Type;
use kvforge_formats::{Encode, FormatSpec};

use super::routes::{self, Operation};
use crate::HookStatus;

/// Counters by kernel and slot.
pub(crate) type Counters = BTreeMap<(String, u32), u64>;

/// The variable by which the tree is told which encoder to use.
const ENCODER: &str = "KVFORGE_ENCODER";

/// The checks of one operation on one format.
#[derive(Debug)]
pub(crate) struct Tally<'a> {
    pub format: &'static FormatSpec,
    operation: Operation,
    /// Whether the tree encodes as the public encoders do.
    reference: bool,
    reached_by: ReachedBy,
    kernel: String,
    isa: String,
    tree: &'a [HookStatus],
    cases: u64,
    scores: u64,
    measures: BTreeMap<Against, Measure>,
    counted: u64,
    expected: u64,
    not_run: Option<String>,
    pub passed: usize,
    pub failures: Vec<String>,
}

impl<'a> Tally<'a> {
    pub fn new(
        format: &'static FormatSpec,
        operation: Operation,
        reached_by: ReachedBy,
        isa: &str,
        tree: &'a [HookStatus],
    ) -> Self {
        Tally {
            format,
            operation,
            reference: std::env::var_os(ENCODER).is_some_and(|e| e == "reference"),
            reached_by,
            kernel: operation.kernel(format, isa),
            isa: isa.into(),
            tree,
            cases: 0,
            scores: 0,
            measures: BTreeMap::new(),
            counted: 0,
            expected: 0,
            not_run: None,
            passed: 0,
            failures: vec![],
        }
    }

    /// The operation in words.
    pub fn operation(&self) -> &'static str {
        self.operation.in_words(self.format)
    }

    /// Encoder that the tree uses.
    pub fn encode(&self) -> Encode {
        match self.reference {
            true => self.format.encode,
            false => self.format.encode_best,
        }
    }

    /// Relative squared error that a type has on Gaussian values as the tree encodes
    /// it; that of the stock types is nothing beside a compressed format's.
    pub fn mse_of(&self, ty: Type) -> f64 {
        match ty {
            Type::Format(spec) if self.reference => spec.tolerance.gaussian_mse,
            Type::Format(spec) => spec.tolerance.gaussian_mse_best,
            _ => 0.0,
        }
    }

    /// That of the format.
    pub fn mse(&self) -> f64 {
        self.mse_of(self.format.into())
    }

    /// Sizes of heads that the format can hold.
    pub fn head_sizes(&self) -> impl Iterator<Item = usize> + use<> {
        let block = self.format.block_len;
        [64, 128, 256].into_iter().filter(move |n| n % block == 0)
    }

    pub fn kernel(&self) -> &str {
        &self.kernel
    }

    /// Name of the kernel that does the same for another format.
    pub fn kernel_of(&self, format: &FormatSpec) -> String {
        self.operation.kernel(format, &self.isa)
    }

    /// A check that is true or not.
    pub fn check(&mut self, case: &str, good: bool, otherwise: impl FnOnce() -> String) {
        if good {
            self.passed += 1;
        } else {
            let (format, operation) = (self.format.name, self.operation());
            self.failures
                .push(format!("{operation} on {format}, {case}: {}", otherwise()));
        }
    }

    /// A negative control: something was damaged on purpose, and the comparison that
    /// passes a moment before must see it.
    pub fn control(&mut self, case: &str, what: &str, noticed: bool) {
        let case = format!("{case}, negative control");
        self.check(&case, noticed, || {
            format!("{what} was changed and the comparison did not notice: it proves nothing")
        });
    }

    /// A number, which must lie between `floor` and `tolerance`.
    pub fn measure(
        &mut self,
        case: &str,
        against: Against,
        value: f64,
        floor: f64,
        tolerance: f64,
    ) {
        self.cases += 1;
        let one = Measure {
            against,
            least: value,
            worst: value,
            floor,
            tolerance,
        };
        let good = one.holds();
        let all = self.measures.entry(against).or_insert(one);
        // `min` and `max` would lose a NaN.
        if value.is_nan() || value < all.least {
            all.least = value;
        }
        if value.is_nan() || value > all.worst {
            all.worst = value;
        }
        self.check(case, good, || match against {
            Against::Reference => format!("{value} blocks differ from the reference codec's"),
            Against::Decoded => format!(
                "worst error {value:.3e}, tolerance {tolerance:.1e} (oracle on the decoded bytes)"
            ),
            Against::Unquantised if value < floor => format!(
                "only {value:.3e} of the error that the format must have, at least {floor:.2} expected: is the cache really compressed?"
            ),
            Against::Unquantised => format!(
                "{value:.3} times the error that the format must have, tolerance {tolerance:.2} (oracle on the uncompressed input)"
            ),
        });
    }

    /// So many single scores went into the measures of a case. The contract asks
    /// for a number of them.
    pub fn compared(&mut self, scores: usize) {
        self.scores += scores as u64;
    }

    /// What the kernels counted for one graph: exactly what they should have, and
    /// nothing else.
    pub fn count(&mut self, case: &str, found: &Counters, expected: &Counters) {
        // Counts in another slot come from another route, and do not count here.
        let own = expected.iter().filter(|((k, _), _)| *k == self.kernel);
        let (mut counted, mut due) = (0, 0);
        for (key, n) in own {
            counted += found.get(key).unwrap_or(&0);
            due += n;
        }
        self.counted += counted;
        self.expected += due;
        let untouched = due > 0 && counted == 0;
        let (format, operation) = (self.format.name, self.operation());
        let kernel = self.kernel.clone();
        let words = self.difference(found, expected);
        let hooks = self.route();
        self.check(case, found == expected, || {
            if untouched {
                format!(
                    "route not taken: {operation} on {format} did not reach {kernel}; the route is made by {hooks}; {words}"
                )
            } else {
                words
            }
        });
    }

    /// Nothing was run, for this reason.
    pub fn not_run(&mut self, reason: &str) {
        self.not_run = Some(reason.into());
    }

    /// A graph that did not run at all.
    pub fn refused(&mut self, case: &str, why: impl ToString) {
        let hooks = self.route();
        let why = why.to_string();
        self.check(case, false, || {
            format!("{why}; the route is made by {hooks}")
        });
    }

    /// The hooks that lead to the kernel.
    pub fn route(&self) -> String {
        let mut ids = self.operation.hooks().to_vec();
        if self.reached_by == ReachedBy::ModelGraph {
            ids.extend(self.operation.model_hooks());
        }
        let plural = if ids.len() == 1 { "hook" } else { "hooks" };
        format!("{plural} {}", routes::in_words(&ids, self.tree))
    }

    /// Every counter that is not as it should be.
    fn difference(&self, found: &Counters, expected: &Counters) -> String {
        let keys: std::collections::BTreeSet<_> = found.keys().chain(expected.keys()).collect();
        let get = |counters: &Counters, key| counters.get(key).copied().unwrap_or(0);
        let wrong: Vec<String> = keys
            .into_iter()
            .filter(|key| get(found, key) != get(expected, key))
            .map(|key| {
                let (kernel, slot) = key;
                let (found, expected) = (get(found, key), get(expected, key));
                format!("{kernel} counted {found} in slot {slot}, expected {expected}")
            })
            .collect();
        match wrong.len() {
            0..=4 => wrong.join("; "),
            n => format!("{}; and {} counters more", wrong[..4].join("; "), n - 4),
        }
    }

    pub fn record(&self, backend: &str) -> Record {
        Record {
            format: self.format.name.into(),
            operation: self.operation.name(self.format).into(),
            backend: backend.into(),
            reached_by: self.reached_by,
            not_run: self.not_run.clone(),
            kernel: self.kernel.clone(),
            isa: self.isa.clone(),
            cases: self.cases,
            scores: self.scores,
            failed: self.failures.len() as u64,
            measures: self.measures.values().cloned().collect(),
            counted: self.counted,
            expected_count: self.expected,
            status: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvforge_formats::tbq4_0;

    fn tally() -> Tally<'static> {
        let format = &tbq4_0::SPEC;
        Tally::new(
            format,
            Operation::SetRows,
            ReachedBy::SmokeGraph,
            "isa",
            &[],
        )
    }

    fn counters(all: &[(&str, u32, u64)]) -> Counters {
        all.iter()
            .map(|&(k, slot, n)| ((k.into(), slot), n))
            .collect()
    }

    #[test]
    fn measures_keep_their_extremes() {
        let mut tally = tally();
        for value in [1e-9, 3e-9, 2e-9] {
            tally.measure("case", Against::Decoded, value, 0.0, 1e-6);
        }
        assert_eq!((tally.passed, tally.failures.len()), (3, 0));
        let measures = tally.record("cpu").measures;
        assert_eq!((measures[0].least, measures[0].worst), (1e-9, 3e-9));
        tally.measure("case", Against::Decoded, 2e-6, 0.0, 1e-6);
        assert!(tally.failures[0].contains("case: worst error 2.000e-6, tolerance 1.0e-6"));
        tally.measure("case", Against::Unquantised, 1e-5, 0.9, 1.1);
        assert!(tally.failures[1].contains("is the cache really compressed?"));
        assert_eq!(tally.record("cpu").failed, 2);
    }

    #[test]
    fn a_nan_fails_and_is_not_forgotten() {
        for order in [[f64::NAN, 1e-9], [1e-9, f64::NAN]] {
            let mut tally = tally();
            for value in order {
                tally.measure("case", Against::Decoded, value, 0.0, 1e-6);
            }
            assert_eq!((tally.passed, tally.failures.len()), (1, 1));
            let measure = &tally.record("cpu").measures[0];
            assert!(measure.worst.is_nan() && !measure.holds());
        }
    }

    #[test]
    fn counts_must_be_exact() {
        let due = counters(&[("tbq4_0/encode/isa", 4, 10)]);
        let mut tally = tally();
        tally.count("right", &due, &due);
        assert_eq!((tally.passed, tally.failures.len()), (1, 0));
        let wrong = [
            counters(&[("tbq4_0/encode/isa", 4, 9)]),
            counters(&[("tbq4_0/encode/isa", 4, 10), ("tbq4_0/encode/isa", 0, 1)]),
            counters(&[("tbq4_0/encode/isa", 4, 10), ("tbq4_0/decode/isa", 4, 1)]),
        ];
        for found in &wrong {
            tally.count("wrong", found, &due);
        }
        assert_eq!((tally.passed, tally.failures.len()), (1, 3));
        assert!(
            tally
                .failures
                .iter()
                .all(|f| !f.contains("route not taken"))
        );
        let record = tally.record("cpu");
        assert_eq!((record.counted, record.expected_count), (39, 40));
    }

    #[test]
    fn a_route_not_taken_is_named() {
        let due = counters(&[("tbq4_0/encode/isa", 4, 10)]);
        let elsewhere = [
            Counters::new(),
            // Another layer, another instruction set.
            counters(&[("tbq4_0/encode/isa", 0, 10)]),
            counters(&[("tbq4_0/encode/other", 4, 10)]),
        ];
        for found in &elsewhere {
            let mut tally = tally();
            tally.count("case", found, &due);
            let failure = &tally.failures[0];
            assert!(
                failure.contains(
                    "route not taken: SET_ROWS on tbq4_0 did not reach tbq4_0/encode/isa"
                ),
                "{failure}"
            );
            assert!(failure.contains("hooks cpu-compute "), "{failure}");
            assert_eq!(tally.record("cpu").counted, 0);
        }
    }
}
