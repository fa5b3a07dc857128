//! Rows into blocks and back: `SET_ROWS`, `GET_ROWS` and both directions of
//! `CPY`.
//!
//! Bytes must be those of the reference encoder, values those of the reference
//! decoder, bit for bit, and both must be right by the oracle as well, which
//! shares no code with either. Over a hundred thousand Gaussian values the
//! relative squared error of the round trip must be the one that the format's
//! specification states, within the margin that it states: a larger one means
//! that something is wrong, a smaller one that this is not the format.

use kvforge_evidence::Against;
use kvforge_formats::{Domain, FormatSpec, oracle};

use super::ggml::ComputeError;
use super::inputs::{Random, Rows, f32_bytes, f32_values};
use super::machine::{Index, Machine, SLOT, Store, index_bytes};
use super::tally::{Counters, Tally};

/// Rows and their length: one row, fewer rows than threads, tails that are not
/// a multiple of the eight blocks that a vector encoder takes.
const SHAPES: [(usize, usize); 4] = [(1, 64), (3, 96), (9, 256), (70, 384)];

/// The shapes in whole blocks of a format.
fn shapes(format: &'static FormatSpec) -> impl Iterator<Item = (usize, usize)> {
    let whole = |len: usize| len.next_multiple_of(format.block_len);
    SHAPES.into_iter().map(move |(n, len)| (n, whole(len)))
}

/// Enough for the statistics.
const MANY: (usize, usize) = (256, 512);
/// What a cell holds that nothing was written to.
const FILL: u8 = 0xa5;

fn expected(kernel: &str, format: &FormatSpec, n_values: usize) -> Counters {
    let blocks = n_values / format.block_len;
    [((kernel.to_string(), SLOT), blocks as u64)].into()
}

/// The bytes that the codec of `kvforge-formats` makes.
fn reference_bytes(tally: &Tally<'_>, x: &[f32]) -> Vec<u8> {
    let format = tally.format;
    let mut bytes = vec![0; x.len() / format.block_len * format.block_bytes];
    (tally.encode())(x, &mut bytes).expect("the smoke's rows can be encoded");
    bytes
}

fn reference_values(format: &FormatSpec, bytes: &[u8]) -> Vec<f32> {
    let mut x = vec![0.0; bytes.len() / format.block_bytes * format.block_len];
    (format.decode)(bytes, &mut x, Domain::Original).expect("whole blocks decode");
    x
}

fn differing_blocks(format: &FormatSpec, a: &[u8], b: &[u8]) -> usize {
    let blocks = a
        .chunks(format.block_bytes)
        .zip(b.chunks(format.block_bytes));
    blocks.filter(|(a, b)| a != b).count()
}

/// `SET_ROWS` into a cache, in any order.
pub(crate) fn set_rows(machine: &Machine, tally: &mut Tally<'_>) {
    let format = tally.format;
    for (n, len) in shapes(format).chain([MANY]) {
        let mut random = Random(0x5e7 + n as u64);
        let rows = Rows::new(&mut random, n, len);
        let n_cells = n + 5;
        let cells = &random.shuffled(n_cells)[..n];
        for index in [Index::I64, Index::I32] {
            for threads in machine.threads {
                let case = format!("{n} rows of {len}, {index:?} indices, {threads} threads");
                let store = Store {
                    side: "k",
                    ty: format.into(),
                    rows: &rows,
                    cells,
                    n_cells,
                    index,
                    fill: FILL,
                    threads,
                };
                let (bytes, counters) = match machine.store(tally, &case, &store) {
                    Ok(done) => done,
                    Err(e) => {
                        tally.refused(&case, e);
                        continue;
                    }
                };
                tally.count(&case, &counters, &expected(tally.kernel(), format, n * len));
                let row_bytes = bytes.len() / n_cells;
                let cell = |c: usize| &bytes[c * row_bytes..][..row_bytes];
                let wrong: usize = (0..n)
                    .map(|i| {
                        differing_blocks(
                            format,
                            &reference_bytes(tally, rows.row(i)),
                            cell(cells[i]),
                        )
                    })
                    .sum();
                tally.measure(&case, Against::Reference, wrong as f64, 0.0, 0.0);
                let others = (0..n_cells).filter(|c| !cells.contains(c));
                let touched: Vec<usize> = others
                    .filter(|&c| cell(c).iter().any(|&b| b != FILL))
                    .collect();
                tally.check(&case, touched.is_empty(), || {
                    format!("wrote to cells {touched:?}, which no index names")
                });
                if (n, len) == MANY {
                    let decoded = |i: usize| oracle::decode(format, cell(cells[i]));
                    round_trip(tally, &case, &rows, decoded);
                    let damaged = rows.damaged();
                    let store = Store {
                        rows: &damaged,
                        ..store
                    };
                    if let Ok((bytes, _)) = machine.store(tally, &case, &store) {
                        let cell = &bytes[cells[0] * row_bytes..][..row_bytes];
                        let right = reference_bytes(tally, rows.row(0));
                        let noticed = differing_blocks(format, &right, cell) == 1;
                        tally.control(&case, "one value to encode", noticed);
                    }
                }
            }
        }
    }
}

