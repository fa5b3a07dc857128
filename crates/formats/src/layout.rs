use crate::{Code, FormatSpec, Packing, Rotation, Transform};

impl FormatSpec {
    /// A number that is the same for the same meaning of bytes: 64-bit FNV-1a over
    /// the sizes, the transform, the packing and the codebook. What is kept in a
    /// file carries it beside the name, so that bytes are never read by another
    /// layout than the one they were written by.
    pub fn layout_hash(&self) -> u64 {
        let mut hash = Fnv(0xcbf2_9ce4_8422_2325);
        hash.add(self.block_len as u128);
        hash.add(self.block_bytes as u128);
        match self.transform {
            Transform::Rotation(Rotation::SignedHadamard32 { negative }) => {
                hash.add(1);
                hash.add(negative.into());
            }
            Transform::Rotation(Rotation::SignedHadamard128 { before, after }) => {
                hash.add(2);
                hash.add(before);
                hash.add(after);
            }
            Transform::Sketch => hash.add(3),
        }
        match &self.code {
            Code::Scalar {
                bits,
                packing,
                codebook,
                unit,
            } => {
                hash.add(match packing {
                    Packing::Stream => 1,
                    Packing::SplitNibbles => 2,
                    Packing::SplitPlanes => 3,
                });
                hash.add(*bits as u128);
                hash.values(codebook);
                hash.values(&[*unit]);
            }
            Code::Trellis { codebook } => {
                hash.add(4);
                hash.values(*codebook);
            }
            Code::Signs { unit } => {
                hash.add(5);
                hash.values(&[*unit]);
            }
        }
        hash.0
    }
}

struct Fnv(u64);

impl Fnv {
    fn add(&mut self, value: u128) {
        for byte in value.to_le_bytes() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    fn values(&mut self, values: &[f32]) {
        for value in values {
            self.add(value.to_bits().into());
        }
    }
}
