//! Attention over coded tokens and exact ones, as segments of one attention.
//!
//! A key that a query may see is in exactly one segment. Which one depends on how
//! far behind the query it stands, so every segment has a band of distances: in the
//! ring, keys fewer than `window` behind; among coded tokens that have copies in
//! the ring, those farther away. Keys that every query of a block sees need no
//! mask: only the few at the edges of a band have one.

use std::ops::Range;

use kvforge_cpu::attention::{Attention, Mask, MaskType, Segment, attend, attend_scratch};
use kvforge_cpu::view::{Rows, RowsMut, Shape};
use kvforge_cpu::{CacheType, Isa};
use kvforge_formats::f32_to_f16;
use rayon::prelude::*;

use super::plane::Plane;
use super::run::Run;
use super::sequence::{Exact, Sequence};

/// Query positions that are done together.
const BLOCK: usize = 128;

/// How queries attend.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct AttendOptions {
    /// Query heads, a multiple of the kv heads.
    pub n_heads: usize,
    /// Factor on every dot product, mostly `1 / sqrt(head_dim_k)`.
    pub scale: f32,
    /// Soft-cap of the scores, `softcap * tanh(score / softcap)`; 0 for none.
    pub softcap: f32,
    /// Whether keys after a query are hidden from it.
    pub causal: bool,
    /// Newest positions that a query sees at all, its own included; `None` for all.
    pub sliding_window: Option<usize>,
}

impl AttendOptions {
    /// Causal attention over the whole sequence, without a soft-cap.
    pub fn new(n_heads: usize, scale: f32) -> AttendOptions {
        AttendOptions {
            n_heads,
            scale,
            softcap: 0.0,
            causal: true,
            sliding_window: None,
        }
    }

    /// With a soft-cap.
    pub fn softcap(self, softcap: f32) -> AttendOptions {
        AttendOptions { softcap, ..self }
    }

    /// Causal or not.
    pub fn causal(self, causal: bool) -> AttendOptions {
        AttendOptions { causal, ..self }
    }

    /// With a sliding window of `n` positions.
    pub fn sliding_window(self, n: usize) -> AttendOptions {
        AttendOptions {
            sliding_window: Some(n),
            ..self
        }
    }
}

/// Distances `query - key` that are seen, from `from` up to but not `to`.
#[derive(Clone, Copy)]
struct Band {
    from: i64,
    to: i64,
}

impl Band {
    /// Positions that a query sees.
    fn keys(self, query: usize) -> Range<i64> {
        let next = query as i64 + 1;
        next.saturating_sub(self.to)..next.saturating_sub(self.from)
    }
}

/// Tokens of a run, and the distances that they are seen at.
struct Zone<'a> {
    run: &'a Run,
    exact: bool,
    positions: Range<usize>,
    band: Band,
}

/// Keys of a zone with the same kind of mask.
struct Part<'z, 'a> {
    zone: &'z Zone<'a>,
    positions: Range<usize>,
    /// fp16, `[queries, keys]`; `None` if every query sees every key.
    mask: Option<Vec<u8>>,
}

/// A sequence's tokens, each at every distance in exactly one zone.
fn zones<'a>(sequence: &'a Sequence, exact: Exact, options: &AttendOptions) -> [Zone<'a>; 5] {
    let distance = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
    let (coded, len) = (&sequence.coded, sequence.len());
    let first = sequence.first.positions(0);
    let ring = sequence.ring.positions(len);
    let all = Band {
        from: if options.causal { 0 } else { i64::MIN },
        to: options.sliding_window.map_or(i64::MAX, distance),
    };
    let far = Band {
        from: distance(exact.window),
        ..all
    };
    let near = Band {
        to: all.to.min(distance(exact.window)),
        ..all
    };
    let zone = |run, exact, positions, band| Zone {
        run,
        exact,
        positions,
        band,
    };
    [
        zone(coded, false, 0..first.start, all),
        zone(coded, false, first.end..ring.start, all),
        zone(coded, false, ring.clone(), far),
        zone(&sequence.first, true, first, all),
        zone(&sequence.ring, true, ring, near),
    ]
}

impl<'a> Zone<'a> {
    /// What the queries of some positions see of it: keys that some of them see,
    /// then such as all of them see, then again some.
    fn parts(&self, queries: &Range<usize>) -> [Option<Part<'_, 'a>>; 3] {
        if self.band.from >= self.band.to {
            return [None, None, None];
        }
        let (oldest, newest) = (
            self.band.keys(queries.start),
            self.band.keys(queries.end - 1),
        );
        let within = |key: i64| {
            let key = usize::try_from(key.max(0)).unwrap_or(usize::MAX);
            key.clamp(self.positions.start, self.positions.end)
        };
        let some = within(oldest.start)..within(newest.end);
        let mut all = within(newest.start)..within(oldest.end);
        if all.is_empty() {
            all = some.end..some.end;
        }
        let part = |positions: Range<usize>, masked: bool| {
            (!positions.is_empty()).then(|| Part {
                mask: masked.then(|| self.mask(queries, &positions)),
                positions,
                zone: self,
            })
        };
        [
            part(some.start..all.start, true),
            part(all.clone(), false),
            part(all.end..some.end, true),
        ]
    }

    fn mask(&self, queries: &Range<usize>, positions: &Range<usize>) -> Vec<u8> {
        let [seen, hidden] = [0.0, f32::NEG_INFINITY].map(|x| f32_to_f16(x).to_ne_bytes());
        let rows = queries.clone().map(|query| self.band.keys(query));
        let values = rows.flat_map(|keys| {
            let sees = move |key: usize| keys.contains(&(key as i64));
            positions.clone().map(sees)
        });
        values
            .flat_map(|sees| if sees { seen } else { hidden })
            .collect()
    }
}

