//! Numbers and captures for the tests.
#![allow(dead_code, reason = "every test file uses a part of it")]

use std::collections::HashMap;

use safetensors::Dtype;
use safetensors::tensor::TensorView;

/// Normal numbers, always the same for a seed.
pub fn gaussian(seed: u64, n: usize) -> Vec<f32> {
    let mut state = seed;
    let mut uniform = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((state >> 40) as f64 + 0.5) / f64::from(1 << 24)
    };
    let mut normal = || (-2.0 * uniform().ln()).sqrt() * (std::f64::consts::TAU * uniform()).cos();
    (0..n).map(|_| normal() as f32).collect()
}

pub fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter()
        .zip(b)
        .map(|(a, b)| f64::from(*a) * f64::from(*b))
        .sum()
}

/// Softmax of scores, the plain way.
pub fn softmax(scores: &[f64]) -> Vec<f64> {
    let sum: f64 = scores.iter().map(|s| s.exp()).sum();
    scores.iter().map(|s| s.exp() / sum).collect()
}

/// What a synthetic capture looks like.
pub struct Model {
    pub head_dim: usize,
    pub n_heads: usize,
    pub n_kv_heads: usize,
    pub n_tokens: usize,
    pub layers: Vec<usize>,
    /// Added to every key.
    pub constant: f32,
}

impl Model {
    pub fn small() -> Model {
        Model {
            head_dim: 128,
            n_heads: 4,
            n_kv_heads: 2,
            n_tokens: 40,
            layers: vec![0, 7],
            constant: 0.0,
        }
    }

    /// Positions of the queries: as text and as numbers.
    pub fn positions() -> (&'static str, Vec<usize>) {
        (
            "20,23,...,38,3 (8 of them); causal",
            vec![20, 23, 26, 29, 32, 35, 38, 3],
        )
    }

    pub fn metadata(&self) -> HashMap<String, String> {
        let text = [
            ("model", "synthetic".to_string()),
            ("head_dim", self.head_dim.to_string()),
            ("n_heads", self.n_heads.to_string()),
            ("n_kv_heads", self.n_kv_heads.to_string()),
            ("n_tokens", self.n_tokens.to_string()),
            ("kq_scale", SCALE.to_string()),
            ("q_positions", Model::positions().0.to_string()),
        ];
        text.map(|(key, value)| (key.to_string(), value)).into()
    }

    pub fn tensors(&self) -> Vec<Tensor> {
        let mut tensors = vec![];
        for layer in &self.layers {
            let mut add = |part: &str, shape: &[usize], constant: f32| {
                let seed = (layer * 10 + part.len()) as u64 + u64::from(part.as_bytes()[0]);
                let values = gaussian(seed, shape.iter().product());
                tensors.push(Tensor {
                    name: format!("blk.{layer}.{part}"),
                    dtype: Dtype::F32,
                    shape: shape.to_vec(),
                    bytes: values
                        .iter()
                        .flat_map(|v| (v + constant).to_le_bytes())
                        .collect(),
                });
            };
            let n_queries = Model::positions().1.len();
            add("q", &[self.n_heads, n_queries, self.head_dim], 0.0);
            add(
                "k",
                &[self.n_kv_heads, self.n_tokens, self.head_dim],
                self.constant,
            );
            add("v", &[self.n_kv_heads, self.n_tokens, self.head_dim], 0.0);
        }
        tensors
    }

    pub fn bytes(&self) -> Vec<u8> {
        file(self.tensors(), self.metadata())
    }
}

/// What scores are multiplied by in a synthetic capture.
pub const SCALE: f64 = 0.07;

/// A tensor of a safetensors file.
pub struct Tensor {
    pub name: String,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

pub fn file(tensors: Vec<Tensor>, metadata: HashMap<String, String>) -> Vec<u8> {
    let views = tensors.iter().map(|t| {
        let view = TensorView::new(t.dtype, t.shape.clone(), &t.bytes).unwrap();
        (&t.name, view)
    });
    safetensors::serialize(views, Some(metadata)).unwrap()
}
