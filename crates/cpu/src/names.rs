//! Operations, and the names that kernels go by.

use core::ffi::CStr;

use kvforge_formats::{FORMATS, FormatSpec};

use crate::Isa;

/// What a kernel does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// fp32 row to blocks.
    Encode,
    /// Blocks to fp32 row.
    Decode,
    /// Query-key dot products over strided tensors.
    Score,
    /// Fused attention.
    Attend,
    /// One stored row times one fp32 row.
    Dot,
}

impl Op {
    /// Every operation, in the order of its number in the C ABI.
    pub const ALL: [Op; 5] = [Op::Encode, Op::Decode, Op::Score, Op::Attend, Op::Dot];

    /// Name as kernels say it.
    pub const fn name(self) -> &'static str {
        match self {
            Op::Encode => "encode",
            Op::Decode => "decode",
            Op::Score => "score",
            Op::Attend => "attend",
            Op::Dot => "dot",
        }
    }
}

/// Longest `format/op/isa` with its final NUL.
const NAME: usize = 32;

type Table = [[[[u8; NAME]; Isa::ALL.len()]; Op::ALL.len()]; FORMATS.len()];

static NAMES: Table = {
    let mut table = [[[[0; NAME]; Isa::ALL.len()]; Op::ALL.len()]; FORMATS.len()];
    let mut f = 0;
    while f < FORMATS.len() {
        let mut op = 0;
        while op < Op::ALL.len() {
            let mut isa = 0;
            while isa < Isa::ALL.len() {
                table[f][op][isa] = name(FORMATS[f].name, Op::ALL[op].name(), Isa::ALL[isa].name());
                isa += 1;
            }
            op += 1;
        }
        f += 1;
    }
    table
};

/// `a/b/c`, NUL-terminated; too long a name fails the build.
const fn name(a: &str, b: &str, c: &str) -> [u8; NAME] {
    let parts = [a.as_bytes(), b"/", b.as_bytes(), b"/", c.as_bytes(), b"\0"];
    let mut out = [0; NAME];
    let (mut at, mut p) = (0, 0);
    while p < parts.len() {
        let mut i = 0;
        while i < parts[p].len() {
            out[at] = parts[p][i];
            at += 1;
            i += 1;
        }
        p += 1;
    }
    out
}

/// The instruction set of the kernel that serves an operation when `isa` is asked
/// for, and under which it is counted: where no one has written a codec of a format
/// for `isa`, the reference codec serves.
pub fn kernel_isa(spec: &FormatSpec, op: Op, isa: Isa) -> Isa {
    match op {
        // Engines over whatever decodes the tiles.
        Op::Score | Op::Attend => isa,
        Op::Encode | Op::Decode | Op::Dot if has_codec(spec, isa) => isa,
        Op::Encode | Op::Decode | Op::Dot => Isa::Scalar,
    }
}

fn has_codec(spec: &FormatSpec, isa: Isa) -> bool {
    match isa {
        Isa::Scalar => true,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => crate::avx2::has_codec(spec),
        #[cfg(not(target_arch = "x86_64"))]
        Isa::Avx2 => false,
    }
}

/// Name of the kernel that serves an operation when `isa` is asked for, such as
/// `tbq4_0/attend/avx2`; see [`kernel_isa`]. `None` if this build has no such
/// kernel: for formats not in [`FORMATS`], and instruction sets of other machines.
pub fn kernel_name(spec: &FormatSpec, op: Op, isa: Isa) -> Option<&'static CStr> {
    if isa == Isa::Avx2 && !cfg!(target_arch = "x86_64") {
        return None;
    }
    let format = FORMATS.iter().position(|f| **f == *spec)?;
    let bytes = NAMES.get(format)?.get(op as usize)?;
    let bytes = bytes.get(kernel_isa(spec, op, isa) as usize)?;
    CStr::from_bytes_until_nul(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvforge_formats::tbq4_0;

    #[test]
    fn names_are_format_op_isa() {
        let name = kernel_name(&tbq4_0::SPEC, Op::Attend, Isa::Scalar);
        assert_eq!(name, Some(c"tbq4_0/attend/scalar"));
        for (i, op) in Op::ALL.into_iter().enumerate() {
            assert_eq!(op as usize, i);
        }
        for (i, isa) in Isa::ALL.into_iter().enumerate() {
            assert_eq!(isa as usize, i);
        }
    }
}
