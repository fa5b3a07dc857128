use std::io::{self, Read};

use kvforge::capture::Part;
use kvforge_calibration::{MAX_HEAD_DIM, MAX_HEADS, NO_ROPE, Rope};

use super::ProbeError;

/// What the stream begins with.
const MAGIC: [u8; 8] = *b"KVFPROB1";
/// Numbers before the size of a payload: kind, layer, three sizes, first position, 0.
const HEAD: usize = 7;
/// Most tokens of one record.
const MAX_TOKENS: usize = 1 << 16;
/// Largest number of a layer.
const MAX_LAYER: u32 = 4095;
/// Longest text.
const MAX_TEXT: usize = 1 << 12;
/// Numbers that RoPE is described with.
const ROPE_WORDS: usize = 12;

/// What the probe tells, one thing at a time.
#[derive(Clone, Debug, PartialEq)]
pub enum Record {
    /// The model; always first.
    Model {
        /// Identity that the built tree gives it.
        identity: u64,
        /// Its name.
        name: String,
    },
    /// RoPE of a layer, before anything of that layer is told.
    Rope {
        /// Number of the layer.
        layer: u32,
        /// Values of a key.
        head_dim: usize,
        /// How it turns them.
        rope: Rope,
        /// `[head_dim, head_dim]`, row `i` the image of unit vector `i` at position 1; empty
        /// without RoPE.
        step: Vec<f32>,
        /// A position far from 1.
        check_position: u32,
        /// The same at that position.
        check: Vec<f32>,
    },
    /// Vectors as they enter attention, and the cache.
    Vectors {
        /// Number of the layer.
        layer: u32,
        /// What they are.
        part: Part,
        /// Heads of each token.
        n_heads: usize,
        /// Values of each head.
        head_dim: usize,
        /// Position of the first token in its sequence.
        first: u32,
        /// `[n_tokens, n_heads, head_dim]`
        values: Vec<f32>,
    },
    /// What the scores of a layer are multiplied by.
    Scale {
        /// Number of the layer.
        layer: u32,
        /// The factor.
        scale: f32,
    },
    /// A layer that the probe does not understand.
    LeftAlone {
        /// Number of the layer.
        layer: u32,
        /// Why.
        reason: String,
    },
}

/// Reads what the probe writes. Memory is taken only for bytes that have come.
#[derive(Debug)]
pub struct Stream<R> {
    from: R,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Beginning,
    Told,
    Ended,
}

impl<R: Read> Stream<R> {
    /// Of a stream from its start.
    ///
    /// # Errors
    /// [`ProbeError::NotAStream`]; [`ProbeError::EndedEarly`]; [`ProbeError::Read`].
    pub fn new(mut from: R) -> Result<Stream<R>, ProbeError> {
        let mut magic = [0; MAGIC.len()];
        fill(&mut from, &mut magic)?;
        if magic != MAGIC {
            let found = kvforge_files::excerpt(&String::from_utf8_lossy(&magic));
            return Err(ProbeError::NotAStream { found });
        }
        let state = State::Beginning;
        Ok(Stream { from, state })
    }

    /// The next record; none at the end, which is there only if the probe said so.
    ///
    /// # Errors
    /// [`ProbeError::EndedEarly`]; [`ProbeError::Malformed`]; [`ProbeError::Read`].
    pub fn record(&mut self) -> Result<Option<Record>, ProbeError> {
        if self.state == State::Ended {
            return Ok(None);
        }
        let mut head = [0; 4 * HEAD + 8];
        fill(&mut self.from, &mut head)?;
        let (words, bytes) = head.split_at(4 * HEAD);
        let word = |i: usize| {
            words
                .as_chunks()
                .0
                .get(i)
                .map_or(0, |w| u32::from_le_bytes(*w))
        };
        let n_bytes = bytes
            .as_chunks()
            .0
            .iter()
            .map(|b| u64::from_le_bytes(*b))
            .sum();
        let [kind, layer, first] = [word(0), word(1), word(5)];
        let shape = [word(2), word(3), word(4)].map(|n| n as usize);
        demand(
            layer <= MAX_LAYER,
            || format!("a layer up to {MAX_LAYER}"),
            layer,
        )?;
        let is_first = self.state == State::Beginning;
        demand(
            is_first == (kind == 0),
            || "the model first, once".into(),
            kind,
        )?;
        self.state = State::Told;
        let record = match kind {
            0 => {
                let bytes = self.payload(n_bytes, 8..=8 + MAX_TEXT)?;
                let (identity, name) = bytes.split_at(8);
                let identity = identity
                    .as_chunks()
                    .0
                    .iter()
                    .map(|b| u64::from_le_bytes(*b))
                    .sum();
                Record::Model {
                    identity,
                    name: text(name),
                }
            }
            1 => self.rope(layer, shape[0], n_bytes)?,
            2 => self.vectors(layer, Part::Query, shape, first, n_bytes)?,
            3 => self.vectors(layer, Part::Key, shape, first, n_bytes)?,
            4 => self.vectors(layer, Part::Value, shape, first, n_bytes)?,
            5 => {
                let scale = self.floats(n_bytes, 1)?[0];
                demand(scale.is_finite(), || "a finite scale".into(), scale)?;
                Record::Scale { layer, scale }
            }
            6 => {
                let reason = text(&self.payload(n_bytes, 0..=MAX_TEXT)?);
                Record::LeftAlone { layer, reason }
            }
            7 => {
                self.payload(n_bytes, 0..=0)?;
                self.state = State::Ended;
                return Ok(None);
            }
            other => {
                return demand(false, || "a kind of record from 0 to 7".into(), other)
                    .map(|()| None);
            }
        };
        Ok(Some(record))
    }

