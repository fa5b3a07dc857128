//! The one attention loop, for any number of queries and any kernels.
//!
//! A block of query rows goes through the keys once, a tile at a time; every tile
//! of K and V is decoded once for all rows. Scores are a matrix product of
//! queries and decoded keys, outputs one of softmax weights and decoded values,
//! with the running maximum of online softmax in between. Transforms act on
//! queries and rotations on outputs: keys and values stay as stored.

use core::ops::Range;

use kvforge_formats::{PROJECTION, Rotation, Transform};

use super::scratch::{Plan, Scratch};
use super::{Attention, Mask, Segment, count_rows};
use crate::kernels::{Kernels, LINE, Product, Softmax, TILE, Terms};
use crate::math::exp;
use crate::view::{Rows, RowsMut, Span};
use crate::{CacheType, Error};

/// A block of query rows on its way through the keys. Row `i` is position
/// `q.start + i / group`, head `kv_head * group + i % group`.
pub(super) struct Block<'a, 's, K> {
    k: K,
    a: &'a Attention<'a>,
    plan: &'a Plan,
    kv_head: usize,
    q: Range<usize>,
    rows: usize,
    scratch: Scratch<'s>,
    /// Transform that the queries in scratch are under; `None` if there are none.
    q_transform: Option<Option<Transform>>,
    /// Rotation that the accumulators are under.
    acc_rotation: Option<Rotation>,
}

/// Which keys of a tile the rows of a block see.
struct Seen {
    /// Keys that some row sees.
    any: u64,
    /// Keys that every row sees.
    all: u64,
    /// Rows of bias for a position: none if all rows see all keys and nothing is
    /// added, one if its heads share it, else one a head.
    bias_rows: usize,
}

impl Seen {
    /// The bias of row `i` of a block.
    fn bias<'b>(&self, rows: &'b [f32], group: usize, i: usize) -> Option<&'b [f32; TILE]> {
        let rows = rows.as_chunks().0;
        match self.bias_rows {
            0 => None,
            1 => rows.get(i / group),
            _ => rows.get(i),
        }
    }
}

impl<'a, 's, K: Kernels> Block<'a, 's, K> {
    pub(super) fn new(
        k: K,
        a: &'a Attention<'a>,
        plan: &'a Plan,
        kv_head: usize,
        q: Range<usize>,
        memory: &'s mut [f32],
    ) -> Result<Self, Error> {
        let rows = q.len() * plan.group;
        let scratch = Scratch::cut(plan, rows, memory)?;
        scratch.acc.fill(0.0);
        scratch.max.fill(f32::NEG_INFINITY);
        scratch.sum.fill(0.0);
        Ok(Block {
            k,
            a,
            plan,
            kv_head,
            q,
            rows,
            scratch,
            q_transform: None,
            acc_rotation: None,
        })
    }

    /// Goes through the keys `kv` of a segment.
    pub(super) fn add(&mut self, segment: &Segment<'_>, kv: Range<usize>) -> Result<(), Error> {
        if kv.is_empty() {
            return Ok(());
        }
        self.turn_queries(segment.k_type.transform())?;
        self.turn_acc(segment.v_type.rotation());
        let mut start = kv.start;
        while start < kv.end {
            let end = start.saturating_add(TILE).min(kv.end);
            self.tile(segment, start..end)?;
            start = end;
        }
        Ok(())
    }

    /// Brings the queries into scratch: scaled, and transformed as keys are.
    fn turn_queries(&mut self, transform: Option<Transform>) -> Result<(), Error> {
        if self.q_transform == Some(transform) {
            return Ok(());
        }
        load_queries(
            self.a.q,
            self.a.scale,
            self.kv_head * self.plan.group..(self.kv_head + 1) * self.plan.group,
            self.q.clone(),
            self.plan.q_pitch,
            self.scratch.q,
        )?;
        if let Some(transform) = transform {
            let dim = self.a.head_dim_k;
            transform_queries(self.k, transform, dim, self.plan.q_pitch, self.scratch.q);
        }
        self.q_transform = Some(transform);
        Ok(())
    }

