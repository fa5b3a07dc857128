//! Can a small sketch of the keys choose the few that attention needs?
//!
//! A selector scores all keys that a query sees by what it stores of them, and only the
//! `k` best are attended to. Prints, for every selector and `k`, as Markdown:
//!
//! * recall: how many of the `k` keys with the largest exact scores it found;
//! * divergence: `KL(P_S || P)` in nats of the softmax over the chosen keys from the one
//!   over all, which is `-ln` of the softmax mass of the chosen; the other direction is
//!   infinite as soon as one key is missing;
//! * output error: `sqrt(sum abs(o^ - o)^2 / sum abs(o)^2)`, once with exact scores of the
//!   chosen keys and once with the selector's own, as if nothing else were stored.
//!
//! ```text
//! cargo run --release -p kvforge --example topk -- KV.safetensors [--center] [--keep]
//! ```
//!
//! `--center` subtracts the capture's mean key of another text before keys are coded.
//! `--keep` attends to the newest 32 keys and the first 4 always and exactly; the `k`
//! come on top, and recall is about the others.

mod measure;
mod select;

use std::error::Error;
use std::path::Path;

use kvforge::capture::Capture;
use measure::{BUDGETS, Head, Sums};
use rayon::prelude::*;
use select::{SELECTORS, Selector};

fn main() -> Result<(), Box<dyn Error>> {
    let (options, paths): (Vec<String>, Vec<String>) =
        std::env::args().skip(1).partition(|a| a.starts_with("--"));
    let known = ["--center", "--keep"];
    if let Some(unknown) = options.iter().find(|o| !known.contains(&o.as_str())) {
        return Err(format!("no option {unknown}; there are --center and --keep").into());
    }
    let [path] = &paths[..] else {
        return Err("usage: topk KV.safetensors [--center] [--keep]".into());
    };
    let [center, keep] = known.map(|o| options.iter().any(|given| given == o));
    let capture = Capture::read(Path::new(path))?;
    if !capture.head_dim.is_multiple_of(select::BLOCK) {
        let (found, block) = (capture.head_dim, select::BLOCK);
        return Err(format!("{path}: head size {found} is no multiple of QJL's {block}").into());
    }
    let heads = Head::all(&capture, center, keep)?;
    let rows = SELECTORS
        .iter()
        .map(|selector| Ok((selector, run(selector, &heads)?)))
        .collect::<Result<Vec<_>, kvforge::Error>>()?;
    println!(
        "{}, keys {}, {}",
        capture.model,
        if center { "centred" } else { "as they are" },
        if keep {
            "newest 32 and first 4 kept"
        } else {
            "nothing kept"
        }
    );
    table("recall", &rows, |sums, i| Some(sums.recall(i)));
    table("divergence", &rows, |sums, i| Some(sums.divergence(i)));
    table("output error, exact scores", &rows, |sums, i| {
        Some(sums.output_error(i))
    });
    table("output error, own scores", &rows, Sums::own_output_error);
    Ok(())
}

fn run(selector: &Selector, heads: &[Head]) -> Result<Sums, kvforge::Error> {
    let sums = heads.par_iter().map(|head| head.measure(selector));
    sums.try_reduce(Sums::default, |a, b| Ok(a + b))
}

fn table(title: &str, rows: &[(&Selector, Sums)], figure: impl Fn(&Sums, usize) -> Option<f64>) {
    let budgets = BUDGETS.map(|k| match k {
        usize::MAX => "all".to_string(),
        k => k.to_string(),
    });
    println!("\n| {title} | bits | {} |", budgets.join(" | "));
    println!("|---|---|{}", "---|".repeat(BUDGETS.len()));
    for (selector, sums) in rows {
        let figures = (0..BUDGETS.len()).map(|i| figure(sums, i));
        let cells = figures.map(|f| f.map_or("-".into(), |f| format!("{f:.4}")));
        let bits = selector.bits().map_or("-".into(), |b| b.to_string());
        println!(
            "| {} | {bits} | {} |",
            selector.name,
            cells.collect::<Vec<_>>().join(" | ")
        );
    }
}
