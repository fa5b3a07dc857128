/// 64-bit FNV-1a: finds damage and mistaken identity, not forgery.
#[derive(Clone, Copy, Debug)]
pub struct Fnv(u64);

impl Fnv {
    /// The hash of nothing.
    pub const fn new() -> Fnv {
        Fnv(0xcbf2_9ce4_8422_2325)
    }

    /// The hash of what went before and these bytes after it.
    #[must_use]
    pub const fn bytes(self, bytes: &[u8]) -> Fnv {
        let (mut hash, mut i) = (self.0, 0);
        while i < bytes.len() {
            hash = (hash ^ bytes[i] as u64).wrapping_mul(0x0000_0100_0000_01b3);
            i += 1;
        }
        Fnv(hash)
    }

    /// The number that it comes to.
    pub const fn finish(self) -> u64 {
        self.0
    }
}

impl Default for Fnv {
    fn default() -> Fnv {
        Fnv::new()
    }
}
