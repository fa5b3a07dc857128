use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use safetensors::Dtype;
use safetensors::tensor::TensorView;

use super::{Capture, Layer};
use crate::{Error, write_atomic};

/// Queries that a capture keeps of each head, spread over the second half of the text.
const QUERIES: usize = 128;

/// What a vector is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// A query, after RoPE.
    Query,
    /// A key, after RoPE.
    Key,
    /// A value.
    Value,
}

/// Collects the vectors of one sequence, and makes a capture of them.
#[derive(Debug, Default)]
pub struct Builder {
    model: String,
    wanted: BTreeSet<usize>,
    layers: BTreeMap<usize, Vectors>,
}

#[derive(Debug, Default)]
struct Vectors {
    scale: Option<f32>,
    /// Of query, key and value.
    parts: [Rows; 3],
}

/// `[n_tokens, n_heads, head_dim]`
#[derive(Debug, Default)]
struct Rows {
    n_heads: usize,
    head_dim: usize,
    n_tokens: usize,
    values: Vec<f32>,
}

impl Builder {
    /// For a model, and those of its layers; for all of them if none is named.
    pub fn new(model: &str, layers: &[usize]) -> Builder {
        Builder {
            model: model.into(),
            wanted: layers.iter().copied().collect(),
            layers: BTreeMap::new(),
        }
    }

    fn wants(&self, layer: usize) -> bool {
        self.wanted.is_empty() || self.wanted.contains(&layer)
    }

    /// Notes what the scores of a layer are multiplied by.
    pub fn scale(&mut self, layer: usize, scale: f32) {
        if self.wants(layer) {
            self.layers.entry(layer).or_default().scale = Some(scale);
        }
    }

    /// Adds vectors `[n_tokens, n_heads, head_dim]` of positions from `first` on. Only the
    /// first sequence counts, which is over when positions start at 0 again.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if they do not continue what there is, or a value is not finite.
    pub fn add(
        &mut self,
        layer: usize,
        part: Part,
        [n_heads, head_dim]: [usize; 2],
        first: usize,
        values: &[f32],
    ) -> Result<(), Error> {
        if !self.wants(layer) {
            return Ok(());
        }
        let name = format!("{part:?} vectors of layer {layer}").to_lowercase();
        let rows = &mut self.layers.entry(layer).or_default().parts[part as usize];
        if first < rows.n_tokens {
            return Ok(());
        }
        if rows.n_tokens == 0 {
            (rows.n_heads, rows.head_dim) = (n_heads, head_dim);
        }
        let row = n_heads * head_dim;
        let shape = [rows.n_tokens, rows.n_heads, rows.head_dim];
        if [first, n_heads, head_dim] != shape || row == 0 || !values.len().is_multiple_of(row) {
            return Err(Error::mismatch(
                format!(
                    "{name} from position {}, heads and size {:?}",
                    shape[0],
                    &shape[1..]
                ),
                format!(
                    "position {first}, {n_heads} heads of {head_dim}, {} values",
                    values.len()
                ),
            ));
        }
        if let Some(bad) = values.iter().find(|x| !x.is_finite()) {
            return Err(Error::mismatch(format!("finite {name}"), bad.to_string()));
        }
        rows.n_tokens += values.len() / row;
        rows.values.extend_from_slice(values);
        Ok(())
    }

