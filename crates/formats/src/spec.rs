use crate::{CodecError, Packing, Transform};

/// Everything that is true of a format, said once.
#[derive(Clone, Debug)]
pub struct FormatSpec {
    /// Name that people type (`--cache-type-k tbq4_0`) and ggml prints.
    pub name: &'static str,
    /// kvforge's own identifier: stable for ever, used in the C ABI and in
    /// files. ggml type ids are another thing: `ship` reads free ones from the
    /// tree.
    pub id: u32,
    /// One sentence for help texts and tables.
    pub summary: &'static str,
    /// What a cache may hold in it.
    pub role: Role,
    /// Values in a block.
    pub block_len: usize,
    /// Bytes of a block.
    pub block_bytes: usize,
    /// What the codec itself does to values before coding.
    pub transform: Transform,
    /// What is stored of a transformed value.
    pub code: Code,
    /// Which scale the reference encoder stores.
    pub scale: Scale,
    /// Limits that a correct implementation keeps.
    pub tolerance: Tolerance,
    /// Reference encoder of one row: `x` of `n * block_len` values into
    /// exactly `n * block_bytes` bytes. Byte-exact with the public one;
    /// on an error, blocks before the offending one have been written.
    pub encode: Encode,
    /// Encoder of one row into bytes that every public decoder reads and that
    /// decode to no more error than the reference's, but for the rounding of a scale;
    /// mostly to less. As deterministic as that one. A scale that fits is not always the
    /// reference's, so it may be refused as too large a little earlier.
    pub encode_best: Encode,
    /// Reference decoder of one row into the chosen [`Domain`]. Any bytes
    /// decode.
    pub decode: Decode,
}

/// `encode(x, bytes)`.
pub type Encode = fn(&[f32], &mut [u8]) -> Result<(), CodecError>;

/// `decode(bytes, x, domain)`. `x` has as many values as the row has in that
/// domain.
pub type Decode = fn(&[u8], &mut [f32], Domain) -> Result<(), CodecError>;

/// What a cache may hold in a format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Keys and values.
    KeysAndValues,
    /// Keys only: what it decodes to is good for scores and for nothing else.
    Keys,
    /// Nothing: it exists to read old bytes.
    Legacy,
}

impl Role {
    /// In words: what a cache may hold.
    pub const fn in_words(self) -> &'static str {
        match self {
            Role::KeysAndValues => "K and V",
            Role::Keys => "K only",
            Role::Legacy => "old bytes, no cache type",
        }
    }
}

/// The scale of a block that a reference encoder stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Root mean square of the block.
    Rms,
    /// Length of the block.
    Length,
    /// What gives the decoded block the length of the block.
    KeepsLength,
}

/// What is stored of a transformed block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Code {
    /// For every value the index of a codebook entry; the value is
    /// `scale * unit * codebook[code]`.
    Scalar {
        /// Bits of a code.
        bits: usize,
        /// Where the fp16 scale and the codes stand.
        packing: Packing,
        /// Reconstruction values, ascending.
        codebook: &'static [f32],
        /// Factor that is not stored.
        unit: f32,
    },
    /// One walk through a trellis: a symbol of 3 bits a value, and the state
    /// after it, the last nine bits written, is an index into the codebook; the
    /// value is `scale * codebook[state]`. The block is an fp16 scale and a string
    /// of bits, least significant first: window `t` of it, nine bits from bit `3 t`
    /// on, is the state of value `t`.
    Trellis {
        /// 512 values, by state.
        codebook: &'static [f32; 512],
    },
    /// For every value its sign, one bit (1 is plus), least significant first, and
    /// then a bf16 scale; the value is plus or minus `scale * unit`.
    Signs {
        /// Factor that is not stored.
        unit: f32,
    },
}

impl Code {
    /// Bits of one stored symbol.
    pub const fn bits(&self) -> usize {
        match self {
            Code::Scalar { bits, .. } => *bits,
            Code::Trellis { .. } => 3,
            Code::Signs { .. } => 1,
        }
    }
}

impl FormatSpec {
    /// Bits per value, scale included.
    pub const fn bits_per_value(&self) -> f64 {
        self.block_bytes as f64 * 8.0 / self.block_len as f64
    }

    /// Bytes of a row of `n` values.
    ///
    /// # Errors
    /// [`CodecError::RowLength`] if `n` is not a multiple of the block length.
    pub const fn row_bytes(&self, n: usize) -> Result<usize, CodecError> {
        if !n.is_multiple_of(self.block_len) {
            return Err(CodecError::RowLength {
                found: n,
                block_len: self.block_len,
            });
        }
        Ok(n / self.block_len * self.block_bytes)
    }

    /// Values of a block in a domain.
    pub const fn len_in(&self, domain: Domain) -> usize {
        match domain {
            Domain::Original => self.block_len,
            Domain::Rotated => self.transform.coded_len(self.block_len),
        }
    }

    /// Whether a cache may hold keys in it.
    pub const fn holds_keys(&self) -> bool {
        !matches!(self.role, Role::Legacy)
    }

    /// Whether a cache may hold values in it.
    pub const fn holds_values(&self) -> bool {
        matches!(self.role, Role::KeysAndValues)
    }

    /// Checks that a row of `n` values takes `bytes` bytes.
    pub(crate) fn check_row(&self, n: usize, bytes: usize) -> Result<(), CodecError> {
        self.check_row_in(Domain::Original, n, bytes)
    }

    /// Checks that a row of `n` values in `domain` takes `bytes` bytes.
    pub(crate) fn check_row_in(
        &self,
        domain: Domain,
        n: usize,
        bytes: usize,
    ) -> Result<(), CodecError> {
        let block_len = self.len_in(domain);
        if !n.is_multiple_of(block_len) {
            return Err(CodecError::RowLength {
                found: n,
                block_len,
            });
        }
        let expected = n / block_len * self.block_bytes;
        if bytes != expected {
            return Err(CodecError::ByteLength {
                found: bytes,
                expected,
            });
        }
        Ok(())
    }
}

/// Two formats are the same if their stable identifiers are.
impl PartialEq for FormatSpec {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

/// Which vector a decoder returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Domain {
    /// The vector that was encoded. What every host means by "to float".
    Original,
    /// The vector that was coded, still transformed. Only of use to someone who
    /// transforms the query as well ([`Transform::forward`]).
    Rotated,
}

/// How far from exact a correct implementation may be. Tests take their
/// thresholds from here, so that a wrong constant fails.
#[derive(Clone, Copy, Debug)]
pub struct Tolerance {
    /// Relative mean squared error of the reference encoder and decode on Gaussian
    /// values. For scalar codes of a block divided by its own RMS in theory, for
    /// others measured.
    pub gaussian_mse: f64,
    /// The same of the best encoder, measured.
    pub gaussian_mse_best: f64,
    /// Allowed relative departure from either over 10^5 values.
    pub gaussian_mse_margin: f64,
    /// Largest `|score - oracle| / (|q| |k|)` of a kernel that accumulates in
    /// fp32, oracle being the decoded vector's dot product in fp64.
    pub score: f64,
    /// Largest absolute error of an attention output, relative to the largest
    /// absolute value of V.
    pub attention: f64,
}
