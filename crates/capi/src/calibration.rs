//! Calibration files, and the centres that follow from them.

use core::ffi::{c_char, c_void};
use core::mem::size_of;

use kvforge_calibration::{Calibration, NAME_BYTES, Step, static_centre};

use crate::memory::{input, output};
use crate::status::{KVF_NULL, calibration_status, finish};

/// What a calibration file is about.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvf_calibration {
    /// Version of the file.
    pub version: u32,
    /// Layers that it holds, at least 1.
    pub n_layers: u32,
    /// Identity of the model.
    pub model: u64,
    /// Hash of the content: two files with the same one give the same centres.
    pub hash: u64,
    /// Tokens that the means were taken over.
    pub n_tokens: u64,
    /// Name of the model; NUL-terminated, and cut where it is too long for that.
    pub name: [c_char; 64],
}

/// A layer of a calibration file.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvf_calibrated_layer {
    /// Its number in the model.
    pub layer: u32,
    /// Heads of keys and values.
    pub n_head_kv: u32,
    /// Values of a key.
    pub head_dim: u32,
    /// 1 if RoPE turns its keys, else 0.
    pub has_rope: u32,
}

const _: () = assert!(size_of::<[c_char; 64]>() == NAME_BYTES);

/// # Safety
/// `bytes` is null or readable for `n` bytes that nobody writes for `'a`.
unsafe fn calibration<'a>(bytes: *const c_void, n: usize) -> Result<Calibration<'a>, i32> {
    // SAFETY: by the caller's word.
    let bytes = unsafe { input(bytes.cast(), n)? };
    Calibration::read(bytes).map_err(calibration_status)
}

/// Checks a calibration file, all of it, and says what it is about. The bytes may
/// lie at any address.
///
/// # Safety
/// `bytes` is null, or readable for `n` bytes that nobody writes meanwhile; `out`
/// is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvf_calibration_read(
    bytes: *const c_void,
    n: usize,
    out: *mut kvf_calibration,
) -> i32 {
    finish((|| {
        if out.is_null() {
            return Err(KVF_NULL);
        }
        // SAFETY: by the caller's word.
        let file = unsafe { calibration(bytes, n)? };
        let mut name = [0; NAME_BYTES];
        let cut = file.name().floor_char_boundary(NAME_BYTES - 1);
        for (to, from) in name.iter_mut().zip(file.name().bytes().take(cut)) {
            *to = from as c_char;
        }
        let about = kvf_calibration {
            version: kvforge_calibration::VERSION,
            n_layers: file.n_layers,
            model: file.model,
            hash: file.hash,
            n_tokens: file.n_tokens,
            name,
        };
        // SAFETY: writable by the caller's word; it need not be aligned.
        unsafe { out.write_unaligned(about) };
        Ok(())
    })())
}

/// Tells the shape of layer number `index` of the file, counted from 0, which is
/// not its number in the model. `KVF_BAD_SHAPE` past the last one.
///
/// # Safety
/// As `kvf_calibration_read`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvf_calibration_layer(
    bytes: *const c_void,
    n: usize,
    index: u32,
    out: *mut kvf_calibrated_layer,
) -> i32 {
    finish((|| {
        if out.is_null() {
            return Err(KVF_NULL);
        }
        // SAFETY: by the caller's word.
        let file = unsafe { calibration(bytes, n)? };
        let layer = file.layer(index).map_err(calibration_status)?;
        let shape = kvf_calibrated_layer {
            layer: layer.index,
            n_head_kv: layer.n_head_kv() as u32,
            head_dim: layer.head_dim() as u32,
            has_rope: layer.has_rope().into(),
        };
        // SAFETY: writable by the caller's word; it need not be aligned.
        unsafe { out.write_unaligned(shape) };
        Ok(())
    })())
}

/// Computes the static centre of layer number `index` of the file,
/// `[n_head_kv, head_dim]`: the mean key of a context of `n_positions`, at least 1.
///
/// `step` is `[head_dim, head_dim]`, row `i` the image of unit vector `i` under the
/// graph's RoPE at position 1, the graph that the centre is for; null if it has no
/// RoPE. `KVF_NOT_TURNS` if it is no turning of pairs of channels,
/// `KVF_OTHER_TURNS` if it pairs other channels than the calibrated one did. The
/// angles may differ, as those of a stretched context do. Writes only on `KVF_OK`.
///
/// # Safety
/// As `kvf_calibration_read`; `step` is null, or readable for its values; `centre`
/// is null, or writable for its values and used by nobody else meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvf_static_centre(
    bytes: *const c_void,
    n: usize,
    index: u32,
    step: *const f32,
    n_positions: u64,
    centre: *mut f32,
) -> i32 {
    finish((|| {
        // SAFETY: by the caller's word.
        let file = unsafe { calibration(bytes, n)? };
        let layer = file.layer(index).map_err(calibration_status)?;
        let dim = layer.head_dim();
        let turns = match step.is_null() {
            true => None,
            false => {
                // SAFETY: by the caller's word.
                let step = unsafe { input(step, dim * dim)? };
                Some(Step::new(step, dim).map_err(calibration_status)?)
            }
        };
        // SAFETY: by the caller's word.
        let centre = unsafe { output(centre, layer.n_head_kv() * dim)? };
        let pairs = turns.into_iter().flat_map(Step::pairs);
        static_centre(&layer, pairs, n_positions, centre).map_err(calibration_status)
    })())
}
