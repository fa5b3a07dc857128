//! Arrays of rows, and the `.npy` files that hold them.
//!
//! One kind of file is read: little-endian fp32, C order, `[rows, head_dim]` or
//! one row `[head_dim]`, header versions 1.0 and 2.0. Every other one is refused
//! by name; nothing is converted silently.

use std::path::Path;

use crate::{Error, file, write_atomic};

/// Rows of equal length, `[rows, cols]`, one after the other.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    rows: usize,
    cols: usize,
    data: Vec<f32>,
}

const MAGIC: &[u8] = b"\x93NUMPY";
/// The data begin at a multiple of this, as NumPy itself writes them.
const ALIGNMENT: usize = 64;

impl Array {
    /// An array of `data`, whose rows have `cols` values.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if `cols` is zero or does not divide the data.
    pub fn new(cols: usize, data: Vec<f32>) -> Result<Array, Error> {
        if cols == 0 || !data.len().is_multiple_of(cols) {
            return Err(Error::mismatch(
                "whole rows of at least one value",
                format!("{} values for rows of {cols}", data.len()),
            ));
        }
        Ok(Array {
            rows: data.len() / cols,
            cols,
            data,
        })
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Values in a row; never zero.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// All values, row after row.
    pub fn data(&self) -> &[f32] {
        &self.data
    }

    /// All values, row after row, without the shape.
    pub fn into_data(self) -> Vec<f32> {
        self.data
    }

    /// The rows, one by one.
    pub fn iter(&self) -> std::slice::ChunksExact<'_, f32> {
        self.data.chunks_exact(self.cols)
    }

    /// Reads a `.npy` file.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Malformed`] if it is not one of the kind above.
    pub fn read(path: &Path) -> Result<Array, Error> {
        let bytes = file::read(path)?;
        parse(&bytes).map_err(|(expected, found)| Error::malformed(path, expected, found))
    }

    /// Writes a `.npy` file of version 1.0, as a whole or not at all.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        write_atomic(path, &self.to_bytes())
    }

    fn to_bytes(&self) -> Vec<u8> {
        let mut header = format!(
            "{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}",
            self.rows, self.cols
        );
        let before = MAGIC.len() + 4;
        let padded = (before + header.len() + 1).next_multiple_of(ALIGNMENT) - before;
        header.extend(std::iter::repeat_n(' ', padded - 1 - header.len()));
        header.push('\n');
        let length = u16::try_from(header.len()).expect("two numbers fit into a short header");

        let mut bytes = Vec::with_capacity(before + padded + 4 * self.data.len());
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&[1, 0]);
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend(self.data.iter().flat_map(|v| v.to_le_bytes()));
        bytes
    }
}

/// What was expected, and what was found.
type Refusal = (&'static str, String);

fn parse(bytes: &[u8]) -> Result<Array, Refusal> {
    let (header, data) = split(bytes)?;
    let value = |key| {
        value_of(header, key).ok_or((
            "a header with 'descr', 'fortran_order' and 'shape'",
            header.trim().to_string(),
        ))
    };
    let descr = value("descr")?;
    if !matches!(descr, "'<f4'" | "\"<f4\"") {
        return Err((
            "little-endian fp32 ('<f4'; convert with x.astype('<f4'))",
            named_type(descr),
        ));
    }
    match value("fortran_order")? {
        "False" => {}
        "True" => {
            return Err((
                "C order (convert with numpy.ascontiguousarray)",
                "Fortran order".into(),
            ));
        }
        other => return Err(("fortran_order True or False", other.into())),
    }
    let shape = value("shape")?;
    let Some((rows, cols)) = dimensions(shape) else {
        return Err((
            "shape (rows, head_dim) or (head_dim,), head_dim not 0",
            shape.into(),
        ));
    };
    let expected = rows.checked_mul(cols).and_then(|n| n.checked_mul(4));
    if expected != Some(data.len()) {
        return Err((
            "exactly the values of the shape, 4 bytes each",
            format!("shape {shape} and {} bytes of data", data.len()),
        ));
    }
    let data = data.as_chunks().0.iter();
    Ok(Array {
        rows,
        cols,
        data: data.map(|b| f32::from_le_bytes(*b)).collect(),
    })
}

/// The header's text, and the bytes after it.
fn split(bytes: &[u8]) -> Result<(&str, &[u8]), Refusal> {
    let cut_off = || ("a whole .npy header", format!("{} bytes", bytes.len()));
    let Some(rest) = bytes.strip_prefix(MAGIC) else {
        return Err((
            "an .npy file, which begins with \\x93NUMPY",
            "other bytes".into(),
        ));
    };
    let (version, rest) = rest.split_first_chunk().ok_or_else(cut_off)?;
    let (length, rest) = match version {
        [1, 0] => {
            let (n, rest) = rest.split_first_chunk().ok_or_else(cut_off)?;
            (u16::from_le_bytes(*n) as usize, rest)
        }
        [2, 0] => {
            let (n, rest) = rest.split_first_chunk().ok_or_else(cut_off)?;
            (u32::from_le_bytes(*n) as usize, rest)
        }
        [major, minor] => {
            return Err((
                ".npy version 1.0 or 2.0",
                format!("version {major}.{minor}"),
            ));
        }
    };
    let (header, data) = rest.split_at_checked(length).ok_or_else(cut_off)?;
    let header = str::from_utf8(header)
        .map_err(|_| ("a header of text", "bytes that are not text".into()))?;
    Ok((header, data))
}

/// The text of one value of the header, which is a Python dictionary of three.
fn value_of<'a>(header: &'a str, key: &str) -> Option<&'a str> {
    let after = ["'", "\""]
        .iter()
        .find_map(|quote| header.split_once(&format!("{quote}{key}{quote}")))?
        .1;
    let value = after.trim_start().strip_prefix(':')?.trim_start();
    let end = if value.starts_with('(') {
        value.find(')')? + 1
    } else {
        value.find([',', '}'])?
    };
    Some(value[..end].trim_end())
}