/// `GET_ROWS`, in any order and more than once.
pub(crate) fn get_rows(machine: &Machine, tally: &mut Tally<'_>) {
    let format = tally.format;
    for (n, len) in shapes(format).chain([MANY]) {
        let mut random = Random(0x6e7 + n as u64);
        let rows = Rows::new(&mut random, n, len);
        let mut wanted = random.shuffled(n);
        wanted.extend_from_within(..n.min(3));
        for threads in machine.threads {
            let case = format!("{} of {n} rows of {len}, {threads} threads", wanted.len());
            let Some(bytes) = stored(machine, tally, &case, &rows) else {
                continue;
            };
            let read = |tally: &Tally<'_>, bytes: &[u8]| {
                let graph = machine.ggml.graph(4);
                let cache = machine.cache(&graph, "k", format.into(), &[len, n]);
                let indices = machine.indices(&graph, Index::I32, wanted.len());
                let result = graph.get_rows(cache, indices);
                graph.allocate();
                graph.write(cache, bytes);
                graph.write(indices, &index_bytes(Index::I32, &wanted));
                let counters = machine.run(tally, &case, &graph, result, threads)?;
                Ok::<_, ComputeError>((f32_values(&graph.read(result)), counters))
            };
            let (values, counters) = match read(tally, &bytes) {
                Ok(done) => done,
                Err(e) => {
                    tally.refused(&case, e);
                    continue;
                }
            };
            tally.count(
                &case,
                &counters,
                &expected(tally.kernel(), format, wanted.len() * len),
            );
            let row_bytes = bytes.len() / n;
            let coded: Vec<u8> = wanted
                .iter()
                .flat_map(|&i| &bytes[i * row_bytes..][..row_bytes])
                .copied()
                .collect();
            compare_decoded(tally, &case, &coded, len, &values);
            if (n, len) == MANY {
                let mut damaged = bytes.clone();
                damage(format, &mut damaged[wanted[0] * row_bytes..]);
                if let Ok((values, _)) = read(tally, &damaged) {
                    decoding_control(tally, &case, &coded[..row_bytes], &values[..len]);
                }
                let mut place = vec![0; n];
                for (at, &i) in wanted.iter().enumerate() {
                    place[i] = at;
                }
                let decoded = |i: usize| {
                    let row = &values[place[i] * len..][..len];
                    row.iter().copied().map(f64::from).collect()
                };
                round_trip(tally, &case, &rows, decoded);
            }
        }
    }
}

/// `CPY` of F32 into blocks.
pub(crate) fn copy_to(machine: &Machine, tally: &mut Tally<'_>) {
    let format = tally.format;
    for (n, len) in shapes(format) {
        let rows = Rows::new(&mut Random(0xc09 + n as u64), n, len);
        let want = reference_bytes(tally, &rows.values);
        for threads in machine.threads {
            let case = format!("{n} rows of {len}, {threads} threads");
            let copied = |tally: &Tally<'_>, values: &[f32]| {
                let graph = machine.ggml.graph(4);
                let from = machine.floats(&graph, &[len, n]);
                let into = machine.cache(&graph, "k", format.into(), &[len, n]);
                let result = graph.copy(from, into);
                graph.allocate();
                graph.write(from, &f32_bytes(values));
                graph.write(into, &vec![FILL; graph.len(into)]);
                let counters = machine.run(tally, &case, &graph, result, threads)?;
                Ok::<_, ComputeError>((graph.read(into), counters))
            };
            match copied(tally, &rows.values) {
                Ok((bytes, counters)) => {
                    tally.count(&case, &counters, &expected(tally.kernel(), format, n * len));
                    let wrong = differing_blocks(format, &want, &bytes);
                    tally.measure(&case, Against::Reference, wrong as f64, 0.0, 0.0);
                }
                Err(e) => {
                    tally.refused(&case, e);
                    continue;
                }
            }
            if let Ok((bytes, _)) = copied(tally, &rows.damaged().values) {
                let noticed = differing_blocks(format, &want, &bytes) == 1;
                tally.control(&case, "one value to encode", noticed);
            }
        }
    }
}

