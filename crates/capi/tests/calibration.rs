//! Calibration files through the C ABI: every bad argument and file has its status
//! and writes nothing; a good one gives the centres of the Rust functions.

use std::ffi::{CStr, c_void};
use std::mem::zeroed;
use std::ptr::{null, null_mut};

use kvforge_calibration::{Calibration, NewLayer, Rope, Step, static_centre, write};
use kvforge_capi::*;

const DIM: usize = 6;
const RUBBISH: f32 = 12345.0;

/// RoPE at position 1: split halves by two angles, the last pair left alone.
fn step() -> Vec<f32> {
    let mut m = vec![0.0; DIM * DIM];
    for i in 0..DIM {
        m[i * DIM + i] = 1.0;
    }
    for (a, angle) in [(0, 1.0_f32), (1, 0.25)] {
        let b = a + DIM / 2;
        (m[a * DIM + a], m[b * DIM + b]) = (angle.cos(), angle.cos());
        (m[a * DIM + b], m[b * DIM + a]) = (angle.sin(), -angle.sin());
    }
    m
}

/// Layer 2 with RoPE and layer 5 without, two kv heads each.
fn file(name: &str) -> Vec<u8> {
    let step = step();
    let pairs: Vec<_> = Step::new(&step, DIM).unwrap().pairs().collect();
    let numbers: Vec<f32> = (0..2 * DIM).map(|i| 1.0 + i as f32).collect();
    let layer = |index, rope, n_pairs| NewLayer {
        index,
        n_head_kv: 2,
        n_head: 4,
        head_dim: DIM as u32,
        rope,
        pairs: &pairs[..n_pairs],
        k_mean: &numbers,
        k_square: &numbers,
        q_square: &numbers,
        k_cross: &numbers[..2 * n_pairs],
        q_cross: &numbers[..2 * n_pairs],
    };
    let rope = Rope {
        mode: 2,
        ..Rope::NONE
    };
    let mut bytes = vec![];
    let layers = [layer(2, rope, 2), layer(5, Rope::NONE, 0)];
    write(99, name, 512, &layers, &mut |part| {
        bytes.extend_from_slice(part)
    });
    bytes
}

fn read(bytes: &[u8]) -> (i32, kvf_calibration) {
    // SAFETY: plain numbers.
    let mut out: kvf_calibration = unsafe { zeroed() };
    // SAFETY: `bytes` and `out` are there.
    let status = unsafe { kvf_calibration_read(bytes.as_ptr().cast(), bytes.len(), &mut out) };
    (status, out)
}

fn layer(bytes: &[u8], index: u32) -> (i32, [u32; 4]) {
    // SAFETY: plain numbers.
    let mut out: kvf_calibrated_layer = unsafe { zeroed() };
    let (p, n) = (bytes.as_ptr().cast(), bytes.len());
    // SAFETY: `bytes` and `out` are there.
    let status = unsafe { kvf_calibration_layer(p, n, index, &mut out) };
    (
        status,
        [out.layer, out.n_head_kv, out.head_dim, out.has_rope],
    )
}

fn centre(bytes: &[u8], index: u32, step: *const f32, n: u64) -> (i32, Vec<f32>) {
    let mut centre = vec![RUBBISH; 2 * DIM];
    let (p, len, out) = (bytes.as_ptr().cast(), bytes.len(), centre.as_mut_ptr());
    // SAFETY: `bytes`, `step` and `centre` are there, or null.
    let status = unsafe { kvf_static_centre(p, len, index, step, n, out) };
    (status, centre)
}

#[test]
fn a_file_says_what_it_is() {
    // A name that fills its field loses the character that makes room for the end.
    let long = "é".repeat(32);
    for (name, seen) in [("a model", "a model"), (&long, &long[..62])] {
        let bytes = file(name);
        let (status, about) = read(&bytes);
        assert_eq!(status, KVF_OK);
        assert_eq!(
            (about.version, about.n_layers, about.model, about.n_tokens),
            (1, 2, 99, 512)
        );
        assert_eq!(about.hash, Calibration::read(&bytes).unwrap().hash);
        // SAFETY: it ends in a NUL.
        let found = unsafe { CStr::from_ptr(about.name.as_ptr()) };
        assert_eq!(found.to_str().unwrap(), seen);
        assert_eq!(layer(&bytes, 0), (KVF_OK, [2, 2, DIM as u32, 1]));
        assert_eq!(layer(&bytes, 1), (KVF_OK, [5, 2, DIM as u32, 0]));
    }
}