    /// Brings the accumulators under another rotation.
    fn turn_acc(&mut self, rotation: Option<Rotation>) {
        if self.acc_rotation == rotation {
            return;
        }
        // Rotated types have heads of whole blocks, so rows are not padded.
        if let Some(old) = self.acc_rotation {
            self.k.unrotate(old, self.scratch.acc);
        }
        if let Some(new) = rotation {
            self.k.rotate(new, self.scratch.acc);
        }
        self.acc_rotation = rotation;
    }

    /// Goes through at most [`TILE`] keys.
    fn tile(&mut self, segment: &Segment<'_>, kv: Range<usize>) -> Result<(), Error> {
        let seen = self.look(segment, &kv)?;
        if seen.any == 0 {
            return Ok(());
        }
        let lacks_rows = Error::Shape("a segment lacks rows");
        let keys = segment.k.span(self.kv_head, kv.clone()).ok_or(lacks_rows)?;
        let values = segment.v.span(self.kv_head, kv).ok_or(lacks_rows)?;
        self.score(segment.k_type, keys);
        self.weigh(&seen, keys.len());
        self.mix(&seen, segment.v_type, values);
        Ok(())
    }

    /// Scores of every row and key.
    fn score(&mut self, kind: CacheType, keys: Span<'_>) {
        self.k.keys(kind, keys, self.scratch.keys);
        self.k.matmul(Product {
            rows: self.rows,
            cols: keys.len().next_multiple_of(LINE),
            // The pitch has been found to hold it.
            depth: kind.coded_len(self.a.head_dim_k).unwrap_or(0),
            a: self.scratch.q,
            a_pitch: self.plan.q_pitch,
            b: self.scratch.keys,
            b_pitch: TILE,
            c: self.scratch.scores,
            c_pitch: TILE,
            add: false,
        });
    }

    /// Scores of `n` keys into weights. Where the maximum rises, what has been
    /// accumulated shrinks.
    fn weigh(&mut self, seen: &Seen, n: usize) {
        let (group, s) = (self.plan.group, &mut self.scratch);
        let states = s.max.iter_mut().zip(s.sum.iter_mut());
        let scores = s.scores.as_chunks_mut::<TILE>().0.iter_mut();
        let acc = s.acc.chunks_exact_mut(self.plan.v_pitch);
        let rows = scores.zip(states).zip(acc).take(self.rows);
        for (i, ((scores, (max, sum)), acc)) in rows.enumerate() {
            let head = self.kv_head * group + i % group;
            let terms = Terms {
                softcap: self.a.softcap,
                bias: seen.bias(s.bias, group, i),
                slope: per_head(self.a.slopes, head).unwrap_or(1.0),
            };
            let mut softmax = Softmax {
                max: *max,
                sum: *sum,
            };
            let cols = n.next_multiple_of(LINE);
            let shrink = self.k.softmax(scores, cols, terms, &mut softmax);
            (*max, *sum) = (softmax.max, softmax.sum);
            if shrink != 1.0 {
                self.k.scale(acc, shrink);
            }
        }
    }

    /// Adds weight times value to every row.
    fn mix(&mut self, seen: &Seen, kind: CacheType, values: Span<'_>) {
        let (n, pitch, s) = (values.len(), self.plan.v_pitch, &mut self.scratch);
        self.k.values(kind, values, seen.any, s.values, pitch);
        // A hidden key has weight zero, which a value that is not finite would
        // survive. Where no row sees it, it was decoded to zeros; where some row
        // does, it must be kept from the others.
        let decoded = s.values.get(..n * pitch).unwrap_or_default();
        if seen.any != seen.all && has_non_finite(decoded) {
            let weights = s.scores.as_chunks::<TILE>().0.iter();
            let rows = s.acc.chunks_exact_mut(pitch).zip(weights).take(self.rows);
            for (i, (acc, weights)) in rows.enumerate() {
                let bias = seen.bias(s.bias, self.plan.group, i);
                let keys = weights.iter().zip(bias.into_iter().flatten());
                for ((weight, bias), value) in keys.zip(decoded.chunks_exact(pitch)) {
                    if *bias != f32::NEG_INFINITY {
                        self.k.add_scaled(acc, *weight, value);
                    }
                }
            }
            return;
        }
        self.k.matmul(Product {
            rows: self.rows,
            cols: pitch,
            depth: n,
            a: s.scores,
            a_pitch: TILE,
            b: s.values,
            b_pitch: pitch,
            c: s.acc,
            c_pitch: pitch,
            add: true,
        });
    }

