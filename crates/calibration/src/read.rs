use core::mem::replace;
use core::ops::Range;

use kvforge_formats::Fnv;

use crate::layout::{HEADER_BYTES, MAGIC, PAIR_BYTES, PREFIX_BYTES, array_lengths};
use crate::{Error, MAX_HEAD_DIM, MAX_HEADS, MAX_LAYERS, NAME_BYTES, NO_ROPE, Pair, Rope, VERSION};

/// A calibration file, wholly checked.
#[derive(Clone, Copy, Debug)]
pub struct Calibration<'a> {
    bytes: &'a [u8],
    name: &'a str,
    /// Identity of the model.
    pub model: u64,
    /// Hash of the content, which is what tells one calibration from another.
    pub hash: u64,
    /// Tokens that the means were taken over.
    pub n_tokens: u64,
    /// Layers in the file, at least 1.
    pub n_layers: u32,
}

impl<'a> Calibration<'a> {
    /// Reads a file that may lie at any address, and checks all of it.
    ///
    /// # Errors
    /// [`Error::NotACalibration`]; [`Error::Version`]; [`Error::Damaged`];
    /// [`Error::Malformed`] if what was written on purpose makes no sense.
    pub fn read(bytes: &'a [u8]) -> Result<Calibration<'a>, Error> {
        let Some(rest) = bytes.strip_prefix(&MAGIC) else {
            return Err(Error::NotACalibration);
        };
        let mut at = Cursor {
            bytes,
            at: bytes.len() - rest.len(),
        };
        let version = at.u32()?;
        if version != VERSION {
            return Err(Error::Version { found: version });
        }
        let hash = at.u64()?;
        let found = Fnv::new()
            .bytes(bytes.get(PREFIX_BYTES..).unwrap_or_default())
            .finish();
        if found != hash {
            return Err(Error::Damaged {
                expected: hash,
                found,
            });
        }
        let (model, n_tokens, n_layers) = (at.u64()?, at.u64()?, at.u32()?);
        at.demand(n_tokens > 0, "means over at least 1 token")?;
        let in_range = (1..=MAX_LAYERS).contains(&(n_layers as usize));
        at.demand(in_range, "1 to 4096 layers")?;
        let name = at.take(NAME_BYTES)?;
        let end = name.iter().position(|b| *b == 0).unwrap_or(NAME_BYTES);
        let (text, zeros) = name.split_at(end);
        at.demand(
            zeros.iter().all(|b| *b == 0),
            "only zeros after the model's name",
        )?;
        let name = core::str::from_utf8(text);
        let printable = name.is_ok_and(|name| !name.chars().any(char::is_control));
        at.demand(
            printable,
            "a model's name in UTF-8, without control characters",
        )?;
        let mut last = None;
        for _ in 0..n_layers {
            let layer = at.layer()?;
            at.demand(last < Some(layer.index), "layers in ascending order")?;
            layer.check(&at)?;
            last = Some(layer.index);
        }
        at.demand(at.at == bytes.len(), "the end after the last layer")?;
        Ok(Calibration {
            bytes,
            name: name.unwrap_or_default(),
            model,
            hash,
            n_tokens,
            n_layers,
        })
    }

    /// Name of the model.
    pub fn name(&self) -> &'a str {
        self.name
    }

    /// The layers, ascending by their number in the model.
    pub fn layers(&self) -> impl Iterator<Item = Layer<'a>> + use<'a> {
        let mut at = Cursor {
            bytes: self.bytes,
            at: HEADER_BYTES,
        };
        (0..self.n_layers).map_while(move |_| at.layer().ok())
    }

    /// Layer number `index` of the file, which is not its number in the model.
    ///
    /// # Errors
    /// [`Error::NoLayer`].
    pub fn layer(&self, index: u32) -> Result<Layer<'a>, Error> {
        let n_layers = self.n_layers;
        self.layers()
            .nth(index as usize)
            .ok_or(Error::NoLayer { n_layers })
    }
}

