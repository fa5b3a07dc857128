//! The cache against attention in f64, written the plain way: keys and values are what
//! the reference codec makes of them, or, where a query must find exact copies, what
//! f16 makes of them.

mod common;

use common::{dot, gaussian};
use kvforge::Error;
use kvforge::cache::{
    AttendOptions, CacheBytes, CacheType, Encoder, KvCache, KvCacheOptions, SLACK,
};
use kvforge_formats::{Domain, cache_formats, f16_to_f32, f32_to_f16, tbq3_0, tbq4_0};

/// Largest error, relative to the largest output.
const TOLERANCE: f64 = 1e-5;

const TBQ3: CacheType = CacheType::Format(&tbq3_0::SPEC);
const TBQ4: CacheType = CacheType::Format(&tbq4_0::SPEC);

/// A token as the oracle knows it: keys, then values.
#[derive(Clone)]
struct Token {
    coded: [Vec<f32>; 2],
    exact: [Vec<f32>; 2],
    /// Whether queries that have it in their window find a copy.
    copied: bool,
}

/// What a row becomes.
fn coded(kind: CacheType, encoder: Encoder, x: &[f32]) -> Vec<f32> {
    let CacheType::Format(spec) = kind else {
        return half(kind, x);
    };
    let mut bytes = vec![0; spec.row_bytes(x.len()).unwrap()];
    let encode = match encoder {
        Encoder::Reference => spec.encode,
        Encoder::Best => spec.encode_best,
    };
    encode(x, &mut bytes).unwrap();
    let mut y = vec![0.0; x.len()];
    (spec.decode)(&bytes, &mut y, Domain::Original).unwrap();
    y
}

fn half(kind: CacheType, x: &[f32]) -> Vec<f32> {
    let half = |x: &f32| f16_to_f32(f32_to_f16(*x));
    match kind {
        CacheType::F32 => x.to_vec(),
        _ => x.iter().map(half).collect(),
    }
}

/// A cache and what must be in it.
struct Pair {
    cache: KvCache,
    tokens: Vec<Vec<Token>>,
    /// Longest length of a sequence since its copies were last complete.
    longest: Vec<usize>,
    seed: u64,
}

impl Pair {
    fn new(options: KvCacheOptions) -> Pair {
        let sequences = options.sequences;
        Pair {
            cache: KvCache::new(options).unwrap(),
            tokens: vec![vec![]; sequences],
            longest: vec![0; sequences],
            seed: 1,
        }
    }

    fn numbers(&mut self, n: usize) -> Vec<f32> {
        self.seed += 1;
        gaussian(self.seed * 7919, n)
    }

    fn append(&mut self, seq: usize, n: usize) {
        let o = self.cache.options().clone();
        let keys = self.numbers(n * o.n_kv_heads * o.head_dim_k);
        let values = self.numbers(n * o.n_kv_heads * o.head_dim_v);
        self.cache.append(seq, &keys, &values).unwrap();
        let rows = keys
            .chunks(o.n_kv_heads * o.head_dim_k)
            .zip(values.chunks(o.n_kv_heads * o.head_dim_v));
        for (k, v) in rows {
            let centred: Vec<f32> = match &o.centre {
                Some(centre) => k.iter().zip(centre).map(|(k, c)| k - c).collect(),
                None => k.to_vec(),
            };
            self.tokens[seq].push(Token {
                coded: [
                    coded(o.k_type, o.encoder, &centred),
                    coded(o.v_type, o.encoder, v),
                ],
                exact: [half(o.k_type, &centred), half(o.v_type, v)],
                copied: true,
            });
        }
        self.longest[seq] = self.longest[seq].max(self.tokens[seq].len());
    }

    fn truncate(&mut self, seq: usize, n: usize) {
        self.cache.truncate(seq, n).unwrap();
        self.tokens[seq].truncate(n);
    }

