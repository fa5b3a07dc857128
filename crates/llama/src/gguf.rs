//! The header of a GGUF model file: the few numbers that say how large its KV
//! cache is. Nothing is believed: every length is met by bytes before memory is
//! taken for it, and no input makes this panic.

use std::collections::BTreeMap;
use std::io::{self, BufReader, Read};
use std::path::Path;

/// Longest string that is kept; longer ones, chat templates say, are skipped.
const MAX_STRING: u64 = 1 << 12;
/// Longest array that is kept: one number a layer. Vocabularies are skipped.
const MAX_ARRAY: u64 = 1 << 12;
/// Arrays of arrays of arrays ... go no deeper in any model.
const MAX_DEPTH: usize = 4;
/// llama.cpp itself allows no more layers.
const MAX_LAYERS: u64 = 512;

/// Why a file does not say how large its KV cache is.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GgufError {
    /// It cannot be read, or ends in the middle of its header.
    #[error("expected the header of a GGUF model, found: {0}")]
    Read(io::Error),
    /// It is something else, or damaged.
    #[error("expected {expected} in the header of a GGUF model, found {found}")]
    Malformed {
        /// What should stand there.
        expected: &'static str,
        /// What does.
        found: String,
    },
    /// A key that is needed is not there, or says something else than a count.
    #[error("expected the key `{key}` in the header of a GGUF model to be {expected}")]
    Key {
        /// The key.
        key: String,
        /// What it should be.
        expected: &'static str,
    },
    /// Its attention is of a kind whose cache is not one row a token and layer.
    #[error(
        "this model has {what}, so how often a kernel must run cannot be told from its header; use another model"
    )]
    Unknowable {
        /// What it has.
        what: &'static str,
    },
}

impl From<io::Error> for GgufError {
    fn from(cause: io::Error) -> GgufError {
        GgufError::Read(cause)
    }
}

/// Keys and values of a header, as far as they are small.
#[derive(Clone, Debug, Default)]
pub struct Header {
    values: BTreeMap<String, Value>,
}

#[derive(Clone, Debug, PartialEq)]
enum Value {
    Unsigned(u64),
    Text(String),
    Array(Vec<u64>),
    /// Negative, floating, nested or too long: nothing that is asked for here.
    Other,
}

/// Attention of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layer {
    /// Query heads.
    pub n_head: u64,
    /// Heads of K and V; 0 for a layer without a KV cache.
    pub n_head_kv: u64,
    /// Values of a key.
    pub head_dim_k: u64,
    /// Values of a value.
    pub head_dim_v: u64,
}

impl Header {
    /// Reads the header of a model file.
    ///
    /// # Errors
    /// [`GgufError::Read`] or [`GgufError::Malformed`].
    pub fn open(path: &Path) -> Result<Header, GgufError> {
        Header::read(&mut BufReader::new(kvforge_files::open(path)?))
    }

    /// Reads a header, GGUF version 2 or 3, little-endian; leaves `from` before
    /// the table of tensors.
    ///
    /// # Errors
    /// [`GgufError::Read`] or [`GgufError::Malformed`].
    pub fn read(from: &mut impl Read) -> Result<Header, GgufError> {
        let magic: [u8; 4] = bytes(from)?;
        if magic != *b"GGUF" {
            return Err(malformed(
                "`GGUF` as the first bytes",
                format!("{magic:02x?}"),
            ));
        }
        let version = u32::from_le_bytes(bytes(from)?);
        if !(2..=3).contains(&version) {
            return Err(malformed("version 2 or 3", version));
        }
        let _tensors = u64::from_le_bytes(bytes(from)?);
        let count = u64::from_le_bytes(bytes(from)?);
        let mut values = BTreeMap::new();
        // Every turn reads some bytes, so that a false count ends with the file.
        for _ in 0..count {
            let key = string(from)?.ok_or_else(|| malformed("a short key", "a long one"))?;
            let kind = u32::from_le_bytes(bytes(from)?);
            let value = value(from, kind, 0)?;
            if value != Value::Other {
                values.insert(key, value);
            }
        }
        Ok(Header { values })
    }