    /// Finds out which keys are seen, and prepares the rows of bias that say so.
    fn look(&mut self, segment: &Segment<'_>, kv: &Range<usize>) -> Result<Seen, Error> {
        let n = kv.len();
        // Keys of the tile that causality lets a position see.
        let causal = |position: usize| match self.a.causal {
            None => n,
            Some(q_pos0) => {
                let query = i128::from(q_pos0) + position as i128;
                let first = i128::from(segment.pos0) + kv.start as i128;
                (query - first + 1).clamp(0, n as i128) as usize
            }
        };
        if segment.mask.is_none() && n == TILE && causal(self.q.start) == n {
            return Ok(Seen {
                any: u64::MAX,
                all: u64::MAX,
                bias_rows: 0,
            });
        }
        let bias_rows = match segment.mask {
            Some(mask) if mask.rows.shape().heads > 1 => self.plan.group,
            _ => 1,
        };
        let mut seen = Seen {
            any: 0,
            all: u64::MAX,
            bias_rows,
        };
        let mut rows = self.scratch.bias.as_chunks_mut::<TILE>().0.iter_mut();
        for position in self.q.clone() {
            let visible = causal(position);
            for (h, row) in rows.by_ref().take(bias_rows).enumerate() {
                let mut bits = low_bits(n);
                match segment.mask {
                    Some(mask) => {
                        let head = self.kv_head * self.plan.group + h;
                        let bytes = mask_bytes(&mask, head, position, kv)?;
                        bits &= self.k.mask(mask.kind, bytes, row);
                    }
                    None => row.fill(0.0),
                }
                bits &= low_bits(visible);
                for hidden in row.iter_mut().skip(visible) {
                    *hidden = f32::NEG_INFINITY;
                }
                seen.any |= bits;
                seen.all &= bits;
            }
        }
        Ok(seen)
    }

    /// Divides, and writes the rows of the output.
    pub(super) fn finish(mut self, out: &mut RowsMut<'_>) -> Result<(), Error> {
        self.turn_acc(None);
        let s = &self.scratch;
        let rows = s
            .acc
            .chunks_exact(self.plan.v_pitch)
            .zip(s.max.iter().zip(&*s.sum));
        for (i, (acc, (max, sum))) in rows.enumerate().take(self.rows) {
            let head = self.kv_head * self.plan.group + i % self.plan.group;
            let position = self.q.start + i / self.plan.group;
            let denominator = Denominator::new(*max, per_head(self.a.sinks, head));
            let total = denominator.sink + denominator.weight(*max) * *sum;
            let factor = denominator.weight(*max) * inverse(total);
            let out = out
                .row(head, position)
                .ok_or(Error::Shape("no such output row"))?;
            for (out, acc) in out.as_chunks_mut().0.iter_mut().zip(acc) {
                *out = (acc * factor).to_ne_bytes();
            }
        }
        count_rows(self.k, self.a, self.rows);
        Ok(())
    }

    /// Writes the rows as partials, each the next of `partials`.
    pub(super) fn store<'p>(
        mut self,
        partials: &mut impl Iterator<Item = &'p mut [f32]>,
    ) -> Result<(), Error> {
        self.turn_acc(None);
        let s = &self.scratch;
        let rows = s
            .acc
            .chunks_exact(self.plan.v_pitch)
            .zip(s.max.iter().zip(&*s.sum));
        for ((acc, (max, sum)), out) in rows.take(self.rows).zip(partials) {
            let values = acc.iter().take(self.a.head_dim_v);
            for (out, value) in out.iter_mut().zip(values.chain([max, sum])) {
                *out = *value;
            }
        }
        Ok(())
    }
}

