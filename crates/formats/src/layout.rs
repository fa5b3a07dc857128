use crate::{Code, Fnv, FormatSpec, Packing, Rotation, Transform};

impl FormatSpec {
    /// A number that is the same for the same meaning of bytes: 64-bit FNV-1a over
    /// the sizes, the transform, the packing and the codebook. What is kept in a
    /// file carries it beside the name, so that bytes are never read by another
    /// layout than the one they were written by.
    ///
    /// It goes over every entry of the codebook: work for the compiler.
    pub const fn layout_hash(&self) -> u64 {
        let hash = add(Fnv::new(), self.block_len as u128);
        let hash = add(hash, self.block_bytes as u128);
        let hash = match self.transform {
            Transform::Rotation(Rotation::SignedHadamard32 { negative }) => {
                add(add(hash, 1), negative as u128)
            }
            Transform::Rotation(Rotation::SignedHadamard128 { before, after }) => {
                add(add(add(hash, 2), before), after)
            }
            Transform::Sketch => add(hash, 3),
        };
        let hash = match &self.code {
            Code::Scalar {
                bits,
                packing,
                codebook,
                unit,
            } => {
                let packing = match packing {
                    Packing::Stream => 1,
                    Packing::SplitNibbles => 2,
                    Packing::SplitPlanes => 3,
                };
                let hash = add(add(hash, packing), *bits as u128);
                values(values(hash, codebook), &[*unit])
            }
            Code::Trellis { codebook } => values(add(hash, 4), *codebook),
            Code::Signs { unit } => values(add(hash, 5), &[*unit]),
        };
        hash.finish()
    }
}

/// A number, as 128 bits.
const fn add(hash: Fnv, value: u128) -> Fnv {
    hash.bytes(&value.to_le_bytes())
}

const fn values(hash: Fnv, values: &[f32]) -> Fnv {
    let (mut hash, mut i) = (hash, 0);
    while i < values.len() {
        hash = add(hash, values[i].to_bits() as u128);
        i += 1;
    }
    hash
}
