//! Queries, keys and values captured from a model, in a safetensors file.
//!
//! | tensor | shape | what |
//! |---|---|---|
//! | `blk.L.q` | `[n_heads, n_queries, head_dim]` | queries at `q_positions`, after RoPE |
//! | `blk.L.k`, `blk.L.v` | `[n_kv_heads, n_tokens, head_dim]` | keys (after RoPE) and values of positions 0, 1, ... |
//! | `blk.L.k_mean_other_text` | `[n_kv_heads, head_dim]` | mean key over another text; may be left out |
//!
//! They are fp16, bf16 or fp32. Metadata, all needed: `model`, `head_dim`, `n_heads`,
//! `n_kv_heads`, `n_tokens`, `kq_scale` (what scores are multiplied by before the softmax)
//! and `q_positions`, such as `512,516,...,1020`; a remark in brackets or after a
//! semicolon may follow. Query head `h` belongs to kv head `h / (n_heads / n_kv_heads)`.

mod write;

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use kvforge_formats::f16_to_f32;
use safetensors::{Dtype, SafeTensors};

use crate::{Error, file};
pub use write::{Builder, Part};

/// A captured model.
#[derive(Clone, Debug)]
pub struct Capture {
    /// Its name.
    pub model: String,
    /// Values of a head's vector.
    pub head_dim: usize,
    /// Query heads; a multiple of the kv heads.
    pub n_heads: usize,
    /// Key and value heads.
    pub n_kv_heads: usize,
    /// Keys and values of each head.
    pub n_tokens: usize,
    /// Position of each query; it sees the keys up to that one.
    pub q_positions: Vec<usize>,
    /// What scores are multiplied by before the softmax.
    pub scale: f64,
    /// The captured layers, in the model's order; never empty.
    pub layers: Vec<Layer>,
}

/// What was captured of one layer.
#[derive(Clone, Debug)]
pub struct Layer {
    /// Number of the layer in the model.
    pub index: usize,
    /// `[n_heads, n_queries, head_dim]`
    pub q: Vec<f32>,
    /// `[n_kv_heads, n_tokens, head_dim]`
    pub k: Vec<f32>,
    /// `[n_kv_heads, n_tokens, head_dim]`
    pub v: Vec<f32>,
    /// `[n_kv_heads, head_dim]`, the mean key over another text.
    pub k_mean_other_text: Option<Vec<f32>>,
}

impl Capture {
    /// Reads a capture and checks every shape and value of it.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Malformed`].
    pub fn read(path: &Path) -> Result<Capture, Error> {
        parse(&file::read(path)?).map_err(|(e, f)| Error::malformed(path, e, f))
    }
}

/// What was expected, and what was found.
type Refusal = (String, String);

fn refuse<T>(expected: impl Into<String>, found: impl Into<String>) -> Result<T, Refusal> {
    Err((expected.into(), found.into()))
}

fn parse(bytes: &[u8]) -> Result<Capture, Refusal> {
    let not_one = |e: safetensors::SafeTensorError| ("a safetensors file".into(), e.to_string());
    let (_, header) = SafeTensors::read_metadata(bytes).map_err(not_one)?;
    let tensors = SafeTensors::deserialize(bytes).map_err(not_one)?;
    let about = Metadata(header.metadata().as_ref());

    let positions = about.text("q_positions")?;
    let mut capture = Capture {
        model: about.text("model")?.into(),
        head_dim: about.number("head_dim")?,
        n_heads: about.number("n_heads")?,
        n_kv_heads: about.number("n_kv_heads")?,
        n_tokens: about.number("n_tokens")?,
        q_positions: vec![],
        scale: about.number("kq_scale")?,
        layers: vec![],
    };
    let Capture {
        head_dim,
        n_heads,
        n_kv_heads,
        n_tokens,
        scale,
        ..
    } = capture;
    if head_dim == 0 {
        return refuse("a head_dim of at least 1", "0");
    }
    if n_kv_heads == 0 || n_heads == 0 || !n_heads.is_multiple_of(n_kv_heads) {
        return refuse(
            "n_heads to be a multiple of n_kv_heads, neither of them 0",
            format!("{n_heads} and {n_kv_heads}"),
        );
    }
    if !scale.is_finite() {
        return refuse("a finite kq_scale", scale.to_string());
    }
    let layers = layer_numbers(&tensors);
    let Some(first) = layers.first() else {
        return refuse("tensors blk.L.q, blk.L.k and blk.L.v", "none of them");
    };
    // What the tensors hold bounds what the metadata may make of them.
    let length = |part: &str, heads: usize| {
        let name = format!("blk.{first}.{part}");
        match tensors.tensor(&name).as_ref().map(|t| t.shape()) {
            Ok(&[h, n, d]) if (h, d) == (heads, head_dim) => Ok(n),
            Ok(shape) => refuse(
                format!("{name} of shape [{heads}, any, {head_dim}]"),
                format!("{shape:?}"),
            ),
            Err(_) => refuse(
                format!("tensor {name}"),
                format!("other tensors of layer {first} only"),
            ),
        }
    };
    let (n_queries, n_keys) = (length("q", n_heads)?, length("k", n_kv_heads)?);
    if n_keys != n_tokens {
        return refuse(
            format!("n_tokens = {n_tokens} keys in blk.{first}.k"),
            n_keys.to_string(),
        );
    }
    capture.q_positions = positions_of(positions, n_tokens, n_queries).ok_or_else(|| {
        (
            format!(
                "q_positions such as 512,516,...,1020, each below n_tokens = {n_tokens} and \
                 one for each of the {n_queries} queries in blk.{first}.q"
            ),
            positions.to_string(),
        )
    })?;

    for index in layers {
        let part = |name: &str, shape: &[usize]| {
            let name = format!("blk.{index}.{name}");
            match tensors.tensor(&name) {
                Ok(tensor) => values(&name, &tensor, shape).map(Some),
                Err(_) => Ok(None),
            }
        };
        let needed = |name: &str, shape: &[usize]| {
            part(name, shape)?.ok_or_else(|| {
                (
                    format!("tensor blk.{index}.{name}"),
                    format!("other tensors of layer {index} only"),
                )
            })
        };
        capture.layers.push(Layer {
            index,
            q: needed("q", &[n_heads, n_queries, head_dim])?,
            k: needed("k", &[n_kv_heads, n_tokens, head_dim])?,
            v: needed("v", &[n_kv_heads, n_tokens, head_dim])?,
            k_mean_other_text: part("k_mean_other_text", &[n_kv_heads, head_dim])?,
        });
    }
    Ok(capture)
}