    /// What attention must give; `window` and `sinks` as the oracle should take them.
    fn oracle(
        &self,
        (window, sinks): (usize, usize),
        seq: usize,
        queries: &[f32],
        first: usize,
        options: &AttendOptions,
    ) -> Vec<f64> {
        let o = self.cache.options();
        let group = options.n_heads / o.n_kv_heads;
        let mut out = vec![];
        for (row, q) in queries.chunks(o.head_dim_k).enumerate() {
            let (p, kv_head) = (first + row / options.n_heads, row % options.n_heads / group);
            let (mut scores, mut values) = (vec![], vec![]);
            for (k, token) in self.tokens[seq].iter().enumerate() {
                let slides = options.sliding_window.is_some_and(|n| k + n <= p);
                if options.causal && k > p || slides {
                    continue;
                }
                let exact = token.copied && (k < sinks || k + window > p);
                let [keys, v] = if exact { &token.exact } else { &token.coded };
                let key = keys.chunks(o.head_dim_k).nth(kv_head).unwrap();
                let mut score = dot(q, key) * f64::from(options.scale);
                if options.softcap > 0.0 {
                    let cap = f64::from(options.softcap);
                    score = cap * (score / cap).tanh();
                }
                scores.push(score);
                values.push(v.chunks(o.head_dim_v).nth(kv_head).unwrap());
            }
            let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
            let sum: f64 = weights.iter().sum();
            out.extend((0..o.head_dim_v).map(|i| {
                let terms = weights.iter().zip(&values);
                terms.map(|(w, v)| w * f64::from(v[i])).sum::<f64>() / sum
            }));
        }
        out
    }

    /// Compares the outputs of `n_q` queries with the oracle, and says how far the oracle
    /// without exact tokens would be, in the same measure.
    #[track_caller]
    fn check(&mut self, seq: usize, first: usize, n_q: usize, options: &AttendOptions) -> f64 {
        let queries = self.numbers(n_q * options.n_heads * self.cache.options().head_dim_k);
        let found = self.cache.attend(seq, &queries, first, options).unwrap();
        let (window, sinks) = (self.cache.options().window, self.cache.options().sinks);
        let expected = self.oracle((window, sinks), seq, &queries, first, options);
        let found: Vec<f64> = found.iter().map(|x| f64::from(*x)).collect();
        let error = distance(&found, &expected);
        assert!(error < TOLERANCE, "error {error:e} at {first}, {n_q}");
        let plain = self.oracle((0, 0), seq, &queries, first, options);
        distance(&plain, &expected)
    }
}

/// Largest difference, relative to the largest of `expected`.
fn distance(found: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let largest = expected.iter().fold(0.0, |m: f64, x| m.max(x.abs()));
    let differences = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
    // A NaN is the largest.
    differences.fold(0.0, |m, d| if d <= m { m } else { d }) / largest
}

fn attention(n_heads: usize, head_dim: usize) -> AttendOptions {
    AttendOptions::new(n_heads, 2.0 / (head_dim as f32).sqrt())
}

#[test]
fn every_type_and_head_size() {
    let plain = [CacheType::F16, CacheType::F32];
    let types = || cache_formats().map(CacheType::Format).chain(plain);
    let mut cases = 0;
    for head_dim in [64, 128, 256] {
        let fits = |kind: &CacheType| head_dim % kind.block_len() == 0;
        for (i, k_type) in types().filter(fits).enumerate() {
            let holds = |kind: &CacheType| match kind {
                CacheType::Format(spec) => spec.holds_values(),
                _ => true,
            };
            for (j, v_type) in types().filter(fits).filter(holds).enumerate() {
                let group = [1, 3, 6][(i + j) % 3];
                let options = KvCacheOptions::new(2, head_dim, k_type, v_type).sinks(4);
                let encoder = [Encoder::Best, Encoder::Reference][(i + j) % 2];
                let compressed = options.window > 0;
                let mut pair = Pair::new(options.window(8).encoder(encoder));
                for n in [33, 1, 5] {
                    pair.append(0, n);
                    let first = pair.tokens[0].len() - n;
                    let plain = pair.check(0, first, n, &attention(2 * group, head_dim));
                    assert!(!compressed || plain > 100.0 * TOLERANCE, "{plain:e}");
                }
                cases += 1;
            }
        }
    }
    // Types of keys times types of values, at 64 values a head and at 128 and 256.
    assert_eq!(cases, 4 * 4 + 2 * 7 * 6);
}

#[test]
fn heads_of_two_sizes() {
    let options = KvCacheOptions::new(3, 128, TBQ4, TBQ3).head_dim_v(64);
    let mut pair = Pair::new(options.window(8));
    pair.append(0, 40);
    assert!(pair.check(0, 0, 40, &attention(6, 128)) > 100.0 * TOLERANCE);
}

