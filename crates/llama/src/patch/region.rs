//! Marked regions: whole lines of ours inside an upstream file.
//!
//! ```text
//! // kvforge:begin <hook> <hash>
//! ...body...
//! // kvforge:end <hook>
//! ```
//!
//! The hash is of the body, so that three states can be told apart: what we
//! would write today, what an older kvforge wrote, and what a person changed.

use super::lines::{Line, split};

const BEGIN: &str = "kvforge:begin";
const END: &str = "kvforge:end";

/// A region found in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    /// Hook that it belongs to.
    pub hook: String,
    /// Line number of its begin marker, from 1.
    pub line: usize,
    /// Hash in the begin marker.
    pub recorded: String,
    /// Its lines, each ended by `\n` whatever the file uses, so that a change
    /// of line endings is not taken for an edit.
    pub body: String,
}

impl Region {
    /// Whether the body is no longer what its marker says.
    pub fn edited(&self) -> bool {
        hash(&self.body) != self.recorded
    }
}

/// A marker that does not pair up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Damage {
    /// Line number, from 1.
    pub line: usize,
    /// What is wrong there.
    pub what: String,
}

/// A file taken apart: what upstream wrote, and what we put in.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Parts {
    pub upstream: String,
    pub regions: Vec<Region>,
}

/// One region to be written.
#[derive(Debug)]
pub(crate) struct Insertion<'a> {
    /// The region comes before this line of the upstream text (index from 0);
    /// the number of lines stands for the end of the file.
    pub at: usize,
    pub hook: &'a str,
    /// Line of the upstream text whose indentation and line ending are taken.
    pub like: usize,
    pub body: &'a str,
}

/// First 16 hexadecimal digits of the body's BLAKE3.
pub(crate) fn hash(body: &str) -> String {
    blake3::hash(body.as_bytes()).to_hex()[..16].to_string()
}

/// Whether `text` may hold a marker; cheap, for scanning many files.
pub(crate) fn mentioned(text: &str) -> bool {
    text.contains(BEGIN) || text.contains(END)
}

/// How comments begin in a file of this name, or `None` if we cannot mark it.
pub(crate) fn comment(path: &str) -> Option<&'static str> {
    let name = path.rsplit('/').next().unwrap_or(path);
    match name.rsplit_once('.')?.1 {
        "c" | "h" | "cc" | "cpp" | "hpp" | "cu" | "cuh" | "m" | "mm" | "metal" | "comp"
        | "glsl" => Some("//"),
        "cmake" => Some("#"),
        "txt" if name == "CMakeLists.txt" => Some("#"),
        _ => None,
    }
}

enum Marker<'a> {
    Begin { hook: &'a str, hash: &'a str },
    End { hook: &'a str },
    Broken,
}

fn marker(line: &str) -> Option<Marker<'_>> {
    if !mentioned(line) {
        return None;
    }
    let line = line.trim();
    let words: Vec<&str> = match line.strip_prefix("//").or_else(|| line.strip_prefix('#')) {
        Some(rest) => rest.split_whitespace().collect(),
        None => return Some(Marker::Broken),
    };
    Some(match words[..] {
        [BEGIN, hook, hash] => Marker::Begin { hook, hash },
        [END, hook] => Marker::End { hook },
        _ => Marker::Broken,
    })
}

/// Takes the regions out of `text`.
///
/// # Errors
/// Every marker that does not pair up.
pub(crate) fn take_apart(text: &str) -> Result<Parts, Vec<Damage>> {
    let mut parts = Parts::default();
    let mut damages = Vec::new();
    let mut open: Option<Region> = None;
    // The line ending of the latest region, and whether that region ends the
    // file without one.
    let mut region_end = "";
    let mut unended = false;
    for (i, Line { text, end }) in split(text).into_iter().enumerate() {
        let line = i + 1;
        let mut damage = |what: String| damages.push(Damage { line, what });
        match (marker(text), &mut open) {
            (None, None) => {
                parts.upstream += text;
                parts.upstream += end;
            }
            (None, Some(region)) => {
                region.body += text;
                region.body.push('\n');
            }
            (Some(Marker::Broken), _) => damage("this is not a marker that kvforge writes".into()),
            (Some(Marker::Begin { hook, .. }), Some(region)) => damage(format!(
                "`{hook}` begins inside `{}`, which began at line {} and has not ended",
                region.hook, region.line
            )),
            (Some(Marker::Begin { hook, hash }), None) => {
                region_end = end;
                open = Some(Region {
                    hook: hook.into(),
                    line,
                    recorded: hash.into(),
                    body: String::new(),
                });
            }
            (Some(Marker::End { hook }), region) => match region.take() {
                Some(region) if region.hook == hook => {
                    parts.regions.push(region);
                    unended = end.is_empty();
                }
                Some(region) => damage(format!(
                    "`{hook}` ends here, but `{}` is the one that began at line {}",
                    region.hook, region.line
                )),
                None => damage(format!("`{hook}` ends here and began nowhere")),
            },
        }
    }
    if let Some(region) = open {
        damages.push(Damage {
            line: region.line,
            what: format!("`{}` begins here and ends nowhere", region.hook),
        });
    }
    if !damages.is_empty() {
        return Err(damages);
    }
    // A region behind a last line without an ending had to give it one, the
    // same that its own lines have.
    if unended && let Some(kept) = parts.upstream.strip_suffix(region_end) {
        parts.upstream.truncate(kept.len());
    }
    Ok(parts)
}

/// Puts regions into upstream text; `insertions` are in file order. The
/// reverse of [`take_apart`].
pub(crate) fn put_together(upstream: &str, comment: &str, insertions: &[Insertion<'_>]) -> String {
    let lines = split(upstream);
    let mut out = String::with_capacity(upstream.len() + 4096);
    let mut next = insertions.iter().peekable();
    for at in 0..=lines.len() {
        while let Some(insertion) = next.next_if(|i| i.at == at) {
            let like = lines[insertion.like];
            let end = match like.end {
                "" if insertion.like > 0 => lines[insertion.like - 1].end,
                "" => "\n",
                end => end,
            };
            let behind_unended = at == lines.len() && !upstream.ends_with('\n');
            if behind_unended {
                out += end;
            }
            let Insertion { hook, body, .. } = insertion;
            let indent = like.indent();
            out += &format!("{indent}{comment} {BEGIN} {hook} {}{end}", hash(body));
            for line in body.lines() {
                out += line;
                out += end;
            }
            out += &format!("{indent}{comment} {END} {hook}");
            if !behind_unended {
                out += end;
            }
        }
        if let Some(line) = lines.get(at) {
            out += line.text;
            out += line.end;
        }
    }
    out
}
