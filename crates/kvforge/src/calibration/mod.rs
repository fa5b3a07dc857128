//! What the keys of a model have in common, and the centres that follow.
//!
//! A [`Builder`] takes queries and keys as they enter attention, turns them back to before
//! RoPE and sums them up; a [`Calibration`] is the `.kvcal` file that comes of it. What is
//! in the file, and why, is said in the README of [`kvforge_calibration`].

mod builder;

use std::path::Path;

use kvforge_calibration as format;
pub use kvforge_calibration::{Layer, Pair, Rope};

use crate::capture::Capture;
use crate::{Error, file};
pub use builder::{Builder, SINKS, Turning};

/// A neutral text to calibrate with: prose, code and numbers.
pub const TEXT: &str = include_str!("text.txt");

/// A calibration file, wholly checked.
#[derive(Clone, Debug)]
pub struct Calibration {
    bytes: Vec<u8>,
}

impl Calibration {
    /// Reads a `.kvcal` file.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Calibration`].
    pub fn read(path: &Path) -> Result<Calibration, Error> {
        Calibration::from_bytes(file::read(path)?).map_err(|cause| Error::Calibration {
            path: path.into(),
            cause,
        })
    }

    /// Checks the bytes of a `.kvcal` file.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Calibration, format::Error> {
        format::Calibration::read(&bytes)?;
        Ok(Calibration { bytes })
    }

    /// The bytes of the file.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// What the bytes say.
    pub fn content(&self) -> format::Calibration<'_> {
        format::Calibration::read(&self.bytes).expect("the bytes were checked and do not change")
    }

    /// The layer with this number in the model.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if the file does not have it.
    pub fn layer(&self, number: u32) -> Result<Layer<'_>, Error> {
        let found = self.content().layers().find(|l| l.index == number);
        found.ok_or_else(|| {
            let there: Vec<String> = self
                .content()
                .layers()
                .map(|l| l.index.to_string())
                .collect();
            let found = kvforge_files::excerpt(&there.join(", "));
            Error::mismatch(
                format!("layer {number} in the calibration"),
                format!("layers {found}"),
            )
        })
    }

    /// The static centre of a layer for a context of `n_positions`, `[n_head_kv, head_dim]`,
    /// with RoPE as it was when calibrating.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if the file does not have the layer, or `n_positions` is 0.
    pub fn static_centre(&self, number: u32, n_positions: u64) -> Result<Vec<f32>, Error> {
        let layer = self.layer(number)?;
        let mut centre = vec![0.0; layer.n_head_kv() * layer.head_dim()];
        match format::static_centre(&layer, layer.pairs(), n_positions, &mut centre) {
            Ok(()) => Ok(centre),
            Err(e) => Err(Error::mismatch("a context with a centre", e.to_string())),
        }
    }

    /// Gives every layer of a capture this calibration's centre, for as many positions as the
    /// capture has tokens, in place of the mean over another text that it came with.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if a layer is not in the file or has another shape; the capture
    /// is then as it was.
    pub fn centre(&self, capture: &mut Capture) -> Result<(), Error> {
        let shape = (capture.n_kv_heads, capture.head_dim);
        let mut centres = vec![];
        for layer in &capture.layers {
            let number = u32::try_from(layer.index).unwrap_or(u32::MAX);
            let found = self.layer(number)?;
            let found = (found.n_head_kv(), found.head_dim());
            if found != shape {
                let in_words = |(heads, dim)| format!("{heads} kv heads of size {dim}");
                let (n, expected) = (layer.index, in_words(shape));
                return Err(Error::mismatch(
                    format!("{expected} in layer {n} of the calibration, as in the capture"),
                    in_words(found),
                ));
            }
            centres.push(self.static_centre(number, capture.n_tokens as u64)?);
        }
        for (layer, centre) in capture.layers.iter_mut().zip(centres) {
            layer.k_mean_other_text = Some(centre);
        }
        Ok(())
    }
}
