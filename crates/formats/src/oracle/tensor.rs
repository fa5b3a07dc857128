use std::{vec, vec::Vec};

use super::{block, encode, half};
use crate::{FormatSpec, q4_polar};

/// What the bytes of a row mean.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Type {
    /// fp32, little-endian.
    #[default]
    F32,
    /// IEEE binary16, little-endian.
    F16,
    /// ggml's q8_0: blocks of one fp16 scale and 32 signed bytes.
    Q8_0,
    /// One of the compressed formats.
    Format(&'static FormatSpec),
    /// [`q4_polar`], read with its residual.
    PolarResidual,
}

impl Type {
    /// Name as ggml prints it.
    pub fn name(self) -> &'static str {
        match self {
            Type::F32 => "f32",
            Type::F16 => "f16",
            Type::Q8_0 => "q8_0",
            Type::Format(spec) => spec.name,
            Type::PolarResidual => q4_polar::SPEC.name,
        }
    }

    /// Values in a block; 1 for plain numbers.
    pub fn block_len(self) -> usize {
        match self {
            Type::F32 | Type::F16 => 1,
            Type::Q8_0 => 32,
            Type::Format(spec) => spec.block_len,
            Type::PolarResidual => q4_polar::SPEC.block_len,
        }
    }

    /// Bytes of a row of `n` values.
    ///
    /// # Panics
    /// If `n` is not a whole number of blocks.
    pub fn row_bytes(self, n: usize) -> usize {
        assert_eq!(n % self.block_len(), 0, "{n} values of {}", self.name());
        n / self.block_len()
            * match self {
                Type::F32 => 4,
                Type::F16 => 2,
                Type::Q8_0 => 34,
                Type::Format(spec) => spec.block_bytes,
                Type::PolarResidual => q4_polar::SPEC.block_bytes,
            }
    }

    /// The numbers that a row of bytes stands for (original domain).
    ///
    /// # Panics
    /// If `bytes` is not a whole number of blocks.
    pub fn decode(self, bytes: &[u8]) -> Vec<f64> {
        assert_eq!(
            bytes.len() % self.row_bytes(self.block_len()),
            0,
            "half a block"
        );
        match self {
            Type::F32 => bytes
                .chunks(4)
                .map(|b| f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]])))
                .collect(),
            Type::F16 => bytes.chunks(2).map(half_at).collect(),
            Type::Q8_0 => bytes
                .chunks(34)
                .flat_map(|b| b[2..].iter().map(|&v| half_at(b) * f64::from(v as i8)))
                .collect(),
            Type::Format(spec) => block::decode(spec, bytes),
            Type::PolarResidual => block::decode_residual(bytes),
        }
    }

    /// Bytes that stand for `x`, rounded to nearest by the oracle's own
    /// arithmetic: input for tests. Formats have their byte-exact encoders.
    ///
    /// # Panics
    /// If `x` is not a whole number of blocks, or does not fit a format.
    pub fn encode(self, x: &[f32]) -> Vec<u8> {
        let half = |v: f64| half::to_half(v).to_le_bytes();
        match self {
            Type::F32 => x.iter().flat_map(|v| v.to_le_bytes()).collect(),
            Type::F16 => x.iter().flat_map(|&v| half(v.into())).collect(),
            Type::Q8_0 => {
                assert_eq!(x.len() % 32, 0, "half a block");
                let mut bytes = vec![];
                for block in x.chunks(32) {
                    let scale = f64::from(block.iter().fold(0f32, |m, v| m.max(v.abs()))) / 127.0;
                    bytes.extend(half(scale));
                    bytes.extend(block.iter().map(|&v| {
                        let code = if scale == 0.0 {
                            0.0
                        } else {
                            f64::from(v) / scale
                        };
                        code.round() as i8 as u8
                    }));
                }
                bytes
            }
            Type::Format(spec) => encode::encode(spec, x),
            Type::PolarResidual => encode::encode(&q4_polar::SPEC, x),
        }
    }
}

impl From<&'static FormatSpec> for Type {
    fn from(spec: &'static FormatSpec) -> Type {
        Type::Format(spec)
    }
}

fn half_at(bytes: &[u8]) -> f64 {
    half::from_half(u16::from(bytes[0]) | u16::from(bytes[1]) << 8)
}

/// Rows of numbers in memory as a kernel sees them: `heads` times `rows` rows,
/// found by two strides. A row is a query position or a token (a mask's row is a
/// query position); the length of a row is up to its reader.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tensor {
    /// What the bytes mean.
    pub ty: Type,
    /// The memory, starting with row 0 of head 0.
    pub bytes: Vec<u8>,
    /// Bytes from a row to the next one of the same head.
    pub row_stride: usize,
    /// Bytes from a head to the next one in the same row.
    pub head_stride: usize,
}

impl Tensor {
    /// Dense `[rows, heads, len]`: the order of a llama.cpp cache, and of its
    /// queries.
    ///
    /// # Panics
    /// If `len` is not a whole number of blocks, or `values` of rows.
    pub fn by_row(ty: Type, values: &[f32], len: usize, heads: usize) -> Tensor {
        let head_stride = ty.row_bytes(len);
        assert_eq!(
            values.len() % (heads * len),
            0,
            "not a whole number of rows"
        );
        Tensor {
            ty,
            bytes: ty.encode(values),
            row_stride: heads * head_stride,
            head_stride,
        }
    }

    /// Dense `[heads, rows, len]`.
    ///
    /// # Panics
    /// If `len` is not a whole number of blocks, or `values` of heads.
    pub fn by_head(ty: Type, values: &[f32], len: usize, rows: usize) -> Tensor {
        let row_stride = ty.row_bytes(len);
        assert_eq!(
            values.len() % (rows * len).max(1),
            0,
            "not a whole number of heads"
        );
        Tensor {
            ty,
            bytes: ty.encode(values),
            row_stride,
            head_stride: rows * row_stride,
        }
    }

    /// The first `len` values of a row (original domain).
    ///
    /// # Panics
    /// If the row is not within the bytes.
    pub fn row(&self, head: usize, row: usize, len: usize) -> Vec<f64> {
        let start = head * self.head_stride + row * self.row_stride;
        self.ty
            .decode(&self.bytes[start..start + self.ty.row_bytes(len)])
    }
}