    fn rope(&mut self, layer: u32, head_dim: usize, n_bytes: u64) -> Result<Record, ProbeError> {
        let fits = (1..=MAX_HEAD_DIM).contains(&head_dim);
        demand(
            fits,
            || format!("a head size from 1 to {MAX_HEAD_DIM}"),
            head_dim,
        )?;
        let matrix = head_dim * head_dim;
        let (without, with) = (4 * ROPE_WORDS, 4 * (ROPE_WORDS + 2 * matrix));
        let bytes = self.payload(n_bytes, without..=with)?;
        let words: Vec<u32> = bytes
            .as_chunks()
            .0
            .iter()
            .map(|w| u32::from_le_bytes(*w))
            .collect();
        let (facts, matrices) = words.split_at(ROPE_WORDS);
        let real = |i: usize| f32::from_bits(facts[i]);
        let rope = Rope {
            mode: facts[0],
            n_dims: facts[1],
            n_ctx_orig: facts[2],
            freq_base: real(3),
            freq_scale: real(4),
            ext_factor: real(5),
            attn_factor: real(6),
            beta_fast: real(7),
            beta_slow: real(8),
            has_factors: facts[9] != 0,
        };
        let expected = if rope.mode == NO_ROPE { without } else { with };
        demand(
            bytes.len() == expected,
            || format!("{expected} bytes of RoPE"),
            bytes.len(),
        )?;
        let matrices: Vec<f32> = matrices.iter().map(|w| f32::from_bits(*w)).collect();
        let (step, check) = matrices.split_at(matrices.len() / 2);
        Ok(Record::Rope {
            layer,
            head_dim,
            rope,
            step: step.to_vec(),
            check_position: facts[10],
            check: check.to_vec(),
        })
    }

    fn vectors(
        &mut self,
        layer: u32,
        part: Part,
        [head_dim, n_heads, n_tokens]: [usize; 3],
        first: u32,
        n_bytes: u64,
    ) -> Result<Record, ProbeError> {
        let fits = (1..=MAX_HEAD_DIM).contains(&head_dim)
            && (1..=MAX_HEADS).contains(&n_heads)
            && (1..=MAX_TOKENS).contains(&n_tokens);
        let found = format!("{head_dim}, {n_heads}, {n_tokens}");
        demand(
            fits,
            || "head size, heads and tokens from 1 to 4096, 4096, 65536".into(),
            found,
        )?;
        let values = self.floats(n_bytes, head_dim * n_heads * n_tokens)?;
        Ok(Record::Vectors {
            layer,
            part,
            n_heads,
            head_dim,
            first,
            values,
        })
    }

    fn floats(&mut self, n_bytes: u64, n: usize) -> Result<Vec<f32>, ProbeError> {
        let bytes = self.payload(n_bytes, 4 * n..=4 * n)?;
        Ok(bytes
            .as_chunks()
            .0
            .iter()
            .map(|b| f32::from_le_bytes(*b))
            .collect())
    }

    fn payload(
        &mut self,
        n_bytes: u64,
        allowed: std::ops::RangeInclusive<usize>,
    ) -> Result<Vec<u8>, ProbeError> {
        let n = usize::try_from(n_bytes)
            .ok()
            .filter(|n| allowed.contains(n));
        let Some(n) = n else {
            let (least, most) = (allowed.start(), allowed.end());
            let expected = format!("a payload of {least} to {most} bytes");
            return Err(ProbeError::Malformed {
                expected,
                found: n_bytes.to_string(),
            });
        };
        let mut bytes = vec![];
        let came = (&mut self.from).take(n_bytes).read_to_end(&mut bytes);
        match came.map_err(ProbeError::Read)? {
            came if came == n => Ok(bytes),
            _ => Err(ProbeError::EndedEarly),
        }
    }
}

fn fill(from: &mut impl Read, buffer: &mut [u8]) -> Result<(), ProbeError> {
    from.read_exact(buffer).map_err(|e| match e.kind() {
        io::ErrorKind::UnexpectedEof => ProbeError::EndedEarly,
        _ => ProbeError::Read(e),
    })
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn demand(
    holds: bool,
    expected: impl FnOnce() -> String,
    found: impl ToString,
) -> Result<(), ProbeError> {
    match holds {
        true => Ok(()),
        false => Err(ProbeError::Malformed {
            expected: expected(),
            found: found.to_string(),
        }),
    }
}