impl<'z> Part<'z, '_> {
    /// Its keys and values of one head.
    fn segment(
        &'z self,
        planes: &[Plane; 2],
        n_q: usize,
        head: usize,
    ) -> Result<Segment<'z>, kvforge_cpu::Error> {
        let kinds = planes.map(|p| {
            if self.zone.exact {
                p.copy_kind()
            } else {
                p.kind()
            }
        });
        let n_kv = self.positions.len();
        let from = self.positions.start - self.zone.run.positions(0).start;
        let [k, v] = self.zone.run.data();
        let mask = match &self.mask {
            None => None,
            Some(bytes) => Some(Mask {
                kind: MaskType::F16,
                rows: Rows::new(bytes, packed(n_q, 1, n_kv * MaskType::F16.bytes()))?,
            }),
        };
        Ok(Segment {
            n_kv,
            k_type: kinds[0],
            k: planes[0].rows(kinds[0], k, from, n_kv, head)?,
            v_type: kinds[1],
            v: planes[1].rows(kinds[1], v, from, n_kv, head)?,
            mask,
            pos0: 0,
        })
    }
}

/// `[rows, heads, row_bytes]` without gaps.
fn packed(rows: usize, heads: usize, row_bytes: usize) -> Shape {
    Shape {
        rows,
        heads,
        row_bytes,
        row_stride: heads * row_bytes,
        head_stride: row_bytes,
    }
}

/// What all of a call's work has in common.
pub(super) struct Work<'a> {
    pub planes: &'a [Plane; 2],
    pub n_kv_heads: usize,
    pub exact: Exact,
    pub slot: u32,
    pub options: &'a AttendOptions,
    pub sequence: &'a Sequence,
    /// Position of the first query.
    pub first: usize,
}

impl Work<'_> {
    /// Attention of queries `[n_q, n_heads, head_dim_k]`, as `[n_q, n_heads,
    /// head_dim_v]`. Blocks of queries and kv heads are spread over threads.
    pub(super) fn run(&self, queries: &[f32]) -> Result<Vec<f32>, kvforge_cpu::Error> {
        let group = self.options.n_heads / self.n_kv_heads;
        let [k_dim, v_dim] = self.planes.map(|p| p.dim());
        let n_q = queries.len() / (self.options.n_heads * k_dim);
        let queries: Vec<u8> = queries.iter().flat_map(|x| x.to_ne_bytes()).collect();
        let zones = zones(self.sequence, self.exact, self.options);
        let tasks = (0..n_q.div_ceil(BLOCK) * self.n_kv_heads).into_par_iter();
        let done = tasks.map(|task| {
            let (block, head) = (task / self.n_kv_heads, task % self.n_kv_heads);
            let block = block * BLOCK..n_q.min((block + 1) * BLOCK);
            let out = self.block(&zones, &queries, block.clone(), head)?;
            Ok((block, head, out))
        });
        let done: Vec<_> = done.collect::<Result<_, kvforge_cpu::Error>>()?;
        let mut out = vec![0.0; n_q * self.options.n_heads * v_dim];
        for (block, head, rows) in done {
            let rows = rows.as_chunks().0.chunks_exact(group * v_dim);
            for (query, row) in block.zip(rows) {
                let at = (query * self.options.n_heads + head * group) * v_dim;
                for (to, from) in out[at..][..row.len()].iter_mut().zip(row) {
                    *to = f32::from_ne_bytes(*from);
                }
            }
        }
        Ok(out)
    }

    /// The queries `block` of one kv head: fp32, `[queries, group, head_dim_v]`.
    fn block(
        &self,
        zones: &[Zone<'_>],
        queries: &[u8],
        block: Range<usize>,
        head: usize,
    ) -> Result<Vec<u8>, kvforge_cpu::Error> {
        let (n_q, n_heads) = (block.len(), self.options.n_heads);
        let group = n_heads / self.n_kv_heads;
        let [k_dim, v_dim] = self.planes.map(|p| p.dim());
        let positions = self.first + block.start..self.first + block.end;
        let parts: Vec<_> = zones
            .iter()
            .flat_map(|zone| zone.parts(&positions))
            .flatten()
            .collect();
        let segments = parts.iter().map(|p| p.segment(self.planes, n_q, head));
        let segments = segments.collect::<Result<Vec<_>, _>>()?;
        let row_bytes = k_dim * CacheType::F32.block_bytes();
        let shape = Shape {
            row_stride: n_heads * row_bytes,
            ..packed(n_q, group, row_bytes)
        };
        let start = (block.start * n_heads + head * group) * row_bytes;
        let attention = Attention {
            head_dim_k: k_dim,
            head_dim_v: v_dim,
            n_heads: group,
            n_kv_heads: 1,
            n_q,
            q: Rows::new(&queries[start..], shape)?,
            scale: self.options.scale,
            softcap: self.options.softcap,
            slopes: None,
            sinks: None,
            causal: None,
            segments: &segments,
            isa: Isa::best(),
            slot: self.slot,
        };
        let row_bytes = v_dim * CacheType::F32.block_bytes();
        let mut out = vec![0; n_q * group * row_bytes];
        let mut rows = RowsMut::new(&mut out, packed(n_q, group, row_bytes))?;
        // Scratch starts at a cache line, which is at most 15 floats away.
        let mut scratch = vec![0.0; attend_scratch(&attention, n_q)? + 15];
        let aligned = scratch.as_ptr().align_offset(64).min(15);
        attend(&attention, 0, 0..n_q, &mut rows, &mut scratch[aligned..])?;
        Ok(out)
    }
}
