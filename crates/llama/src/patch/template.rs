//! What a hook's lines may say about formats, without naming any.

use kvforge_formats::FormatSpec;

use crate::TypeIds;

/// A run of lines that start with this is repeated for every format.
const EACH: &str = "@each ";

/// What a placeholder stands for.
type Value = fn(&TypeIds, Option<(&FormatSpec, u32)>) -> Option<String>;

/// Every placeholder. Those that yield nothing without a format stand only in
/// `@each` lines.
const PLACEHOLDERS: &[(&str, Value)] = &[
    ("type_count", |ids, _| Some(ids.new_count().to_string())),
    ("old_type_count", |ids, _| Some(ids.old_count.to_string())),
    ("name", |_, f| Some(f?.0.name.to_string())),
    ("NAME", |_, f| Some(upper(f?.0))),
    ("id", |_, f| Some(f?.1.to_string())),
    ("kvf_id", |_, f| Some(f?.0.id.to_string())),
    ("block_len", |_, f| Some(f?.0.block_len.to_string())),
    ("block_bytes", |_, f| Some(f?.0.block_bytes.to_string())),
];

/// A format's name as C constants spell it: `TBQ4_0`.
pub(crate) fn upper(format: &FormatSpec) -> String {
    format.name.to_ascii_uppercase()
}

/// Says what is wrong with `body`, if anything is.
pub(crate) fn check(body: &str) -> Result<(), String> {
    try_expand(body, &TypeIds::starting_at(0)).map(|_| ())
}

/// `body`, which passed [`check`], for these type ids. Ends with a line end.
pub(crate) fn expand(body: &str, ids: &TypeIds) -> String {
    try_expand(body, ids).expect("checked when the patch set was read")
}

fn try_expand(body: &str, ids: &TypeIds) -> Result<String, String> {
    let mut out = String::new();
    let lines: Vec<&str> = body.lines().collect();
    let is_each = |line: &str| line.trim_start().starts_with(EACH);
    for run in lines.chunk_by(|a, b| is_each(a) == is_each(b)) {
        if is_each(run[0]) {
            for format in ids.iter() {
                for line in run {
                    out += &fill(&line.replacen(EACH, "", 1), ids, Some(format))?;
                    out.push('\n');
                }
            }
        } else {
            for line in run {
                out += &fill(line, ids, None)?;
                out.push('\n');
            }
        }
    }
    Ok(out)
}

fn fill(line: &str, ids: &TypeIds, format: Option<(&FormatSpec, u32)>) -> Result<String, String> {
    let mut out = String::new();
    let mut rest = line;
    while let Some((head, name, tail)) = placeholder(rest) {
        let Some((_, value)) = PLACEHOLDERS.iter().find(|p| p.0 == name) else {
            let known: Vec<&str> = PLACEHOLDERS.iter().map(|p| p.0).collect();
            return Err(format!(
                "`@{name}@` is unknown; there are {}",
                known.join(", ")
            ));
        };
        out += head;
        out += &value(ids, format)
            .ok_or_else(|| format!("`@{name}@` stands only in lines that start with @each"))?;
        rest = tail;
    }
    Ok(out + rest)
}

/// The first `@word@` of `text`: what is before it, the word, what is after.
fn placeholder(text: &str) -> Option<(&str, &str, &str)> {
    for (start, _) in text.match_indices('@') {
        let inner = &text[start + 1..];
        let len = inner
            .find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
            .unwrap_or(inner.len());
        if len > 0 && inner[len..].starts_with('@') {
            return Some((&text[..start], &inner[..len], &inner[len + 1..]));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvforge_formats::cache_formats;

    #[test]
    fn a_run_of_each_lines_repeats_as_one_block() {
        let ids = TypeIds::starting_at(43);
        let body = "first\n  @each [@NAME@] = { // @name@\n  @each     @id@, @kvf_id@, @block_len@, @block_bytes@ },\nCOUNT = @type_count@, was @old_type_count@";
        let rows = cache_formats().zip(43..).map(|(f, id)| {
            let (upper, name) = (upper(f), f.name);
            let numbers = format!("{id}, {}, {}, {}", f.id, f.block_len, f.block_bytes);
            format!("  [{upper}] = {{ // {name}\n      {numbers} }},\n")
        });
        let (rows, count) = (rows.collect::<String>(), 43 + cache_formats().count());
        assert!(rows.contains("[TBQ4_0] = { // tbq4_0\n      44, 2, 32, 18 },"));
        assert_eq!(
            expand(body, &ids),
            format!("first\n{rows}COUNT = {count}, was 43\n")
        );
    }

    #[test]
    fn wrong_placeholders_are_named() {
        assert!(
            check("@each @nmae@")
                .unwrap_err()
                .contains("`@nmae@` is unknown")
        );
        assert!(
            check("x @id@")
                .unwrap_err()
                .contains("only in lines that start with @each")
        );
    }

    #[test]
    fn other_at_signs_stay() {
        let body = "// @param x\n// a@b, @, @@, x@ONLY\n";
        assert_eq!(expand(body, &TypeIds::starting_at(0)), body);
    }
}