/// What is known of one layer. "Before RoPE" is how a vector leaves the norm or the bias,
/// "square" is the mean of the squares, not of the deviations.
#[derive(Clone, Copy, Debug)]
pub struct Layer<'a> {
    /// Its number in the model.
    pub index: u32,
    n_head_kv: usize,
    n_head: usize,
    head_dim: usize,
    n_pairs: usize,
    /// Facts of its RoPE.
    pub rope: Rope,
    pairs: &'a [u8],
    arrays: &'a [u8],
}

impl<'a> Layer<'a> {
    /// Heads of keys and values.
    pub fn n_head_kv(&self) -> usize {
        self.n_head_kv
    }

    /// Heads of queries, a multiple of `n_head_kv`.
    pub fn n_head(&self) -> usize {
        self.n_head
    }

    /// Values of a key.
    pub fn head_dim(&self) -> usize {
        self.head_dim
    }

    /// Pairs of channels that RoPE turns.
    pub fn n_pairs(&self) -> usize {
        self.n_pairs
    }

    /// Whether keys are turned at all.
    pub fn has_rope(&self) -> bool {
        self.rope.mode != NO_ROPE
    }

    /// Pairs of channels, ascending by the lower one; no channel is in two.
    pub fn pairs(&self) -> impl Iterator<Item = Pair> + Clone + use<'a> {
        self.pairs.as_chunks::<PAIR_BYTES>().0.iter().map(|bytes| {
            let mut at = Cursor { bytes, at: 0 };
            // There are as many bytes as it takes.
            let mut part = || at.u32().unwrap_or_default();
            Pair {
                a: part(),
                b: part(),
                cos: f32::from_bits(part()),
                sin: f32::from_bits(part()),
            }
        })
    }

    /// Mean key before RoPE, `[n_head_kv, head_dim]`.
    pub fn k_mean(&self) -> Numbers<'a> {
        self.array(0)
    }

    /// Mean square of the keys' channels before RoPE, `[n_head_kv, head_dim]`.
    pub fn k_square(&self) -> Numbers<'a> {
        self.array(1)
    }

    /// Mean square of the queries' channels before RoPE, over the query heads of each kv
    /// head, `[n_head_kv, head_dim]`.
    pub fn q_square(&self) -> Numbers<'a> {
        self.array(2)
    }

    /// Mean of `k[a] k[b]` before RoPE, `[n_head_kv, n_pairs]`.
    pub fn k_cross(&self) -> Numbers<'a> {
        self.array(3)
    }

    /// Mean of `q[a] q[b]` before RoPE, `[n_head_kv, n_pairs]`.
    pub fn q_cross(&self) -> Numbers<'a> {
        self.array(4)
    }

    fn array(&self, number: usize) -> Numbers<'a> {
        let lengths = array_lengths(self.n_head_kv, self.head_dim, self.n_pairs);
        let start: usize = 4 * lengths.iter().take(number).sum::<usize>();
        let length = lengths.get(number).copied().unwrap_or_default();
        let range: Range<usize> = start..start + 4 * length;
        let bytes = self.arrays.get(range).unwrap_or_default();
        Numbers {
            chunks: bytes.as_chunks().0.iter(),
        }
    }

    /// Checks everything but the sizes.
    fn check(&self, at: &Cursor<'_>) -> Result<(), Error> {
        let r = &self.rope;
        let facts = [
            r.freq_base,
            r.freq_scale,
            r.ext_factor,
            r.attn_factor,
            r.beta_fast,
            r.beta_slow,
        ];
        at.demand(
            facts.iter().all(|f| f.is_finite()),
            "finite RoPE parameters",
        )?;
        let fits = self.has_rope() == (self.n_pairs > 0);
        at.demand(fits, "pairs in layers with RoPE, and in no others")?;
        let mut taken = [false; MAX_HEAD_DIM];
        let mut lowest = 0;
        for pair in self.pairs() {
            let of_head = pair.a < pair.b && (pair.b as usize) < self.head_dim;
            at.demand(of_head, "pairs of two channels of the head")?;
            at.demand(pair.a >= lowest, "pairs in ascending order")?;
            lowest = pair.a + 1;
            for channel in [pair.a, pair.b] {
                let was = taken.get_mut(channel as usize).map(|t| replace(t, true));
                at.demand(was == Some(false), "pairs that share no channel")?;
            }
            let scale = pair.scale();
            let ordinary = scale > 1e-6 && scale < 1e6;
            at.demand(ordinary, "pairs with a factor of ordinary size")?;
        }
        let squares = self.k_square().chain(self.q_square());
        at.demand(
            squares.into_iter().all(|x| x >= 0.0),
            "mean squares of at least 0",
        )?;
        let mut all = (0..5).flat_map(|number| self.array(number));
        at.demand(all.all(f32::is_finite), "finite means and moments")
    }
}