/// The same tokens and queries in batches of other sizes give the same, and every one
/// what the oracle says.
#[test]
fn batches_do_not_matter() {
    let attend = attention(6, 64);
    for window in [0, 1, 8, 32, 1000] {
        for sinks in [0, 4] {
            let mut outputs: Vec<Vec<f64>> = vec![];
            for batch in [1, 5, 33, 300] {
                let options = KvCacheOptions::new(2, 64, TBQ4, TBQ3);
                let mut pair = Pair::new(options.window(window).sinks(sinks));
                let (n, row) = (300, 2 * 64);
                let [keys, values] = [11, 12].map(|seed| gaussian(seed, n * row));
                let queries = gaussian(13, n * 6 * 64);
                let mut found = vec![];
                for start in (0..n).step_by(batch) {
                    let end = n.min(start + batch);
                    let of = |x: &[f32], row: usize| x[start * row..end * row].to_vec();
                    let (k, v) = (of(&keys, row), of(&values, row));
                    pair.cache.append(0, &k, &v).unwrap();
                    let q = of(&queries, 6 * 64);
                    found.extend(pair.cache.attend(0, &q, start, &attend).unwrap());
                }
                let found: Vec<f64> = found.iter().map(|x| f64::from(*x)).collect();
                outputs.push(found);
                if batch == 300 {
                    for (k, v) in keys.chunks(row).zip(values.chunks(row)) {
                        let both = [(TBQ4, k), (TBQ3, v)];
                        pair.tokens[0].push(Token {
                            coded: both.map(|(kind, x)| coded(kind, Encoder::Best, x)),
                            exact: both.map(|(kind, x)| half(kind, x)),
                            copied: true,
                        });
                    }
                    let expected = pair.oracle((window, sinks), 0, &queries, 0, &attend);
                    for found in &outputs {
                        let error = distance(found, &expected);
                        assert!(error < TOLERANCE, "{error:e}, window {window}, {sinks}");
                    }
                    // One token more or less in a window is no rounding.
                    let other = pair.oracle((window + 1, sinks), 0, &queries, 0, &attend);
                    assert!(window == 1000 || distance(&other, &expected) > 100.0 * TOLERANCE);
                }
            }
        }
    }
}

/// Rollbacks, copies, lost copies and queries of some sequences in any order.
#[test]
fn any_order_of_calls() {
    let (window, sinks) = (8, 4);
    let options = KvCacheOptions::new(2, 64, TBQ3, TBQ4).sequences(3);
    let mut pair = Pair::new(options.window(window).sinks(sinks));
    let mut state = 5u64;
    let mut any = |n: usize| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) as usize % n
    };
    let (mut calls, mut differed) = ([0; 6], 0);
    for _ in 0..1500 {
        let (seq, other) = (any(3), any(3));
        let len = pair.tokens[seq].len();
        let call = any(12);
        match call {
            0 => {
                pair.cache.copy(seq, other).unwrap();
                pair.tokens[other] = pair.tokens[seq].clone();
                pair.longest[other] = pair.longest[seq];
            }
            1 if any(3) == 0 => {
                pair.cache.drop_window(seq).unwrap();
                for token in &mut pair.tokens[seq] {
                    token.copied = false;
                }
            }
            2 if len > 90 => {
                pair.cache.clear(seq).unwrap();
                pair.tokens[seq].clear();
                pair.longest[seq] = 0;
            }
            // Behind everything that a ring may hold, and short of it.
            3 if len > 70 => {
                pair.truncate(seq, any(len - 70));
                for token in pair.tokens[seq].iter_mut().skip(sinks) {
                    token.copied = false;
                }
                pair.longest[seq] = pair.tokens[seq].len();
            }
            4 | 5 => {
                let least = pair.longest[seq].saturating_sub(SLACK).min(len);
                pair.truncate(seq, len - any(len - least + 1));
            }
            _ => pair.append(seq, [1, 1, 1, 2, 6, 20][any(6)]),
        }
        calls[call.min(5)] += 1;
        let len = pair.tokens[seq].len();
        assert_eq!(pair.cache.len(seq).unwrap(), len);
        if len > 0 {
            let plain = pair.check(seq, len - 1, 1, &attention(2, 64));
            differed += usize::from(plain > 100.0 * TOLERANCE);
        }
    }
    assert!(calls.iter().all(|n| *n > 50), "{calls:?}");
    assert!(differed > 1000, "{differed}");
}

