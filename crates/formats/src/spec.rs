use crate::{CodecError, Packing, Rotation};

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
    /// Values in a block.
    pub block_len: usize,
    /// Bytes of a block.
    pub block_bytes: usize,
    /// Bits of one code.
    pub code_bits: usize,
    /// Rotation that the codec itself applies before coding.
    pub rotation: Rotation,
    /// Order of the codes in the bytes after the fp16 scale.
    pub packing: Packing,
    /// Reconstruction values of a unit-variance block, ascending.
    pub codebook: &'static [f32],
    /// Limits that a correct implementation keeps.
    pub tolerance: Tolerance,
    /// Reference encoder of one row: `x` of `n * block_len` values into
    /// exactly `n * block_bytes` bytes. Byte-exact with the public one;
    /// on an error, blocks before the offending one have been written.
    pub encode: fn(x: &[f32], bytes: &mut [u8]) -> Result<(), CodecError>,
    /// Reference decoder of one row into the chosen [`Domain`]. Any bytes
    /// decode; a block whose scale is zero is zero whatever its codes are.
    #[expect(
        clippy::type_complexity,
        reason = "an alias would hide the argument names"
    )]
    pub decode: fn(bytes: &[u8], x: &mut [f32], domain: Domain) -> Result<(), CodecError>,
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

    /// Checks that a row of `n` values takes `bytes` bytes.
    pub(crate) fn check_row(&self, n: usize, bytes: usize) -> Result<(), CodecError> {
        let expected = self.row_bytes(n)?;
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
    /// The vector that was coded, still rotated. Only of use to someone who
    /// rotates the query as well.
    Rotated,
}

/// How far from exact a correct implementation may be. Tests take their
/// thresholds from here, so that a wrong constant fails.
#[derive(Clone, Copy, Debug)]
pub struct Tolerance {
    /// Relative mean squared error of encode then decode on Gaussian values, in
    /// theory: the codebook's error on a block divided by its own RMS.
    pub gaussian_mse: f64,
    /// Allowed relative departure from `gaussian_mse` over 10^5 values.
    pub gaussian_mse_margin: f64,
    /// Largest `|score - oracle| / (|q| |k|)` of a kernel that accumulates in
    /// fp32, oracle being the decoded vector's dot product in fp64.
    pub score: f64,
    /// Largest absolute error of an attention output, relative to the largest
    /// absolute value of V.
    pub attention: f64,
}