    /// The capture of everything added.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if a layer that was named is missing, or the layers do not have one
    /// shape, one scale and the same tokens.
    pub fn finish(self) -> Result<Capture, Error> {
        let complete = |v: &Vectors| v.parts.iter().all(|rows| rows.n_tokens > 0);
        let layers: BTreeMap<usize, Vectors> = self
            .layers
            .into_iter()
            .filter(|(_, v)| complete(v))
            .collect();
        let list = |numbers: &mut dyn Iterator<Item = &usize>| {
            let numbers: Vec<String> = numbers.map(usize::to_string).collect();
            kvforge_files::excerpt(&numbers.join(", "))
        };
        let mut missing = self.wanted.iter().filter(|l| !layers.contains_key(l));
        let missing = list(&mut missing);
        let Some(first) = layers.values().next().filter(|_| missing.is_empty()) else {
            return Err(Error::mismatch(
                match missing.as_str() {
                    "" => "queries, keys and values of a layer".into(),
                    missing => format!("queries, keys and values of layers {missing}"),
                },
                format!("those of layers {}", list(&mut layers.keys())),
            ));
        };
        let facts = |v: &Vectors| {
            let of = |part: Part| {
                let rows = &v.parts[part as usize];
                [rows.n_tokens, rows.n_heads, rows.head_dim]
            };
            (of(Part::Query), of(Part::Key), of(Part::Value), v.scale)
        };
        let (q, k, v, scale) = facts(first);
        let in_words = |(q, k, v, scale): ([usize; 3], [usize; 3], [usize; 3], Option<f32>)| {
            format!("q {q:?}, k {k:?}, v {v:?} (tokens, heads, size), scale {scale:?}")
        };
        if let Some((n, other)) = layers.iter().find(|(_, v)| facts(v) != facts(first)) {
            return Err(Error::mismatch(
                format!(
                    "layers of one shape, {}; capture the others apart",
                    in_words(facts(first))
                ),
                format!("layer {n} with {}", in_words(facts(other))),
            ));
        }
        let ([n_tokens, n_heads, head_dim], [_, n_kv_heads, _], Some(scale)) = (q, k, scale) else {
            return Err(Error::mismatch("the scale of the scores", "none"));
        };
        if k != v || [q[0], q[2]] != [k[0], k[2]] || !n_heads.is_multiple_of(n_kv_heads) {
            return Err(Error::mismatch(
                "as many keys as values and queries, of one size, query heads in groups",
                in_words((q, k, v, Some(scale))),
            ));
        }
        let step = (n_tokens.div_ceil(2) / QUERIES).max(1);
        let positions = (n_tokens / 2..n_tokens).step_by(step).take(QUERIES);
        let q_positions: Vec<usize> = positions.collect();
        let tokens: Vec<usize> = (0..n_tokens).collect();
        let layers = layers.into_iter().map(|(index, vectors)| {
            let [q, k, v] = vectors.parts;
            Layer {
                index,
                q: q.by_head(&q_positions),
                k: k.by_head(&tokens),
                v: v.by_head(&tokens),
                k_mean_other_text: None,
            }
        });
        Ok(Capture {
            model: self.model,
            head_dim,
            n_heads,
            n_kv_heads,
            n_tokens,
            scale: scale.into(),
            layers: layers.collect(),
            q_positions,
        })
    }
}

impl Rows {
    /// `[n_heads, positions, head_dim]`
    fn by_head(&self, positions: &[usize]) -> Vec<f32> {
        let vector = |head: usize, position: usize| {
            &self.values[(position * self.n_heads + head) * self.head_dim..][..self.head_dim]
        };
        let vectors = (0..self.n_heads).flat_map(|h| positions.iter().map(move |p| vector(h, *p)));
        vectors.flatten().copied().collect()
    }
}

impl Capture {
    /// Writes the capture, in fp32, as [`Capture::read`] reads it.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let positions: Vec<String> = self.q_positions.iter().map(usize::to_string).collect();
        let about = HashMap::from(
            [
                ("model", self.model.clone()),
                ("head_dim", self.head_dim.to_string()),
                ("n_heads", self.n_heads.to_string()),
                ("n_kv_heads", self.n_kv_heads.to_string()),
                ("n_tokens", self.n_tokens.to_string()),
                ("kq_scale", self.scale.to_string()),
                ("q_positions", positions.join(",")),
            ]
            .map(|(key, value)| (key.to_string(), value)),
        );
        let (heads, kv, dim) = (self.n_heads, self.n_kv_heads, self.head_dim);
        let mut tensors = vec![];
        for layer in &self.layers {
            let parts = [
                (
                    "q",
                    Some(&layer.q),
                    vec![heads, self.q_positions.len(), dim],
                ),
                ("k", Some(&layer.k), vec![kv, self.n_tokens, dim]),
                ("v", Some(&layer.v), vec![kv, self.n_tokens, dim]),
                (
                    "k_mean_other_text",
                    layer.k_mean_other_text.as_ref(),
                    vec![kv, dim],
                ),
            ];
            for (part, values, shape) in parts {
                if let Some(values) = values {
                    let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
                    tensors.push((format!("blk.{}.{part}", layer.index), shape, bytes));
                }
            }
        }
        let not_written = |e: safetensors::SafeTensorError| {
            Error::io(path, "write the capture")(std::io::Error::other(e))
        };
        let views = tensors.iter().map(|(name, shape, bytes)| {
            let view = TensorView::new(Dtype::F32, shape.clone(), bytes)?;
            Ok((name.as_str(), view))
        });
        let views = views.collect::<Result<Vec<_>, _>>().map_err(not_written)?;
        let bytes = safetensors::serialize(views, Some(about)).map_err(not_written)?;
        write_atomic(path, &bytes)
    }
}
