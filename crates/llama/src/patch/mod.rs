//! The patch engine: puts marked lines into upstream text and takes them out
//! again. It works on strings and touches no file.

mod anchor;
mod lines;
pub(crate) mod region;
mod set;
pub(crate) mod template;

pub use anchor::Miss;
pub use set::{Hook, Matching, PatchSet, Place};

use crate::TypeIds;
use region::Insertion;

/// `upstream` (free of regions) with `hooks` put in.
///
/// # Errors
/// Every hook that has no place, with the reason.
pub(crate) fn apply<'h>(
    hooks: impl IntoIterator<Item = &'h Hook>,
    upstream: &str,
    ids: &TypeIds,
) -> Result<String, Vec<(&'h Hook, Box<Miss>)>> {
    let lines = lines::split(upstream);
    let mut misses = Vec::new();
    let mut blocks: Vec<Block<'_>> = Vec::new();
    let mut comment = "";
    for hook in hooks {
        comment = hook.comment();
        let spots = match anchor::resolve(hook, &lines) {
            Ok(spots) => spots,
            Err(miss) => {
                misses.push((hook, miss));
                continue;
            }
        };
        let body = |text: &Option<String>| {
            text.as_ref()
                .map(|t| template::expand(t, ids))
                .unwrap_or_default()
        };
        for anchor::Spot { first, last } in spots {
            let order = blocks.len();
            let mut block = |side: Side, body: String| {
                let (at, like) = match side {
                    Side::Opening | Side::Before => (first, first),
                    Side::After | Side::Closing => (last + 1, last),
                };
                blocks.push(Block {
                    at,
                    side,
                    order,
                    hook: &hook.id,
                    like,
                    body,
                });
            };
            match hook.place {
                Place::Before => block(Side::Before, body(&hook.lines)),
                Place::After => block(Side::After, body(&hook.lines)),
                Place::Wrap => {
                    block(Side::Opening, body(&hook.before));
                    block(Side::Closing, body(&hook.after));
                }
            }
        }
    }
    if !misses.is_empty() {
        return Err(misses);
    }
    blocks.sort_by_key(|b| (b.at, b.side, b.order));
    let insertions: Vec<Insertion<'_>> = blocks
        .iter()
        .map(|b| Insertion {
            at: b.at,
            hook: b.hook,
            like: b.like,
            body: &b.body,
        })
        .collect();
    Ok(region::put_together(upstream, comment, &insertions))
}

struct Block<'a> {
    at: usize,
    side: Side,
    order: usize,
    hook: &'a str,
    like: usize,
    body: String,
}

/// Between two lines, blocks of several hooks stand in this order, so that a
/// wrap holds nothing but the lines it names.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Side {
    Closing,
    After,
    Before,
    Opening,
}

#[cfg(test)]
mod tests;
