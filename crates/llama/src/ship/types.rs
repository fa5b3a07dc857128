//! ggml type ids: read from the tree, never frozen here.

use kvforge_formats::{FormatSpec, cache_formats};
use serde::{Deserialize, Serialize};

use crate::Error;

/// File that declares `enum ggml_type`.
pub(crate) const GGML_H: &str = "ggml/include/ggml.h";

const COUNT: &str = "GGML_TYPE_COUNT";

/// No tree has more types; a number above it would only wrap where ids are added.
const MOST: u32 = 1 << 16;

/// Which ggml type id each format takes in one tree: the ids from the tree's
/// own `GGML_TYPE_COUNT` on, in the order of the formats. Ids below it are
/// never taken, even where one is unused: old files may still mean something
/// by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TypeIds {
    /// `GGML_TYPE_COUNT` of the stock tree.
    pub old_count: u32,
}

/// One format and its ids.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TypeEntry {
    /// Name that people type.
    pub name: String,
    /// kvforge's own identifier.
    pub kvforge_id: u32,
    /// ggml type id in this tree.
    pub ggml_id: u32,
}

impl TypeIds {
    pub(crate) fn starting_at(old_count: u32) -> Self {
        TypeIds { old_count }
    }

    /// `GGML_TYPE_COUNT` with the formats added.
    pub fn new_count(&self) -> u32 {
        self.old_count + cache_formats().count() as u32
    }

    /// Every format with its id.
    pub fn iter(&self) -> impl Iterator<Item = (&'static FormatSpec, u32)> + '_ {
        cache_formats().zip(self.old_count..)
    }

    /// The same as plain data.
    pub fn entries(&self) -> Vec<TypeEntry> {
        self.iter()
            .map(|(format, ggml_id)| TypeEntry {
                name: format.name.into(),
                kvforge_id: format.id,
                ggml_id,
            })
            .collect()
    }

    /// Reads `enum ggml_type` of a stock `ggml.h`.
    pub(crate) fn read(ggml_h: &str) -> Result<Self, Error> {
        let unreadable = |line: usize, expected: &str, found: &str| Error::Unreadable {
            file: if line == 0 {
                GGML_H.into()
            } else {
                format!("{GGML_H}:{line}")
            },
            expected: expected.into(),
            found: found.into(),
        };
        let mut lines = ggml_h.lines().enumerate().map(|(i, l)| (i + 1, l.trim()));
        if !lines.any(|(_, l)| l == "enum ggml_type {") {
            return Err(unreadable(0, "`enum ggml_type {`", "no such line"));
        }
        let mut highest = 0;
        for (n, line) in lines {
            let entry = line.split("//").next().unwrap_or("").trim();
            if entry.starts_with('}') {
                break;
            }
            if entry.is_empty() {
                continue;
            }
            let Some((name, value)) = entry
                .trim_end_matches(',')
                .split_once('=')
                .and_then(|(name, value)| Some((name.trim(), value.trim().parse::<u32>().ok()?)))
            else {
                return Err(unreadable(
                    n,
                    "`NAME = number,` in enum ggml_type",
                    &format!("`{line}`"),
                ));
            };
            if name != COUNT {
                highest = highest.max(value);
            } else if value > MOST {
                return Err(unreadable(
                    n,
                    &format!("{COUNT} of at most {MOST}"),
                    &value.to_string(),
                ));
            } else if value > highest {
                return Ok(TypeIds::starting_at(value));
            } else {
                return Err(unreadable(
                    n,
                    &format!("{COUNT} above every id, {highest} being one"),
                    &value.to_string(),
                ));
            }
        }
        Err(unreadable(
            0,
            &format!("`{COUNT} = number,` in enum ggml_type"),
            "none",
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(entries: &str) -> Result<u32, String> {
        let text =
            format!("enum other {{\n    A,\n}};\n    enum ggml_type {{\n{entries}\n    }};\n");
        TypeIds::read(&text)
            .map(|ids| ids.old_count)
            .map_err(|e| e.to_string())
    }

    #[test]
    fn ids_start_at_the_trees_own_count() {
        let entries = "GGML_TYPE_F32     = 0,\n// GGML_TYPE_OLD = 4, gone\nGGML_TYPE_Q1 = 41, // one\n\nGGML_TYPE_COUNT   = 43,";
        assert_eq!(read(entries), Ok(43));
        let ids = TypeIds::starting_at(43);
        let pairs: Vec<(String, u32)> = ids
            .entries()
            .into_iter()
            .map(|t| (t.name, t.ggml_id))
            .collect();
        let names = cache_formats().map(|f| f.name.to_string());
        let expected: Vec<_> = names.zip(43..).collect();
        assert_eq!(pairs, expected);
        assert_eq!(pairs[1], ("tbq4_0".into(), 44));
        assert_eq!(ids.new_count() as usize, 43 + pairs.len());
    }

    #[test]
    fn an_enum_that_is_not_understood_is_refused() {
        let e = read("GGML_TYPE_F32 = 0,\nGGML_TYPE_NEXT,\nGGML_TYPE_COUNT = 2,").unwrap_err();
        assert!(
            e.starts_with("ggml/include/ggml.h:6: expected `NAME = number,`"),
            "{e}"
        );
        assert!(
            read("GGML_TYPE_F32 = 7,\nGGML_TYPE_COUNT = 7,")
                .unwrap_err()
                .contains("7 being one")
        );
        for wraps in [65537, u32::MAX] {
            let e = read(&format!("GGML_TYPE_F32 = 0,\nGGML_TYPE_COUNT = {wraps},")).unwrap_err();
            assert!(e.contains(&format!("at most 65536, found {wraps}")), "{e}");
        }
        assert!(
            read("GGML_TYPE_F32 = 0,")
                .unwrap_err()
                .contains("found none")
        );
        assert!(
            TypeIds::read("enum x {\n};\n")
                .unwrap_err()
                .to_string()
                .contains("no such line")
        );
    }
}
