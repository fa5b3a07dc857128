//! A capture, and the values it is made of.

use serde_json::json;

pub fn wave(n: usize, step: f32) -> Vec<f32> {
    (0..n)
        .map(|i| 3.0 * (i as f32 * step).sin() + (i as f32 * 0.71).cos())
        .collect()
}

/// One layer, head size 64, two query heads on one kv head, keys with a constant.
pub fn capture() -> Vec<u8> {
    let (mut header, mut data) = (json!({}), vec![]);
    let tensors: [(&str, &[usize], f32); 3] = [
        ("q", &[2, 3, 64], 0.0),
        ("k", &[1, 16, 64], 9.0),
        ("v", &[1, 16, 64], 0.0),
    ];
    for (part, shape, constant) in tensors {
        let start = data.len();
        let values = wave(shape.iter().product(), 0.37 + start as f32 * 1e-4);
        data.extend(values.iter().flat_map(|v| (v + constant).to_le_bytes()));
        header[format!("blk.3.{part}")] =
            json!({ "dtype": "F32", "shape": shape, "data_offsets": [start, data.len()] });
    }
    header["__metadata__"] = json!({
        "model": "waves", "head_dim": "64", "n_heads": "2", "n_kv_heads": "1",
        "n_tokens": "16", "kq_scale": "0.125", "q_positions": "5,10,15",
    });
    let header = header.to_string();
    [
        &(header.len() as u64).to_le_bytes()[..],
        header.as_bytes(),
        &data,
    ]
    .concat()
}
