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
