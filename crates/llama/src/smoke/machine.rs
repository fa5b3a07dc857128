//! Graphs on the CPU backend, run between two readings of the counters.

use std::fs;
use std::path::PathBuf;

use kvforge_formats::oracle;

use super::ggml::{ComputeError, Ggml, Graph, Tensor, Type};
use super::inputs::{Rows, f32_bytes};
use super::tally::{Counters, Tally};

/// The layer that the smoke's caches belong to, by their names.
const LAYER: u32 = 3;
/// Slot under which the kernels count for it.
pub(crate) const SLOT: u32 = LAYER + 1;

/// A built ggml, and how to use it.
pub(crate) struct Machine {
    pub ggml: &'static Ggml,
    /// Numbers of threads that everything runs with.
    pub threads: [usize; 2],
    /// Where to say what is about to run.
    pub trace: Option<PathBuf>,
}

/// Type of the row numbers of a `SET_ROWS`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Index {
    I32,
    I64,
}

impl Machine {
    /// The ggml type of `ty`.
    pub fn type_of(&self, ty: oracle::Type) -> Type {
        self.type_named(ty.name())
    }

    fn type_named(&self, name: &str) -> Type {
        let ty = self.ggml.type_named(name);
        ty.expect("types were looked up before any check")
    }

    /// A tensor of F32.
    pub fn floats<'g>(&self, graph: &'g Graph, sizes: &[usize]) -> Tensor<'g> {
        graph.new_tensor(self.type_of(oracle::Type::F32), sizes)
    }

    /// A tensor of row numbers.
    pub fn indices<'g>(&self, graph: &'g Graph, index: Index, n: usize) -> Tensor<'g> {
        let name = match index {
            Index::I32 => "i32",
            Index::I64 => "i64",
        };
        graph.new_tensor(self.type_named(name), &[n])
    }

    /// A cache tensor, named as llama.cpp names those of a layer.
    pub fn cache<'g>(
        &self,
        graph: &'g Graph,
        side: &str,
        ty: oracle::Type,
        sizes: &[usize],
    ) -> Tensor<'g> {
        graph.named(&format!("cache_{side}_l{LAYER}"), self.type_of(ty), sizes)
    }

    /// Runs a graph, and tells what the kernels counted meanwhile.
    pub fn run(
        &self,
        tally: &Tally<'_>,
        case: &str,
        graph: &Graph,
        result: Tensor<'_>,
        threads: usize,
    ) -> Result<Counters, ComputeError> {
        if let Some(trace) = &self.trace {
            let (operation, format, route) = (tally.operation(), tally.format.name, tally.route());
            let text = format!("{operation} on {format}, {case}; the route is made by {route}");
            // Only an aid: the smoke is no worse without it.
            let _ = fs::write(trace, text);
        }
        let before = self.ggml.counters();
        graph.compute(result, threads)?;
        let mut counters = self.ggml.counters();
        for (key, n) in &mut counters {
            *n -= before.get(key).unwrap_or(&0);
        }
        counters.retain(|_, n| *n > 0);
        Ok(counters)
    }

    /// The tree's own `SET_ROWS`: row `i` goes to cell `cells[i]` of a cache of
    /// `n_cells`, which is full of `fill` before. Gives the bytes of the cache.
    pub fn store(
        &self,
        tally: &Tally<'_>,
        case: &str,
        s: &Store<'_>,
    ) -> Result<(Vec<u8>, Counters), ComputeError> {
        let graph = self.ggml.graph(8);
        let n = s.rows.n();
        let cache = self.cache(&graph, s.side, s.ty, &[s.rows.len, s.n_cells]);
        let rows = self.floats(&graph, &[s.rows.len, n]);
        let indices = self.indices(&graph, s.index, n);
        let result = graph.set_rows(cache, rows, indices);
        graph.allocate();
        graph.write(cache, &vec![s.fill; graph.len(cache)]);
        graph.write(rows, &f32_bytes(&s.rows.values));
        graph.write(indices, &index_bytes(s.index, s.cells));
        let counters = self.run(tally, case, &graph, result, s.threads)?;
        Ok((graph.read(cache), counters))
    }
}

/// Arguments of [`Machine::store`].
pub(crate) struct Store<'a> {
    /// `k` or `v`.
    pub side: &'a str,
    pub ty: oracle::Type,
    pub rows: &'a Rows,
    pub cells: &'a [usize],
    pub n_cells: usize,
    pub index: Index,
    pub fill: u8,
    pub threads: usize,
}

/// Row numbers as little-endian bytes.
pub(crate) fn index_bytes(index: Index, all: &[usize]) -> Vec<u8> {
    match index {
        Index::I32 => all.iter().flat_map(|&i| (i as i32).to_le_bytes()).collect(),
        Index::I64 => all.iter().flat_map(|&i| (i as i64).to_le_bytes()).collect(),
    }
}