    /// Name of the model's architecture.
    ///
    /// # Errors
    /// [`GgufError::Key`].
    pub fn architecture(&self) -> Result<&str, GgufError> {
        match self.values.get("general.architecture") {
            Some(Value::Text(name)) => Ok(name),
            _ => Err(key_error("general.architecture", "a short text")),
        }
    }

    /// Attention of every layer, as llama.cpp works it out.
    ///
    /// # Errors
    /// [`GgufError::Key`], or [`GgufError::Unknowable`] for models whose layers
    /// share a cache, compress it, or mix head sizes in a way that the header
    /// does not spell out.
    pub fn layers(&self) -> Result<Vec<Layer>, GgufError> {
        let arch = self.architecture()?;
        let key = |name: &str| format!("{arch}.{name}");
        for (name, what) in [
            ("attention.kv_lora_rank", "latent attention"),
            ("attention.shared_kv_layers", "layers that share a cache"),
            ("attention.compress_ratios", "a compressed cache"),
            ("attention.recurrent_layers", "recurrent layers"),
            ("attention.indexer.head_count", "sparse attention"),
            ("ssm.state_size", "recurrent layers"),
            ("wkv.head_size", "recurrent layers"),
        ] {
            if !matches!(self.values.get(&key(name)), None | Some(Value::Unsigned(0))) {
                return Err(GgufError::Unknowable { what });
            }
        }
        let all = self.number(&key("block_count"))?;
        let predicting = self.optional(&key("nextn_predict_layers"))?.unwrap_or(0);
        let n = match all.checked_sub(predicting) {
            Some(n) if (1..=MAX_LAYERS).contains(&n) => n as usize,
            _ => return Err(key_error(&key("block_count"), "1 to 512")),
        };

        let heads = self.per_layer(&key("attention.head_count"), n)?;
        let heads = heads.ok_or_else(|| key_error(&key("attention.head_count"), "a count"))?;
        let heads_kv = self.per_layer(&key("attention.head_count_kv"), n)?;
        let heads_kv = heads_kv.unwrap_or_else(|| heads.clone());

        // Like llama.cpp, which takes the first layer's number of heads.
        let default = || -> Result<u64, GgufError> {
            let width = self.number(&key("embedding_length"))?;
            width.checked_div(heads[0]).ok_or_else(|| {
                key_error(&key("attention.head_count"), "positive in the first layer")
            })
        };
        let size = |name: &str| match self.optional(&key(name))? {
            Some(size) => Ok(size),
            None => default(),
        };
        let full = (
            size("attention.key_length")?,
            size("attention.value_length")?,
        );
        let window = (
            self.optional(&key("attention.key_length_swa"))?
                .unwrap_or(full.0),
            self.optional(&key("attention.value_length_swa"))?
                .unwrap_or(full.1),
        );
        let pattern = match self.values.get(&key("attention.sliding_window_pattern")) {
            _ if window == full => vec![0; n],
            Some(Value::Array(pattern)) if pattern.len() >= n => pattern.clone(),
            _ => {
                let what = "other head sizes in its sliding-window layers, and does not list these";
                return Err(GgufError::Unknowable { what });
            }
        };

        Ok((0..n)
            .map(|i| {
                let (head_dim_k, head_dim_v) = if pattern[i] == 0 { full } else { window };
                Layer {
                    n_head: heads[i],
                    n_head_kv: heads_kv[i],
                    head_dim_k,
                    head_dim_v,
                }
            })
            .collect())
    }

    fn optional(&self, key: &str) -> Result<Option<u64>, GgufError> {
        match self.values.get(key) {
            None => Ok(None),
            Some(Value::Unsigned(n)) if *n <= u64::from(u32::MAX) => Ok(Some(*n)),
            Some(_) => Err(key_error(key, "a count")),
        }
    }

