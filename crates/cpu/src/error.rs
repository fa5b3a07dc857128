use core::fmt;

use kvforge_formats::CodecError;

/// Why a call did nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Error {
    /// The values or bytes of a row do not suit the codec.
    Codec(CodecError),
    /// Lengths, head counts, strides or ranges do not fit together.
    Shape(&'static str),
    /// The instruction set is not on this machine, or has no kernel for the
    /// type.
    Unsupported,
    /// The scratch memory is smaller than what the call needs.
    Scratch {
        /// Floats given.
        found: usize,
        /// Floats needed.
        needed: usize,
    },
    /// The scratch memory does not start at a multiple of 64 bytes.
    ScratchAlignment,
}

impl From<CodecError> for Error {
    fn from(e: CodecError) -> Error {
        Error::Codec(e)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Error::Codec(e) => e.fmt(f),
            Error::Shape(what) => f.write_str(what),
            Error::Unsupported => {
                f.write_str("this machine has no kernel of that instruction set for that type")
            }
            Error::Scratch { found, needed } => {
                write!(f, "the call needs {needed} floats of scratch, got {found}")
            }
            Error::ScratchAlignment => f.write_str("scratch must start at a multiple of 64 bytes"),
        }
    }
}

impl core::error::Error for Error {}
