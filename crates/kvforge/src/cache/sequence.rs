//! One sequence: everything coded, and some of it once more, exact.

use std::ops::Range;

use kvforge_cpu::Encoder;

use super::plane::Plane;
use super::run::Run;
use crate::Error;

/// Tokens beyond the window that its ring keeps at least, so that a sequence can be
/// rolled back so far without a gap in its window. It is cut back when it has twice as
/// many.
pub const SLACK: usize = 16;

/// Which tokens are kept exact.
#[derive(Clone, Copy, Debug)]
pub(super) struct Exact {
    /// Newest positions that a query reads from copies.
    pub window: usize,
    /// First positions.
    pub sinks: usize,
}

/// Keys and values of the tokens of a sequence, from position 0 on.
#[derive(Clone, Debug)]
pub(super) struct Sequence {
    /// Every token, as the cache codes it.
    pub coded: Run,
    /// Exact copies of positions below `Exact::sinks`.
    pub first: Run,
    /// Exact copies of the newest positions, none of them in `first`.
    pub ring: Run,
}

impl Sequence {
    pub(super) fn new(planes: &[Plane; 2]) -> Sequence {
        let copies = Run::new(planes.map(|p| p.token_bytes(p.copy_kind())));
        Sequence {
            coded: Run::new(planes.map(|p| p.token_bytes(p.kind()))),
            first: copies.clone(),
            ring: copies,
        }
    }

    /// Tokens.
    pub(super) fn len(&self) -> usize {
        self.coded.positions(0).end
    }

    /// Writes `n` tokens through: coded, and copied where copies are kept. All of a
    /// batch is, until the next one, since its first queries read copies as well.
    pub(super) fn append(
        &mut self,
        planes: &[Plane; 2],
        exact: Exact,
        (encoder, slot): (Encoder, u32),
        n: usize,
        [keys, values]: [&[f32]; 2],
    ) -> Result<(), Error> {
        let [k, v] = planes;
        let start = self.len();
        self.coded.append(start, n, |[k_bytes, v_bytes]| {
            k.encode(encoder, slot, keys, k_bytes)?;
            v.encode(encoder, slot, values, v_bytes)
        })?;
        let copy = |run: &mut Run, tokens: Range<usize>| {
            let of = |p: &Plane| tokens.start * p.values()..tokens.end * p.values();
            run.append(start + tokens.start, tokens.len(), |[k_bytes, v_bytes]| {
                k.copy(&keys[of(k)], k_bytes);
                v.copy(&values[of(v)], v_bytes);
                Ok(())
            })
        };
        let n_first = exact.sinks.saturating_sub(start).min(n);
        copy(&mut self.first, 0..n_first)?;
        if exact.window > 0 {
            let keep = exact.window.saturating_add(SLACK);
            if self.ring.positions(0).len() > keep.saturating_add(SLACK) {
                self.ring.keep_newest(keep);
            }
            copy(&mut self.ring, n_first..n)?;
        }
        Ok(())
    }

    /// Removes the tokens from position `n` on.
    pub(super) fn truncate(&mut self, n: usize) {
        for run in [&mut self.coded, &mut self.first, &mut self.ring] {
            run.truncate(n);
        }
    }

    /// Forgets the exact copies.
    pub(super) fn drop_copies(&mut self) {
        self.first.keep_newest(0);
        self.ring.keep_newest(0);
    }
}
