//! Text as lines that remember how they end, so that a file is given back
//! byte for byte.

/// One line of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Line<'a> {
    /// The line without its ending.
    pub text: &'a str,
    /// `"\n"`, `"\r\n"`, or `""` for a last line that nothing ends.
    pub end: &'a str,
}

impl<'a> Line<'a> {
    /// The spaces and tabs that the line begins with.
    pub fn indent(&self) -> &'a str {
        let rest = self.text.trim_start_matches([' ', '\t']);
        &self.text[..self.text.len() - rest.len()]
    }
}

/// The lines of `text`; joined again (text and end) they are `text`.
pub(crate) fn split(text: &str) -> Vec<Line<'_>> {
    text.split_inclusive('\n')
        .map(|raw| {
            let body = raw.strip_suffix('\n').unwrap_or(raw);
            let body = if body.len() < raw.len() {
                body.strip_suffix('\r').unwrap_or(body)
            } else {
                body
            };
            Line {
                text: body,
                end: &raw[body.len()..],
            }
        })
        .collect()
}
