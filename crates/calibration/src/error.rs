use core::fmt;

/// Why a calibration, or RoPE, cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The bytes do not start as a calibration file does.
    NotACalibration,
    /// The file is of a version that this library does not read.
    Version {
        /// The file's version.
        found: u32,
    },
    /// The bytes are not those that were written: cut off, or changed.
    Damaged {
        /// Hash that the file says.
        expected: u64,
        /// Hash of what is there.
        found: u64,
    },
    /// The file says something that cannot be.
    Malformed {
        /// The part that is wrong, and what it should be.
        what: &'static str,
        /// Where it is, in bytes from the start; unknown (0) of what was not read.
        at: usize,
    },
    /// There is no layer of this index.
    NoLayer {
        /// Layers that there are.
        n_layers: u32,
    },
    /// A head size is 0, or larger than [`MAX_HEAD_DIM`](crate::MAX_HEAD_DIM).
    HeadDim {
        /// The head size.
        found: usize,
    },
    /// An array has another length than its shape says.
    Length {
        /// Values that the shape says.
        expected: usize,
        /// Values that there are.
        found: usize,
    },
    /// A context of no positions has no mean.
    NoPositions,
    /// RoPE does something else at position 1 than to turn pairs of channels.
    NotTurns {
        /// The channel that it does it to.
        channel: usize,
        /// What it does.
        reason: &'static str,
    },
    /// RoPE turns other pairs of channels than when the layer was calibrated.
    OtherTurns {
        /// A channel with another partner; 0 where only one of the two has RoPE.
        channel: u32,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NotACalibration => {
                f.write_str("not a calibration file; make one with `kvforge calibrate`")
            }
            Error::Version { found } => write!(
                f,
                "expected a calibration file of version {}, found version {found}; make it anew \
                 with `kvforge calibrate`",
                crate::VERSION
            ),
            Error::Damaged { expected, found } => write!(
                f,
                "damaged: expected content with the hash {expected:016x}, found {found:016x}; \
                 copy the file again or make it anew"
            ),
            Error::Malformed { what, at } => write!(f, "expected {what}, at byte {at}"),
            Error::NoLayer { n_layers } => write!(f, "there are only {n_layers} layers"),
            Error::HeadDim { found } => write!(
                f,
                "expected a head size from 1 to {}, found {found}",
                crate::MAX_HEAD_DIM
            ),
            Error::Length { expected, found } => {
                write!(f, "expected {expected} values, found {found}")
            }
            Error::NoPositions => f.write_str("expected at least one position, found 0"),
            Error::NotTurns { channel, reason } => write!(
                f,
                "RoPE does not turn pairs of channels: of channel {channel}, {reason}"
            ),
            Error::OtherTurns { channel } => write!(
                f,
                "RoPE pairs channel {channel} with another one than when this was calibrated, or \
                 only one of the two has RoPE; calibrate this model"
            ),
        }
    }
}

impl core::error::Error for Error {}
