//! Finding the place of a hook, or saying precisely why there is none.

use super::lines::Line;
use super::set::{Hook, Place};

/// Where a hook goes in a file; indices from 0, both inclusive. They differ
/// only where several lines are wrapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spot {
    pub first: usize,
    pub last: usize,
}

/// Why a hook has no place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Miss {
    /// What was looked for: `anchor`, `within`, `until` or `through`.
    pub what: &'static str,
    /// Its text.
    pub text: String,
    /// Lines that should have matched.
    pub expected: usize,
    /// Line numbers, from 1, of those that did.
    pub found: Vec<usize>,
    /// First and last line, from 1, of where it was looked for.
    pub searched: (usize, usize),
    /// The line most like `text`: its number, from 1, and its text, trimmed.
    pub nearest: Option<(usize, String)>,
}

/// The places of `hook` in `lines`, in file order.
pub(crate) fn resolve(hook: &Hook, lines: &[Line<'_>]) -> Result<Vec<Spot>, Box<Miss>> {
    let scope = scope(hook, lines)?;
    let matches = |text: &str, i: usize| hook.matching.matches(lines[i].text, text);
    let found: Vec<usize> = scope
        .clone()
        .filter(|&i| matches(&hook.anchor, i))
        .collect();
    if found.len() != hook.expect {
        return Err(miss(
            "anchor",
            &hook.anchor,
            hook.expect,
            &found,
            scope,
            lines,
        ));
    }
    let through = match (&hook.through, hook.place) {
        (Some(text), Place::Wrap) => text,
        _ => {
            return Ok(found
                .into_iter()
                .map(|i| Spot { first: i, last: i })
                .collect());
        }
    };
    let mut spots = Vec::new();
    for (k, &first) in found.iter().enumerate() {
        let rest = first..found.get(k + 1).copied().unwrap_or(scope.end);
        match rest.clone().find(|&i| matches(through, i)) {
            Some(last) => spots.push(Spot { first, last }),
            None => return Err(miss("through", through, 1, &[], rest, lines)),
        }
    }
    Ok(spots)
}

/// The lines in which the hook's anchor counts.
fn scope(hook: &Hook, lines: &[Line<'_>]) -> Result<std::ops::Range<usize>, Box<Miss>> {
    let Some(within) = &hook.within else {
        return Ok(0..lines.len());
    };
    let opening: Vec<usize> = (0..lines.len())
        .filter(|&i| lines[i].text.contains(within.as_str()))
        .collect();
    let &[open] = opening.as_slice() else {
        return Err(miss("within", within, 1, &opening, 0..lines.len(), lines));
    };
    let mut rest = open + 1..lines.len();
    let is_shallow = |i: usize| lines[i].indent().len() <= lines[open].indent().len();
    let end = match &hook.until {
        Some(until) => {
            // A closing brace means the one that closes the scope, not any.
            let closes = until.starts_with(CLOSERS);
            let is_end = |i: usize| lines[i].text.trim() == until && (!closes || is_shallow(i));
            match rest.clone().find(|&i| is_end(i)) {
                Some(end) => end,
                None => return Err(miss("until", until, 1, &[], rest, lines)),
            }
        }
        None => {
            let closes = |text: &str| {
                text.starts_with(CLOSERS) || (text.starts_with("end") && text.contains('('))
            };
            rest.find(|&i| is_shallow(i) && closes(lines[i].text.trim()))
                .unwrap_or(lines.len())
        }
    };
    Ok(open + 1..end)
}

const CLOSERS: [char; 2] = ['}', ')'];

fn miss(
    what: &'static str,
    text: &str,
    expected: usize,
    found: &[usize],
    searched: std::ops::Range<usize>,
    lines: &[Line<'_>],
) -> Box<Miss> {
    Box::new(Miss {
        what,
        text: text.to_string(),
        expected,
        found: found.iter().map(|i| i + 1).collect(),
        searched: (searched.start + 1, searched.end),
        nearest: if found.is_empty() {
            nearest(text, lines)
        } else {
            None
        },
    })
}

/// The line most like `text`, if any shares at least half of it.
fn nearest(text: &str, lines: &[Line<'_>]) -> Option<(usize, String)> {
    let wanted = pairs(text);
    let mut best = (0.5, None);
    for (i, line) in lines.iter().enumerate() {
        let score = likeness(&wanted, &pairs(line.text.trim()));
        if score > best.0 {
            best = (score, Some(i));
        }
    }
    best.1.map(|i| (i + 1, lines[i].text.trim().to_string()))
}

/// Sorted pairs of neighbouring bytes.
fn pairs(text: &str) -> Vec<[u8; 2]> {
    let mut pairs: Vec<[u8; 2]> = text.as_bytes().windows(2).map(|w| [w[0], w[1]]).collect();
    pairs.sort_unstable();
    pairs
}

/// Dice coefficient of two sorted lists: 0 nothing shared, 1 the same.
fn likeness(a: &[[u8; 2]], b: &[[u8; 2]]) -> f64 {
    let (mut i, mut j, mut shared) = (0, 0, 0);
    while i < a.len() && j < b.len() {
        match a[i].cmp(&b[j]) {
            std::cmp::Ordering::Less => i += 1,
            std::cmp::Ordering::Greater => j += 1,
            std::cmp::Ordering::Equal => {
                shared += 1;
                i += 1;
                j += 1;
            }
        }
    }
    2.0 * shared as f64 / (a.len() + b.len()).max(1) as f64
}
