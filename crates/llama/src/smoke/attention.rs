//! Fused attention: `FLASH_ATTN_EXT` on a cache as llama.cpp keeps it.
//!
//! Tokens stand in cells in no order, some cells are unused and hold bytes that
//! decode to NaN, every head is a slice of a longer row, and the mask alone says
//! which query sees which cell. The bytes come from the tree's own `SET_ROWS`.
//! Positions come in a chunk, as in prefill, or one by one, a graph for each, as
//! in generation.
//!
//! *Against the decoded cache* the oracle gets those bytes and the raw queries;
//! the error of an output is at most the format's tolerance times the largest
//! absolute value of V. *Against the uncompressed cache* see `predict`.

use kvforge_evidence::Against;
use kvforge_formats::oracle::{self, Mask, Problem, Segment, Tensor, Type};
use kvforge_formats::{FormatSpec, cache_formats};

use super::ggml::{ComputeError, FlashAttn};
use super::inputs::{Random, Rows, f32_bytes, f32_values};
use super::machine::{Index, Machine, SLOT, Store};
use super::predict;
use super::rows::{self, larger};
use super::tally::{Counters, Tally};

const HEADS_KV: usize = 2;
const TOKENS: usize = 203;
const CELLS: usize = 224;
/// Positions of a prefill chunk: no multiple of any tile.
const CHUNK: usize = 70;
/// Positions that are generated one by one.
const STEPS: usize = 24;
/// fp16 scales of all ones are NaN, and so is every f16 value.
const NAN_BYTES: u8 = 0xff;

/// What is asked of the graphs.
#[derive(Clone, Copy)]
struct Case {
    k: Type,
    v: Type,
    head_dim: usize,
    /// Query heads that share a kv head.
    group: usize,
    /// Positions of a graph: 1 or [`CHUNK`].
    n_q: usize,
    /// Factor on the usual scale, 1 / sqrt(head_dim).
    scale: f32,
    softcap: f32,
    max_bias: f32,
    sinks: bool,
}

impl Case {
    fn heads(&self) -> usize {
        HEADS_KV * self.group
    }

    /// Positions of all graphs together.
    fn positions(&self) -> usize {
        if self.n_q == 1 { STEPS } else { self.n_q }
    }

    fn scale(&self) -> f32 {
        self.scale / (self.head_dim as f32).sqrt()
    }

    fn name(&self) -> String {
        let queries = match self.n_q {
            1 => format!("{STEPS} times 1 query"),
            n => format!("{n} queries"),
        };
        let (k, v) = (self.k.name(), self.v.name());
        let (head_dim, heads) = (self.head_dim, self.heads());
        let mut name = format!("K {k} V {v}, head {head_dim}, {heads}/{HEADS_KV} heads, {queries}");
        for (on, what) in [
            (self.scale != 1.0, "scale"),
            (self.softcap != 0.0, "soft-cap"),
            (self.max_bias != 0.0, "ALiBi"),
            (self.sinks, "sinks"),
        ] {
            if on {
                name = format!("{name}, {what}");
            }
        }
        name
    }
}

/// Every head size, with and without shared kv heads; every option alone and
/// all together; every pair with another type; each one by one and as a chunk.
fn cases(format: &'static FormatSpec) -> Vec<Case> {
    let mut all = vec![];
    for n_q in [1, CHUNK] {
        let plain = Case {
            k: format.into(),
            // A format that holds no values has plain ones beside it.
            v: match format.holds_values() {
                true => format.into(),
                false => Type::F16,
            },
            head_dim: 128,
            group: 4,
            n_q,
            scale: 1.0,
            softcap: 0.0,
            max_bias: 0.0,
            sinks: false,
        };
        for head_dim in [64, 128, 256] {
            if head_dim % format.block_len != 0 {
                continue;
            }
            for group in [1, 2, 6] {
                all.push(Case {
                    head_dim,
                    group,
                    ..plain
                });
            }
        }
        let options = Case {
            scale: 0.6,
            softcap: 2.0,
            max_bias: 8.0,
            sinks: true,
            ..plain
        };
        all.push(options);
        all.push(Case {
            scale: 0.6,
            ..plain
        });
        all.push(Case {
            softcap: 2.0,
            ..plain
        });
        all.push(Case {
            max_bias: 8.0,
            group: 3,
            ..plain
        });
        all.push(Case {
            sinks: true,
            ..plain
        });

        let formats = cache_formats().filter(|f| **f != *format);
        let stock = [Type::F16, Type::Q8_0];
        let values = formats.filter(|f| f.holds_values()).map(Type::from);
        for v in stock.into_iter().chain(values) {
            all.push(Case { v, ..plain });
        }
        // With another format as K it is that format's case.
        for k in stock.into_iter().filter(|_| format.holds_values()) {
            all.push(Case { k, ..plain });
        }
    }
    all
}

