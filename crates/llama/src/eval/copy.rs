//! The copy task: can the model still find in its cache what it has read?
//!
//! The text is one passage, repeated. The passage has at most half as many tokens as
//! the window, so each token of the second half, which is what gets scored, stood in
//! the window before, and after the same tokens. Its words are put together at random
//! from sounds of English: no grammar and no knowledge predicts them, only the cache.
//!
//! How many tokens a passage has depends on the model, and its own program says it: a
//! text too short to be scored is refused with the number of its tokens.

/// Longest word in bytes, with the space before it.
const LONGEST: usize = 11;

/// Passages have at most this share of the window.
const SHARE: usize = 2;

/// With a perplexity above this on the f16 cache, a model does not copy.
pub(crate) const COPIES_BELOW: f64 = 2.0;

/// Words that surely make a text too short to be scored: less than two windows,
/// even if every byte were a token.
pub(crate) fn first_guess(window: usize) -> usize {
    (window / LONGEST).max(1)
}

/// The most tokens that a passage may have.
pub(crate) fn most_tokens(window: usize) -> usize {
    window / SHARE
}

/// Fewer or more words, so that their tokens come close to what is allowed, from
/// what `words` words had. A little less than proportion says: words differ.
pub(crate) fn next_guess(window: usize, words: usize, tokens: usize) -> usize {
    (words * most_tokens(window) / tokens.max(1) * 49 / 50).max(1)
}

/// `words` words, each with a space before it; the first words are always the same.
pub(crate) fn passage(words: usize) -> String {
    let mut random = Random(0x6b76_666f_7267);
    (0..words).map(|_| random.word()).collect()
}

/// The passage again and again, at least `tokens` tokens if it has `per_passage`.
pub(crate) fn text(words: usize, per_passage: usize, tokens: usize) -> String {
    // One more: seams, and a token that only starts a text, count once.
    passage(words).repeat(tokens.div_ceil(per_passage.max(1)) + 1)
}

const ONSETS: [&str; 20] = [
    "b", "br", "c", "d", "dr", "f", "fl", "g", "h", "l", "m", "n", "p", "pl", "r", "s", "st", "t",
    "tr", "w",
];
const VOWELS: [&str; 8] = ["a", "e", "i", "o", "u", "ea", "ou", "ai"];
const CODAS: [&str; 12] = [
    "n", "r", "t", "l", "m", "nd", "st", "ck", "sh", "rk", "", "d",
];

/// SplitMix64 (Steele, Lea, Flood 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn pick(&mut self, from: &[&'static str]) -> &'static str {
        from[(self.next() % from.len() as u64) as usize]
    }

    fn word(&mut self) -> String {
        let mut word = String::from(" ");
        for _ in 0..1 + self.next() % 2 {
            word += self.pick(&ONSETS);
            word += self.pick(&VOWELS);
        }
        word + self.pick(&CODAS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_passage_is_random_words_and_always_the_same() {
        let passage = passage(1000);
        assert_eq!(passage, super::passage(1000));
        assert!(super::passage(1001).starts_with(&passage));
        let words: Vec<&str> = passage.split(' ').skip(1).collect();
        assert_eq!(words.len(), 1000);
        assert!(words.iter().all(|w| (2..LONGEST).contains(&w.len())));
        let pairs: BTreeSet<&[&str]> = words.windows(2).collect();
        assert_eq!(pairs.len(), 999, "two words say where the passage is");
    }

    #[test]
    fn guesses_are_safe_and_come_close() {
        for window in [256, 1024, 8192] {
            let first = first_guess(window);
            assert!(passage(first).len() < 2 * window);
            // 1.5 and 3 tokens a word
            for (tokens, per) in [(3, 2), (3, 1)] {
                let next = next_guess(window, first, first * tokens / per);
                let found = next * tokens / per;
                let most = most_tokens(window);
                assert!(found <= most && found > most * 8 / 10, "{window}: {found}");
            }
        }
        let text = text(10, 30, 95);
        assert_eq!(text, passage(10).repeat(5));
    }
}
