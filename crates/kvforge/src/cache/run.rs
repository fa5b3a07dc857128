//! Consecutive tokens: their keys and values as bytes.

use std::ops::Range;

use crate::Error;

/// Keys and values of the tokens of some consecutive positions.
#[derive(Clone, Debug)]
pub(super) struct Run {
    start: usize,
    n: usize,
    /// Of one token: its keys, its values.
    token_bytes: [usize; 2],
    /// `[n, token_bytes]` of keys and of values.
    bytes: [Vec<u8>; 2],
}

impl Run {
    pub(super) fn new(token_bytes: [usize; 2]) -> Run {
        Run {
            start: 0,
            n: 0,
            token_bytes,
            bytes: [vec![], vec![]],
        }
    }

    /// Positions of the tokens; an empty run stands at `otherwise`.
    pub(super) fn positions(&self, otherwise: usize) -> Range<usize> {
        match self.n {
            0 => otherwise..otherwise,
            n => self.start..self.start + n,
        }
    }

    /// All keys and all values.
    pub(super) fn data(&self) -> [&[u8]; 2] {
        [&self.bytes[0], &self.bytes[1]]
    }

    /// Bytes of the tokens.
    pub(super) fn size(&self) -> usize {
        self.n * (self.token_bytes[0] + self.token_bytes[1])
    }

    /// Makes room for `n` tokens in all.
    pub(super) fn reserve(&mut self, n: usize) -> Result<(), Error> {
        for (bytes, size) in self.bytes.iter_mut().zip(self.token_bytes) {
            let more = n.saturating_mul(size).saturating_sub(bytes.len());
            bytes.try_reserve_exact(more).map_err(|_| {
                let expected = "a capacity that memory can hold (lower it)";
                Error::mismatch(expected, format!("{n} tokens of {size} bytes"))
            })?;
        }
        Ok(())
    }

    /// Takes `n` tokens from `position` on, which follow those that are here.
    /// `write` fills in the bytes of their keys and values; if it fails, no token
    /// is taken.
    pub(super) fn append(
        &mut self,
        position: usize,
        n: usize,
        write: impl FnOnce([&mut [u8]; 2]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let [keys, values] = &mut self.bytes;
        let old = [keys.len(), values.len()];
        keys.resize(old[0] + n * self.token_bytes[0], 0);
        values.resize(old[1] + n * self.token_bytes[1], 0);
        let done = write([&mut keys[old[0]..], &mut values[old[1]..]]);
        if done.is_err() {
            keys.truncate(old[0]);
            values.truncate(old[1]);
            return done;
        }
        if self.n == 0 {
            self.start = position;
        }
        self.n += n;
        done
    }

    /// Removes the tokens from position `end` on.
    pub(super) fn truncate(&mut self, end: usize) {
        self.n = end.saturating_sub(self.start).min(self.n);
        for (bytes, size) in self.bytes.iter_mut().zip(self.token_bytes) {
            bytes.truncate(self.n * size);
        }
    }

    /// Removes all but the newest `n` tokens.
    pub(super) fn keep_newest(&mut self, n: usize) {
        let gone = self.n.saturating_sub(n);
        self.start += gone;
        self.n -= gone;
        for (bytes, size) in self.bytes.iter_mut().zip(self.token_bytes) {
            bytes.drain(..gone * size);
            // A long batch that stood here must not hold its memory for ever.
            bytes.shrink_to(4 * bytes.len());
        }
    }
}
