/// Where the fp16 scale and the codes of a block stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// The scale, then one string of bits, least significant first: code `i` takes
    /// bits `w*i .. w*(i + 1)` of it, for codes of `w` bits.
    Stream,
    /// The scale, then bytes: byte `j` holds code `j` in its low and code
    /// `j + n/2` in its high nibble, for blocks of `n` values.
    SplitNibbles,
    /// Codes of 3 bits. For every 32 values 14 bytes: the scale (the same one in
    /// every group of a block), then 8 bytes with the two low bits of each code and
    /// 4 bytes with its high bit, both in order, least significant first.
    SplitPlanes,
}

/// Bytes of an fp16 scale.
const SCALE: usize = 2;

/// Values and bytes of a group of [`Packing::SplitPlanes`], and where the high
/// bits start in it.
const GROUP: usize = 32;
const GROUP_BYTES: usize = 14;
const HIGH_BITS: usize = 10;

impl Packing {
    /// Writes an fp16 scale and `codes` of `width` bits.
    ///
    /// # Panics
    /// If `block` is shorter than they need.
    pub fn pack(self, width: usize, scale: u16, codes: &[u8], block: &mut [u8]) {
        if self == Packing::SplitPlanes {
            let groups = block.as_chunks_mut::<GROUP_BYTES>().0.iter_mut();
            for (codes, group) in codes.as_chunks::<GROUP>().0.iter().zip(groups) {
                *group = [0; GROUP_BYTES];
                group[..SCALE].copy_from_slice(&scale.to_le_bytes());
                for (i, code) in codes.iter().enumerate() {
                    group[SCALE + i / 4] |= (code & 3) << (2 * (i % 4));
                    group[HIGH_BITS + i / 8] |= (code >> 2) << (i % 8);
                }
            }
            return;
        }
        let (head, bytes) = block.split_at_mut(SCALE);
        head.copy_from_slice(&scale.to_le_bytes());
        if self == Packing::SplitNibbles {
            let (low, high) = codes.split_at(codes.len() / 2);
            for ((byte, low), high) in bytes.iter_mut().zip(low).zip(high) {
                *byte = low | high << 4;
            }
            return;
        }
        // Eight codes of `width` bits are `width` whole bytes.
        for (codes, bytes) in codes.chunks_exact(8).zip(bytes.chunks_exact_mut(width)) {
            let word = codes
                .iter()
                .rev()
                .fold(0u64, |word, &code| word << width | u64::from(code));
            bytes.copy_from_slice(&word.to_le_bytes()[..width]);
        }
    }

    /// The codes of a block.
    pub(crate) fn unpack(self, width: usize, block: &[u8], codes: &mut [u8]) {
        let bytes = &block[SCALE..];
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
            Packing::SplitPlanes => {
                let groups = block.as_chunks::<GROUP_BYTES>().0.iter();
                for (codes, group) in codes.as_chunks_mut::<GROUP>().0.iter_mut().zip(groups) {
                    for (i, code) in codes.iter_mut().enumerate() {
                        let low = group[SCALE + i / 4] >> (2 * (i % 4)) & 3;
                        let high = group[HIGH_BITS + i / 8] >> (i % 8) & 1;
                        *code = low | high << 2;
                    }
                }
            }
        }
    }

    /// The scale of value `i` of a block.
    pub(crate) fn scale(self, block: &[u8], i: usize) -> u16 {
        let at = match self {
            Packing::SplitPlanes => i / GROUP * GROUP_BYTES,
            Packing::Stream | Packing::SplitNibbles => 0,
        };
        u16::from_le_bytes([block[at], block[at + 1]])
    }
}
