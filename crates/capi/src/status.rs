//! What a call came to.

use core::ffi::{CStr, c_char};

use kvforge_cpu::Error;
use kvforge_formats::CodecError;

/// The call did what it says.
pub const KVF_OK: i32 = 0;
/// A required pointer is null.
pub const KVF_NULL: i32 = 1;
/// A type, operation or domain number stands for nothing.
pub const KVF_BAD_TYPE: i32 = 2;
/// Lengths, head counts, strides, alignments or ranges do not fit together.
pub const KVF_BAD_SHAPE: i32 = 3;
/// This machine or this version cannot do it.
pub const KVF_UNSUPPORTED: i32 = 4;
/// A value to encode is infinite or NaN.
pub const KVF_NON_FINITE: i32 = 5;
/// The scale of a block to encode is above 65504.
pub const KVF_SCALE_OVERFLOW: i32 = 6;
/// The scratch memory is too small or not 64-byte aligned.
pub const KVF_SCRATCH: i32 = 7;
/// The bytes are no calibration file.
pub const KVF_NOT_CALIBRATION: i32 = 8;
/// The calibration file is of a version that this library does not read.
pub const KVF_CALIBRATION_VERSION: i32 = 9;
/// The calibration file's hash does not fit its content.
pub const KVF_CALIBRATION_DAMAGED: i32 = 10;
/// The calibration file says what cannot be.
pub const KVF_CALIBRATION_MALFORMED: i32 = 11;
/// RoPE does something else at position 1 than to turn pairs of channels.
pub const KVF_NOT_TURNS: i32 = 12;
/// RoPE turns other pairs of channels than when the layer was calibrated.
pub const KVF_OTHER_TURNS: i32 = 13;

/// One English sentence: what a status means and what to do. Static,
/// NUL-terminated, never null.
#[unsafe(no_mangle)]
pub extern "C" fn kvf_status_text(status: i32) -> *const c_char {
    let text: &CStr = match status {
        KVF_OK => c"success",
        KVF_NULL => c"a required pointer is null; pass valid memory",
        KVF_BAD_TYPE => {
            c"unknown type, operation or domain number; use the constants of kvforge.h or kvf_format_info"
        }
        KVF_BAD_SHAPE => {
            c"lengths, head counts, strides, alignments or ranges do not fit together; rows must be whole blocks, n_heads a multiple of n_kv_heads, strides no smaller than rows, ranges within bounds"
        }
        KVF_UNSUPPORTED => {
            c"this machine or this version of kvforge cannot do that; use KVF_ISA_AUTO and the struct sizes of this kvforge.h"
        }
        KVF_NON_FINITE => {
            c"a value to encode is infinite or NaN, which compressed blocks cannot hold; look at what produced it"
        }
        KVF_SCALE_OVERFLOW => {
            c"the scale of a block to encode is above 65504, the largest fp16 number; scale the row down"
        }
        KVF_SCRATCH => {
            c"scratch memory is too small or not 64-byte aligned; size it with kvf_attend_scratch or kvf_score_scratch"
        }
        KVF_NOT_CALIBRATION => {
            c"this is no calibration file; make one with `kvforge calibrate`"
        }
        KVF_CALIBRATION_VERSION => {
            c"the calibration file is of another version; make it anew with `kvforge calibrate` of this version"
        }
        KVF_CALIBRATION_DAMAGED => {
            c"the calibration file is damaged: its hash does not fit its content; copy it again or make it anew"
        }
        KVF_CALIBRATION_MALFORMED => {
            c"the calibration file says what cannot be; `kvforge calibrate --show` names the place; make it anew"
        }
        KVF_NOT_TURNS => {
            c"RoPE does something else at position 1 than to turn pairs of channels; this layer cannot be centred"
        }
        KVF_OTHER_TURNS => {
            c"RoPE pairs other channels than when this layer was calibrated; calibrate this model"
        }
        _ => c"not a kvforge status",
    };
    text.as_ptr()
}

pub(crate) fn status_of(error: Error) -> i32 {
    match error {
        Error::Codec(CodecError::NonFinite { .. }) => KVF_NON_FINITE,
        Error::Codec(CodecError::ScaleOverflow { .. }) => KVF_SCALE_OVERFLOW,
        Error::Unsupported => KVF_UNSUPPORTED,
        Error::Scratch { .. } | Error::ScratchAlignment => KVF_SCRATCH,
        // Lengths of a row, and whatever an argument check may be added for.
        _ => KVF_BAD_SHAPE,
    }
}

pub(crate) fn calibration_status(error: kvforge_calibration::Error) -> i32 {
    use kvforge_calibration::Error;
    match error {
        Error::NotACalibration => KVF_NOT_CALIBRATION,
        Error::Version { .. } => KVF_CALIBRATION_VERSION,
        Error::Damaged { .. } => KVF_CALIBRATION_DAMAGED,
        Error::Malformed { .. } => KVF_CALIBRATION_MALFORMED,
        Error::NotTurns { .. } => KVF_NOT_TURNS,
        Error::OtherTurns { .. } => KVF_OTHER_TURNS,
        // A layer that there is not, lengths, no positions.
        _ => KVF_BAD_SHAPE,
    }
}

/// `Ok` and the C status that an error stands for.
pub(crate) fn finish(result: Result<(), i32>) -> i32 {
    match result {
        Ok(()) => KVF_OK,
        Err(status) => status,
    }
}
