//! How often each kernel ran.

use kvforge_cpu::counters;
use kvforge_formats::by_id;

use crate::status::{KVF_BAD_SHAPE, KVF_NULL, KVF_OK};
use crate::types::{self, isa_number};

/// One counter that is not zero.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct kvf_count {
    /// Compressed format.
    pub r#type: u32,
    /// `KVF_OP_...`.
    pub op: u32,
    /// `KVF_ISA_...`, not AUTO.
    pub isa: u32,
    /// Slot that the calls named; a slot of 1024 or more counts as 1023.
    pub slot: u32,
    /// Blocks, dot products or rows, see `KVF_OP_...`.
    pub count: u64,
}

/// Sets every counter to zero.
#[unsafe(no_mangle)]
pub extern "C" fn kvf_counters_reset() {
    counters::reset();
}

/// What a kernel has done for a slot so far; 0 for what is no kernel.
/// `KVF_ISA_AUTO` asks for the instruction set that would be taken.
#[unsafe(no_mangle)]
pub extern "C" fn kvf_counter(r#type: u32, op: u32, isa: u32, slot: u32) -> u64 {
    let get = || {
        let isa = types::isa(isa).ok()?;
        Some(counters::get(by_id(r#type)?, types::op(op)?, isa, slot))
    };
    get().unwrap_or(0)
}

/// Goes through the counters that are not zero: start with `*cursor` 0, call until
/// it returns something other than `KVF_OK`, which is `KVF_BAD_SHAPE` at the end.
///
/// # Safety
/// `cursor` is null or readable and writable, `out` null or writable; nobody
/// else uses them meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvf_counter_next(cursor: *mut usize, out: *mut kvf_count) -> i32 {
    if cursor.is_null() || out.is_null() {
        return KVF_NULL;
    }
    // SAFETY: readable by the caller's word; it need not be aligned.
    let mut at = unsafe { cursor.read_unaligned() };
    let next = counters::next(&mut at);
    // SAFETY: writable by the caller's word.
    unsafe { cursor.write_unaligned(at) };
    let Some(count) = next else {
        return KVF_BAD_SHAPE;
    };
    // SAFETY: writable by the caller's word.
    unsafe {
        out.write_unaligned(kvf_count {
            r#type: count.spec.id,
            op: count.op as u32,
            isa: isa_number(count.isa),
            slot: count.slot as u32,
            count: count.count,
        });
    }
    KVF_OK
}