#[test]
fn centres_are_those_of_the_rust_functions() {
    let (bytes, step) = (file("m"), step());
    let calibration = Calibration::read(&bytes).unwrap();
    let mut expected = vec![0.0; 2 * DIM];
    let turns = Step::new(&step, DIM).unwrap().pairs();
    static_centre(&calibration.layer(0).unwrap(), turns, 100, &mut expected).unwrap();
    assert_eq!(centre(&bytes, 0, step.as_ptr(), 100), (KVF_OK, expected));
    let mean: Vec<f32> = calibration.layer(1).unwrap().k_mean().collect();
    assert_eq!(centre(&bytes, 1, null(), 100), (KVF_OK, mean));
}

#[test]
fn every_wrong_thing_has_its_status() {
    let (good, step) = (file("m"), step());
    let changed = |at: usize| {
        let mut bytes = good.clone();
        bytes[at] ^= 1;
        bytes
    };
    for (bytes, status) in [
        (b"GGUF".to_vec(), KVF_NOT_CALIBRATION),
        (vec![], KVF_NOT_CALIBRATION),
        (changed(8), KVF_CALIBRATION_VERSION),
        (changed(good.len() - 1), KVF_CALIBRATION_DAMAGED),
        (good[..good.len() - 4].to_vec(), KVF_CALIBRATION_DAMAGED),
        (good[..16].to_vec(), KVF_CALIBRATION_MALFORMED),
    ] {
        let (found, about) = read(&bytes);
        assert_eq!(
            (found, about.n_layers),
            (status, 0),
            "{} bytes",
            bytes.len()
        );
        assert_eq!(layer(&bytes, 0), (status, [0; 4]));
        let untouched = vec![RUBBISH; 2 * DIM];
        assert_eq!(centre(&bytes, 0, step.as_ptr(), 1), (status, untouched));
    }

    let mut neighbours = [0.0; DIM * DIM];
    let mut mirror = step.clone();
    for i in 0..DIM {
        neighbours[i * DIM + i] = if i < 4 { 0.6 } else { 1.0 };
    }
    for a in [0, 2] {
        neighbours[a * DIM + a + 1] = 0.8;
        neighbours[(a + 1) * DIM + a] = -0.8;
    }
    mirror[3] = -mirror[3];
    let odd = step.as_ptr().wrapping_byte_add(1);
    for (index, step, n, status) in [
        (0, step.as_ptr(), 0, KVF_BAD_SHAPE),
        (2, step.as_ptr(), 1, KVF_BAD_SHAPE),
        (0, odd, 1, KVF_BAD_SHAPE),
        (0, mirror.as_ptr(), 1, KVF_NOT_TURNS),
        (0, neighbours.as_ptr(), 1, KVF_OTHER_TURNS),
        (0, null(), 1, KVF_OTHER_TURNS),
        (1, step.as_ptr(), 1, KVF_OTHER_TURNS),
    ] {
        let untouched = vec![RUBBISH; 2 * DIM];
        assert_eq!(
            centre(&good, index, step, n),
            (status, untouched),
            "{index} {n}"
        );
    }
    assert_eq!(layer(&good, 2), (KVF_BAD_SHAPE, [0; 4]));

    let (p, n): (*const c_void, _) = (good.as_ptr().cast(), good.len());
    // SAFETY: null is refused.
    unsafe {
        let mut about: kvf_calibration = zeroed();
        let mut shape: kvf_calibrated_layer = zeroed();
        assert_eq!(kvf_calibration_read(null(), n, &mut about), KVF_NULL);
        assert_eq!(kvf_calibration_read(p, n, null_mut()), KVF_NULL);
        assert_eq!(kvf_calibration_layer(null(), n, 0, &mut shape), KVF_NULL);
        assert_eq!(kvf_calibration_layer(p, n, 0, null_mut()), KVF_NULL);
        assert_eq!(
            kvf_static_centre(p, n, 0, step.as_ptr(), 1, null_mut()),
            KVF_NULL
        );
        assert_eq!(
            kvf_calibration_read(p, usize::MAX, &mut about),
            KVF_BAD_SHAPE
        );
    }
}

#[test]
fn the_table_has_them() {
    // SAFETY: the table is static.
    let api = unsafe { &*kvf_api(KVF_API_VERSION) };
    let bytes = file("m");
    // SAFETY: plain numbers; the bytes are there.
    let (about, status) = unsafe {
        let mut about: kvf_calibration = zeroed();
        let status = (api.calibration_read)(bytes.as_ptr().cast(), bytes.len(), &mut about);
        (about, status)
    };
    assert_eq!((status, about.model), (KVF_OK, 99));
}
