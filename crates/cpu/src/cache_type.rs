use kvforge_formats::{FormatSpec, Rotation};

/// What the bytes of a K or V row mean.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CacheType {
    /// Native-endian fp32, 4 bytes a value.
    F32,
    /// Native-endian IEEE binary16, 2 bytes a value.
    F16,
    /// ggml's blocks of 32 values in 34 bytes: an fp16 scale, then 32 signed
    /// bytes; value = scale * byte.
    Q8_0,
    /// One of kvforge's formats.
    Format(&'static FormatSpec),
}

impl CacheType {
    /// Values in a block; 1 for plain numbers.
    pub const fn block_len(self) -> usize {
        match self {
            CacheType::F32 | CacheType::F16 => 1,
            CacheType::Q8_0 => 32,
            CacheType::Format(spec) => spec.block_len,
        }
    }

    /// Bytes of a block.
    pub const fn block_bytes(self) -> usize {
        match self {
            CacheType::F32 => 4,
            CacheType::F16 => 2,
            CacheType::Q8_0 => 34,
            CacheType::Format(spec) => spec.block_bytes,
        }
    }

    /// Bytes of a row of `n` values; `None` if that is not a whole number of
    /// blocks, or too large to count.
    pub const fn row_bytes(self, n: usize) -> Option<usize> {
        if !n.is_multiple_of(self.block_len()) {
            return None;
        }
        (n / self.block_len()).checked_mul(self.block_bytes())
    }

    /// The rotation that stored values are still under, if any.
    pub(crate) const fn rotation(self) -> Option<Rotation> {
        match self {
            CacheType::Format(spec) => Some(spec.rotation),
            _ => None,
        }
    }

    /// kvforge's own format, if it is one.
    pub(crate) const fn format(self) -> Option<&'static FormatSpec> {
        match self {
            CacheType::Format(spec) => Some(spec),
            _ => None,
        }
    }
}
