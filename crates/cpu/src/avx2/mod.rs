//! Kernels for x86-64 with AVX2, FMA and F16C.
//!
//! Functions here say what they need with `target_feature`; the one way in from
//! outside is an [`Avx2`] token, which proves that the machine
//! has it.

mod codec;
mod lanes;
mod layout;
mod matmul;
mod plain;
mod softmax;
mod tbq3_0;
mod tbq4_0;

use kvforge_formats::{Domain, FORMATS, FormatSpec, Rotation};

use crate::isa::Avx2;
use crate::kernels::{Kernels, MaskType, Product, Softmax, TILE, Terms};
use crate::view::Span;
use crate::{CacheType, Error, Isa};

// Every format needs an arm in `for_layout`.
const _: () = assert!(FORMATS.len() == 2);

/// Evaluates `$call` with `$F` standing for the layout of a format, `$otherwise`
/// for a format that has none.
macro_rules! for_layout {
    ($spec:expr, $F:ident => $call:expr, $otherwise:expr) => {
        if *$spec == kvforge_formats::tbq3_0::SPEC {
            type $F = tbq3_0::Tbq3_0;
            $call
        } else if *$spec == kvforge_formats::tbq4_0::SPEC {
            type $F = tbq4_0::Tbq4_0;
            $call
        } else {
            $otherwise
        }
    };
}

/// As [`crate::encode`], lengths checked.
pub(crate) fn encode(
    _: Avx2,
    spec: &FormatSpec,
    x: &[f32],
    bytes: &mut [u8],
    slot: u32,
) -> Result<(), Error> {
    // SAFETY: the token proves AVX2, FMA and F16C.
    for_layout!(spec, F => Ok(unsafe { codec::encode::<F>(x, bytes, slot) }?), Err(Error::Unsupported))
}

/// As [`crate::decode`], lengths checked.
pub(crate) fn decode(
    _: Avx2,
    kind: CacheType,
    domain: Domain,
    bytes: &[u8],
    x: &mut [f32],
    slot: u32,
) -> Result<(), Error> {
    // SAFETY of every arm: the token proves AVX2, FMA and F16C.
    match kind {
        // SAFETY: see above.
        CacheType::F32 => unsafe { plain::decode::<plain::F32>(bytes, x) },
        // SAFETY: see above.
        CacheType::F16 => unsafe { plain::decode::<plain::F16>(bytes, x) },
        // SAFETY: see above.
        CacheType::Q8_0 => unsafe { plain::decode::<plain::Q8_0>(bytes, x) },
        CacheType::Format(spec) => {
            // SAFETY: see above.
            for_layout!(spec, F => unsafe { codec::decode::<F>(domain, bytes, x, slot) },
                return Err(Error::Unsupported))
        }
    }
    Ok(())
}

/// As [`crate::dot`], lengths checked.
pub(crate) fn dot(
    _: Avx2,
    spec: &FormatSpec,
    bytes: &[u8],
    q: &[f32],
    slot: u32,
) -> Result<f32, Error> {
    // SAFETY: the token proves AVX2, FMA and F16C.
    for_layout!(spec, F => Ok(unsafe { codec::dot::<F>(bytes, q, slot) }), Err(Error::Unsupported))
}

// SAFETY of every `unsafe` block below: `self` proves AVX2, FMA and F16C, which
// is all that the functions called ask for.
impl Kernels for Avx2 {
    const ISA: Isa = Isa::Avx2;

    fn keys(self, kind: CacheType, keys: Span<'_>, dim: usize, tile: &mut [f32]) {
        match kind {
            // SAFETY: see above.
            CacheType::F32 => unsafe { plain::keys::<plain::F32>(keys, dim, tile) },
            // SAFETY: see above.
            CacheType::F16 => unsafe { plain::keys::<plain::F16>(keys, dim, tile) },
            // SAFETY: see above.
            CacheType::Q8_0 => unsafe { plain::keys::<plain::Q8_0>(keys, dim, tile) },
            CacheType::Format(spec) => for_layout!(
                spec,
                // SAFETY: see above.
                F => unsafe { codec::keys::<F>(keys, tile) },
                tile.fill(f32::NAN)
            ),
        }
    }

    fn values(self, kind: CacheType, values: Span<'_>, seen: u64, tile: &mut [f32], pitch: usize) {
        match kind {
            // SAFETY: see above.
            CacheType::F32 => unsafe { plain::values::<plain::F32>(values, seen, tile, pitch) },
            // SAFETY: see above.
            CacheType::F16 => unsafe { plain::values::<plain::F16>(values, seen, tile, pitch) },
            // SAFETY: see above.
            CacheType::Q8_0 => unsafe { plain::values::<plain::Q8_0>(values, seen, tile, pitch) },
            CacheType::Format(spec) => for_layout!(
                spec,
                // SAFETY: see above.
                F => unsafe { codec::values::<F>(values, seen, tile, pitch) },
                tile.fill(f32::NAN)
            ),
        }
    }

    fn mask(self, kind: MaskType, bytes: &[u8], row: &mut [f32; TILE]) -> u64 {
        match kind {
            // SAFETY: see above.
            MaskType::F32 => unsafe { softmax::mask::<plain::F32>(bytes, row) },
            // SAFETY: see above.
            MaskType::F16 => unsafe { softmax::mask::<plain::F16>(bytes, row) },
        }
    }

    fn rotate(self, rotation: Rotation, x: &mut [f32]) {
        // SAFETY: see above.
        unsafe { lanes::turn(rotation, true, x.as_chunks_mut().0) }
    }

    fn unrotate(self, rotation: Rotation, x: &mut [f32]) {
        // SAFETY: see above.
        unsafe { lanes::turn(rotation, false, x.as_chunks_mut().0) }
    }

    fn matmul(self, product: Product<'_>) {
        // SAFETY: see above.
        unsafe { matmul::matmul(product) }
    }

    fn softmax(
        self,
        scores: &mut [f32; TILE],
        cols: usize,
        terms: Terms<'_>,
        state: &mut Softmax,
    ) -> f32 {
        // SAFETY: see above.
        unsafe { softmax::softmax(scores, cols, terms, state) }
    }

    fn scale(self, x: &mut [f32], factor: f32) {
        // SAFETY: see above.
        unsafe { softmax::scale(x, factor) }
    }

    fn add_scaled(self, x: &mut [f32], factor: f32, y: &[f32]) {
        // SAFETY: see above.
        unsafe { softmax::add_scaled(x, factor, y) }
    }
}
