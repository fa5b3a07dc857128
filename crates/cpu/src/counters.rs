//! How often each kernel ran: proof of dispatch for whoever checks a host.
//!
//! Kernels count themselves, after the work: *encode*, *decode* and *dot* in
//! blocks, *score* in (query, head, key) dot products, *attend* in (query, head)
//! rows finished. A call is counted under the `slot` that its caller names, for
//! instance a layer.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use kvforge_formats::{FORMATS, FormatSpec};

use crate::{Isa, Op};

/// Slots there are; a higher one counts as the last.
pub const SLOTS: usize = 1024;

type Table = [[[[AtomicU64; SLOTS]; Isa::ALL.len()]; Op::ALL.len()]; FORMATS.len()];

static TABLE: Table = [const {
    [const { [const { [const { AtomicU64::new(0) }; SLOTS] }; Isa::ALL.len()] }; Op::ALL.len()]
}; FORMATS.len()];

/// One counter that is not zero.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Count {
    /// The kernel's format.
    pub spec: &'static FormatSpec,
    /// The kernel's operation.
    pub op: Op,
    /// The kernel's instruction set.
    pub isa: Isa,
    /// Slot that the caller named.
    pub slot: usize,
    /// Blocks, dot products or rows, by operation.
    pub count: u64,
}

fn cell(spec: &FormatSpec, op: Op, isa: Isa, slot: u32) -> Option<&'static AtomicU64> {
    let format = FORMATS.iter().position(|f| **f == *spec)?;
    let slots = TABLE.get(format)?.get(op as usize)?.get(isa as usize)?;
    slots.get((slot as usize).min(SLOTS - 1))
}

pub(crate) fn add(spec: &FormatSpec, op: Op, isa: Isa, slot: u32, n: usize) {
    if let Some(cell) = cell(spec, op, isa, slot) {
        cell.fetch_add(n as u64, Relaxed);
    }
}

/// The counter of one kernel and slot; 0 for what is not a kernel.
pub fn get(spec: &FormatSpec, op: Op, isa: Isa, slot: u32) -> u64 {
    cell(spec, op, isa, slot).map_or(0, |cell| cell.load(Relaxed))
}

/// Sets every counter to zero.
pub fn reset() {
    for cell in TABLE.iter().flatten().flatten().flatten() {
        cell.store(0, Relaxed);
    }
}

/// The first non-zero counter at or after `*cursor`, which moves on behind it.
/// Start from 0; `None` at the end.
pub fn next(cursor: &mut usize) -> Option<Count> {
    let cells = TABLE.iter().flatten().flatten().flatten();
    for (i, cell) in cells.enumerate().skip(*cursor) {
        let count = cell.load(Relaxed);
        if count != 0 {
            *cursor = i + 1;
            let kernel = i / SLOTS;
            let per_format = Isa::ALL.len() * Op::ALL.len();
            return Some(Count {
                spec: FORMATS.get(kernel / per_format)?,
                op: *Op::ALL.get(kernel / Isa::ALL.len() % Op::ALL.len())?,
                isa: *Isa::ALL.get(kernel % Isa::ALL.len())?,
                slot: i % SLOTS,
                count,
            });
        }
    }
    *cursor = usize::MAX;
    None
}
