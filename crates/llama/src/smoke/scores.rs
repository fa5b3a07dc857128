//! Scores without fusion: `MUL_MAT` of a K cache and F32 queries.
//!
//! *Against the decoded keys* the error of a score is at most the format's
//! tolerance times `|q| |k|`.
//!
//! *Against the uncompressed keys*: let `e` be the error of a key, with
//! `E|e|^2 = mse |k|^2`. The queries are Gaussian and know nothing of `e`, so
//! `E (q.e)^2 = |e|^2 |q|^2 / d`, and the squared errors of many scores add up to
//! about `sum mse |k|^2 |q|^2 / d`. With the smallest case's 226 scores chance is a
//! tenth of that, and a few rows are not Gaussian; a factor of 1.6 leaves room for
//! both, and for no format with a bit more or less.

use kvforge_evidence::Against;
use kvforge_formats::oracle::{self, Scores};

use super::inputs::{Random, Rows, f32_bytes, f32_values};
use super::machine::{Index, Machine, Store};
use super::rows::larger;
use super::tally::{Counters, Tally};

const HEADS_KV: usize = 2;
const KEYS: usize = 113;
/// Slot of calls through the type traits, which know of no tensor.
const UNTAGGED: u32 = 0;

/// Allowed factor between predicted and found squared error, both ways.
const SPREAD: f64 = 1.6;

pub(crate) fn mul_mat(machine: &Machine, tally: &mut Tally<'_>) {
    for head_dim in [64, 128, 256] {
        for (group, n_q) in [(1, 1), (3, 1), (3, 20)] {
            for threads in machine.threads {
                one(machine, tally, head_dim, group, n_q, threads);
            }
        }
    }
}

fn one(
    machine: &Machine,
    tally: &mut Tally<'_>,
    head_dim: usize,
    group: usize,
    n_q: usize,
    threads: usize,
) {
    let format = tally.format;
    let heads = HEADS_KV * group;
    let case =
        format!("head {head_dim}, {heads}/{HEADS_KV} heads, {n_q} queries, {threads} threads");
    let mut random = Random((head_dim * 100 + group * 10 + n_q) as u64);
    let rows = Rows::new(&mut random, KEYS, HEADS_KV * head_dim);
    let q = random.gaussians(n_q * heads * head_dim);
    let cells: Vec<usize> = (0..KEYS).collect();
    let store = Store {
        side: "k",
        ty: format.into(),
        rows: &rows,
        cells: &cells,
        n_cells: KEYS,
        index: Index::I64,
        fill: 0,
        threads,
    };
    let bytes = match machine.store(tally, &case, &store) {
        Ok((bytes, _)) => bytes,
        Err(e) => return tally.refused(&case, format!("SET_ROWS: {e}")),
    };

    let graph = machine.ggml.graph(8);
    let cache = machine.cache(&graph, "k", format.into(), &[HEADS_KV * head_dim, KEYS]);
    let queries = machine.floats(&graph, &[heads * head_dim, n_q]);
    let k = graph.heads(
        cache,
        machine.type_of(format.into()),
        head_dim,
        HEADS_KV,
        KEYS,
    );
    let f32_type = machine.type_of(oracle::Type::F32);
    let result = graph.mul_mat(k, graph.heads(queries, f32_type, head_dim, heads, n_q));
    graph.allocate();
    graph.write(cache, &bytes);
    graph.write(queries, &f32_bytes(&q));
    let counters = match machine.run(tally, &case, &graph, result, threads) {
        Ok(counters) => counters,
        Err(e) => return tally.refused(&case, e),
    };
    let blocks = n_q * heads * KEYS * head_dim / format.block_len;
    let expected: Counters = [((tally.kernel().to_string(), UNTAGGED), blocks as u64)].into();
    tally.count(&case, &counters, &expected);

    // [heads, n_q, keys], the oracle's are [n_q, heads, keys].
    let found = f32_values(&graph.read(result));
    let at = |position: usize, head: usize, key: usize| (head * n_q + position) * KEYS + key;
    let f32_tensor =
        |x: &[f32], heads| oracle::Tensor::by_row(oracle::Type::F32, x, head_dim, heads);
    let mut problem = Scores {
        head_dim,
        n_heads: heads,
        n_kv_heads: HEADS_KV,
        n_q,
        n_kv: KEYS,
        q: f32_tensor(&q, heads),
        k: f32_tensor(&rows.values, HEADS_KV),
    };
    let plain = problem.clone();
    let plain_scores = oracle::scores(&plain);
    problem.k = oracle::Tensor {
        ty: format.into(),
        row_stride: bytes.len() / KEYS,
        head_stride: bytes.len() / KEYS / HEADS_KV,
        bytes,
    };
    let decoded_scores = oracle::scores(&problem);

    let norm = |x: Vec<f64>| x.iter().map(|v| v * v).sum::<f64>();
    let norms = |t: &oracle::Tensor, heads, n| -> Vec<Vec<f64>> {
        (0..heads)
            .map(|h| (0..n).map(|i| norm(t.row(h, i, head_dim))).collect())
            .collect()
    };
    let q_norms = norms(&plain.q, heads, n_q);
    let k_norms = norms(&plain.k, HEADS_KV, KEYS);
    let decoded_norms = norms(&problem.k, HEADS_KV, KEYS);
    let (mut worst, mut error, mut predicted) = (0.0, 0.0, 0.0);
    for position in 0..n_q {
        for head in 0..heads {
            for key in 0..KEYS {
                let i = (position * heads + head) * KEYS + key;
                let score = f64::from(found[at(position, head, key)]);
                let qq = q_norms[head][position];
                let off = (score - decoded_scores[i]).abs();
                let scale = (qq * decoded_norms[head / group][key]).sqrt();
                worst = larger(worst, if off == 0.0 { 0.0 } else { off / scale });
                error += (score - plain_scores[i]).powi(2);
                let mse = format.tolerance.gaussian_mse;
                predicted += mse * k_norms[head / group][key] * qq / head_dim as f64;
            }
        }
    }
    tally.compared(n_q * heads * KEYS);
    tally.measure(&case, Against::Decoded, worst, 0.0, format.tolerance.score);
    tally.measure(
        &case,
        Against::Unquantised,
        error / predicted,
        1.0 / SPREAD,
        SPREAD,
    );
}
