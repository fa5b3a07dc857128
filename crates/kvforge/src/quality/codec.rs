use kvforge_formats::{Domain, FORMATS, FormatSpec, Role, by_name};

use crate::Error;
use crate::npy::Array;
use crate::peers::{self, PEERS, Peer};
use crate::rows::{self, Encoder};

/// Something that codes and decodes vectors: a format of ours or a peer.
pub(super) enum Codec {
    Format(&'static FormatSpec, Encoder),
    Peer(&'static Peer),
}

/// The name of everything that can be measured: formats first, then peers.
pub fn names() -> impl Iterator<Item = &'static str> {
    let formats = FORMATS.iter().map(|f| f.name);
    formats.chain(PEERS.iter().map(|p| p.name))
}

impl Codec {
    pub fn by_name(name: &str, encoder: Encoder) -> Result<Codec, Error> {
        let format = by_name(name).map(|spec| Codec::Format(spec, encoder));
        format
            .or_else(|| Peer::by_name(name).map(Codec::Peer))
            .ok_or_else(|| Error::UnknownFormat {
                name: name.into(),
                known: rows::names(names()),
            })
    }

    pub fn name(&self) -> &'static str {
        match self {
            Codec::Format(spec, _) => spec.name,
            Codec::Peer(peer) => peer.name,
        }
    }

    pub fn bits_per_value(&self) -> f64 {
        match self {
            Codec::Format(spec, _) => spec.bits_per_value(),
            Codec::Peer(peer) => peer.bits_per_value(),
        }
    }

    /// Whether what it decodes to can be mixed, and not only scored.
    pub fn holds_v(&self) -> bool {
        match self {
            Codec::Format(spec, _) => spec.role != Role::Keys,
            Codec::Peer(_) => true,
        }
    }

    /// Why it cannot hold heads of `head_dim` values, if so.
    pub fn fits(&self, head_dim: usize) -> Result<(), String> {
        let (multiple, what) = match self {
            Codec::Format(spec, _) => (spec.block_len, "block"),
            Codec::Peer(peer) => (peer.multiple(), "block or rotation"),
        };
        if head_dim.is_multiple_of(multiple) {
            return Ok(());
        }
        Err(format!(
            "head size {head_dim} is not a multiple of {multiple} values, its {what}"
        ))
    }

    /// Codes and decodes the vectors of `head_dim` values in `x`, which
    /// [`fits`](Codec::fits), in place.
    pub fn simulate(
        &self,
        x: &mut Vec<f32>,
        head_dim: usize,
        role: peers::Role,
    ) -> Result<(), Error> {
        match self {
            Codec::Peer(peer) => peer.simulate(x, head_dim, role),
            Codec::Format(spec, encoder) => {
                let array = Array::new(head_dim, std::mem::take(x))?;
                let bytes = rows::encode(spec, *encoder, &array)?;
                *x = rows::decode(spec, Domain::Original, &bytes, head_dim)?.into_data();
            }
        }
        Ok(())
    }
}