pub(crate) fn flash_attn(machine: &Machine, tally: &mut Tally<'_>) {
    for (seed, case) in cases(tally.format).into_iter().enumerate() {
        let inputs = Inputs::new(&case, seed as u64);
        let plain = inputs.uncompressed();
        let exact = oracle::attention(&plain);
        let predicted = predict::squared_error(&plain, tally.mse_of(case.k), tally.mse_of(case.v));
        // What the oracle makes of the cache; the bytes should not depend on threads.
        let mut decoded: Option<(Problem, Vec<f64>)> = None;
        for threads in machine.threads {
            let name = format!("{}, {threads} threads", case.name());
            let found = match run(machine, tally, &inputs, &name, threads, Damage::None) {
                Ok(found) => found,
                Err(e) => {
                    tally.refused(&name, e);
                    continue;
                }
            };
            tally.count(&name, &found.counters, &expected(tally, &case));

            let scale = largest_visible(&found.v, case.head_dim, &inputs.cells);
            let problem = inputs.problem(found.k, found.v);
            let same = |known: &Problem| {
                let (a, b) = (&known.segments[0], &problem.segments[0]);
                a.k == b.k && a.v == b.v
            };
            let wanted = match decoded.take().filter(|(known, _)| same(known)) {
                Some((_, wanted)) => wanted,
                None => oracle::attention(&problem),
            };
            let worst_of = |out: &[f32]| {
                let errors = out.iter().zip(&wanted);
                let errors = errors.map(|(out, want)| (f64::from(*out) - want).abs() / scale);
                errors.fold(0.0, larger)
            };
            let worst = worst_of(&found.out);
            let tolerance = tally.format.tolerance.attention;
            for (side, ty) in [(Damage::K, case.k), (Damage::V, case.v)] {
                let ours = matches!(ty, Type::Format(spec) if *spec == *tally.format);
                // One case of each kind is enough: they take their time.
                if !ours || seed % 8 != 0 {
                    continue;
                }
                if let Ok(found) = run(machine, tally, &inputs, &name, threads, side) {
                    let noticed = worst_of(&found.out) > tolerance;
                    tally.control(&name, &format!("one stored byte of {side:?}"), noticed);
                }
            }
            decoded = Some((problem, wanted));
            tally.measure(&name, Against::Decoded, worst, 0.0, tolerance);

            let pairs = found.out.iter().zip(&exact);
            let error: f64 = pairs
                .map(|(out, want)| (f64::from(*out) - want).powi(2))
                .sum();
            let spread = predict::SPREAD;
            tally.measure(
                &name,
                Against::Unquantised,
                error / predicted,
                1.0 / spread,
                spread,
            );
        }
    }
}

/// Kernels name themselves after the format of K and, if that is another, also
/// after the one of V. They count (position, head) pairs.
fn expected(tally: &Tally<'_>, case: &Case) -> Counters {
    let rows = (case.positions() * case.heads()) as u64;
    [case.k, case.v]
        .into_iter()
        .filter_map(|ty| match ty {
            Type::Format(spec) => Some(((tally.kernel_of(spec), SLOT), rows)),
            _ => None,
        })
        .collect()
}

/// Largest absolute value of V in the cells that hold tokens.
fn largest_visible(v: &Tensor, head_dim: usize, cells: &[usize]) -> f64 {
    let mut largest = 0.0;
    for head in 0..HEADS_KV {
        for &cell in cells {
            let row = v.row(head, cell, head_dim);
            largest = row.into_iter().map(f64::abs).fold(largest, larger);
        }
    }
    largest
}

/// A case, and everything that goes into its graphs.
struct Inputs {
    case: Case,
    /// By token, `[TOKENS, HEADS_KV * head_dim]`.
    k: Rows,
    v: Rows,
    /// Cell of every token.
    cells: Vec<usize>,
    /// `[positions, heads, head_dim]`.
    q: Vec<f32>,
    /// `[positions, CELLS]`, f16.
    mask: Tensor,
    sinks: Option<Vec<f32>>,
    slopes: Option<Vec<f32>>,
}

