use anyhow::Result;
use kvforge_llama::{HookState, Payload, State, Status};

use crate::say::say;
use crate::{Outcome, TreeArg, ship};

/// Say what state a llama.cpp tree is in
///
/// Exit code 0 only if everything is as this version of kvforge ships it.
#[derive(clap::Args)]
#[command(after_help = "\
Example:
  kvforge status ~/llama.cpp")]
pub struct Args {
    #[command(flatten)]
    tree: TreeArg,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> Result<Outcome> {
    let status = kvforge_llama::status(&args.tree.open()?, &Payload::embedded()?)?;
    if args.json {
        ship::print_json(&serde_json::to_value(&status)?)?;
    } else {
        print(&status, &args.tree.path().display().to_string());
    }
    Ok(match status.state {
        State::Shipped => Outcome::Done,
        _ => Outcome::CheckFailed,
    })
}

fn print(status: &Status, tree: &str) {
    let by = match &status.shipped_by {
        Some(version) => format!("kvforge {version}, "),
        None => String::new(),
    };
    say!(
        "{tree}: {} ({by}ggml {})",
        status.state.in_words(),
        status.ggml
    );
    if status.state != State::NotShipped {
        say!("types: {}", ship::ids(&status.types));
        let width = status.hooks.iter().map(|h| h.id.len()).max().unwrap_or(0);
        for hook in &status.hooks {
            let line = hook.line.map(|l| format!(":{l}")).unwrap_or_default();
            say!(
                "  {:<width$}  {:<14} {}{line}",
                hook.id,
                word(hook.state),
                hook.file
            );
        }
        for file in &status.files {
            say!("  {}: {}", file.path, word(file.state));
        }
    }
    for problem in &status.problems {
        say!("\n{problem}");
    }
    match status.state {
        State::NotShipped | State::Partial | State::Older | State::Drifted
            if status.problems.is_empty() =>
        {
            say!("next: kvforge ship {tree}");
        }
        _ => {}
    }
}

fn word(state: HookState) -> &'static str {
    match state {
        HookState::Applied => "applied",
        HookState::Missing => "missing",
        HookState::Older => "older version",
        HookState::Obsolete => "obsolete",
        HookState::EditedByHand => "edited by hand",
        HookState::NoPlace => "no place",
    }
}
