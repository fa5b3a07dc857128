//! Instruction sets: which there are, which this machine has.

/// An instruction set that kernels are written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// Plain Rust, on any machine.
    Scalar,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
}

impl Isa {
    /// Every instruction set, slowest first.
    pub const ALL: [Isa; 2] = [Isa::Scalar, Isa::Avx2];

    /// Name as kernels say it.
    pub const fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Avx2 => "avx2",
        }
    }

    /// Whether this machine and its operating system can run it.
    pub fn is_available(self) -> bool {
        match self {
            Isa::Scalar => true,
            Isa::Avx2 => avx2_available(),
        }
    }

    /// The fastest one available.
    pub fn best() -> Isa {
        if Isa::Avx2.is_available() {
            Isa::Avx2
        } else {
            Isa::Scalar
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn avx2_available() -> bool {
    false
}

#[cfg(target_arch = "x86_64")]
fn avx2_available() -> bool {
    Avx2::detect().is_some()
}

/// Proof that AVX2, FMA and F16C may be used: only [`Avx2::detect`] makes one.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx2(());

#[cfg(target_arch = "x86_64")]
impl Avx2 {
    pub(crate) fn detect() -> Option<Avx2> {
        use core::sync::atomic::{AtomicU8, Ordering::Relaxed};
        const UNKNOWN: u8 = 0;
        const ABSENT: u8 = 1;
        const PRESENT: u8 = 2;
        static FOUND: AtomicU8 = AtomicU8::new(UNKNOWN);
        // Threads that race here all store the same answer.
        let found = match FOUND.load(Relaxed) {
            UNKNOWN => {
                let found = if ask_cpu() { PRESENT } else { ABSENT };
                FOUND.store(found, Relaxed);
                found
            }
            known => known,
        };
        (found == PRESENT).then_some(Avx2(()))
    }
}

/// `std` would answer this, but this crate also runs without it.
#[cfg(target_arch = "x86_64")]
fn ask_cpu() -> bool {
    use core::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};
    const FMA: u32 = 1 << 12;
    const OSXSAVE: u32 = 1 << 27;
    const AVX: u32 = 1 << 28;
    const F16C: u32 = 1 << 29;
    const LEAF1: u32 = FMA | OSXSAVE | AVX | F16C;
    const LEAF7_AVX2: u32 = 1 << 5;
    const XMM_AND_YMM: u64 = 0b110;

    if __cpuid(0).eax < 7 || __cpuid(1).ecx & LEAF1 != LEAF1 {
        return false;
    }
    // SAFETY: OSXSAVE, tested above, says that XGETBV exists.
    let saved_by_os = unsafe { _xgetbv(0) };
    saved_by_os & XMM_AND_YMM == XMM_AND_YMM && __cpuid_count(7, 0).ebx & LEAF7_AVX2 != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detection_agrees_with_std() {
        #[cfg(target_arch = "x86_64")]
        let expected = std::is_x86_feature_detected!("avx2")
            && std::is_x86_feature_detected!("fma")
            && std::is_x86_feature_detected!("f16c");
        #[cfg(not(target_arch = "x86_64"))]
        let expected = false;
        assert_eq!(Isa::Avx2.is_available(), expected);
        assert!(Isa::best().is_available());
    }
}
