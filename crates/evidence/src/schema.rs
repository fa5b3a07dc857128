//! JSON Schema of both files, from the types that read and write them.

use schemars::{JsonSchema, schema_for};
use serde_json::Value;

use crate::{Evidence, contract::Contract};

/// Schema of the evidence that a smoke run leaves.
pub fn evidence() -> Value {
    of::<Evidence>()
}

/// Schema of the contract. It knows types and spellings; that the parts agree with
/// each other and with evidence, [`check`](crate::contract::check()) finds out.
pub fn contract() -> Value {
    of::<Contract>()
}

fn of<T: JsonSchema>() -> Value {
    schema_for!(T).to_value()
}