    fn number(&self, key: &str) -> Result<u64, GgufError> {
        self.optional(key)?.ok_or_else(|| key_error(key, "a count"))
    }

    /// One number a layer, of a key that holds one for all or one for each.
    fn per_layer(&self, key: &str, n: usize) -> Result<Option<Vec<u64>>, GgufError> {
        match self.values.get(key) {
            Some(Value::Array(all)) => {
                let fits = all.len() >= n && all.iter().all(|v| *v <= u64::from(u32::MAX));
                match fits {
                    true => Ok(Some(all[..n].to_vec())),
                    false => Err(key_error(key, "a count for every layer")),
                }
            }
            _ => Ok(self.optional(key)?.map(|one| vec![one; n])),
        }
    }
}

fn malformed(expected: &'static str, found: impl ToString) -> GgufError {
    GgufError::Malformed {
        expected,
        found: found.to_string(),
    }
}

fn key_error(key: &str, expected: &'static str) -> GgufError {
    GgufError::Key {
        key: key.into(),
        expected,
    }
}

fn bytes<const N: usize>(from: &mut impl Read) -> io::Result<[u8; N]> {
    let mut out = [0; N];
    from.read_exact(&mut out)?;
    Ok(out)
}

fn skip(from: &mut impl Read, n: u64) -> io::Result<()> {
    match io::copy(&mut from.take(n), &mut io::sink())? {
        skipped if skipped == n => Ok(()),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// A string, or `None` if it is long; it is then skipped.
fn string(from: &mut impl Read) -> Result<Option<String>, GgufError> {
    let len = u64::from_le_bytes(bytes(from)?);
    if len > MAX_STRING {
        skip(from, len)?;
        return Ok(None);
    }
    let mut text = vec![0; len as usize];
    from.read_exact(&mut text)?;
    match String::from_utf8(text) {
        Ok(text) => Ok(Some(text)),
        Err(_) => Err(malformed("UTF-8 text", "other bytes")),
    }
}

fn value(from: &mut impl Read, kind: u32, depth: usize) -> Result<Value, GgufError> {
    let signed = |n: i64| u64::try_from(n).map_or(Value::Other, Value::Unsigned);
    Ok(match kind {
        0 | 7 => Value::Unsigned(u8::from_le_bytes(bytes(from)?).into()),
        1 => signed(i8::from_le_bytes(bytes(from)?).into()),
        2 => Value::Unsigned(u16::from_le_bytes(bytes(from)?).into()),
        3 => signed(i16::from_le_bytes(bytes(from)?).into()),
        4 => Value::Unsigned(u32::from_le_bytes(bytes(from)?).into()),
        5 => signed(i32::from_le_bytes(bytes(from)?).into()),
        6 => {
            skip(from, 4)?;
            Value::Other
        }
        8 => string(from)?.map_or(Value::Other, Value::Text),
        9 => array(from, depth)?,
        10 => Value::Unsigned(u64::from_le_bytes(bytes(from)?)),
        11 => signed(i64::from_le_bytes(bytes(from)?)),
        12 => {
            skip(from, 8)?;
            Value::Other
        }
        _ => return Err(malformed("a type of value from 0 to 12", kind)),
    })
}

fn array(from: &mut impl Read, depth: usize) -> Result<Value, GgufError> {
    if depth == MAX_DEPTH {
        return Err(malformed("arrays no deeper than 4", "a deeper one"));
    }
    let kind = u32::from_le_bytes(bytes(from)?);
    let count = u64::from_le_bytes(bytes(from)?);
    let mut numbers = Some(vec![]);
    for _ in 0..count {
        match (value(from, kind, depth + 1)?, &mut numbers) {
            (Value::Unsigned(n), Some(kept)) if count <= MAX_ARRAY => kept.push(n),
            _ => numbers = None,
        }
    }
    Ok(numbers.map_or(Value::Other, Value::Array))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A header being written.
    #[derive(Default)]
    struct Writer {
        count: u64,
        body: Vec<u8>,
    }

    impl Writer {
        fn key(mut self, key: &str, kind: u32, value: &[u8]) -> Self {
            self.count += 1;
            self.body.extend(text(key));
            self.body.extend(kind.to_le_bytes());
            self.body.extend(value);
            self
        }

        fn number(self, key: &str, n: u32) -> Self {
            self.key(key, 4, &n.to_le_bytes())
        }

        fn numbers(self, key: &str, all: &[i32]) -> Self {
            let mut value = 5u32.to_le_bytes().to_vec();
            value.extend((all.len() as u64).to_le_bytes());
            value.extend(all.iter().flat_map(|n| n.to_le_bytes()));
            self.key(key, 9, &value)
        }

        fn flags(self, key: &str, all: &[bool]) -> Self {
            let mut value = 7u32.to_le_bytes().to_vec();
            value.extend((all.len() as u64).to_le_bytes());
            value.extend(all.iter().map(|&b| u8::from(b)));
            self.key(key, 9, &value)
        }

        fn finish(self) -> Vec<u8> {
            let mut file = b"GGUF".to_vec();
            file.extend(3u32.to_le_bytes());
            file.extend(7u64.to_le_bytes());
            file.extend(self.count.to_le_bytes());
            file.extend(self.body);
            file
        }

        fn layers(self) -> Result<Vec<Layer>, GgufError> {
            Header::read(&mut self.finish().as_slice())?.layers()
        }
    }

    fn text(s: &str) -> Vec<u8> {
        let mut out = (s.len() as u64).to_le_bytes().to_vec();
        out.extend(s.as_bytes());
        out
    }

    /// What every model has, and a vocabulary to be skipped.
    fn model() -> Writer {
        let mut vocabulary = 8u32.to_le_bytes().to_vec();
        vocabulary.extend(5000u64.to_le_bytes());
        for i in 0..5000 {
            vocabulary.extend(text(&format!("token {i}")));
        }
        Writer::default()
            .key("general.architecture", 8, &text("arch"))
            .key("tokenizer.ggml.tokens", 9, &vocabulary)
            .key("tokenizer.chat_template", 8, &text(&"x".repeat(10_000)))
            .key("arch.rope.freq_base", 6, &1e4f32.to_le_bytes())
            .number("arch.block_count", 3)
            .number("arch.embedding_length", 576)
    }

    const LAYER: Layer = Layer {
        n_head: 9,
        n_head_kv: 3,
        head_dim_k: 64,
        head_dim_v: 64,
    };

    #[test]
    fn plain_model() {
        let plain = model().number("arch.attention.head_count", 9);
        let grouped = plain.number("arch.attention.head_count_kv", 3);
        assert_eq!(grouped.layers().unwrap(), [LAYER; 3]);
        // Without a number of kv heads there are as many as query heads.
        let plain = model().number("arch.attention.head_count", 9);
        assert_eq!(
            plain.layers().unwrap(),
            [Layer {
                n_head_kv: 9,
                ..LAYER
            }; 3]
        );
    }

    #[test]
    fn heads_and_sizes_by_layer() {
        let layers = model()
            .numbers("arch.attention.head_count", &[8, 4, 8])
            .numbers("arch.attention.head_count_kv", &[2, 0, 1])
            .number("arch.attention.key_length", 256)
            .number("arch.attention.value_length", 128)
            .number("arch.attention.key_length_swa", 64)
            .flags(
                "arch.attention.sliding_window_pattern",
                &[true, false, true],
            )
            .layers()
            .unwrap();
        let layer = |n_head, n_head_kv, head_dim_k| Layer {
            n_head,
            n_head_kv,
            head_dim_k,
            head_dim_v: 128,
        };
        assert_eq!(layers, [layer(8, 2, 64), layer(4, 0, 256), layer(8, 1, 64)]);
    }

    #[test]
    fn predicting_layers_do_not_count() {
        let layers = model()
            .number("arch.attention.head_count", 9)
            .number("arch.attention.head_count_kv", 3)
            .number("arch.nextn_predict_layers", 1)
            .layers();
        assert_eq!(layers.unwrap(), [LAYER; 2]);
    }

    #[test]
    fn what_cannot_be_known_is_refused() {
        for key in [
            "attention.kv_lora_rank",
            "attention.shared_kv_layers",
            "ssm.state_size",
        ] {
            let model = model()
                .number("arch.attention.head_count", 9)
                .number(&format!("arch.{key}"), 2);
            assert!(
                matches!(model.layers(), Err(GgufError::Unknowable { .. })),
                "{key}"
            );
        }
        let unlisted = model()
            .number("arch.attention.head_count", 9)
            .number("arch.attention.key_length_swa", 32)
            .number("arch.attention.sliding_window_pattern", 6);
        assert!(matches!(
            unlisted.layers(),
            Err(GgufError::Unknowable { .. })
        ));
    }

    #[test]
    fn wrong_counts_are_refused() {
        let heads = "arch.attention.head_count";
        let refused = |model: Writer| matches!(model.layers(), Err(GgufError::Key { .. }));
        assert!(refused(model()));
        assert!(refused(model().number(heads, 0)));
        assert!(refused(model().numbers(heads, &[9, 9])));
        assert!(refused(model().numbers(heads, &[9, -1, 9])));
        assert!(refused(
            model().number(heads, 9).number("arch.block_count", 0)
        ));
        assert!(refused(
            model()
                .number(heads, 9)
                .number("arch.block_count", u32::MAX)
        ));
        assert!(refused(
            model()
                .number(heads, 9)
                .number("arch.nextn_predict_layers", 4)
        ));
        assert!(refused(Writer::default()));
    }

    #[test]
    fn other_files_are_refused() {
        let good = model().finish();
        for (at, byte) in [(0, b'X'), (4, 1), (4, 4)] {
            let mut file = good.clone();
            file[at] = byte;
            let read = Header::read(&mut file.as_slice());
            assert!(
                matches!(read, Err(GgufError::Malformed { .. })),
                "byte {at}"
            );
        }
        for len in (0..good.len()).step_by(97) {
            let read = Header::read(&mut &good[..len]);
            assert!(matches!(read, Err(GgufError::Read(_))), "{len} bytes");
        }
    }

    #[test]
    fn lengths_are_not_believed() {
        let huge = u64::MAX.to_le_bytes();
        let array_of = |kind: u32| [&kind.to_le_bytes()[..], &huge].concat();
        for (kind, value) in [
            (8, huge.to_vec()),
            (9, array_of(0)),
            (9, array_of(8)),
            (9, array_of(9)),
        ] {
            let file = Writer::default().key("k", kind, &value).finish();
            assert!(Header::read(&mut file.as_slice()).is_err());
        }
        let mut file = Writer::default().finish();
        file[16..24].copy_from_slice(&huge);
        assert!(Header::read(&mut file.as_slice()).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let file = [&model().finish()[..24], &bytes].concat();
            if let Ok(header) = Header::read(&mut file.as_slice()) {
                let _ = header.layers();
            }
        }

        #[test]
        fn damaged_headers_are_read_or_refused(
            damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)
        ) {
            let writer = Writer::default()
                .key("general.architecture", 8, &text("arch"))
                .number("arch.block_count", 3)
                .number("arch.embedding_length", 576)
                .numbers("arch.attention.head_count", &[8, 4, 8])
                .number("arch.attention.key_length_swa", 64)
                .flags("arch.attention.sliding_window_pattern", &[true, false, true]);
            let mut file = writer.finish();
            for (at, byte) in damage {
                let at = at.index(file.len());
                file[at] = byte;
            }
            if let Ok(header) = Header::read(&mut file.as_slice()) {
                let _ = header.layers();
            }
        }
    }
}
