//! The numbers that stand for types, instruction sets, operations and domains.

use core::ffi::c_char;
use core::ptr;

use kvforge_cpu::{CacheType, Isa, Op, kernel_name};
use kvforge_formats::{Domain, FormatSpec, by_id};

use crate::status::{KVF_BAD_TYPE, KVF_UNSUPPORTED};

/// fp32. A compressed format is its own number, see `kvf_format_info`.
pub const KVF_F32: u32 = 0x1000;
/// IEEE binary16.
pub const KVF_F16: u32 = 0x1001;
/// ggml's q8_0: blocks of 32 values, an fp16 scale and 32 signed bytes.
pub const KVF_Q8_0: u32 = 0x1002;

/// The format `q4_polar`, read with the residual that its blocks carry.
pub const KVF_Q4_POLAR_RESIDUAL: u32 = 0x1003;

/// The fastest instruction set of this machine.
pub const KVF_ISA_AUTO: u32 = 0;
/// Plain code.
pub const KVF_ISA_SCALAR: u32 = 1;
/// x86-64 with AVX2, FMA and F16C.
pub const KVF_ISA_AVX2: u32 = 2;

/// The vector that was encoded.
pub const KVF_ORIGINAL: u32 = 0;
/// The vector that was coded, still under the format's rotation, or for `qjl1_256`
/// projected.
pub const KVF_ROTATED: u32 = 1;

/// fp32 row to blocks; counted in blocks.
pub const KVF_OP_ENCODE: u32 = 0;
/// Blocks to fp32 row; counted in blocks.
pub const KVF_OP_DECODE: u32 = 1;
/// Query-key dot products; counted in (query, head, key) products.
pub const KVF_OP_SCORE: u32 = 2;
/// Fused attention; counted in (query, head) rows finished.
pub const KVF_OP_ATTEND: u32 = 3;
/// One stored row times one fp32 row; counted in blocks.
pub const KVF_OP_DOT: u32 = 4;

pub(crate) fn cache_type(ty: u32) -> Result<CacheType, i32> {
    match ty {
        KVF_F32 => Ok(CacheType::F32),
        KVF_F16 => Ok(CacheType::F16),
        KVF_Q8_0 => Ok(CacheType::Q8_0),
        KVF_Q4_POLAR_RESIDUAL => Ok(CacheType::PolarResidual),
        id => format(id).map(CacheType::Format),
    }
}

pub(crate) fn format(ty: u32) -> Result<&'static FormatSpec, i32> {
    by_id(ty).ok_or(KVF_BAD_TYPE)
}

pub(crate) fn domain(domain: u32) -> Result<Domain, i32> {
    match domain {
        KVF_ORIGINAL => Ok(Domain::Original),
        KVF_ROTATED => Ok(Domain::Rotated),
        _ => Err(KVF_BAD_TYPE),
    }
}

pub(crate) fn op(op: u32) -> Option<Op> {
    Op::ALL.get(op as usize).copied()
}

/// The instruction set to use: one that this machine has.
pub(crate) fn isa(isa: u32) -> Result<Isa, i32> {
    known_isa(isa)
        .filter(|isa| isa.is_available())
        .ok_or(KVF_UNSUPPORTED)
}

/// An instruction set by its number, available or not.
fn known_isa(isa: u32) -> Option<Isa> {
    match isa {
        KVF_ISA_AUTO => Some(Isa::best()),
        KVF_ISA_SCALAR => Some(Isa::Scalar),
        KVF_ISA_AVX2 => Some(Isa::Avx2),
        _ => None,
    }
}

pub(crate) const fn isa_number(isa: Isa) -> u32 {
    match isa {
        Isa::Scalar => KVF_ISA_SCALAR,
        Isa::Avx2 => KVF_ISA_AVX2,
    }
}

/// Name of an instruction set, `"scalar"` or `"avx2"`; for `KVF_ISA_AUTO` the
/// one that would be taken. Static; null for an unknown number.
#[unsafe(no_mangle)]
pub extern "C" fn kvf_isa_name(isa: u32) -> *const c_char {
    match known_isa(isa) {
        Some(Isa::Scalar) => c"scalar".as_ptr(),
        Some(Isa::Avx2) => c"avx2".as_ptr(),
        None => ptr::null(),
    }
}

/// The instruction set that a call with `isa` uses; 0 if this machine cannot.
#[unsafe(no_mangle)]
pub extern "C" fn kvf_isa_resolve(isa: u32) -> u32 {
    self::isa(isa).map_or(0, isa_number)
}

/// Name of a kernel, for instance `"tbq4_0/attend/avx2"`. Static; null when there
/// is no such kernel. `type` is a compressed format.
#[unsafe(no_mangle)]
pub extern "C" fn kvf_kernel_name(r#type: u32, op: u32, isa: u32) -> *const c_char {
    let name = || kernel_name(by_id(r#type)?, self::op(op)?, known_isa(isa)?);
    name().map_or(ptr::null(), |name| name.as_ptr())
}