impl Inputs {
    fn new(case: &Case, seed: u64) -> Inputs {
        let mut random = Random(0xa77 + seed);
        let (heads, positions) = (case.heads(), case.positions());
        let k = Rows::without_constant(&mut random, TOKENS, HEADS_KV * case.head_dim);
        let v = Rows::without_constant(&mut random, TOKENS, HEADS_KV * case.head_dim);
        let cells = random.shuffled(CELLS)[..TOKENS].to_vec();
        let q = random.gaussians(positions * heads * case.head_dim);

        // The queries are those of the newest tokens.
        let mut mask = vec![f32::NEG_INFINITY; positions * CELLS];
        for (i, row) in mask.chunks_mut(CELLS).enumerate() {
            let position = TOKENS - positions + i;
            for (token, &cell) in cells.iter().enumerate().take(position + 1) {
                let distance = (position - token) as f32;
                row[cell] = if case.max_bias > 0.0 { -distance } else { 0.0 };
            }
        }
        let sinks = case
            .sinks
            .then(|| random.gaussians(heads).iter().map(|g| 2.0 + g).collect());
        let slopes = (case.max_bias > 0.0).then(|| slopes(case.max_bias, heads));
        Inputs {
            case: *case,
            k,
            v,
            cells,
            q,
            mask: Tensor::by_row(Type::F16, &mask, CELLS, 1),
            sinks,
            slopes,
        }
    }

    /// Rows in their cells, uncompressed; zeros in the others.
    fn in_cells(&self, rows: &Rows) -> Tensor {
        let mut values = vec![0.0; CELLS * rows.len];
        for (token, &cell) in self.cells.iter().enumerate() {
            values[cell * rows.len..][..rows.len].copy_from_slice(rows.row(token));
        }
        Tensor::by_row(Type::F32, &values, rows.len / HEADS_KV, HEADS_KV)
    }

    /// The problem as it would be without compression.
    fn uncompressed(&self) -> Problem {
        self.problem(self.in_cells(&self.k), self.in_cells(&self.v))
    }

    /// The problem of all positions, with these tensors as its cache.
    fn problem(&self, k: Tensor, v: Tensor) -> Problem {
        let case = &self.case;
        Problem {
            head_dim_k: case.head_dim,
            head_dim_v: case.head_dim,
            n_heads: case.heads(),
            n_kv_heads: HEADS_KV,
            n_q: case.positions(),
            q: Tensor::by_row(Type::F32, &self.q, case.head_dim, case.heads()),
            segments: vec![Segment {
                n_kv: CELLS,
                k,
                v,
                mask: Some(Mask {
                    values: self.mask.clone(),
                    heads: 1,
                }),
                pos0: 0,
            }],
            scale: case.scale(),
            softcap: (case.softcap != 0.0).then_some(case.softcap),
            slopes: self.slopes.clone(),
            sinks: self.sinks.clone(),
            causal: None,
        }
    }
}

/// ALiBi: a geometric series over the heads; if their number is no power of two,
/// the rest takes every other term of the series for twice as many.
fn slopes(max_bias: f32, heads: usize) -> Vec<f32> {
    let power = 1 << heads.ilog2();
    let term = |n: usize, i: usize| (-f64::from(max_bias) * i as f64 / n as f64).exp2() as f32;
    (0..heads)
        .map(|h| match h.checked_sub(power) {
            None => term(power, h + 1),
            Some(rest) => term(2 * power, 2 * rest + 1),
        })
        .collect()
}

/// What came out of the graphs of a case.
struct Found {
    /// The caches as the tree wrote them.
    k: Tensor,
    v: Tensor,
    /// `[positions, heads, head_dim]`.
    out: Vec<f32>,
    counters: Counters,
}

/// Which side of the cache is damaged before attention reads it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Damage {
    None,
    K,
    V,
}

