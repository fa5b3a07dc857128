//! Sums that every instruction set can take in the same order.

/// Strands of a sum: eight fp32 numbers fill a vector register.
const STRANDS: usize = 8;

/// Sum of `terms` in fp32 as the best encoders take it: strand `i % 8` adds
/// term `i`, in order, and then strands four, two and one apart are added. A
/// vector unit does the same with one addition for eight terms.
pub(crate) fn strands(terms: impl Iterator<Item = f32>) -> f32 {
    let mut s = [0.0f32; STRANDS];
    for (i, term) in terms.enumerate() {
        s[i % STRANDS] += term;
    }
    let s = [s[0] + s[4], s[1] + s[5], s[2] + s[6], s[3] + s[7]];
    (s[0] + s[2]) + (s[1] + s[3])
}

/// Dot product by [`strands`].
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    strands(a.iter().zip(b).map(|(a, b)| a * b))
}

/// Sum of squares in fp32, strictly in order, as the public encoders take it.
pub(crate) fn squares(x: &[f32]) -> f32 {
    x.iter().fold(0.0, |sum, v| sum + v * v)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Beside 1e8 a 1 is lost: whether it is says what was added to what first.
    #[test]
    fn strands_are_added_four_two_and_one_apart() {
        const BIG: f32 = 1e8;
        let sum = |at: [(usize, f32); 3]| {
            let mut terms = [0.0; 24];
            for (i, v) in at {
                terms[i] = v;
            }
            strands(terms.into_iter())
        };
        // A strand takes every eighth term, in order.
        assert_eq!(sum([(0, BIG), (8, -BIG), (16, 1.0)]), 1.0);
        assert_eq!(sum([(0, BIG), (8, 1.0), (16, -BIG)]), 0.0);
        // Four apart before two apart before one apart.
        assert_eq!(sum([(0, BIG), (4, -BIG), (2, 1.0)]), 1.0);
        assert_eq!(sum([(0, BIG), (2, -BIG), (1, 1.0)]), 1.0);
        assert_eq!(sum([(1, BIG), (7, -BIG), (4, 1.0)]), 1.0);
        assert_eq!(sum([(0, BIG), (2, -BIG), (4, 1.0)]), 0.0);
        assert_eq!(sum([(0, BIG), (1, -BIG), (2, 1.0)]), 0.0);
    }
}