struct Metadata<'a>(Option<&'a HashMap<String, String>>);

impl Metadata<'_> {
    fn text(&self, key: &str) -> Result<&str, Refusal> {
        match self.0.and_then(|all| all.get(key)) {
            Some(text) => Ok(text),
            None => refuse(format!("`{key}` in the metadata"), "none"),
        }
    }

    fn number<T: std::str::FromStr>(&self, key: &str) -> Result<T, Refusal> {
        let text = self.text(key)?;
        text.trim()
            .parse()
            .or_else(|_| refuse(format!("a number as `{key}` in the metadata"), text))
    }
}

/// `512,516,...,1020 (128 of them); ...`: all of them, if they are `count` and below
/// `limit`. Never more than `count` are held.
fn positions_of(text: &str, limit: usize, count: usize) -> Option<Vec<usize>> {
    let list = text.split(['(', ';']).next()?.trim();
    let mut positions: Vec<usize> = vec![];
    let mut items = list.split(',').map(str::trim);
    while let Some(item) = items.next() {
        let first = if item == "..." {
            let [.., before, last] = positions[..] else {
                return None;
            };
            let end: usize = items.next()?.parse().ok()?;
            let step = last.checked_sub(before).filter(|step| *step > 0)?;
            let between = end.checked_sub(last)?;
            let more = between / step;
            if end >= limit || !between.is_multiple_of(step) || more > count - positions.len() {
                return None;
            }
            positions.extend((1..=more).map(|i| last + i * step));
            continue;
        } else {
            item.parse().ok()?
        };
        if first >= limit || positions.len() == count {
            return None;
        }
        positions.push(first);
    }
    (positions.len() == count).then_some(positions)
}

fn layer_numbers(tensors: &SafeTensors) -> BTreeSet<usize> {
    let number = |name: &&str| name.strip_prefix("blk.")?.split('.').next()?.parse().ok();
    tensors.names().iter().filter_map(number).collect()
}

fn values(
    name: &str,
    tensor: &safetensors::tensor::TensorView,
    shape: &[usize],
) -> Result<Vec<f32>, Refusal> {
    if tensor.shape() != shape {
        return refuse(
            format!("{name} of shape {shape:?}"),
            format!("{:?}", tensor.shape()),
        );
    }
    let halves = |to_f32: fn(u16) -> f32| {
        let pairs = tensor.data().as_chunks().0.iter();
        pairs.map(|b| to_f32(u16::from_le_bytes(*b))).collect()
    };
    let values: Vec<f32> = match tensor.dtype() {
        Dtype::F16 => halves(f16_to_f32),
        Dtype::BF16 => halves(|b| f32::from_bits((b as u32) << 16)),
        Dtype::F32 => {
            let fours = tensor.data().as_chunks().0.iter();
            fours.map(|b| f32::from_le_bytes(*b)).collect()
        }
        other => {
            return refuse(format!("{name} of F16, BF16 or F32"), format!("{other:?}"));
        }
    };
    match values.iter().position(|v| !v.is_finite()) {
        Some(i) => refuse(
            format!("{name} of finite values"),
            format!("value {i} is {}", values[i]),
        ),
        None => Ok(values),
    }
}

#[cfg(test)]
mod tests {
    use super::positions_of;

    #[test]
    fn positions_are_counted_out() {
        let all = positions_of("512,516,...,1020 (128 of them); causal", 1024, 128).unwrap();
        assert_eq!(all.len(), 128);
        assert!(all.iter().enumerate().all(|(i, p)| *p == 512 + 4 * i));
        assert_eq!(positions_of("3, 1,2", 4, 3), Some(vec![3, 1, 2]));
        assert_eq!(positions_of("0,1,...,1", 4, 2), Some(vec![0, 1]));
        let huge = usize::MAX - 1;
        let last = format!("{},{},...,{huge}", huge - 2, huge - 1);
        let all = vec![huge - 2, huge - 1, huge];
        assert_eq!(positions_of(&last, usize::MAX, 3), Some(all));
        let too_many = format!("0,1,...,{huge}");
        assert_eq!(positions_of(&too_many, usize::MAX, 3), None);
        for count in [0, 2, 4] {
            assert_eq!(positions_of("3,1,2", 4, count), None, "{count}");
        }
        for wrong in [
            "",
            "a",
            "4",
            "0,...,3",
            "0,2,...,3",
            "2,1,...,3",
            "1,1,...,3",
            "0,1,...",
            "0,1,...,4",
        ] {
            for count in 0..5 {
                assert_eq!(positions_of(wrong, 4, count), None, "{wrong}");
            }
        }
    }
}
