//! Scores without fusion: `MUL_MAT` of a K cache and F32 queries, and the
//! `ATTN_SCORE_*` operations.
//!
//! The bytes come from the tree's own `SET_ROWS`, and the expected scores from raw
//! queries and what those bytes decode to in the original domain, whatever form
//! an operation wants its queries in.
//!
//! *Against the decoded keys* the error of a score is at most the format's
//! tolerance times `|q| |k|`.
//!
//! *Against the uncompressed keys*: let `e` be the error of a key, with
//! `E|e|^2 = mse |k|^2`. The queries are Gaussian and know nothing of `e`, so
//! `E (q.e)^2 = |e|^2 |q|^2 / d`, and the squared errors of many scores add up to
//! about `sum mse |k|^2 |q|^2 / d`. With 226 scores chance is a tenth of that, and
//! one row is not Gaussian; a factor of 1.6 leaves room for both, and for no format
//! with a bit more or less. With fewer scores this is not asked.

use kvforge_evidence::Against;
use kvforge_formats::oracle::{self, Scores};
use kvforge_formats::q4_polar;

use super::ggml::{ComputeError, Score, ScoreOp};
use super::inputs::{Random, Rows, f32_bytes, f32_values};
use super::machine::{Index, Machine, SLOT, Store};
use super::routes::score_op;
use super::rows::larger;
use super::tally::{Counters, Tally};

const HEADS_KV: usize = 2;
/// Slot of calls through the type traits, which know of no tensor.
const UNTAGGED: u32 = 0;

/// Allowed factor between predicted and found squared error, both ways.
const SPREAD: f64 = 1.6;
/// Scores that its statistics need.
const ENOUGH: usize = 226;

/// Where the heads of a key are.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Layout {
    /// Beside each other in a row, as in llama.cpp's cache.
    Rows,
    /// A matrix for each head.
    Heads,
}

/// How the scores are asked for.
#[derive(Clone, Copy)]
enum Route {
    MulMat,
    Score(ScoreOp),
}

#[derive(Clone, Copy)]
struct Case {
    route: Route,
    layout: Layout,
    head_dim: usize,
    group: usize,
    n_q: usize,
    keys: usize,
}

pub(crate) fn mul_mat(machine: &Machine, tally: &mut Tally<'_>) {
    for head_dim in tally.head_sizes() {
        for (group, n_q) in [(1, 1), (3, 1), (3, 20)] {
            let case = Case {
                route: Route::MulMat,
                layout: Layout::Rows,
                head_dim,
                group,
                n_q,
                keys: 113,
            };
            for threads in machine.threads {
                one(machine, tally, &case, threads);
            }
        }
    }
}

/// Every form of the operation; query heads that share a key, tails, both layouts.
pub(crate) fn attn_score(machine: &Machine, tally: &mut Tally<'_>) {
    for &op in score_op(tally.format) {
        for head_dim in tally.head_sizes() {
            for group in [1, 2, 6] {
                for (n_q, keys) in [(1, 8), (1, 1), (3, 33), (5, 113)] {
                    for layout in [Layout::Rows, Layout::Heads] {
                        let case = Case {
                            route: Route::Score(op),
                            layout,
                            head_dim,
                            group,
                            n_q,
                            keys,
                        };
                        for threads in machine.threads {
                            one(machine, tally, &case, threads);
                        }
                    }
                }
            }
        }
    }
}

fn one(machine: &Machine, tally: &mut Tally<'_>, case: &Case, threads: usize) {
    let Case {
        head_dim,
        group,
        n_q,
        keys,
        layout,
        ..
    } = *case;
    let heads = HEADS_KV * group;
    let mut name = format!(
        "head {head_dim}, {heads}/{HEADS_KV} heads, {n_q} queries, {keys} keys by {layout:?}, {threads} threads"
    );
    if let Route::Score(op) = case.route {
        name = format!("{}{name}", op.in_words());
    }
    let mut random = Random((head_dim * 100 + group * 10 + n_q + keys) as u64);
    let rows = Rows::without_constant(&mut random, keys, HEADS_KV * head_dim);
    let q = random.gaussians(n_q * heads * head_dim);
    let (bytes, found, counters) = match run(machine, tally, case, &rows, &q, &name, threads) {
        Ok(done) => done,
        Err(e) => return tally.refused(&name, e),
    };
    let expected = match case.route {
        Route::MulMat => {
            let blocks = n_q * heads * keys * head_dim / tally.format.block_len;
            (UNTAGGED, blocks as u64)
        }
        Route::Score(_) => (SLOT, (n_q * heads * keys) as u64),
    };
    let expected: Counters = [((tally.kernel().to_string(), expected.0), expected.1)].into();
    tally.count(&name, &counters, &expected);
    compare(tally, case, &name, &rows, &q, bytes, &found);
}

