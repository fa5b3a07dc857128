use std::{format, string::String, vec, vec::Vec};

use super::block::{bit, code, code_bit, decode_rotated, half_bits, rotate};
use super::half::{from_half, to_half};
use crate::{Code, FormatSpec, Packing, Scale, q4_polar};

/// Encodes a row as the reference encoder does, by the text, with all arithmetic
/// in `f64`. Where a value lies within fp32 rounding of a border between two
/// codes, or a scale of one between two stored numbers, the byte-exact encoder
/// may rightly choose the other: ask [`judge`].
///
/// # Panics
/// If `x` is not a whole number of blocks, or a scale does not fit.
pub fn encode(spec: &FormatSpec, x: &[f32]) -> Vec<u8> {
    let x: Vec<f64> = x.iter().copied().map(f64::from).collect();
    x.chunks(spec.block_len)
        .flat_map(|x| encode_block(spec, &Target::of(spec, x)))
        .collect()
}

/// A block on its way to being coded.
struct Target {
    /// Length of the block.
    length: f64,
    /// What the codes are compared with: the transformed block in units of the
    /// codebook.
    values: Vec<f64>,
}

impl Target {
    fn of(spec: &FormatSpec, x: &[f64]) -> Target {
        let length = length(x);
        let coded = rotate(spec, x);
        let n = x.len() as f64;
        let unit = match spec.scale {
            Scale::Rms => length / n.sqrt(),
            Scale::Length => length / n.sqrt(),
            Scale::KeepsLength => length,
        };
        // The fork counts lengths below 1e-10 as zero where it divides by them.
        let zero = unit == 0.0 || spec.scale != Scale::Rms && length <= 1e-10;
        let values = coded.iter().map(|v| if zero { 0.0 } else { v / unit });
        Target {
            length,
            values: values.collect(),
        }
    }

    /// The scale that the reference stores for what was coded.
    fn scale(&self, spec: &FormatSpec, coded: &[f64]) -> f64 {
        match spec.scale {
            Scale::Rms => self.length / (spec.block_len as f64).sqrt(),
            Scale::Length => self.length,
            Scale::KeepsLength => self.length / length(coded),
        }
    }
}

fn length(x: &[f64]) -> f64 {
    x.iter().map(|v| v * v).sum::<f64>().sqrt()
}

fn encode_block(spec: &FormatSpec, target: &Target) -> Vec<u8> {
    let mut block = vec![0; spec.block_bytes];
    match &spec.code {
        Code::Scalar {
            codebook, packing, ..
        } => {
            let mut coded = vec![];
            let zero = target.length == 0.0 && spec.scale == Scale::Rms;
            for (i, v) in target.values.iter().enumerate() {
                let code = match (*v == 0.0, packing) {
                    _ if zero => 0,
                    // turbo3_legacy sends a zero up, all others down.
                    (true, Packing::SplitPlanes) => codebook.len() / 2,
                    _ => nearest(codebook, *v),
                };
                coded.push(f64::from(codebook[code]));
                for b in 0..spec.code.bits() {
                    set_bit(&mut block, code_bit(spec, i, b), code >> b & 1 == 1);
                }
            }
            let groups = match packing {
                Packing::SplitPlanes => 4,
                _ => 1,
            };
            let stored = finite_half(target.scale(spec, &coded));
            for group in 0..groups {
                set_half(&mut block, group * spec.block_bytes / groups, stored);
            }
            if *spec == q4_polar::SPEC {
                set_bit(&mut block, 8 * 66, along_residual(target, &coded) >= 0.0);
            }
        }
        Code::Trellis { codebook } => {
            let walk = cheapest_walk(codebook, &target.values);
            let coded: Vec<f64> = walk.iter().map(|s| f64::from(codebook[*s])).collect();
            set_half(&mut block, 0, finite_half(target.scale(spec, &coded)));
            // The windows overlap and agree where they do.
            for (t, state) in walk.iter().enumerate() {
                for b in 0..9 {
                    set_bit(&mut block, 16 + 3 * t + b, state >> b & 1 == 1);
                }
            }
        }
        Code::Signs { .. } => {
            for (j, v) in target.values.iter().enumerate() {
                set_bit(&mut block, j, *v > 0.0);
            }
            set_half(&mut block, 32, to_bfloat(target.length));
        }
    }
    block
}

