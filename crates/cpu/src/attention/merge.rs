//! Several partial results of the same rows into one.

use core::ops::Range;

use super::engine::{Denominator, inverse, per_head};
use super::{Attention, count_rows, partial_row_floats};
use crate::Error;
use crate::kernels::Kernels;
use crate::view::RowsMut;

#[expect(
    clippy::too_many_arguments,
    reason = "the checked arguments of `super::merge`"
)]
pub(super) fn merge<K: Kernels>(
    k: K,
    a: &Attention<'_>,
    kv_head: usize,
    q: Range<usize>,
    partials: &[f32],
    n: usize,
    stride: usize,
    out: &mut RowsMut<'_>,
) -> Result<(), Error> {
    let len = partial_row_floats(a);
    let rows = q.len() * a.group();
    for i in 0..rows {
        // This row in every partial.
        let parts = || {
            (0..n).filter_map(|p| {
                let row = partials.get(p * stride + i * len..)?;
                let (acc, rest) = row.split_at_checked(a.head_dim_v)?;
                let [max, sum, ..] = *rest else { return None };
                Some((acc, max, sum))
            })
        };
        let head = kv_head * a.group() + i % a.group();
        let largest = parts().fold(f32::NEG_INFINITY, |largest, (_, max, _)| largest.max(max));
        let denominator = Denominator::new(largest, per_head(a.sinks, head));
        let total = parts().fold(denominator.sink, |total, (_, max, sum)| {
            total + denominator.weight(max) * sum
        });
        let inverse = inverse(total);

        let position = q.start + i / a.group();
        let out = out
            .row(head, position)
            .ok_or(Error::Shape("no such output row"))?;
        let out = out.as_chunks_mut().0;
        out.fill(0f32.to_ne_bytes());
        for (acc, max, _) in parts() {
            let factor = denominator.weight(max) * inverse;
            for (out, acc) in out.iter_mut().zip(acc) {
                *out = (f32::from_ne_bytes(*out) + factor * acc).to_ne_bytes();
            }
        }
    }
    count_rows(k, a, rows);
    Ok(())
}
