use crate::{Error, Layer, Pair};

/// `(1/n) sum_{p<n} z^p` of a unit complex number, by doubling: with
/// `S(k) = sum_{p<k} z^p`, `S(2k) = S(k) (1 + z^k)` and `S(k+1) = S(k) + z^k`.
///
/// # Errors
/// [`Error::NoPositions`] if `n` is 0.
pub(crate) fn mean_turn(z: [f64; 2], n: u64) -> Result<[f64; 2], Error> {
    if n == 0 {
        return Err(Error::NoPositions);
    }
    let (mut sum, mut power) = ([0.0, 0.0], [1.0, 0.0]);
    for bit in (0..=n.ilog2()).rev() {
        sum = times(sum, [1.0 + power[0], power[1]]);
        power = times(power, power);
        if n >> bit & 1 == 1 {
            sum = [sum[0] + power[0], sum[1] + power[1]];
            power = times(power, z);
        }
    }
    Ok([sum[0] / n as f64, sum[1] / n as f64])
}

/// The shortest sequence that a context is expected to hold, unless it is shorter itself.
const SHORTEST: u64 = 512;

/// The mean turn of the keys of a context for up to `n` positions. How long its sequences
/// will be is not known, and most are shorter than the context: lengths `n`, `n/2`, `n/4`
/// and so on, down to [`SHORTEST`], count alike. A sequence that fills the context loses
/// little by that, and one that does not gains much: slow pairs, which turn by a part of
/// a circle in the whole context, have hardly turned in it.
///
/// # Errors
/// [`Error::NoPositions`] if `n` is 0.
pub(crate) fn context_turn(z: [f64; 2], n: u64) -> Result<[f64; 2], Error> {
    let (mut sum, mut count, mut length) = (mean_turn(z, n)?, 1.0, n / 2);
    while length >= SHORTEST {
        let [x, y] = mean_turn(z, length)?;
        (sum, count, length) = ([sum[0] + x, sum[1] + y], count + 1.0, length / 2);
    }
    Ok(sum.map(|part| part / count))
}

fn times(x: [f64; 2], y: [f64; 2]) -> [f64; 2] {
    [x[0] * y[0] - x[1] * y[1], x[0] * y[1] + x[1] * y[0]]
}

/// Writes the static centre of a layer, `[n_head_kv, head_dim]`: the mean key of a
/// context for `n_positions`, the average of `(1/n) sum_{p<n} R(p) m` over the lengths
/// `n` that sequences in it may have, where `m` is the mean key before RoPE and
/// `turns` what the graph in use does at position 1.
///
/// # Errors
/// [`Error::NoPositions`]; [`Error::Length`]; [`Error::OtherTurns`] if `turns` has no
/// pair where the layer was calibrated with RoPE, or the other way round, or pairs a
/// channel with another one than then. Writes nothing on error.
pub fn static_centre(
    layer: &Layer<'_>,
    turns: impl Iterator<Item = Pair> + Clone,
    n_positions: u64,
    centre: &mut [f32],
) -> Result<(), Error> {
    if n_positions == 0 {
        return Err(Error::NoPositions);
    }
    let mean = layer.k_mean();
    if centre.len() != mean.len() {
        return Err(Error::Length {
            expected: mean.len(),
            found: centre.len(),
        });
    }
    same_pairing(layer, turns.clone())?;
    for (to, from) in centre.iter_mut().zip(mean) {
        *to = from;
    }
    for pair in turns {
        let scale = pair.scale();
        let factor = context_turn(pair.angle(), n_positions)?.map(|part| scale * part);
        for head in centre.chunks_exact_mut(layer.head_dim()) {
            let at = [pair.a as usize, pair.b as usize];
            if let Ok([a, b]) = head.get_disjoint_mut(at) {
                let [x, y] = times(factor, [f64::from(*a), f64::from(*b)]);
                (*a, *b) = (x as f32, y as f32);
            }
        }
    }
    Ok(())
}

/// Whether `turns` pairs the channels that were paired when the layer was calibrated. The
/// angles may be others: a context may be stretched. A pair may be missing on either
/// side, where it is too slow to be seen.
///
/// # Errors
/// [`Error::OtherTurns`].
fn same_pairing(layer: &Layer<'_>, turns: impl Iterator<Item = Pair> + Clone) -> Result<(), Error> {
    let refuse = |channel| Err(Error::OtherTurns { channel });
    if turns.clone().next().is_none() != (layer.n_pairs() == 0) {
        return refuse(0);
    }
    let (mut calibrated, mut turns) = (layer.pairs().peekable(), turns.peekable());
    // Both ascend by their lower channel.
    while let (Some(then), Some(now)) = (calibrated.peek(), turns.peek()) {
        if then.a == now.a && then.b != now.b {
            return refuse(now.a);
        }
        let (then, now) = (then.a, now.a);
        if then <= now {
            calibrated.next();
        }
        if now <= then {
            turns.next();
        }
    }
    Ok(())
}
