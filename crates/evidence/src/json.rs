//! Reading JSON without losing what a parser forgives: of two members with the
//! same name it would silently keep the last.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// A document, and what was said twice in it.
pub(crate) struct Json {
    pub value: Value,
    /// Paths such as `kernels.turbo3.status`.
    pub duplicates: Vec<String>,
}

/// Reads a whole document.
pub(crate) fn parse(bytes: &[u8]) -> serde_json::Result<Json> {
    let mut duplicates = vec![];
    let mut parser = serde_json::Deserializer::from_slice(bytes);
    let seed = At {
        path: String::new(),
        duplicates: &mut duplicates,
    };
    let value = seed.deserialize(&mut parser)?;
    parser.end()?;
    Ok(Json { value, duplicates })
}

/// Path of a member, such as `kernels.turbo3`.
pub(crate) fn member(path: &str, name: &str) -> String {
    match path {
        "" => name.into(),
        path => format!("{path}.{name}"),
    }
}

/// Whether a path is `outer` or leads into it.
pub(crate) fn within(path: &str, outer: &str) -> bool {
    let rest = path.strip_prefix(outer);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// A value, and where it stands.
struct At<'a> {
    path: String,
    duplicates: &'a mut Vec<String>,
}

impl<'de> DeserializeSeed<'de> for At<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for At<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, x: bool) -> Result<Value, E> {
        Ok(x.into())
    }

    fn visit_u64<E>(self, x: u64) -> Result<Value, E> {
        Ok(x.into())
    }

    fn visit_i64<E>(self, x: i64) -> Result<Value, E> {
        Ok(x.into())
    }

    fn visit_f64<E>(self, x: f64) -> Result<Value, E> {
        Ok(x.into())
    }

    fn visit_str<E>(self, x: &str) -> Result<Value, E> {
        Ok(x.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut all = vec![];
        let item = |n: usize| format!("{}[{n}]", self.path);
        while let Some(value) = list.next_element_seed(At {
            path: item(all.len()),
            duplicates: self.duplicates,
        })? {
            all.push(value);
        }
        Ok(all.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut all = Map::new();
        while let Some(name) = map.next_key::<String>()? {
            let path = member(&self.path, &name);
            if all.contains_key(&name) {
                self.duplicates.push(path.clone());
            }
            let seed = At {
                path,
                duplicates: self.duplicates,
            };
            let value = map.next_value_seed(seed)?;
            all.insert(name, value);
        }
        Ok(all.into())
    }
}
