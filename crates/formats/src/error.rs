use core::fmt;

/// Why a row could not be encoded or decoded. Blocks before the offending one
/// have been written; that block and all later ones are left untouched.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum CodecError {
    /// A value is infinite or not a number. A block has no way to say so, and
    /// a silent garbage block would poison every later token.
    NonFinite {
        /// Index of the first such value in the row.
        index: usize,
    },
    /// The block's scale rounds to infinity as it is stored: in fp16 from 65520 on.
    ScaleOverflow {
        /// Index of the block in the row.
        block: usize,
    },
    /// The number of values is not a multiple of the block length.
    RowLength {
        /// Values in the row.
        found: usize,
        /// Values in a block.
        block_len: usize,
    },
    /// The byte buffer does not hold exactly the blocks of the row.
    ByteLength {
        /// Bytes in the buffer.
        found: usize,
        /// Bytes that the row takes.
        expected: usize,
    },
}

impl fmt::Display for CodecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            CodecError::NonFinite { index } => write!(
                f,
                "value {index} of the row is infinite or NaN; compressed blocks hold finite values only"
            ),
            CodecError::ScaleOverflow { block } => write!(
                f,
                "the scale of block {block} is too large to be stored (fp16 ends at 65504); scale the row down"
            ),
            CodecError::RowLength { found, block_len } => write!(
                f,
                "a row of {found} values is not a multiple of the block length {block_len}"
            ),
            CodecError::ByteLength { found, expected } => {
                write!(f, "the row takes {expected} bytes, the buffer has {found}")
            }
        }
    }
}

impl core::error::Error for CodecError {}
