//! The walk through the trellis that is nearest to a block: Viterbi's
//! algorithm.

use super::{BLOCK, STATE, WIDTH};

/// States of the trellis.
const STATES: usize = 1 << STATE;

/// States that lead to the same ones: they differ in the symbol that falls out.
const PREDECESSORS: usize = 1 << WIDTH;

/// What is left of a state when its oldest symbol has fallen out.
const GROUPS: usize = STATES / PREDECESSORS;

/// The initial state and the symbols of the walk whose states' values have the
/// least squared distance to `x`. From state `s`, symbol `y` leads to
/// `s >> 3 | y << 6`. All of it in fp32; of equal walks, the one with the lower
/// predecessor and at the end the lower state.
pub(super) fn nearest_walk(codebook: &[f32; STATES], x: &[f32; BLOCK]) -> (usize, [u8; BLOCK]) {
    let mut cost = [0.0f32; STATES];
    // For every step and group the oldest symbol of its cheapest predecessor.
    let mut fallen = [[0u8; GROUPS]; BLOCK];
    for (x, fallen) in x.iter().zip(&mut fallen) {
        let mut least = [0.0; GROUPS];
        let groups = cost.as_chunks::<PREDECESSORS>().0;
        for ((least, fallen), costs) in least.iter_mut().zip(fallen).zip(groups) {
            *least = costs[0];
            for (symbol, cost) in costs.iter().enumerate() {
                if *cost < *least {
                    (*least, *fallen) = (*cost, symbol as u8);
                }
            }
        }
        for (s, (cost, value)) in cost.iter_mut().zip(codebook).enumerate() {
            let error = x - value;
            *cost = least[s % GROUPS] + error * error;
        }
    }
    let mut state = 0;
    for (s, c) in cost.iter().enumerate() {
        if *c < cost[state] {
            state = s;
        }
    }
    let mut symbols = [0; BLOCK];
    for (symbol, fallen) in symbols.iter_mut().zip(&fallen).rev() {
        *symbol = (state / GROUPS) as u8;
        let group = state % GROUPS;
        state = group << WIDTH | usize::from(fallen[group]);
    }
    (state, symbols)
}
