use anyhow::Result;
use kvforge_llama::{OWN_DIR, Payload, Restored};

use crate::say::say;
use crate::{Outcome, TreeArg, count};

/// Take kvforge out of a llama.cpp tree
///
/// Marked lines and our folder go, and so does the build folder that `kvforge
/// build` made; every upstream byte is as it was before.
#[derive(clap::Args)]
#[command(after_help = "\
Example:
  kvforge unship ~/llama.cpp")]
pub struct Args {
    #[command(flatten)]
    tree: TreeArg,
    /// Remove also lines and files of ours that someone edited
    #[arg(long)]
    force: bool,
}

pub fn run(args: Args) -> Result<Outcome> {
    let done = kvforge_llama::unship(&args.tree.open()?, &Payload::embedded()?, args.force)?;
    let tree = args.tree.path().display();
    if done.is_empty() {
        say!("{tree}: nothing to do, not shipped");
        return Ok(Outcome::Done);
    }
    say!(
        "{tree}: unshipped; {} restored, {} of our own removed{}",
        count(done.upstream.len(), "upstream file"),
        count(done.removed, "file"),
        if done.build_removed {
            ", build folder removed"
        } else {
            ""
        },
    );
    for (path, restored) in &done.upstream {
        match restored {
            Restored::Exactly => {}
            Restored::EditedElsewhere => {
                say!("{path}: was edited elsewhere since; only our lines were removed");
            }
            Restored::Unproven => {
                say!("{path}: our lines were removed; no manifest says what it was before")
            }
        }
    }
    for path in &done.left {
        say!("{path}: is not ours and was left there; {OWN_DIR} stays because of it");
    }
    Ok(Outcome::Done)
}
