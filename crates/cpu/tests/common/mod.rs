//! What the tests share: which instruction sets to run, and random input.
#![allow(dead_code, reason = "every test file uses its own part of this module")]

pub mod problem;

use kvforge_cpu::Isa;

/// The instruction sets of this machine; says which are missing, so that a test
/// run that proves less than it could is seen to.
pub fn isas() -> Vec<Isa> {
    let (present, absent): (Vec<_>, Vec<_>) =
        Isa::ALL.into_iter().partition(|isa| isa.is_available());
    for isa in absent {
        eprintln!("not run: {}: this machine does not have it", isa.name());
    }
    present
}

/// SplitMix64: the same numbers on every machine.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// Uniform below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }

    /// Uniform in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Standard normal (Box-Muller).
    pub fn normal(&mut self) -> f32 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        (radius * (core::f64::consts::TAU * self.unit()).cos()) as f32
    }

    pub fn normals(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.normal()).collect()
    }

    pub fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| self.bits() as u8).collect()
    }
}

/// Zeroed floats at a multiple of 64 bytes.
pub struct Aligned {
    floats: Vec<f32>,
    start: usize,
    len: usize,
}

impl Aligned {
    pub fn new(len: usize) -> Aligned {
        let floats = vec![0.0; len + 16];
        let start = floats.as_ptr().addr().next_multiple_of(64) - floats.as_ptr().addr();
        Aligned {
            floats,
            start: start / 4,
            len,
        }
    }

    pub fn get(&mut self) -> &mut [f32] {
        &mut self.floats[self.start..self.start + self.len]
    }
}
