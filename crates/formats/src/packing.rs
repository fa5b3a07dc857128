/// Where the codes of a block stand in the bytes that follow its scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// Code `i` takes bits `w*i .. w*(i + 1)` of one string, least significant
    /// bit first, for codes of `w` bits.
    Stream,
    /// Byte `j` holds code `j` in its low and code `j + n/2` in its high nibble,
    /// for blocks of `n` values.
    SplitNibbles,
}

impl Packing {
    /// Writes `codes` of `width` bits; `bytes` is as long as they need.
    pub(crate) fn pack(self, width: usize, codes: &[u8], bytes: &mut [u8]) {
        match self {
            // Eight codes of `width` bits are `width` whole bytes.
            Packing::Stream => {
                for (codes, bytes) in codes.chunks_exact(8).zip(bytes.chunks_exact_mut(width)) {
                    let word = codes
                        .iter()
                        .rev()
                        .fold(0u64, |word, &code| word << width | u64::from(code));
                    bytes.copy_from_slice(&word.to_le_bytes()[..width]);
                }
            }
            Packing::SplitNibbles => {
                let (low, high) = codes.split_at(codes.len() / 2);
                for ((byte, low), high) in bytes.iter_mut().zip(low).zip(high) {
                    *byte = low | high << 4;
                }
            }
        }
    }

    /// The inverse of `pack`.
    pub(crate) fn unpack(self, width: usize, bytes: &[u8], codes: &mut [u8]) {
        match self {
            Packing::Stream => {
                let mask = (1 << width) - 1;
                for (codes, bytes) in codes.chunks_exact_mut(8).zip(bytes.chunks_exact(width)) {
                    let mut word = [0; 8];
                    word[..width].copy_from_slice(bytes);
                    let word = u64::from_le_bytes(word);
                    for (i, code) in codes.iter_mut().enumerate() {
                        *code = (word >> (width * i) & mask) as u8;
                    }
                }
            }
            Packing::SplitNibbles => {
                let (low, high) = codes.split_at_mut(codes.len() / 2);
                for ((byte, low), high) in bytes.iter().zip(low).zip(high) {
                    (*low, *high) = (byte & 0xf, byte >> 4);
                }
            }
        }
    }
}
