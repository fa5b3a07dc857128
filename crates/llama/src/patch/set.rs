//! The patch set: hooks as data. `patchsets/llama-cpp/ggml.toml` explains the
//! fields to the person who writes one.

use serde::Deserialize;

use super::{region, template};
use crate::Error;

/// The hooks that go into a llama.cpp tree.
#[derive(Clone, Debug)]
pub struct PatchSet {
    hooks: Vec<Hook>,
}

/// Lines that are put at one kind of place in one upstream file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hook {
    /// Unique; lower case, digits and dashes. It names the markers.
    pub id: String,
    /// Path in the tree, with `/`.
    pub file: String,
    /// Text of the line that the hook stands next to.
    pub anchor: String,
    /// How a line is compared with `anchor`.
    #[serde(default, rename = "match")]
    pub matching: Matching,
    /// Text that exactly one line contains; anchors count only after it. The
    /// whole file if none.
    #[serde(default)]
    pub within: Option<String>,
    /// Line (trimmed) before which anchors count; if it begins with `}` or `)`
    /// it is the one indented no deeper than the `within` line. Without it,
    /// anchors count up to the next line so indented that begins with `}`, `)`
    /// or `end...(`: the end of the function, list or CMake block.
    #[serde(default)]
    pub until: Option<String>,
    /// How many lines must match; each of them gets the hook.
    #[serde(default = "one")]
    pub expect: usize,
    /// Where the lines go.
    pub place: Place,
    /// What goes before or after the anchor.
    #[serde(default)]
    pub lines: Option<String>,
    /// For [`Place::Wrap`]: last wrapped line, compared as the anchor is; the
    /// anchor line itself if none.
    #[serde(default)]
    pub through: Option<String>,
    /// For [`Place::Wrap`]: what goes before the wrapped lines.
    #[serde(default)]
    pub before: Option<String>,
    /// For [`Place::Wrap`]: what goes after them.
    #[serde(default)]
    pub after: Option<String>,
    /// One sentence: what the hook is for.
    pub reason: String,
}

fn one() -> usize {
    1
}

/// How a line, trimmed, is compared with an anchor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Matching {
    /// It is the anchor.
    #[default]
    Line,
    /// It starts with the anchor.
    Prefix,
}

impl Matching {
    /// Whether `line` is meant by `anchor`.
    pub(crate) fn matches(self, line: &str, anchor: &str) -> bool {
        match self {
            Matching::Line => line.trim() == anchor,
            Matching::Prefix => line.trim().starts_with(anchor),
        }
    }
}

/// Where a hook's lines go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    /// Before the anchor line.
    Before,
    /// After the anchor line.
    After,
    /// Around it: one block before, one after, the line itself untouched.
    Wrap,
}

impl PatchSet {
    /// Reads a patch set from its TOML text.
    ///
    /// # Errors
    /// [`Error::PatchSet`] says which hook is wrong and why.
    pub fn parse(text: &str) -> Result<Self, Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct File {
            #[serde(default)]
            hook: Vec<Hook>,
        }
        let file: File = toml::from_str(text).map_err(|e| Error::PatchSet {
            hook: "(file)".into(),
            what: e.to_string(),
        })?;
        for (i, hook) in file.hook.iter().enumerate() {
            let wrong = |what: String| Error::PatchSet {
                hook: hook.id.clone(),
                what,
            };
            hook.check().map_err(wrong)?;
            if file.hook[..i].iter().any(|h| h.id == hook.id) {
                return Err(wrong("another hook has this id".into()));
            }
        }
        Ok(PatchSet { hooks: file.hook })
    }

    /// All hooks, in the order of the file.
    pub fn hooks(&self) -> &[Hook] {
        &self.hooks
    }

    /// Every file that a hook is for, once, in the order of first mention.
    pub(crate) fn files(&self) -> Vec<&str> {
        let mut files: Vec<&str> = Vec::new();
        for hook in &self.hooks {
            if !files.contains(&hook.file.as_str()) {
                files.push(&hook.file);
            }
        }
        files
    }
}

impl Hook {
    /// The comment sign of the file that the hook is for.
    pub(crate) fn comment(&self) -> &'static str {
        region::comment(&self.file).expect("checked when the patch set was read")
    }

    fn check(&self) -> Result<(), String> {
        let id_ok = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if self.id.is_empty() || !self.id.chars().all(id_ok) {
            return Err("an id is lower-case letters, digits and dashes".into());
        }
        let path_ok = |part: &str| !part.is_empty() && part != "." && part != "..";
        if !self.file.split('/').all(path_ok) || self.file.contains('\\') {
            return Err(format!("`{}` is not a path inside the tree", self.file));
        }
        if region::comment(&self.file).is_none() {
            return Err(format!("no comment sign is known for `{}`", self.file));
        }
        for text in [
            Some(&self.anchor),
            self.until.as_ref(),
            self.through.as_ref(),
        ] {
            if text.is_some_and(|t| t.trim() != t || t.is_empty() || t.contains('\n')) {
                return Err("anchor, until and through are one trimmed line each".into());
            }
        }
        if self.expect == 0 {
            return Err("expect is at least 1".into());
        }
        if self.until.is_some() && self.within.is_none() {
            return Err("until needs within".into());
        }
        if self.reason.trim().is_empty() || self.reason.contains('\n') {
            return Err("reason is one sentence".into());
        }
        let is_wrap = self.place == Place::Wrap;
        let wrap_fields = self.before.is_some() && self.after.is_some() && self.lines.is_none();
        let insert_fields = self.lines.is_some()
            && self.before.is_none()
            && self.after.is_none()
            && self.through.is_none();
        if is_wrap && !wrap_fields {
            return Err("place = \"wrap\" takes `before` and `after`, and no `lines`".into());
        }
        if !is_wrap && !insert_fields {
            return Err("place = \"before\" and \"after\" take `lines` only".into());
        }
        for body in [&self.lines, &self.before, &self.after]
            .into_iter()
            .flatten()
        {
            template::check(body)?;
            if region::mentioned(body) {
                return Err("lines must not contain kvforge markers".into());
            }
        }
        Ok(())
    }
}