/// `CPY` of blocks into F32.
pub(crate) fn copy_from(machine: &Machine, tally: &mut Tally<'_>) {
    let format = tally.format;
    for (n, len) in shapes(format) {
        let rows = Rows::new(&mut Random(0xf09 + n as u64), n, len);
        for threads in machine.threads {
            let case = format!("{n} rows of {len}, {threads} threads");
            let Some(bytes) = stored(machine, tally, &case, &rows) else {
                continue;
            };
            let copied = |tally: &Tally<'_>, bytes: &[u8]| {
                let graph = machine.ggml.graph(4);
                let from = machine.cache(&graph, "k", format.into(), &[len, n]);
                let into = machine.floats(&graph, &[len, n]);
                let result = graph.copy(from, into);
                graph.allocate();
                graph.write(from, bytes);
                let counters = machine.run(tally, &case, &graph, result, threads)?;
                Ok::<_, ComputeError>((f32_values(&graph.read(into)), counters))
            };
            match copied(tally, &bytes) {
                Ok((values, counters)) => {
                    tally.count(&case, &counters, &expected(tally.kernel(), format, n * len));
                    compare_decoded(tally, &case, &bytes, len, &values);
                }
                Err(e) => {
                    tally.refused(&case, e);
                    continue;
                }
            }
            let mut damaged = bytes.clone();
            damage(format, &mut damaged);
            if let Ok((values, _)) = copied(tally, &damaged) {
                decoding_control(tally, &case, &bytes, &values);
            }
        }
    }
}

/// The bytes that the tree's own `SET_ROWS` makes of rows.
fn stored(machine: &Machine, tally: &mut Tally<'_>, case: &str, rows: &Rows) -> Option<Vec<u8>> {
    let cells: Vec<usize> = (0..rows.n()).collect();
    let store = Store {
        side: "k",
        ty: tally.format.into(),
        rows,
        cells: &cells,
        n_cells: rows.n(),
        index: Index::I64,
        fill: FILL,
        threads: machine.threads[1],
    };
    match machine.store(tally, case, &store) {
        Ok((bytes, _)) => Some(bytes),
        Err(e) => {
            tally.refused(case, format!("SET_ROWS: {e}"));
            None
        }
    }
}

/// Decoded values against the reference decoder and against the oracle. An
/// error of one value is an error of the score with a query that is 1 there and
/// 0 elsewhere, so the tolerance of scores applies: relative to the row's norm.
fn compare_decoded(tally: &mut Tally<'_>, case: &str, bytes: &[u8], len: usize, values: &[f32]) {
    let format = tally.format;
    let want = reference_values(format, bytes);
    let wrong = want
        .chunks(format.block_len)
        .zip(values.chunks(format.block_len))
        .filter(|(a, b)| a.iter().zip(*b).any(|(a, b)| a.to_bits() != b.to_bits()))
        .count();
    tally.measure(case, Against::Reference, wrong as f64, 0.0, 0.0);

    let exact = oracle::decode(format, bytes);
    let mut worst = 0.0;
    for (exact, values) in exact.chunks(len).zip(values.chunks(len)) {
        let norm = exact.iter().map(|v| v * v).sum::<f64>().sqrt();
        for (exact, &value) in exact.iter().zip(values) {
            let error = (f64::from(value) - exact).abs();
            worst = larger(worst, if error == 0.0 { 0.0 } else { error / norm });
        }
    }
    tally.measure(case, Against::Decoded, worst, 0.0, format.tolerance.score);
}

/// Changes the bits in the middle of the first block: codes, in every format.
pub(crate) fn damage(format: &FormatSpec, bytes: &mut [u8]) {
    bytes[format.block_bytes / 2] ^= 0xff;
}

/// What damaged bytes decoded to is not what the right ones should, in one block.
fn decoding_control(tally: &mut Tally<'_>, case: &str, right: &[u8], values: &[f32]) {
    let (format, want) = (tally.format, reference_values(tally.format, right));
    let blocks = want
        .chunks(format.block_len)
        .zip(values.chunks(format.block_len));
    let noticed = blocks.filter(|(a, b)| a != b).count() == 1;
    tally.control(case, "one stored byte", noticed);
}

/// Squared error of the Gaussian rows, divided by what the format promises.
fn round_trip(tally: &mut Tally<'_>, case: &str, rows: &Rows, decoded: impl Fn(usize) -> Vec<f64>) {
    let (mut error, mut norm) = (0.0, 0.0);
    for i in (0..rows.n()).filter(|&i| rows.is_gaussian(i)) {
        for (&x, y) in rows.row(i).iter().zip(decoded(i)) {
            let x = f64::from(x);
            error += (x - y) * (x - y);
            norm += x * x;
        }
    }
    let (mse, margin) = (tally.mse(), tally.format.tolerance.gaussian_mse_margin);
    tally.measure(
        case,
        Against::Unquantised,
        error / norm / mse,
        1.0 - margin,
        1.0 + margin,
    );
}

/// The larger of two numbers, NaN being the largest.
pub(crate) fn larger(a: f64, b: f64) -> f64 {
    if a.is_nan() || a > b { a } else { b }
}