#[test]
fn sliding_windows_soft_caps_and_all_keys() {
    let mut pair = Pair::new(KvCacheOptions::new(2, 64, TBQ4, TBQ4).sinks(4));
    for n in [200, 90] {
        pair.append(0, n);
        let first = pair.tokens[0].len() - n;
        let attend = attention(6, 64);
        for attend in [
            attend,
            attend.sliding_window(5),
            attend.sliding_window(32),
            attend.sliding_window(33),
            attend.sliding_window(150),
            attend.sliding_window(1000),
            attend.softcap(1.5),
            attend.causal(false),
            attend.causal(false).sliding_window(40),
        ] {
            let plain = pair.check(0, first, n, &attend);
            assert!(plain > 100.0 * TOLERANCE, "{plain:e}, {attend:?}");
        }
    }
    // Queries of long ago, whose windows are no longer held: all from the code, but for
    // the first tokens.
    for token in &mut pair.tokens[0][4..200 - 48] {
        token.copied = false;
    }
    pair.check(0, 20, 100, &attention(2, 64));
}

#[test]
fn a_centre_is_not_seen() {
    let constant: Vec<f32> = gaussian(3, 128).iter().map(|x| x * 8.0).collect();
    let (keys, values) = (gaussian(4, 60 * 128), gaussian(5, 60 * 128));
    let biased = keys.iter().zip(constant.iter().cycle());
    let biased: Vec<f32> = biased.map(|(k, c)| k + c).collect();
    let queries = gaussian(6, 60 * 4 * 64);
    let run = |options: KvCacheOptions| {
        let mut cache = KvCache::new(options).unwrap();
        cache.append(0, &biased, &values).unwrap();
        let out = cache.attend(0, &queries, 0, &attention(4, 64)).unwrap();
        out.iter().map(|x| f64::from(*x)).collect::<Vec<_>>()
    };
    let f32s = KvCacheOptions::new(2, 64, CacheType::F32, CacheType::F32);
    let truth = run(f32s.clone());
    assert!(distance(&run(f32s.centre(constant.clone())), &truth) < 1e-4);
    // The code is spared the constant.
    let coded = KvCacheOptions::new(2, 64, TBQ4, TBQ4).window(0);
    let [without, with] =
        [coded.clone(), coded.clone().centre(constant.clone())].map(|o| distance(&run(o), &truth));
    assert!(with < 0.5 * without, "{with} {without}");

    let mut pair = Pair::new(coded.centre(constant).window(8).sinks(2));
    pair.append(0, 40);
    assert!(pair.check(0, 0, 40, &attention(4, 64)) > 100.0 * TOLERANCE);
    let error = pair
        .cache
        .attend(0, &queries[..256], 0, &attention(4, 64).softcap(30.0));
    says(error, &["softcap 30", "centre"]);
}

#[test]
fn memory_is_what_is_said() {
    let options = KvCacheOptions::new(2, 64, TBQ4, TBQ3).capacity(1000);
    let mut pair = Pair::new(options.window(32).sinks(4));
    assert_eq!(pair.cache.bits_per_value(), None);
    pair.append(0, 500);
    let (token, copy) = (2 * (36 + 28), 2 * 2 * 2 * 64);
    let all = |cache, exact| CacheBytes { cache, exact };
    assert_eq!(pair.cache.bytes(), all(500 * token, 500 * copy));
    let mut most = 0;
    for _ in 0..100 {
        pair.append(0, 1);
        most = most.max(pair.cache.bytes().exact);
    }
    assert_eq!(most, (4 + 32 + 32 + 1) * copy);
    pair.truncate(0, 2);
    assert_eq!(pair.cache.bytes(), all(2 * token, 2 * copy));
    assert_eq!(pair.cache.bits_per_value(), Some(4.0 + 16.0));
    pair.cache.drop_window(0).unwrap();
    assert_eq!(pair.cache.bits_per_value(), Some(4.0));
    pair.cache.clear(0).unwrap();
    assert_eq!(pair.cache.bytes(), all(0, 0));
}

