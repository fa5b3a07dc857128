use kvforge_formats::Fnv;

use crate::layout::MAGIC;
use crate::{NAME_BYTES, Pair, Rope, VERSION};

/// A layer to be written; see [`Layer`](crate::Layer) for what the arrays hold and how
/// long they are.
#[derive(Clone, Copy, Debug)]
pub struct NewLayer<'a> {
    /// Its number in the model.
    pub index: u32,
    /// Heads of keys and values.
    pub n_head_kv: u32,
    /// Heads of queries.
    pub n_head: u32,
    /// Values of a key.
    pub head_dim: u32,
    /// Facts of its RoPE.
    pub rope: Rope,
    /// Pairs of channels that RoPE turns.
    pub pairs: &'a [Pair],
    /// Mean key.
    pub k_mean: &'a [f32],
    /// Mean squares of the keys.
    pub k_square: &'a [f32],
    /// Mean squares of the queries.
    pub q_square: &'a [f32],
    /// Mean products in the keys' pairs.
    pub k_cross: &'a [f32],
    /// Mean products in the queries' pairs.
    pub q_cross: &'a [f32],
}

/// Hands a calibration file to `sink`, piece by piece; the same bytes for the same
/// content. The name is cut to what fits. Checks nothing: who writes a file reads it
/// with [`Calibration::read`](crate::Calibration::read) first.
pub fn write(
    model: u64,
    name: &str,
    n_tokens: u64,
    layers: &[NewLayer<'_>],
    sink: &mut impl FnMut(&[u8]),
) {
    let mut hash = Fnv::new();
    content(model, name, n_tokens, layers, &mut |bytes| {
        hash = hash.bytes(bytes);
    });
    sink(&MAGIC);
    sink(&VERSION.to_le_bytes());
    sink(&hash.finish().to_le_bytes());
    content(model, name, n_tokens, layers, sink);
}

/// What the hash is over.
fn content(
    model: u64,
    name: &str,
    n_tokens: u64,
    layers: &[NewLayer<'_>],
    sink: &mut impl FnMut(&[u8]),
) {
    sink(&model.to_le_bytes());
    sink(&n_tokens.to_le_bytes());
    sink(&(layers.len() as u32).to_le_bytes());
    let end = name.floor_char_boundary(NAME_BYTES);
    let mut field = [0; NAME_BYTES];
    for (to, from) in field.iter_mut().zip(name.bytes().take(end)) {
        *to = from;
    }
    sink(&field);
    for layer in layers {
        let r = &layer.rope;
        let sizes = [
            layer.n_head_kv,
            layer.n_head,
            layer.head_dim,
            layer.pairs.len() as u32,
        ];
        let whole = [r.mode, r.n_dims, r.n_ctx_orig];
        let real = [
            r.freq_base,
            r.freq_scale,
            r.ext_factor,
            r.attn_factor,
            r.beta_fast,
            r.beta_slow,
        ];
        let mut word = |word: u32| sink(&word.to_le_bytes());
        word(layer.index);
        sizes.into_iter().chain(whole).for_each(&mut word);
        real.into_iter().for_each(|x| word(x.to_bits()));
        word(r.has_factors.into());
        for pair in layer.pairs {
            [pair.a, pair.b, pair.cos.to_bits(), pair.sin.to_bits()]
                .into_iter()
                .for_each(&mut word);
        }
        let arrays = [
            layer.k_mean,
            layer.k_square,
            layer.q_square,
            layer.k_cross,
            layer.q_cross,
        ];
        arrays.into_iter().flatten().for_each(|x| word(x.to_bits()));
    }
}
