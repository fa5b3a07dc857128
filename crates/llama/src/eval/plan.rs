//! Which pairs of cache types are run, how, in which order.

use std::fmt;
use std::str::FromStr;

use kvforge::peers::Peer;
use kvforge_formats::cache_formats;
use serde::{Deserialize, Serialize};

/// Cache types that are in every evaluation, after the floor: what llama.cpp has
/// itself at these sizes, with its own rotation, as it comes.
const PEERS: [&str; 3] = [Q8_0, Q4_0, "iq4_nl"];
/// Reference of the ratios.
pub(crate) const Q8_0: &str = "q8_0";
/// The bar.
pub(crate) const Q4_0: &str = "q4_0";
/// The cache that is compared with.
pub(crate) const F16: &str = "f16";

/// Types of K and V.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pair {
    /// Cache type of the keys.
    pub k: String,
    /// Cache type of the values.
    pub v: String,
}

impl Pair {
    /// The same type for both.
    pub(crate) fn both(name: &str) -> Pair {
        Pair {
            k: name.into(),
            v: name.into(),
        }
    }

    /// Bits a value, scales included, K and V averaged.
    pub fn bits_per_value(&self) -> f64 {
        let bits = |name| bits(name).expect("a pair names known types");
        (bits(&self.k) + bits(&self.v)) / 2.0
    }

    /// Whether one of the types is ours.
    pub(crate) fn is_ours(&self) -> bool {
        cache_formats().any(|f| f.name == self.k || f.name == self.v)
    }
}

impl fmt::Display for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.k == self.v {
            true => f.write_str(&self.k),
            false => write!(f, "{}/{}", self.k, self.v),
        }
    }
}

impl FromStr for Pair {
    type Err = String;

    /// `K/V`, or one name for both.
    fn from_str(text: &str) -> Result<Pair, String> {
        let (k, v) = text.split_once('/').unwrap_or((text, text));
        for name in [k, v] {
            if bits(name).is_none() {
                let known: Vec<&str> = known().collect();
                return Err(format!(
                    "expected a cache type or K/V, found `{name}`; there are {}",
                    known.join(", ")
                ));
            }
        }
        Ok(Pair {
            k: k.into(),
            v: v.into(),
        })
    }
}

/// Every name that a pair may have.
fn known() -> impl Iterator<Item = &'static str> {
    let ours = cache_formats().map(|f| f.name);
    ours.chain([F16]).chain(PEERS)
}

fn bits(name: &str) -> Option<f64> {
    if name == F16 {
        return Some(16.0);
    }
    if let Some(format) = cache_formats().find(|f| f.name == name) {
        return Some(format.bits_per_value());
    }
    let peer = PEERS.iter().find(|p| **p == name)?;
    Some(Peer::by_name(peer)?.bits_per_value())
}

/// One row of the tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub pair: Pair,
    /// Whether the keys are centred.
    pub centred: bool,
    /// Newest tokens that are read exact; 0: none. Types of llama.cpp have no window.
    pub window: u32,
    /// First tokens that are, too.
    pub first: u32,
}

impl Run {
    /// `tbq4_0-tbq3_0-centred-window32-first4`, for names of files.
    pub fn file_stem(&self) -> String {
        let mut stem = format!("{}-{}", self.pair.k, self.pair.v);
        if self.centred {
            stem += "-centred";
        }
        for (name, n) in [("window", self.window), ("first", self.first)] {
            if n > 0 {
                stem += &format!("-{name}{n}");
            }
        }
        stem
    }

    /// Whether some tokens are read exact.
    pub fn has_window(&self) -> bool {
        self.window > 0 || self.first > 0
    }

    /// Bits a value of a full cache of `ctx` tokens: those of the types, and the f16 copies
    /// of the tokens that are read exact.
    pub fn effective_bits(&self, ctx: usize) -> f64 {
        let copied = (f64::from(self.window) + f64::from(self.first)).min(ctx as f64);
        self.pair.bits_per_value() + 16.0 * copied / ctx as f64
    }
}

