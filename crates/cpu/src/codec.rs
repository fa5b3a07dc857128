//! Rows of fp32 into blocks and back.

use kvforge_formats::{CodecError, Domain, Encode, FormatSpec};

use crate::{CacheType, Error, Isa, scalar};

/// Which of a format's encoders writes a row. Every decoder reads both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encoder {
    /// The public encoder's bytes ([`FormatSpec::encode`]).
    #[default]
    Reference,
    /// The bytes with the smaller error ([`FormatSpec::encode_best`]).
    Best,
}

impl Encoder {
    /// Both.
    pub const ALL: [Encoder; 2] = [Encoder::Reference, Encoder::Best];

    /// The reference codec's function for it.
    pub(crate) const fn of(self, spec: &FormatSpec) -> Encode {
        match self {
            Encoder::Reference => spec.encode,
            Encoder::Best => spec.encode_best,
        }
    }
}

/// Encodes a row: `x.len()` values, a multiple of the block length, into
/// exactly their bytes. The same bytes on every instruction set.
///
/// Counts the blocks written under `slot`.
///
/// # Errors
/// [`Error::Codec`] for wrong lengths (nothing is written) and for values that a
/// block cannot hold (blocks before the bad one are written, it and later ones
/// are not); [`Error::Unsupported`] if the machine lacks `isa`.
pub fn encode(
    spec: &'static FormatSpec,
    isa: Isa,
    encoder: Encoder,
    x: &[f32],
    bytes: &mut [u8],
    slot: u32,
) -> Result<(), Error> {
    check_bytes(
        CacheType::Format(spec),
        Domain::Original,
        x.len(),
        bytes.len(),
    )?;
    match isa {
        Isa::Scalar => Ok(scalar::codec::encode(spec, encoder, x, bytes, slot)?),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => {
            let isa = crate::isa::Avx2::detect().ok_or(Error::Unsupported)?;
            crate::avx2::encode(isa, spec, encoder, x, bytes, slot)
        }
        #[cfg(not(target_arch = "x86_64"))]
        Isa::Avx2 => Err(Error::Unsupported),
    }
}

/// Decodes a row into `domain`, which only means something to formats that
/// transform; `x` has as many values as the row has there
/// ([`CacheType::len_in`]). The same values on every instruction set.
///
/// Counts the blocks of kvforge's formats under `slot`.
///
/// # Errors
/// [`Error::Codec`] for wrong lengths, [`Error::Unsupported`] if the machine
/// lacks `isa`. Any bytes are decodable.
pub fn decode(
    kind: CacheType,
    isa: Isa,
    domain: Domain,
    bytes: &[u8],
    x: &mut [f32],
    slot: u32,
) -> Result<(), Error> {
    check_bytes(kind, domain, x.len(), bytes.len())?;
    match isa {
        Isa::Scalar => scalar::codec::decode(kind, domain, bytes, x, slot),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => {
            let isa = crate::isa::Avx2::detect().ok_or(Error::Unsupported)?;
            crate::avx2::decode(isa, kind, domain, bytes, x, slot)
        }
        #[cfg(not(target_arch = "x86_64"))]
        Isa::Avx2 => Err(Error::Unsupported),
    }
}

/// Dot product of a stored row, decoded into its original domain, and a plain
/// one.
///
/// Counts the blocks under `slot`.
///
/// # Errors
/// [`Error::Codec`] for wrong lengths, [`Error::Unsupported`] if the machine
/// lacks `isa`.
pub fn dot(
    spec: &'static FormatSpec,
    isa: Isa,
    bytes: &[u8],
    q: &[f32],
    slot: u32,
) -> Result<f32, Error> {
    check_bytes(
        CacheType::Format(spec),
        Domain::Original,
        q.len(),
        bytes.len(),
    )?;
    match isa {
        Isa::Scalar => Ok(scalar::codec::dot(spec, bytes, q, slot)?),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => {
            let isa = crate::isa::Avx2::detect().ok_or(Error::Unsupported)?;
            crate::avx2::dot(isa, spec, bytes, q, slot)
        }
        #[cfg(not(target_arch = "x86_64"))]
        Isa::Avx2 => Err(Error::Unsupported),
    }
}

/// Fills a row of blocks with what decodes to NaN everywhere: for hosts that
/// cannot report a row that [`encode`] refused. Using the row then fails as
/// visibly as a NaN in an f16 cache.
///
/// # Errors
/// [`Error::Codec`] if `bytes` is not a whole number of blocks.
pub fn poison(spec: &'static FormatSpec, bytes: &mut [u8]) -> Result<(), Error> {
    let blocks = bytes.len() / spec.block_bytes;
    check_bytes(
        CacheType::Format(spec),
        Domain::Original,
        blocks * spec.block_len,
        bytes.len(),
    )?;
    // All ones are a NaN in fp16 and in every other float a scale might be.
    bytes.fill(0xff);
    Ok(())
}

fn check_bytes(kind: CacheType, domain: Domain, n: usize, found: usize) -> Result<(), CodecError> {
    let expected = kind.row_bytes_in(domain, n).ok_or(CodecError::RowLength {
        found: n,
        block_len: kind.len_in(domain),
    })?;
    if found != expected {
        return Err(CodecError::ByteLength { found, expected });
    }
    Ok(())
}
