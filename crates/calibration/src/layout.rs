//! Sizes of the file; what they hold is in the README.

/// Version of the layout.
pub const VERSION: u32 = 1;
/// Bytes that the model's name may take, filled up with zeros.
pub const NAME_BYTES: usize = 64;
/// Most layers of a file.
pub const MAX_LAYERS: usize = 4096;
/// Most query heads, and so kv heads, of a layer.
pub const MAX_HEADS: usize = 4096;
/// Largest head size.
pub const MAX_HEAD_DIM: usize = 4096;
/// Rope mode of a layer without RoPE.
pub const NO_ROPE: u32 = u32::MAX;

pub(crate) const MAGIC: [u8; 8] = *b"KVFCALIB";
/// Magic, version and hash: what the hash is not over.
pub(crate) const PREFIX_BYTES: usize = 8 + 4 + 8;
/// Fixed part of the file.
pub(crate) const HEADER_BYTES: usize = PREFIX_BYTES + 8 + 8 + 4 + NAME_BYTES;
/// A pair: two channels, cosine, sine.
pub(crate) const PAIR_BYTES: usize = 4 * 4;

/// Facts of a layer's RoPE as the graph had them; [`NO_ROPE`] and zeros without. They tell
/// people and other programs; what is computed comes from the pairs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rope {
    /// Mode, as the host numbers it.
    pub mode: u32,
    /// Channels that it turns, at most.
    pub n_dims: u32,
    /// Context that the model was trained with, for YaRN.
    pub n_ctx_orig: u32,
    /// Base of the frequencies.
    pub freq_base: f32,
    /// Factor on the positions.
    pub freq_scale: f32,
    /// YaRN's mix of stretched and plain angles.
    pub ext_factor: f32,
    /// Factor on the result, before YaRN's own.
    pub attn_factor: f32,
    /// YaRN's upper bound.
    pub beta_fast: f32,
    /// YaRN's lower bound.
    pub beta_slow: f32,
    /// Whether each frequency had a divisor of its own.
    pub has_factors: bool,
}

impl Rope {
    /// No RoPE.
    pub const NONE: Rope = Rope {
        mode: NO_ROPE,
        n_dims: 0,
        n_ctx_orig: 0,
        freq_base: 0.0,
        freq_scale: 0.0,
        ext_factor: 0.0,
        attn_factor: 0.0,
        beta_fast: 0.0,
        beta_slow: 0.0,
        has_factors: false,
    };
}

/// Lengths of a layer's five arrays, in values, in the order of the file.
pub(crate) fn array_lengths(n_head_kv: usize, head_dim: usize, n_pairs: usize) -> [usize; 5] {
    let (channels, pairs) = (n_head_kv * head_dim, n_head_kv * n_pairs);
    [channels, channels, channels, pairs, pairs]
}