/// Sum of what the codes leave, along the signs of the residual.
fn along_residual(target: &Target, coded: &[f64]) -> f64 {
    let left = target.values.iter().zip(coded).map(|(v, c)| v - c);
    left.enumerate()
        .map(|(i, e)| match q4_polar::RESIDUAL_NEGATIVE >> i & 1 {
            1 => -e,
            _ => e,
        })
        .sum()
}

/// States of the walk with the least squared distance to `x`, by dynamic
/// programming from the end: the least cost of going on from each state.
fn cheapest_walk(codebook: &[f32; 512], x: &[f64]) -> Vec<usize> {
    let after = |state: usize, symbol: usize| state >> 3 | symbol << 6;
    let mut to_go = vec![[0.0f64; 512]];
    for x in x.iter().rev() {
        let last = to_go[to_go.len() - 1];
        to_go.push(core::array::from_fn(|state| {
            let through = |symbol| {
                let next = after(state, symbol);
                last[next] + (x - f64::from(codebook[next])).powi(2)
            };
            (0..8).map(through).fold(f64::INFINITY, f64::min)
        }));
    }
    let least = |costs: &mut dyn Iterator<Item = (usize, f64)>| {
        costs
            .reduce(|a, b| if b.1 < a.1 { b } else { a })
            .map_or(0, |c| c.0)
    };
    let start = to_go[x.len()];
    let mut state = least(&mut (0..512).map(|s| (s, start[s])));
    let mut walk = vec![];
    for (x, to_go) in x.iter().zip(to_go.iter().rev().skip(1)) {
        state = least(&mut (0..8).map(|symbol| {
            let next = after(state, symbol);
            (next, to_go[next] + (x - f64::from(codebook[next])).powi(2))
        }));
        walk.push(state);
    }
    walk
}

/// Says whether `bytes` is what a reference encoder with fp32 arithmetic may make
/// of `x`: each scale is the stored number nearest to what the format says, and
/// each code the nearest (each walk the cheapest), up to the rounding errors of
/// fp32; padding is zero.
///
/// # Errors
/// The first block and value that is neither.
///
/// # Panics
/// If the lengths do not fit together.
pub fn judge(spec: &FormatSpec, x: &[f32], bytes: &[u8]) -> Result<(), String> {
    let x: Vec<f64> = x.iter().copied().map(f64::from).collect();
    assert_eq!(
        bytes.len() % spec.block_bytes,
        0,
        "not a whole number of blocks"
    );
    assert_eq!(
        x.len() / spec.block_len,
        bytes.len() / spec.block_bytes,
        "rows differ in length"
    );
    let blocks = bytes.chunks(spec.block_bytes);
    for (b, (x, block)) in x.chunks(spec.block_len).zip(blocks).enumerate() {
        let target = Target::of(spec, x);
        judge_block(spec, &target, block).map_err(|why| format!("block {b}: {why}"))?;
    }
    Ok(())
}

/// Rotation, sum of squares, root and quotient err by less than 30 units of 2^-24
/// on a quotient of at most sqrt(32), and by little more for 128 values.
const RELATIVE: f64 = 2e-6;
const ABSOLUTE: f64 = 1.1e-5;