/// The floor, the peers, then what was asked for; each of them also centred if there is a
/// calibration. Types of ours run once more with each pair of a window of `windows` and
/// first tokens of `firsts`, in the better way: centred if they can be. No window means no
/// first tokens either, as in the tree. They run without a
/// window only if that is one of the pairs. Nothing twice.
pub(crate) fn runs(asked: &[Pair], calibrated: bool, windows: &[u32], firsts: &[u32]) -> Vec<Run> {
    let always = [F16].into_iter().chain(PEERS).map(Pair::both);
    let mut pairs: Vec<Pair> = vec![];
    for pair in always.chain(asked.iter().cloned()) {
        if !pairs.contains(&pair) {
            pairs.push(pair);
        }
    }
    let ways: &[bool] = if calibrated { &[false, true] } else { &[false] };
    let exact = windows
        .iter()
        .flat_map(|&window| firsts.iter().map(move |&first| (window, first)))
        .map(|(window, first)| (window, if window == 0 { 0 } else { first }));
    let exact: Vec<(u32, u32)> = exact.collect();
    let mut runs: Vec<Run> = vec![];
    for pair in pairs {
        let of_pair = if pair.is_ours() {
            &exact[..]
        } else {
            &[(0, 0)]
        };
        for &(window, first) in of_pair {
            let ways = match (window, first) {
                (0, 0) => ways,
                _ => &ways[ways.len() - 1..],
            };
            for &centred in ways {
                let run = Run {
                    pair: pair.clone(),
                    centred,
                    window,
                    first,
                };
                if !runs.contains(&run) {
                    runs.push(run);
                }
            }
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_read_and_weighed() {
        let pair: Pair = "tbq4_0/tbq3_0".parse().unwrap();
        assert_eq!(
            (pair.bits_per_value(), pair.to_string().as_str()),
            (4.0, "tbq4_0/tbq3_0")
        );
        for (name, bits) in [("f16", 16.0), ("q8_0", 8.5), ("q4_0", 4.5), ("iq4_nl", 4.5)] {
            let pair: Pair = name.parse().unwrap();
            assert_eq!(
                (pair.bits_per_value(), pair.to_string()),
                (bits, name.into())
            );
        }
        for bad in [
            "",
            "q4_0_rot",
            "q4_0/",
            "/q4_0",
            "q4_0/q4_0/q4_0",
            "turbo3_legacy",
        ] {
            let said = bad.parse::<Pair>().unwrap_err();
            assert!(
                said.contains("there are ") && said.contains("iq4_nl"),
                "{said}"
            );
        }
    }

    #[test]
    fn everything_runs_once_or_once_each_way() {
        let asked = ["q4_0", "tbq4_0/f16"].map(|p| p.parse().unwrap());
        let names = |runs: Vec<Run>| runs.iter().map(Run::file_stem).collect::<Vec<_>>();
        let plain = [
            "f16-f16",
            "q8_0-q8_0",
            "q4_0-q4_0",
            "iq4_nl-iq4_nl",
            "tbq4_0-f16",
        ];
        assert_eq!(names(runs(&asked, false, &[0], &[0])), plain);
        let each = plain
            .iter()
            .flat_map(|p| [p.to_string(), format!("{p}-centred")]);
        assert_eq!(
            names(runs(&asked, true, &[0], &[0])),
            each.collect::<Vec<_>>()
        );
    }

    #[test]
    fn ours_alone_have_windows_in_the_better_way() {
        let asked = ["tbq4_0/f16", "tbq4_0/f16", "q4_0"].map(|p| p.parse().unwrap());
        let ours = |calibrated, windows: &[u32], firsts: &[u32]| {
            let runs = runs(&asked, calibrated, windows, firsts);
            let (ours, stock): (Vec<Run>, Vec<Run>) =
                runs.into_iter().partition(|run| run.pair.is_ours());
            assert_eq!(stock.len(), if calibrated { 8 } else { 4 });
            assert!(stock.iter().all(|run| !run.has_window()));
            let stems = ours.iter().map(Run::file_stem);
            stems
                .map(|stem| stem.replace("tbq4_0-f16", ""))
                .collect::<Vec<_>>()
        };
        assert_eq!(ours(false, &[0, 32], &[0]), ["", "-window32"]);
        assert_eq!(
            ours(true, &[0, 32, 0], &[0, 4]),
            [
                "",
                "-centred",
                "-centred-window32",
                "-centred-window32-first4"
            ]
        );
        assert_eq!(ours(true, &[128], &[0]), ["-centred-window128"]);
    }

    #[test]
    fn exact_copies_cost_bits() {
        let run = |window, first| Run {
            pair: Pair::both(Q4_0),
            centred: false,
            window,
            first,
        };
        let bits = |window, first, ctx| run(window, first).effective_bits(ctx);
        assert_eq!((bits(0, 0, 1024), bits(32, 0, 1024)), (4.5, 5.0));
        assert_eq!(bits(24, 8, 8192), 4.5625);
        assert_eq!(bits(1_000_000, 0, 1024), 20.5, "all of them, and no more");
    }
}
