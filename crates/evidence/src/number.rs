//! Measured numbers in JSON, which has no NaN and no infinity: they are written
//! as `null`, and `null` is read as NaN. A number that was not finite thus stays
//! in the file as what it is, a failure.

use serde::{Deserialize, Deserializer, Serializer};

pub fn serialize<S: Serializer>(x: &f64, to: S) -> Result<S::Ok, S::Error> {
    if x.is_finite() {
        to.serialize_f64(*x)
    } else {
        to.serialize_none()
    }
}

pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f64::NAN))
}
