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
use super::rows::{damage, larger};
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
    let bytes = match store(machine, tally, case, &rows, &name, threads) {
        Ok(bytes) => bytes,
        Err(e) => return tally.refused(&name, format!("SET_ROWS: {e}")),
    };
    let (found, counters) = match run(machine, tally, case, &bytes, &q, &name, threads) {
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
    let wanted = Wanted::new(tally, case, &rows, &q, &bytes);
    let (worst, ratio) = wanted.compare(&found);
    tally.compared(found.len());
    let tolerance = tally.format.tolerance.score;
    tally.measure(&name, Against::Decoded, worst, 0.0, tolerance);
    if found.len() >= ENOUGH {
        tally.measure(&name, Against::Unquantised, ratio, 1.0 / SPREAD, SPREAD);
    }
    let mut damaged = bytes;
    damage(tally.format, &mut damaged);
    if let Ok((found, _)) = run(machine, tally, case, &damaged, &q, &name, threads) {
        let noticed = wanted.compare(&found).0 > tolerance;
        tally.control(&name, "one stored byte", noticed);
    }
}

/// The bytes of the cache, as the tree writes them.
fn store(
    machine: &Machine,
    tally: &Tally<'_>,
    case: &Case,
    rows: &Rows,
    name: &str,
    threads: usize,
) -> Result<Vec<u8>, ComputeError> {
    let by_heads = rows.by_heads(case.head_dim);
    let rows = match case.layout {
        Layout::Rows => rows,
        Layout::Heads => &by_heads,
    };
    let cells: Vec<usize> = (0..rows.n()).collect();
    let store = Store {
        side: "k",
        ty: tally.format.into(),
        rows,
        cells: &cells,
        n_cells: rows.n(),
        index: Index::I64,
        fill: 0,
        threads,
    };
    Ok(machine.store(tally, name, &store)?.0)
}

/// The scores `[n_q, heads, keys]` and what was counted.
fn run(
    machine: &Machine,
    tally: &Tally<'_>,
    case: &Case,
    bytes: &[u8],
    q: &[f32],
    name: &str,
    threads: usize,
) -> Result<(Vec<f32>, Counters), ComputeError> {
    let Case {
        head_dim,
        n_q,
        keys,
        ..
    } = *case;
    let heads = HEADS_KV * case.group;
    let ty = tally.format.into();
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
    graph.write(cache, bytes);
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
    Ok((found, counters))
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

/// What the scores of a case should be, and how large their parts are.
struct Wanted {
    case: Case,
    plain: Vec<f64>,
    decoded: Vec<f64>,
    /// Squared lengths, by head and row.
    q: Vec<Vec<f64>>,
    k: Vec<Vec<f64>>,
    decoded_k: Vec<Vec<f64>>,
    /// Relative squared error of a key.
    mse: f64,
}

impl Wanted {
    fn new(tally: &Tally<'_>, case: &Case, rows: &Rows, q: &[f32], bytes: &[u8]) -> Wanted {
        let Case { head_dim, keys, .. } = *case;
        let heads = HEADS_KV * case.group;
        let f32_tensor =
            |x: &[f32], heads| oracle::Tensor::by_row(oracle::Type::F32, x, head_dim, heads);
        let plain = Scores {
            head_dim,
            n_heads: heads,
            n_kv_heads: HEADS_KV,
            n_q: case.n_q,
            n_kv: keys,
            q: f32_tensor(q, heads),
            k: f32_tensor(&rows.values, HEADS_KV),
        };
        let (ty, mse) = match case.route {
            Route::Score(ScoreOp::Polar { use_qjl: true, .. }) => {
                (oracle::Type::PolarResidual, q4_polar::RESIDUAL_MSE)
            }
            _ => (tally.format.into(), tally.mse()),
        };
        let row = ty.row_bytes(head_dim);
        let (row_stride, head_stride) = match case.layout {
            Layout::Rows => (HEADS_KV * row, row),
            Layout::Heads => (row, keys * row),
        };
        let decoded = Scores {
            k: oracle::Tensor {
                ty,
                bytes: bytes.to_vec(),
                row_stride,
                head_stride,
            },
            ..plain.clone()
        };
        let norms = |t: &oracle::Tensor, heads, n| -> Vec<Vec<f64>> {
            let square = |x: Vec<f64>| oracle::dot(&x, &x);
            (0..heads)
                .map(|h| (0..n).map(|i| square(t.row(h, i, head_dim))).collect())
                .collect()
        };
        Wanted {
            case: *case,
            plain: oracle::scores(&plain),
            decoded: oracle::scores(&decoded),
            q: norms(&plain.q, heads, case.n_q),
            k: norms(&plain.k, HEADS_KV, keys),
            decoded_k: norms(&decoded.k, HEADS_KV, keys),
            mse,
        }
    }

    /// The largest error against the decoded keys, and the squared error against the
    /// uncompressed ones divided by the one to expect.
    fn compare(&self, found: &[f32]) -> (f64, f64) {
        let Case {
            head_dim,
            group,
            keys,
            ..
        } = self.case;
        let heads = HEADS_KV * group;
        let (mut worst, mut error, mut predicted) = (0.0, 0.0, 0.0);
        for (i, score) in found.iter().enumerate() {
            let (row, key) = (i / keys, i % keys);
            let (position, head) = (row / heads, row % heads);
            let score = f64::from(*score);
            let qq = self.q[head][position];
            let off = (score - self.decoded[i]).abs();
            let scale = (qq * self.decoded_k[head / group][key]).sqrt();
            worst = larger(worst, if off == 0.0 { 0.0 } else { off / scale });
            error += (score - self.plain[i]).powi(2);
            predicted += self.mse * self.k[head / group][key] * qq / head_dim as f64;
        }
        (worst, error / predicted)
    }
}
