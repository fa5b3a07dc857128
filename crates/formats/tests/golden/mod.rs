//! Reads the golden rows (see README.md beside this file).

use std::{fs, path::Path, string::String, vec::Vec};

use serde_json::Value;

/// Values of a golden row.
pub const ROW: usize = 128;

/// One row and what the public encoder of a format makes of it.
#[allow(dead_code, reason = "not every test looks at every field")]
pub struct Golden {
    pub name: String,
    pub x: Vec<f32>,
    pub q: Vec<f32>,
    pub blocks: Vec<u8>,
    pub decoded: Vec<f32>,
    pub score: f64,
}

/// The golden rows of the format `name`.
pub fn load(name: &str) -> Vec<Golden> {
    let (inputs, outputs) = (read("inputs"), read(name));
    let q = floats(&inputs["q"]);
    (0..8)
        .map(|i| Golden {
            name: inputs["names"][i].as_str().unwrap().into(),
            x: floats(&inputs["x"][i]),
            q: q.clone(),
            blocks: bytes(outputs["blocks"][i].as_str().unwrap()),
            decoded: floats(&outputs["decoded"][i]),
            score: outputs["scores"][i].as_f64().unwrap(),
        })
        .collect()
}

fn read(name: &str) -> Value {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let text = fs::read_to_string(folder.join(name).with_extension("json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn floats(row: &Value) -> Vec<f32> {
    let row: Vec<f32> = row
        .as_array()
        .unwrap()
        .iter()
        .map(|v| v.as_f64().unwrap() as f32)
        .collect();
    assert_eq!(row.len(), ROW);
    row
}

fn bytes(hex: &str) -> Vec<u8> {
    hex.as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(core::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}