/// Copies the queries of some heads and positions, `[position, head, pitch]`,
/// times `scale`; zeros behind each row's end.
pub(super) fn load_queries(
    q: Rows<'_>,
    scale: f32,
    heads: Range<usize>,
    positions: Range<usize>,
    pitch: usize,
    to: &mut [f32],
) -> Result<(), Error> {
    let mut rows = to.chunks_exact_mut(pitch);
    for position in positions {
        for (head, to) in heads.clone().zip(rows.by_ref()) {
            let from = q
                .row(head, position)
                .ok_or(Error::Shape("no such query row"))?;
            let from = from
                .as_chunks()
                .0
                .iter()
                .map(|b| f32::from_ne_bytes(*b) * scale);
            for (to, value) in to.iter_mut().zip(from.chain(core::iter::repeat(0.0))) {
                *to = value;
            }
        }
    }
    Ok(())
}

/// Transforms queries of `dim` values, a whole number of blocks, in rows of `pitch`
/// floats that have room for the coded values.
pub(super) fn transform_queries<K: Kernels>(
    k: K,
    transform: Transform,
    dim: usize,
    pitch: usize,
    q: &mut [f32],
) {
    /// Queries that go through the projection together.
    const ROWS: usize = 6;
    const INPUTS: usize = PROJECTION.len();
    const OUTPUTS: usize = PROJECTION[0].len();
    match transform {
        // Where rows are longer, whole blocks of zeros stay zeros.
        Transform::Rotation(rotation) => k.rotate(rotation, q),
        Transform::Sketch => {
            for rows in q.chunks_mut(ROWS * pitch) {
                // From the last block on, since coded blocks are the longer ones.
                for block in (0..dim / INPUTS).rev() {
                    let mut x = [[0.0; INPUTS]; ROWS];
                    for (x, row) in x.iter_mut().zip(rows.chunks(pitch)) {
                        x.copy_from_slice(&row[block * INPUTS..][..INPUTS]);
                    }
                    k.matmul(Product {
                        rows: rows.len() / pitch,
                        cols: OUTPUTS,
                        depth: INPUTS,
                        a: x.as_flattened(),
                        a_pitch: INPUTS,
                        b: PROJECTION.as_flattened(),
                        b_pitch: OUTPUTS,
                        c: &mut rows[block * OUTPUTS..],
                        c_pitch: pitch,
                        add: false,
                    });
                }
            }
        }
    }
}

/// Elements `kv` of a mask row.
fn mask_bytes<'m>(
    mask: &Mask<'m>,
    head: usize,
    position: usize,
    kv: &Range<usize>,
) -> Result<&'m [u8], Error> {
    let size = mask.kind.bytes();
    let heads = mask.rows.shape().heads.max(1);
    mask.rows
        .row(head % heads, position)
        .and_then(|row| row.get(kv.start * size..kv.end * size))
        .ok_or(Error::Shape("no such mask row"))
}

fn low_bits(n: usize) -> u64 {
    if n >= TILE { u64::MAX } else { (1 << n) - 1 }
}

pub(super) fn per_head(values: Option<&[f32]>, head: usize) -> Option<f32> {
    values.and_then(|values| values.get(head).copied())
}

fn has_non_finite(x: &[f32]) -> bool {
    // Without an early exit this runs on whole vectors.
    x.iter().fold(false, |found, v| found | !v.is_finite())
}

/// What weights are relative to when a row is finished, sink included.
pub(super) struct Denominator {
    base: f32,
    /// The sink's own weight; 0 without one.
    pub sink: f32,
}

impl Denominator {
    /// For the largest score of a row.
    pub(super) fn new(max: f32, sink: Option<f32>) -> Denominator {
        let base = sink.map_or(max, |sink| max.max(sink));
        // A row that saw nothing: any finite base gives weights of zero.
        let base = if base == f32::NEG_INFINITY { 0.0 } else { base };
        Denominator {
            base,
            sink: sink.map_or(0.0, |sink| exp(sink - base)),
        }
    }

    /// Weight of what was summed relative to `max`.
    pub(super) fn weight(&self, max: f32) -> f32 {
        exp(max - self.base)
    }
}

/// `1 / total`, and 0 for the row that saw nothing.
pub(super) fn inverse(total: f32) -> f32 {
    if total == 0.0 { 0.0 } else { 1.0 / total }
}