/// The bytes of the cache, the scores `[n_q, heads, keys]`, what was counted.
fn run(
    machine: &Machine,
    tally: &Tally<'_>,
    case: &Case,
    rows: &Rows,
    q: &[f32],
    name: &str,
    threads: usize,
) -> Result<(Vec<u8>, Vec<f32>, Counters), ComputeError> {
    let Case {
        head_dim,
        n_q,
        keys,
        ..
    } = *case;
    let heads = HEADS_KV * case.group;
    let ty = tally.format.into();
    let by_heads = rows.by_heads(head_dim);
    let rows = match case.layout {
        Layout::Rows => rows,
        Layout::Heads => &by_heads,
    };
    let cells: Vec<usize> = (0..rows.n()).collect();
    let store = Store {
        side: "k",
        ty,
        rows,
        cells: &cells,
        n_cells: rows.n(),
        index: Index::I64,
        fill: 0,
        threads,
    };
    let (bytes, _) = machine.store(tally, name, &store)?;

    let graph = machine.ggml.graph(8);
    let (cache, k) = match case.layout {
        Layout::Rows => {
            let cache = machine.cache(&graph, "k", ty, &[HEADS_KV * head_dim, keys]);
            let view = graph.heads(cache, machine.type_of(ty), head_dim, HEADS_KV, keys);
            (cache, view)
        }
        Layout::Heads => {
            let cache = machine.cache(&graph, "k", ty, &[head_dim, keys, HEADS_KV]);
            (cache, cache)
        }
    };
    let (queries, values, result) = match case.route {
        Route::MulMat => {
            let queries = machine.floats(&graph, &[heads * head_dim, n_q]);
            let f32_type = machine.type_of(oracle::Type::F32);
            let seen = graph.heads(queries, f32_type, head_dim, heads, n_q);
            (queries, q.to_vec(), graph.mul_mat(k, seen))
        }
        Route::Score(op) => {
            let values = prepared(tally, op, q);
            let width = values.len() / (n_q * heads);
            let queries = machine.floats(&graph, &[width, heads, n_q]);
            let score = Score {
                op,
                q: queries,
                k,
                n_kv_heads: HEADS_KV,
            };
            (queries, values, graph.attn_score(&score))
        }
    };
    graph.allocate();
    graph.write(cache, &bytes);
    graph.write(queries, &f32_bytes(&values));
    let counters = machine.run(tally, name, &graph, result, threads)?;
    let mut found = f32_values(&graph.read(result));
    if let Route::MulMat = case.route {
        // [heads, n_q, keys]
        let all = found.clone();
        for (i, score) in found.iter_mut().enumerate() {
            let (row, key) = (i / keys, i % keys);
            let (position, head) = (row / heads, row % heads);
            *score = all[(head * n_q + position) * keys + key];
        }
    }
    Ok((bytes, found, counters))
}

/// Queries in the form that an operation takes, by the oracle's matrices.
fn prepared(tally: &Tally<'_>, op: ScoreOp, q: &[f32]) -> Vec<f32> {
    let factor = match op {
        ScoreOp::Tbq | ScoreOp::Polar { preht: false, .. } => return q.to_vec(),
        ScoreOp::Qjl => 1.0,
        // The operation wants the transform as it is, not scaled.
        ScoreOp::Polar { preht: true, .. } => (tally.format.block_len as f64).sqrt(),
    };
    let q: Vec<f64> = q.iter().copied().map(f64::from).collect();
    let transformed = oracle::rotate(tally.format, &q);
    transformed.iter().map(|v| (v * factor) as f32).collect()
}

fn compare(
    tally: &mut Tally<'_>,
    case: &Case,
    name: &str,
    rows: &Rows,
    q: &[f32],
    bytes: Vec<u8>,
    found: &[f32],
) {
    let Case {
        head_dim,
        group,
        n_q,
        keys,
        ..
    } = *case;
    let (format, heads) = (tally.format, HEADS_KV * group);
    let f32_tensor =
        |x: &[f32], heads| oracle::Tensor::by_row(oracle::Type::F32, x, head_dim, heads);
    let plain = Scores {
        head_dim,
        n_heads: heads,
        n_kv_heads: HEADS_KV,
        n_q,
        n_kv: keys,
        q: f32_tensor(q, heads),
        k: f32_tensor(&rows.values, HEADS_KV),
    };
    let ty = match case.route {
        Route::Score(ScoreOp::Polar { use_qjl: true, .. }) => oracle::Type::PolarResidual,
        _ => format.into(),
    };
    let row = ty.row_bytes(head_dim);
    let (row_stride, head_stride) = match case.layout {
        Layout::Rows => (HEADS_KV * row, row),
        Layout::Heads => (row, keys * row),
    };
    let decoded = Scores {
        k: oracle::Tensor {
            ty,
            bytes,
            row_stride,
            head_stride,
        },
        ..plain.clone()
    };
    let (plain_scores, decoded_scores) = (oracle::scores(&plain), oracle::scores(&decoded));

    let norms = |t: &oracle::Tensor, heads, n| -> Vec<Vec<f64>> {
        let square = |x: Vec<f64>| x.iter().map(|v| v * v).sum::<f64>();
        (0..heads)
            .map(|h| (0..n).map(|i| square(t.row(h, i, head_dim))).collect())
            .collect()
    };
    let q_norms = norms(&plain.q, heads, n_q);
    let k_norms = norms(&plain.k, HEADS_KV, keys);
    let decoded_norms = norms(&decoded.k, HEADS_KV, keys);
    let mse = match ty {
        oracle::Type::PolarResidual => q4_polar::RESIDUAL_MSE,
        _ => tally.mse(),
    };
    let (mut worst, mut error, mut predicted) = (0.0, 0.0, 0.0);
    for (i, score) in found.iter().enumerate() {
        let (row, key) = (i / keys, i % keys);
        let (position, head) = (row / heads, row % heads);
        let score = f64::from(*score);
        let qq = q_norms[head][position];
        let off = (score - decoded_scores[i]).abs();
        let scale = (qq * decoded_norms[head / group][key]).sqrt();
        worst = larger(worst, if off == 0.0 { 0.0 } else { off / scale });
        error += (score - plain_scores[i]).powi(2);
        predicted += mse * k_norms[head / group][key] * qq / head_dim as f64;
    }
    tally.compared(found.len());
    tally.measure(name, Against::Decoded, worst, 0.0, format.tolerance.score);
    if found.len() >= ENOUGH {
        let ratio = error / predicted;
        tally.measure(name, Against::Unquantised, ratio, 1.0 / SPREAD, SPREAD);
    }
}
