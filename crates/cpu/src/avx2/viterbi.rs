//! The nearest walk through the trellis of `tbq3_tcq`, all states at once.
//!
//! State `s` has group `s / 8` and, in its low three bits, the symbol `p` that
//! falls out next. Costs stand as `[p][group]`, so that the cheapest of the eight
//! predecessors of a state, which differ in `p` only, is found down eight vectors.
//! Group `g` leads to the states `g + 64 * symbol`, whose low bits are those of
//! `g`: transposing the minima puts them in the order of the next costs.

use core::arch::x86_64::*;

use kvforge_formats::{Code, tbq3_tcq};

use super::lanes::{load, store, transpose};
use super::row::BLOCK;

/// States of the trellis.
const STATES: usize = 512;

/// Symbols, and predecessors of a state.
const SYMBOLS: usize = 8;

/// States by what has fallen out of them: what is left of a state then.
const GROUPS: usize = STATES / SYMBOLS;

/// Value of every state.
pub(super) const CODEBOOK: &[f32; STATES] = match tbq3_tcq::SPEC.code {
    Code::Trellis { codebook } => codebook,
    _ => panic!("not a trellis code"),
};

/// The same in the order of costs: `[p][symbol][group / 8]` for state
/// `group + 64 * symbol`, `p` being `group % 8`.
static ORDERED: [[[f32; 8]; SYMBOLS]; SYMBOLS] = {
    let mut ordered = [[[0.0; 8]; SYMBOLS]; SYMBOLS];
    let mut s = 0;
    while s < STATES {
        ordered[s % SYMBOLS][s / GROUPS][s % GROUPS / 8] = CODEBOOK[s];
        s += 1;
    }
    ordered
};

/// A walk: the state before the first value, and the one of every value.
pub(super) struct Walk {
    pub start: usize,
    pub states: [u16; BLOCK],
}

/// The walk that the reference finds: every sum in its order, of equal costs the
/// lower predecessor and at the end the lower state.
#[target_feature(enable = "avx2")]
pub(super) fn nearest_walk(x: &[f32; BLOCK]) -> Walk {
    let mut cost = [[_mm256_setzero_ps(); 8]; SYMBOLS];
    // For every step the symbol that fell out on the cheapest way into a group:
    // four bits for group `8 * b + j`, at bit `4 * b` of word `j`.
    let mut fallen = [[0u32; 8]; BLOCK];
    for (x, fallen) in x.iter().zip(&mut fallen) {
        let mut least = [_mm256_setzero_ps(); 8];
        let mut words = _mm256_setzero_si256();
        for (b, least) in least.iter_mut().enumerate().rev() {
            *least = cost[0][b];
            let mut symbol = _mm256_setzero_si256();
            for (p, cost) in cost.iter().enumerate().skip(1) {
                let less = _mm256_cmp_ps::<_CMP_LT_OQ>(cost[b], *least);
                *least = _mm256_min_ps(cost[b], *least);
                // Symbols ascend: the last one that was less is the largest.
                let p = _mm256_set1_epi32(p as i32);
                let p = _mm256_and_si256(_mm256_castps_si256(less), p);
                symbol = _mm256_max_epi32(symbol, p);
            }
            words = _mm256_or_si256(_mm256_slli_epi32::<4>(words), symbol);
        }
        // SAFETY: writes the 32 bytes of `fallen`; the store needs no alignment.
        unsafe { _mm256_storeu_si256(fallen.as_mut_ptr().cast(), words) };
        let x = _mm256_set1_ps(*x);
        let rows = cost.iter_mut().zip(&ORDERED);
        for (least, (cost, values)) in transpose(least).into_iter().zip(rows) {
            for (cost, values) in cost.iter_mut().zip(values) {
                let error = _mm256_sub_ps(x, load(values));
                *cost = _mm256_add_ps(least, _mm256_mul_ps(error, error));
            }
        }
    }
    let mut state = cheapest(&cost);
    let mut states = [0; BLOCK];
    for (at, fallen) in states.iter_mut().zip(&fallen).rev() {
        *at = state as u16;
        let group = state % GROUPS;
        let symbol = fallen[group % 8] >> (4 * (group / 8)) & 7;
        state = group * SYMBOLS + symbol as usize;
    }
    Walk {
        start: state,
        states,
    }
}

/// The lowest of the states with the least cost.
#[target_feature(enable = "avx2")]
fn cheapest(cost: &[[__m256; 8]; SYMBOLS]) -> usize {
    let mut ordered = [[[0.0f32; 8]; 8]; SYMBOLS];
    let mut least = cost[0][0];
    for (ordered, cost) in ordered.iter_mut().zip(cost) {
        for (ordered, cost) in ordered.iter_mut().zip(cost) {
            store(ordered, *cost);
            least = _mm256_min_ps(*cost, least);
        }
    }
    let mut lanes = [0.0f32; 8];
    store(&mut lanes, least);
    let least = lanes.into_iter().fold(f32::INFINITY, f32::min);
    let cost = |s: usize| ordered[s % SYMBOLS].as_flattened()[s / SYMBOLS];
    (0..STATES).find(|s| cost(*s) == least).unwrap_or(0)
}
