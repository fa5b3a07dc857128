//! Kernels for x86-64 with AVX2, FMA and F16C.
//!
//! Functions here say what they need with `target_feature`; the one way in from
//! outside is an [`Avx2`] token, which proves that the machine
//! has it.

mod lanes;
mod layout;
mod matmul;
mod narrow;
mod plain;
mod q4_polar;
mod qjl1_256;
mod row;
mod scalar_code;
mod softmax;
mod tbq3_0;
mod tbq3_tcq;
mod tbq4_0;
mod viterbi;
mod wide;

use kvforge_formats::{Domain, FormatSpec, Rotation};
use q4_polar::Residual;

use crate::isa::Avx2;
use crate::kernels::{Kernels, MaskType, Product, Softmax, TILE, Terms};
use crate::view::Span;
use crate::{CacheType, Encoder, Error, Isa, scalar};

/// Evaluates `$call` with `$codec` standing for the module that serves a format and
/// `$F` for what it needs to know of it; `$otherwise` for a format that no one has
/// written kernels for: the reference codec serves it.
macro_rules! for_format {
    ($spec:expr, $codec:ident, $F:ident => $call:expr, $otherwise:expr) => {
        for_format!(@ $spec, $codec, $F, $call, $otherwise,
            tbq3_0: narrow Tbq3_0,
            tbq4_0: narrow Tbq4_0,
            tbq3_tcq: wide Tbq3Tcq,
            qjl1_256: wide Qjl1_256,
            q4_polar: wide Plain)
    };
    (@ $spec:expr, $codec:ident, $F:ident, $call:expr, $otherwise:expr,
        $($name:ident: $module:ident $Type:ident),+) => {
        $(if *$spec == kvforge_formats::$name::SPEC {
            #[allow(unused_imports, reason = "some only ask whether there is one")]
            use $module as $codec;
            #[allow(dead_code, reason = "as above")]
            type $F = $name::$Type;
            $call
        } else)+ {
            $otherwise
        }
    };
}

/// Whether a format has an own codec here.
pub(crate) fn has_codec(spec: &FormatSpec) -> bool {
    for_format!(spec, codec, F => true, false)
}

/// As [`crate::encode`], lengths checked.
pub(crate) fn encode(
    _: Avx2,
    spec: &FormatSpec,
    encoder: Encoder,
    x: &[f32],
    bytes: &mut [u8],
    slot: u32,
) -> Result<(), Error> {
    let result = for_format!(
        spec,
        // SAFETY: the token proves AVX2, FMA and F16C.
        codec, F => unsafe { codec::encode::<F>(encoder, x, bytes, slot) },
        scalar::codec::encode(spec, encoder, x, bytes, slot)
    );
    Ok(result?)
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
        // SAFETY: see above.
        CacheType::PolarResidual => unsafe { wide::decode::<Residual>(domain, bytes, x, slot) },
        CacheType::Format(spec) => for_format!(
            spec,
            // SAFETY: see above.
            codec, F => unsafe { codec::decode::<F>(domain, bytes, x, slot) },
            scalar::codec::decode(kind, domain, bytes, x, slot)?
        ),
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
    for_format!(
        spec,
        // SAFETY: the token proves AVX2, FMA and F16C.
        codec, F => Ok(unsafe { codec::dot::<F>(bytes, q, slot) }),
        Ok(scalar::codec::dot(spec, bytes, q, slot)?)
    )
}

// SAFETY of every `unsafe` block below: `self` proves AVX2, FMA and F16C, which
// is all that the functions called ask for.
impl Kernels for Avx2 {
    const ISA: Isa = Isa::Avx2;

    fn keys(self, kind: CacheType, keys: Span<'_>, tile: &mut [f32]) {
        match kind {
            // SAFETY: see above.
            CacheType::F32 => unsafe { plain::keys::<plain::F32>(keys, tile) },
            // SAFETY: see above.
            CacheType::F16 => unsafe { plain::keys::<plain::F16>(keys, tile) },
            // SAFETY: see above.
            CacheType::Q8_0 => unsafe { plain::keys::<plain::Q8_0>(keys, tile) },
            // SAFETY: see above.
            CacheType::PolarResidual => unsafe { wide::keys::<Residual>(keys, tile) },
            CacheType::Format(spec) => for_format!(
                spec,
                // SAFETY: see above.
                codec, F => unsafe { codec::keys::<F>(keys, tile) },
                scalar::Scalar.keys(kind, keys, tile)
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
            CacheType::PolarResidual => {
                // SAFETY: see above.
                unsafe { wide::values::<Residual>(values, seen, tile, pitch) }
            }
            CacheType::Format(spec) => for_format!(
                spec,
                // SAFETY: see above.
                codec, F => unsafe { codec::values::<F>(values, seen, tile, pitch) },
                scalar::Scalar.values(kind, values, seen, tile, pitch)
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
        match rotation {
            Rotation::SignedHadamard32 { negative } => {
                // SAFETY: see above.
                unsafe { lanes::turn(negative, true, x.as_chunks_mut().0) }
            }
            Rotation::SignedHadamard128 { .. } => {
                // SAFETY: see above.
                unsafe { row::turn_all(rotation, true, x.as_chunks_mut().0) }
            }
        }
    }

    fn unrotate(self, rotation: Rotation, x: &mut [f32]) {
        match rotation {
            Rotation::SignedHadamard32 { negative } => {
                // SAFETY: see above.
                unsafe { lanes::turn(negative, false, x.as_chunks_mut().0) }
            }
            Rotation::SignedHadamard128 { .. } => {
                // SAFETY: see above.
                unsafe { row::turn_all(rotation, false, x.as_chunks_mut().0) }
            }
        }
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
