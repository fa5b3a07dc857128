use crate::{Code, FormatSpec, Packing, Rotation, Transform};

impl FormatSpec {
    /// A number that is the same for the same meaning of bytes: 64-bit FNV-1a over
    /// the sizes, the transform, the packing and the codebook. What is kept in a
    /// file carries it beside the name, so that bytes are never read by another
    /// layout than the one they were written by.
    ///
    /// It goes over every entry of the codebook: work for the compiler.
    pub const fn layout_hash(&self) -> u64 {
        let hash = Fnv(0xcbf2_9ce4_8422_2325)
            .add(self.block_len as u128)
            .add(self.block_bytes as u128);
        let hash = match self.transform {
            Transform::Rotation(Rotation::SignedHadamard32 { negative }) => {
                hash.add(1).add(negative as u128)
            }
            Transform::Rotation(Rotation::SignedHadamard128 { before, after }) => {
                hash.add(2).add(before).add(after)
            }
            Transform::Sketch => hash.add(3),
        };
        let hash = match &self.code {
            Code::Scalar {
                bits,
                packing,
                codebook,
                unit,
            } => hash
                .add(match packing {
                    Packing::Stream => 1,
                    Packing::SplitNibbles => 2,
                    Packing::SplitPlanes => 3,
                })
                .add(*bits as u128)
                .values(codebook)
                .values(&[*unit]),
            Code::Trellis { codebook } => hash.add(4).values(*codebook),
            Code::Signs { unit } => hash.add(5).values(&[*unit]),
        };
        hash.0
    }
}

struct Fnv(u64);

impl Fnv {
    const fn add(self, value: u128) -> Fnv {
        let bytes = value.to_le_bytes();
        let (mut hash, mut i) = (self.0, 0);
        while i < bytes.len() {
            hash = (hash ^ bytes[i] as u64).wrapping_mul(0x0000_0100_0000_01b3);
            i += 1;
        }
        Fnv(hash)
    }

    const fn values(self, values: &[f32]) -> Fnv {
        let (mut hash, mut i) = (self, 0);
        while i < values.len() {
            hash = hash.add(values[i].to_bits() as u128);
            i += 1;
        }
        hash
    }
}
