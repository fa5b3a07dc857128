//! Reads the golden rows (see README.md beside this file).
#![allow(dead_code, reason = "not every test looks at everything")]

use std::{fs, path::Path, string::String, vec::Vec};

use serde_json::Value;

/// Values of a golden row.
pub const ROW: usize = 128;

/// The format of which no public encoder's rows are known; its blocks are in
/// `fixture_turbo4_legacy.json`.
pub const WITHOUT_ROWS: &str = "turbo4_legacy";

/// One row and what the public encoder of a format makes of it.
pub struct Golden {
    pub name: String,
    pub x: Vec<f32>,
    pub q: Vec<f32>,
    pub blocks: Vec<u8>,
    pub decoded: Vec<f32>,
    /// Whether `decoded` is still rotated.
    pub rotated: bool,
    /// Of `q` and what the blocks stand for, whatever domain `decoded` is in.
    pub score: f64,
}

/// The golden rows of the format `name`.
pub fn load(name: &str) -> Vec<Golden> {
    let (inputs, outputs) = (read("inputs"), read(name));
    let rotated = outputs.get("decoded_rotated").is_some();
    let decoded = if rotated {
        "decoded_rotated"
    } else {
        "decoded"
    };
    let row = |values: &Value| {
        let row = floats(values);
        assert_eq!(row.len(), ROW);
        row
    };
    (0..8)
        .map(|i| Golden {
            name: inputs["names"][i].as_str().unwrap().into(),
            x: row(&inputs["x"][i]),
            q: row(&inputs["q"]),
            blocks: bytes(&outputs["blocks"][i]),
            decoded: row(&outputs[decoded][i]),
            rotated,
            score: outputs["scores"][i].as_f64().unwrap(),
        })
        .collect()
}

/// The file `name.json`.
pub fn read(name: &str) -> Value {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let text = fs::read_to_string(folder.join(name).with_extension("json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// An array of numbers.
pub fn floats(row: &Value) -> Vec<f32> {
    let row = row.as_array().unwrap().iter();
    row.map(|v| v.as_f64().unwrap() as f32).collect()
}

/// Bytes that are written in hex.
pub fn bytes(hex: &Value) -> Vec<u8> {
    let pairs = hex.as_str().unwrap().as_bytes().chunks(2);
    pairs
        .map(|pair| u8::from_str_radix(core::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}