fn run(
    machine: &Machine,
    tally: &Tally<'_>,
    inputs: &Inputs,
    name: &str,
    threads: usize,
    damage: Damage,
) -> Result<Found, ComputeError> {
    let case = &inputs.case;
    let side = |side, ty: Type, rows: &Rows| -> Result<Tensor, ComputeError> {
        let store = Store {
            side,
            ty,
            rows,
            cells: &inputs.cells,
            n_cells: CELLS,
            index: Index::I64,
            fill: NAN_BYTES,
            threads,
        };
        let (bytes, _) = machine.store(tally, name, &store)?;
        Ok(Tensor {
            ty,
            row_stride: bytes.len() / CELLS,
            head_stride: bytes.len() / CELLS / HEADS_KV,
            bytes,
        })
    };
    let mut found = Found {
        k: side("k", case.k, &inputs.k)?,
        v: side("v", case.v, &inputs.v)?,
        out: vec![],
        counters: Counters::new(),
    };

    // The first token, which every query sees.
    let first = inputs.cells[0];
    for (side, tensor) in [(Damage::K, &mut found.k), (Damage::V, &mut found.v)] {
        if damage == side
            && let Type::Format(spec) = tensor.ty
        {
            rows::damage(spec, &mut tensor.bytes[first * tensor.row_stride..]);
        }
    }

    let (heads, width) = (case.heads(), HEADS_KV * case.head_dim);
    let queries = inputs.q.chunks(case.n_q * heads * case.head_dim);
    let masks = inputs.mask.bytes.chunks(case.n_q * inputs.mask.row_stride);
    for (q_values, mask_bytes) in queries.zip(masks) {
        let graph = machine.ggml.graph(16);
        let cache_k = machine.cache(&graph, "k", case.k, &[width, CELLS]);
        let cache_v = machine.cache(&graph, "v", case.v, &[width, CELLS]);
        let q = machine.floats(&graph, &[heads * case.head_dim, case.n_q]);
        let mask = graph.new_tensor(machine.type_of(Type::F16), &[CELLS, case.n_q]);
        let sinks = inputs
            .sinks
            .as_ref()
            .map(|_| machine.floats(&graph, &[heads]));
        let view = |cache, ty, heads, rows| {
            let ty = machine.type_of(ty);
            graph.heads(cache, ty, case.head_dim, heads, rows)
        };
        let result = graph.flash_attn(&FlashAttn {
            q: view(q, Type::F32, heads, case.n_q),
            k: view(cache_k, case.k, HEADS_KV, CELLS),
            v: view(cache_v, case.v, HEADS_KV, CELLS),
            mask,
            sinks,
            scale: case.scale(),
            max_bias: case.max_bias,
            softcap: case.softcap,
        });
        graph.allocate();
        graph.write(cache_k, &found.k.bytes);
        graph.write(cache_v, &found.v.bytes);
        graph.write(q, &f32_bytes(q_values));
        graph.write(mask, mask_bytes);
        if let (Some(tensor), Some(values)) = (sinks, &inputs.sinks) {
            graph.write(tensor, &f32_bytes(values));
        }
        for (key, n) in machine.run(tally, name, &graph, result, threads)? {
            *found.counters.entry(key).or_default() += n;
        }
        found.out.extend(f32_values(&graph.read(result)));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slopes_are_alibi() {
        assert_eq!(slopes(8.0, 4), [0.25, 0.0625, 0.015625, 0.00390625]);
        let six = slopes(8.0, 6);
        assert_eq!(six[..4], slopes(8.0, 4));
        assert_eq!(six[4..], [0.5, 0.125]);
    }

    /// Found by predicted squared error when the cache is encoded without any host:
    /// what the smoke will see of a right implementation.
    fn ratio(case: &Case, seed: u64, k: Type, v: Type) -> f64 {
        let inputs = Inputs::new(case, seed);
        let coded = |rows: &Rows, ty: Type| {
            let plain = inputs.in_cells(rows);
            let values = f32_values(&plain.bytes);
            let mut tensor = Tensor::by_row(ty, &values, case.head_dim, HEADS_KV);
            if let Type::Format(spec) = ty {
                (spec.encode_best)(&values, &mut tensor.bytes).unwrap();
            }
            tensor
        };
        let plain = inputs.uncompressed();
        let exact = oracle::attention(&plain);
        let problem = inputs.problem(coded(&inputs.k, k), coded(&inputs.v, v));
        let found = oracle::attention(&problem);
        let error: f64 = exact
            .iter()
            .zip(&found)
            .map(|(a, b)| (a - b) * (a - b))
            .sum();
        let mse = |ty| match ty {
            Type::Format(spec) => spec.tolerance.gaussian_mse_best,
            _ => 0.0,
        };
        error / predict::squared_error(&plain, mse(case.k), mse(case.v))
    }

    #[test]
    fn predicted_error_is_found_by_the_oracle() {
        // The smaller half of the cases: the oracle takes its time.
        let small = |case: &Case| case.n_q == 1 && case.head_dim <= 128;
        for format in cache_formats() {
            for (seed, case) in cases(format).iter().enumerate().filter(|(_, c)| small(c)) {
                let ratio = ratio(case, seed as u64, case.k, case.v);
                let within = 1.0 / predict::SPREAD..predict::SPREAD;
                assert!(within.contains(&ratio), "{}: {ratio}", case.name());
            }
        }
    }

    #[test]
    fn a_cache_that_is_not_compressed_is_found_out() {
        for format in cache_formats() {
            let case = &cases(format)[0];
            let uncompressed = ratio(case, 0, Type::F16, Type::F16);
            assert!(uncompressed < 1e-3, "{uncompressed}");
            let milder = ratio(case, 0, Type::Q8_0, Type::Q8_0);
            assert!(milder < 0.1, "{milder}");
        }
    }
}
