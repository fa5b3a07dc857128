//! What the tests of the C ABI share.
#![allow(dead_code, reason = "each test program uses its own part")]

use kvforge_capi::*;
use kvforge_formats::{Domain, by_id, q4_polar};

/// What outputs hold before a call, and after a refused one.
pub const RUBBISH: f32 = 12345.0;

pub const ISAS: [u32; 2] = [KVF_ISA_SCALAR, KVF_ISA_AVX2];

pub fn isas() -> impl Iterator<Item = u32> {
    ISAS.into_iter().filter(|&isa| {
        let present = kvf_isa_resolve(isa) == isa;
        if !present {
            eprintln!("not run: instruction set {isa}: this machine does not have it");
        }
        present
    })
}

/// Numbers in [-1, 1) without a pattern.
pub fn random(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    (0..n)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect()
}

pub fn encoded(id: u32, x: &[f32]) -> Vec<u8> {
    let spec = by_id(id).unwrap();
    let mut bytes = vec![0; spec.row_bytes(x.len()).unwrap()];
    (spec.encode)(x, &mut bytes).unwrap();
    bytes
}

/// What the reference decoder makes of bytes.
pub fn decoded(id: u32, bytes: &[u8], domain: Domain) -> Vec<f32> {
    let spec = by_id(id).unwrap();
    let mut x = vec![0.0; bytes.len() / spec.block_bytes * spec.len_in(domain)];
    (spec.decode)(bytes, &mut x, domain).unwrap();
    x
}

/// The same of `q4_polar`'s bytes with their residual.
pub fn decoded_residual(bytes: &[u8], domain: Domain) -> Vec<f32> {
    let mut x = vec![0.0; bytes.len() / q4_polar::SPEC.block_bytes * q4_polar::SPEC.block_len];
    q4_polar::decode(bytes, &mut x, domain, q4_polar::Residual::Added).unwrap();
    x
}

pub fn floats(x: &[f32]) -> *const f32 {
    x.as_ptr()
}

#[repr(align(64))]
#[derive(Clone, Copy)]
pub struct Line(#[allow(dead_code, reason = "only its memory matters")] [u8; 64]);

pub fn lines(bytes: usize) -> Vec<Line> {
    vec![Line([0; 64]); bytes.div_ceil(64)]
}
