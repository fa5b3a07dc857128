use kvforge_formats::{Domain, FormatSpec, Rotation, Transform, q4_polar};

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
    /// [`q4_polar`] read with its residual; counted as `q4_polar`.
    PolarResidual,
}

impl CacheType {
    /// Values in a block; 1 for plain numbers.
    pub const fn block_len(self) -> usize {
        match self {
            CacheType::F32 | CacheType::F16 => 1,
            CacheType::Q8_0 => 32,
            CacheType::Format(spec) => spec.block_len,
            CacheType::PolarResidual => q4_polar::SPEC.block_len,
        }
    }

    /// Bytes of a block.
    pub const fn block_bytes(self) -> usize {
        match self {
            CacheType::F32 => 4,
            CacheType::F16 => 2,
            CacheType::Q8_0 => 34,
            CacheType::Format(spec) => spec.block_bytes,
            CacheType::PolarResidual => q4_polar::SPEC.block_bytes,
        }
    }

    /// Values in a block in a domain.
    pub const fn len_in(self, domain: Domain) -> usize {
        match self.format() {
            Some(spec) => spec.len_in(domain),
            None => self.block_len(),
        }
    }

    /// Bytes of a row of `n` values; `None` if that is not a whole number of
    /// blocks, or too large to count.
    pub const fn row_bytes(self, n: usize) -> Option<usize> {
        self.row_bytes_in(Domain::Original, n)
    }

    /// Bytes of a row that has `n` values in `domain`; `None` as for
    /// [`row_bytes`](CacheType::row_bytes).
    pub const fn row_bytes_in(self, domain: Domain, n: usize) -> Option<usize> {
        let block_len = self.len_in(domain);
        if !n.is_multiple_of(block_len) {
            return None;
        }
        (n / block_len).checked_mul(self.block_bytes())
    }

    /// Coded values of a row of `n` values, a whole number of blocks; `None` if
    /// too large to count.
    pub(crate) const fn coded_len(self, n: usize) -> Option<usize> {
        (n / self.block_len()).checked_mul(self.len_in(Domain::Rotated))
    }

    /// What stored values are still under, if anything.
    pub(crate) const fn transform(self) -> Option<Transform> {
        match self.format() {
            Some(spec) => Some(spec.transform),
            None => None,
        }
    }

    /// The rotation that stored values are still under, if it is one.
    pub(crate) const fn rotation(self) -> Option<Rotation> {
        match self.transform() {
            Some(transform) => transform.rotation(),
            None => None,
        }
    }

    /// kvforge's own format, if it is one.
    pub(crate) const fn format(self) -> Option<&'static FormatSpec> {
        match self {
            CacheType::Format(spec) => Some(spec),
            CacheType::PolarResidual => Some(&q4_polar::SPEC),
            _ => None,
        }
    }
}