/// Rows and columns of `(2, 128)` or `(128,)`.
fn dimensions(shape: &str) -> Option<(usize, usize)> {
    let inner = shape.strip_prefix('(')?.strip_suffix(')')?;
    let numbers: Vec<&str> = inner.trim().trim_end_matches(',').split(',').collect();
    let (rows, cols) = match numbers[..] {
        [cols] => (1, cols.trim().parse().ok()?),
        [rows, cols] => (rows.trim().parse().ok()?, cols.trim().parse().ok()?),
        _ => return None,
    };
    (cols != 0).then_some((rows, cols))
}

/// The kinds of file that people have most often, in words.
fn named_type(descr: &str) -> String {
    let words = match descr.trim_matches(['\'', '"']) {
        ">f4" => "big-endian fp32",
        "<f8" => "fp64",
        "<f2" => "fp16",
        _ => "another type",
    };
    format!("{words} ({descr})")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(version: [u8; 2], header: &str, data: &[u8]) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(version);
        match version[0] {
            1 => bytes.extend((header.len() as u16).to_le_bytes()),
            _ => bytes.extend((header.len() as u32).to_le_bytes()),
        }
        bytes.extend(header.as_bytes());
        bytes.extend(data);
        bytes
    }

    fn header(descr: &str, fortran: &str, shape: &str) -> String {
        format!("{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}, }}\n")
    }

    const SIX: [u8; 24] = [0; 24];

    #[test]
    fn round_trip_keeps_every_bit() {
        let values = vec![0.0, -0.0, 1.5, f32::MIN_POSITIVE / 8.0, f32::MAX, -7.25];
        for (cols, rows) in [(6, 1), (1, 6), (3, 2)] {
            let array = Array::new(cols, values.clone()).unwrap();
            let bytes = array.to_bytes();
            assert_eq!((bytes.len() - 24) % ALIGNMENT, 0, "NumPy's alignment");
            let back = parse(&bytes).unwrap();
            assert_eq!((back.rows(), back.cols()), (rows, cols));
            let bits = |a: &Array| a.data().iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&back), bits(&array));
        }
    }

    #[test]
    fn both_versions_and_one_row_are_read() {
        for version in [[1, 0], [2, 0]] {
            let two = parse(&file(version, &header("<f4", "False", "(2, 3)"), &SIX)).unwrap();
            assert_eq!((two.rows(), two.cols()), (2, 3));
            let one = parse(&file(version, &header("<f4", "False", "(6,)"), &SIX)).unwrap();
            assert_eq!((one.rows(), one.cols()), (1, 6));
        }
        let none = parse(&file([1, 0], &header("<f4", "False", "(0, 8)"), &[])).unwrap();
        assert_eq!((none.rows(), none.cols()), (0, 8));
        // The order of the keys, quotes and spaces are the writer's choice.
        let other = r#"{"shape":(2,3),"fortran_order":False,"descr":"<f4"}"#;
        assert_eq!(parse(&file([1, 0], other, &SIX)).unwrap().rows(), 2);
    }

    #[test]
    fn every_other_kind_is_refused_by_name() {
        let good = header("<f4", "False", "(2, 3)");
        let huge = format!("({}, 8)", usize::MAX / 8);
        let refused: &[(Vec<u8>, &str)] = &[
            (b"PK\x03\x04".to_vec(), "other bytes"),
            (b"\x93NUM".to_vec(), "other bytes"),
            (b"\x93NUMPY\x01".to_vec(), "7 bytes"),
            (file([3, 0], &good, &SIX), "version 3.0"),
            (file([1, 0], &good, &SIX)[..40].to_vec(), "40 bytes"),
            (
                file([1, 0], &header(">f4", "False", "(2, 3)"), &SIX),
                "big-endian",
            ),
            (
                file([1, 0], &header("<f8", "False", "(1, 3)"), &SIX),
                "fp64",
            ),
            (
                file([1, 0], &header("<i4", "False", "(2, 3)"), &SIX),
                "another type ('<i4')",
            ),
            (
                file([1, 0], &header("<f4", "True", "(2, 3)"), &SIX),
                "Fortran order",
            ),
            (file([1, 0], &header("<f4", "0", "(2, 3)"), &SIX), "0"),
            (
                file([1, 0], &header("<f4", "False", "(1, 2, 3)"), &SIX),
                "(1, 2, 3)",
            ),
            (file([1, 0], &header("<f4", "False", "()"), &[0; 4]), "()"),
            (
                file([1, 0], &header("<f4", "False", "(2, 0)"), &[]),
                "(2, 0)",
            ),
            (
                file([1, 0], &header("<f4", "False", "(-2, 3)"), &SIX),
                "(-2, 3)",
            ),
            (file([1, 0], &header("<f4", "False", &huge), &[]), "0 bytes"),
            (file([1, 0], &good, &SIX[1..]), "23 bytes of data"),
            (file([1, 0], &good, &[0; 25]), "25 bytes of data"),
            (file([1, 0], "{'descr': '<f4'}", &SIX), "{'descr': '<f4'}"),
            (file([1, 0], "{'descr'", &SIX), "{'descr'"),
            (file([1, 0], "'shape': (", &SIX), "'shape': ("),
        ];
        for (bytes, about) in refused {
            let (expected, found) = parse(bytes).expect_err(about);
            assert!(found.contains(about), "{about}: {expected}, found {found}");
        }
    }
}
