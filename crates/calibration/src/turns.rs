use kvforge_formats::sqrt_f64;

use crate::Error;

/// What RoPE does to two channels at position 1: multiplies `x[a] + i x[b]` by
/// `cos + i sin`. At position `p` it multiplies by `scale * z^p`, with `z` of
/// length 1 and the scale (YaRN's, else 1) apart: it is there at position 0 too.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair {
    /// The lower channel.
    pub a: u32,
    /// The higher channel.
    pub b: u32,
    /// Scaled cosine of the angle.
    pub cos: f32,
    /// Scaled sine of the angle.
    pub sin: f32,
}

impl Pair {
    /// The factor at every position.
    pub fn scale(&self) -> f64 {
        let (cos, sin) = (f64::from(self.cos), f64::from(self.sin));
        sqrt_f64(cos * cos + sin * sin)
    }

    /// `z`: cosine and sine of the angle from one position to the next.
    pub fn angle(&self) -> [f64; 2] {
        let scale = self.scale();
        [f64::from(self.cos) / scale, f64::from(self.sin) / scale]
    }
}

/// The matrix of RoPE at position 1, known to turn pairs of channels and to leave
/// the others alone.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    matrix: &'a [f32],
    head_dim: usize,
}

/// What RoPE computes twice may differ by this much, relative to the scale.
const ALIKE: f32 = 1e-4;
/// What is smaller than this may be rounding.
const NOTHING: f32 = 1e-6;

impl<'a> Step<'a> {
    /// `matrix[i * head_dim + j]` is channel `j` of the image of unit vector `i`.
    ///
    /// # Errors
    /// [`Error::HeadDim`]; [`Error::Length`]; [`Error::NotTurns`] if the matrix does
    /// anything else than to turn pairs of channels.
    pub fn new(matrix: &'a [f32], head_dim: usize) -> Result<Step<'a>, Error> {
        if head_dim == 0 || head_dim > crate::MAX_HEAD_DIM {
            return Err(Error::HeadDim { found: head_dim });
        }
        if matrix.len() != head_dim * head_dim {
            return Err(Error::Length {
                expected: head_dim * head_dim,
                found: matrix.len(),
            });
        }
        let step = Step { matrix, head_dim };
        for i in 0..head_dim {
            step.check(i)?;
        }
        Ok(step)
    }

    /// The pairs, by their lower channel.
    pub fn pairs(self) -> impl Iterator<Item = Pair> + Clone + 'a {
        (0..self.head_dim).filter_map(move |a| {
            let b = self.partner(a).filter(|b| *b > a)?;
            Some(Pair {
                a: a as u32,
                b: b as u32,
                cos: self.at(a, a),
                sin: self.at(a, b),
            })
        })
    }

    fn row(self, i: usize) -> &'a [f32] {
        self.matrix.chunks(self.head_dim).nth(i).unwrap_or_default()
    }

    fn at(self, i: usize, j: usize) -> f32 {
        self.row(i).get(j).copied().unwrap_or(0.0)
    }

    /// The other channel that most of unit vector `i` goes to.
    fn largest(self, i: usize) -> Option<usize> {
        let mut best = (0.0, None);
        for (j, value) in self.row(i).iter().enumerate() {
            if j != i && value.abs() > best.0 {
                best = (value.abs(), Some(j));
            }
        }
        best.1
    }

    /// The channel that is turned with `i`. A slow pair may have a sine below
    /// [`NOTHING`]; what tells it from rounding is that it is there twice.
    fn partner(self, i: usize) -> Option<usize> {
        let j = self.largest(i)?;
        let (there, back) = (self.at(i, j), self.at(j, i));
        let tolerance = ALIKE * there.abs().max(back.abs());
        (self.largest(j) == Some(i) && (there + back).abs() <= tolerance).then_some(j)
    }

    fn check(self, i: usize) -> Result<(), Error> {
        let refuse = |reason| Err(Error::NotTurns { channel: i, reason });
        let row = self.row(i);
        if !row.iter().all(|value| value.is_finite()) {
            return refuse("a value is not finite");
        }
        let partner = self.partner(i);
        let rest = (0..)
            .zip(row)
            .filter(|(j, _)| *j != i && Some(*j) != partner);
        if rest.into_iter().any(|(_, value)| value.abs() > NOTHING) {
            return refuse("it goes to more channels than itself and one partner");
        }
        let own = self.at(i, i);
        let Some(j) = partner else {
            return match (own - 1.0).abs() <= NOTHING {
                true => Ok(()),
                false => refuse("it has no partner and does not stay as it is"),
            };
        };
        let pair = Pair {
            a: i as u32,
            b: j as u32,
            cos: own,
            sin: self.at(i, j),
        };
        let scale = pair.scale() as f32;
        if !(scale > NOTHING && scale < 1.0 / NOTHING) {
            return refuse("its pair is scaled by nothing or by too much");
        }
        match (own - self.at(j, j)).abs() <= ALIKE * scale {
            true => Ok(()),
            false => refuse("the two of its pair have different cosines"),
        }
    }
}