/// Floats of a file.
#[derive(Clone, Debug)]
pub struct Numbers<'a> {
    chunks: core::slice::Iter<'a, [u8; 4]>,
}

impl Iterator for Numbers<'_> {
    type Item = f32;

    fn next(&mut self) -> Option<f32> {
        self.chunks.next().map(|bytes| f32::from_le_bytes(*bytes))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.chunks.size_hint()
    }
}

impl ExactSizeIterator for Numbers<'_> {}

/// Where the reader is.
struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn demand(&self, holds: bool, what: &'static str) -> Result<(), Error> {
        match holds {
            true => Ok(()),
            false => Err(Error::Malformed { what, at: self.at }),
        }
    }

    fn take(&mut self, n: usize) -> Result<&'a [u8], Error> {
        let end = self.at.checked_add(n);
        let Some(taken) = end.and_then(|end| self.bytes.get(self.at..end)) else {
            return Err(Error::Malformed {
                what: "more bytes",
                at: self.at,
            });
        };
        self.at += n;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    fn u32(&mut self) -> Result<u32, Error> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, Error> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn f32(&mut self) -> Result<f32, Error> {
        Ok(f32::from_bits(self.u32()?))
    }

    /// A layer, with its sizes checked and nothing else.
    fn layer(&mut self) -> Result<Layer<'a>, Error> {
        let index = self.u32()?;
        let mut size = || self.u32().map(|n| n as usize);
        let (n_head_kv, n_head, head_dim, n_pairs) = (size()?, size()?, size()?, size()?);
        let heads = 1..=MAX_HEADS;
        let fits = heads.contains(&n_head_kv) && heads.contains(&n_head);
        let fits = fits && n_head.is_multiple_of(n_head_kv);
        self.demand(fits, "1 to 4096 query heads, a multiple of the kv heads")?;
        let fits = (1..=MAX_HEAD_DIM).contains(&head_dim);
        self.demand(fits, "a head size from 1 to 4096")?;
        self.demand(
            n_pairs <= head_dim / 2,
            "at most half as many pairs as channels",
        )?;
        let rope = Rope {
            mode: self.u32()?,
            n_dims: self.u32()?,
            n_ctx_orig: self.u32()?,
            freq_base: self.f32()?,
            freq_scale: self.f32()?,
            ext_factor: self.f32()?,
            attn_factor: self.f32()?,
            beta_fast: self.f32()?,
            beta_slow: self.f32()?,
            has_factors: match self.u32()? {
                0 => false,
                has => {
                    self.demand(has == 1, "0 or 1 for frequency factors")?;
                    true
                }
            },
        };
        let values: usize = array_lengths(n_head_kv, head_dim, n_pairs).iter().sum();
        Ok(Layer {
            index,
            n_head_kv,
            n_head,
            head_dim,
            n_pairs,
            rope,
            pairs: self.take(n_pairs * PAIR_BYTES)?,
            arrays: self.take(values * 4)?,
        })
    }
}