#[track_caller]
fn says<T>(result: Result<T, Error>, parts: &[&str]) {
    let error = result.err().expect("an error").to_string();
    for part in parts {
        assert!(error.contains(part), "{error}: no `{part}`");
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let new = |heads, dim, k, v| KvCache::new(KvCacheOptions::new(heads, dim, k, v));
    let format = |name| CacheType::Format(kvforge::rows::format(name).unwrap());
    says(new(0, 64, TBQ4, TBQ4), &["at least one kv head", "0 heads"]);
    says(new(2, 0, TBQ4, TBQ4), &["one value", "heads of 0"]);
    says(new(2, 80, TBQ4, TBQ4), &["keys", "multiple of 32", "80"]);
    says(new(2, 64, TBQ4, format("q4_polar")), &["values", "128"]);
    says(new(2, 128, TBQ4, format("qjl1_256")), &["values", "K only"]);
    says(new(2, 128, format("turbo4_legacy"), TBQ4), &["keys", "old"]);
    says(new(2, 64, CacheType::Q8_0, TBQ4), &["keys in f16", "Q8_0"]);
    says(new(usize::MAX, 64, TBQ4, TBQ4), &["heads of 64"]);
    let options = KvCacheOptions::new(2, 64, TBQ4, TBQ4);
    let with = |options| KvCache::new(options);
    says(with(options.clone().sequences(0)), &["one sequence"]);
    let too_many = options.clone().sequences(usize::MAX);
    says(
        with(too_many),
        &["sequences as memory", &usize::MAX.to_string()],
    );
    let mut cache = with(options.clone().capacity(usize::MAX)).unwrap();
    let token = gaussian(1, 128);
    says(cache.append(0, &token, &token), &["capacity that memory"]);
    says(
        with(options.clone().centre(vec![0.0; 64])),
        &["[2, 64]", "64"],
    );
    let mut centre = vec![0.0; 128];
    centre[70] = f32::NAN;
    says(
        with(options.clone().centre(centre)),
        &["value 6 of kv head 1"],
    );

    let mut pair = Pair::new(options.sequences(2).capacity(50));
    pair.append(0, 40);
    let queries = gaussian(1, 4 * 64);
    let attend = attention(4, 64);
    assert!(
        pair.cache
            .attend(1, &[], 9, &attention(usize::MAX - 1, 64))
            .unwrap()
            .is_empty()
    );
    let before = pair.cache.attend(0, &queries, 39, &attend).unwrap();
    let bytes = pair.cache.bytes();
    let (k, good) = (gaussian(2, 3 * 128), gaussian(3, 3 * 128));
    let cache = &mut pair.cache;
    says(cache.append(0, &k[1..], &good), &["[n, 2, 64]", "383"]);
    says(cache.append(0, &k, &good[128..]), &["3 tokens", "2"]);
    says(cache.append(2, &k, &good), &["below 2", "2"]);
    let many = gaussian(4, 11 * 128);
    says(cache.append(0, &many, &many), &["50 tokens", "11 more"]);
    for (bad, says_what) in [
        (f32::NAN, "value 7 of the row is infinite or NaN"),
        (f32::INFINITY, "value 7 of the row is infinite or NaN"),
        (65520.0, "fp16"),
    ] {
        let mut v = good.clone();
        v[2 * 128 + 64 + 7] = bad;
        let place = "of appended token 2, kv head 1";
        says(cache.append(0, &k, &v), &["value", place, says_what]);
        says(cache.append(0, &v, &k), &["key", place, says_what]);
    }
    says(cache.truncate(0, 41), &["at most 40", "41"]);
    says(cache.truncate(7, 0), &["below 2", "7"]);
    says(cache.copy(0, 2), &["below 2"]);
    says(cache.attend(0, &queries, 40, &attend), &["below 40"]);
    says(
        cache.attend(0, &queries[1..], 3, &attend),
        &["[n_q, 4, 64]"],
    );
    says(
        cache.attend(0, &queries, 3, &attention(3, 64)),
        &["2 kv heads", "3"],
    );
    says(
        cache.attend(0, &queries, 3, &attend.softcap(-1.0)),
        &["softcap -1"],
    );
    let mut bad = queries.clone();
    bad[65] = f32::INFINITY;
    says(
        cache.attend(0, &bad, 3, &attend),
        &["inf in query 0, head 1"],
    );

    assert_eq!((cache.len(0).unwrap(), cache.bytes()), (40, bytes));
    assert_eq!(cache.attend(0, &queries, 39, &attend).unwrap(), before);
    // What follows stands where it should, as code as well.
    pair.append(0, 10);
    pair.check(0, 40, 10, &attend);
    pair.cache.drop_window(0).unwrap();
    for token in &mut pair.tokens[0] {
        token.copied = false;
    }
    pair.check(0, 40, 10, &attend);
}
