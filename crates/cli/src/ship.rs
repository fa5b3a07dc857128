use anyhow::Result;
use kvforge_llama::{Action, Error, Payload, Plan, TypeEntry};
use serde_json::{Value, json};

use crate::say::say;
use crate::{Outcome, TreeArg, count};

/// Put kvforge into a llama.cpp tree
///
/// Our sources go into ggml/src/kvforge, and upstream files get a few marked
/// lines that call into it. Everything is checked before anything is written;
/// `kvforge unship` gives back every byte.
#[derive(clap::Args)]
#[command(after_help = "\
Example:
  kvforge ship --dry-run ~/llama.cpp    show what would change
  kvforge ship ~/llama.cpp              change it")]
pub struct Args {
    #[command(flatten)]
    tree: TreeArg,
    /// Show what would be written, and write nothing
    #[arg(long)]
    dry_run: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> Result<Outcome> {
    let payload = Payload::embedded()?;
    let plan = match args.tree.open().and_then(|tree| Plan::new(&tree, &payload)) {
        Ok(plan) => plan,
        Err(e) => {
            if args.json {
                print_json(&refusal(&e))?;
            }
            return Err(e.into());
        }
    };
    let types = plan.types();
    let changes = plan.changes().to_vec();
    let number = |action: Action| changes.iter().filter(|c| c.action == action).count();
    let result = match (changes.is_empty(), args.dry_run) {
        (true, _) => "nothing-to-do",
        (false, true) => "planned",
        (false, false) => "shipped",
    };

    let mut report = json!({ "result": result, "types": types, "changes": changes });
    if args.dry_run {
        report["diff"] = plan.diff().into();
    }
    if args.dry_run && !args.json {
        say!("{}", plan.diff().trim_end_matches('\n'));
        for (action, word) in [
            (Action::Add, "new"),
            (Action::Replace, "replaced"),
            (Action::Remove, "removed"),
        ] {
            for change in changes.iter().filter(|c| c.action == action) {
                say!("{word}: {}", change.path);
            }
        }
    }
    if !args.dry_run {
        plan.write()?;
    }
    if args.json {
        print_json(&report)?;
        return Ok(Outcome::Done);
    }
    let tree = args.tree.path().display();
    match result {
        "nothing-to-do" => say!("{tree}: nothing to do, already shipped ({})", ids(&types)),
        "planned" => say!(
            "\n{tree}: would patch {}, write {} of our own and remove {} ({}); nothing was written",
            count(number(Action::Patch), "upstream file"),
            count(number(Action::Add) + number(Action::Replace), "file"),
            number(Action::Remove),
            ids(&types),
        ),
        _ => say!(
            "{tree}: shipped; patched {}, wrote {} of our own ({})\nnext: kvforge build {tree}",
            count(number(Action::Patch), "upstream file"),
            count(number(Action::Add) + number(Action::Replace), "file"),
            ids(&types),
        ),
    }
    Ok(Outcome::Done)
}

/// `tbq3_0 = 43, tbq4_0 = 44`.
pub fn ids(types: &[TypeEntry]) -> String {
    let pairs: Vec<String> = types
        .iter()
        .map(|t| format!("{} = {}", t.name, t.ggml_id))
        .collect();
    pairs.join(", ")
}

fn refusal(error: &Error) -> Value {
    let problems: Vec<String> = match error {
        Error::Refused { problems } => problems.iter().map(Error::to_string).collect(),
        other => vec![other.to_string()],
    };
    json!({ "result": "refused", "problems": problems })
}

pub fn print_json(value: &Value) -> Result<()> {
    say!("{}", serde_json::to_string_pretty(value)?);
    Ok(())
}