fn judge_block(spec: &FormatSpec, target: &Target, block: &[u8]) -> Result<(), String> {
    let used = match spec.code {
        Code::Trellis { .. } => 16 + 3 * 127 + 9,
        _ if *spec == q4_polar::SPEC => 8 * 66 + 1,
        _ => 8 * spec.block_bytes,
    };
    if (used..8 * spec.block_bytes).any(|at| bit(block, at)) {
        return Err(format!("its bits from {used} on are padding and not zero"));
    }
    // Taken out of the block with a scale of one.
    let mut plain = block.to_vec();
    let one = match spec.code {
        Code::Signs { .. } => (32, 0x3f80),
        _ => (0, to_half(1.0)),
    };
    let step = match spec.code {
        Code::Scalar {
            packing: Packing::SplitPlanes,
            ..
        } => 14,
        _ => spec.block_bytes,
    };
    let stored = half_bits(block, one.0);
    for at in (one.0..spec.block_bytes).step_by(step) {
        if half_bits(block, at) != stored {
            return Err(format!("its scales differ, {stored:#06x} and others"));
        }
        for b in 0..16 {
            set_bit(&mut plain, 8 * at + b, one.1 >> b & 1 == 1);
        }
    }
    let coded = decode_rotated(spec, &plain);
    let scale = target.scale(spec, &coded);
    let to_stored = |scale: f64| match spec.code {
        Code::Signs { .. } => to_bfloat(scale),
        _ => to_half(scale),
    };
    let lowest = to_stored(scale * (1.0 - RELATIVE));
    let highest = to_stored(scale * (1.0 + RELATIVE));
    if stored < lowest || stored > highest {
        return Err(format!("scale {stored:#06x} stored, it is {scale:e}"));
    }
    // Codes of a block that decodes to zero mean nothing.
    if stored == 0 {
        return Ok(());
    }
    match &spec.code {
        Code::Scalar { codebook, .. } => {
            // The widest code is what errors are measured by.
            let slack = 2.0 * ABSOLUTE * f64::from(codebook[codebook.len() - 1]) / 2.0;
            for (i, v) in target.values.iter().enumerate() {
                let distance = |code: usize| (v - f64::from(codebook[code])).abs();
                let (code, best) = (code(spec, block, i), nearest(codebook, *v));
                if distance(code) > distance(best) + slack {
                    return Err(format!("value {i}: code {code}, nearest to {v} is {best}"));
                }
            }
            if *spec == q4_polar::SPEC {
                let codes = (0..spec.block_len).map(|i| code(spec, block, i));
                let coded: Vec<f64> = codes.map(|c| f64::from(codebook[c])).collect();
                let along = along_residual(target, &coded);
                if along.abs() > 128.0 * ABSOLUTE && bit(block, 8 * 66) != (along > 0.0) {
                    return Err(format!("sign of the residual is wrong, it is {along}"));
                }
            }
        }
        Code::Trellis { codebook } => {
            let cost = |coded: &mut dyn Iterator<Item = f64>| -> f64 {
                let pairs = target.values.iter().zip(coded);
                pairs.map(|(v, c)| (v - c) * (v - c)).sum()
            };
            let best = cheapest_walk(codebook, &target.values);
            let best = cost(&mut best.iter().map(|s| f64::from(codebook[*s])));
            let found = cost(&mut coded.iter().copied());
            if found > best + RELATIVE {
                return Err(format!("a walk that costs {found}, the cheapest {best}"));
            }
        }
        Code::Signs { .. } => {
            for (j, v) in target.values.iter().enumerate() {
                let length = length(&target.values);
                if v.abs() > ABSOLUTE * length && bit(block, j) != (*v > 0.0) {
                    return Err(format!("sign {j} is wrong, the projection is {v}"));
                }
            }
        }
    }
    Ok(())
}

/// First of the codebook entries with the smallest distance to `x`.
fn nearest(codebook: &[f32], x: f64) -> usize {
    let mut best = 0;
    for (i, &c) in codebook.iter().enumerate() {
        if (x - f64::from(c)).abs() < (x - f64::from(codebook[best])).abs() {
            best = i;
        }
    }
    best
}

fn finite_half(scale: f64) -> u16 {
    let stored = to_half(scale);
    assert!(
        from_half(stored).is_finite(),
        "scale {scale} does not fit fp16"
    );
    stored
}

/// The bfloat16 number nearest to a positive `x`, the even one on a tie; `x` is
/// rounded to fp32 first, as the text says.
fn to_bfloat(x: f64) -> u16 {
    let single = x as f32;
    let value = |bits: u32| f64::from(f32::from_bits(bits << 16));
    let below = single.to_bits() >> 16;
    let down = f64::from(single) - value(below);
    let up = value(below + 1) - f64::from(single);
    let rounded = if down < up || down == up && below.is_multiple_of(2) {
        below
    } else {
        below + 1
    };
    rounded as u16
}

fn set_half(block: &mut [u8], at: usize, half: u16) {
    for b in 0..16 {
        set_bit(block, 8 * at + b, half >> b & 1 == 1);
    }
}

fn set_bit(bytes: &mut [u8], i: usize, on: bool) {
    if on {
        bytes[i / 8] |= 1 << (i % 8);
    } else {
        bytes[i / 8] &= !(1 << (i % 8));
    }
}
