use anyhow::Result;
use kvforge_formats::FORMATS;
use serde_json::json;

use crate::Outcome;
use crate::say::say;
use crate::ship::print_json;

/// List the formats
#[derive(clap::Args)]
#[command(after_help = "\
Example:
  kvforge formats
  kvforge formats --json")]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> Result<Outcome> {
    if args.json {
        let formats = FORMATS.iter().map(|f| {
            json!({
                "name": f.name,
                "id": f.id,
                "summary": f.summary,
                "role": f.role.in_words(),
                "block_len": f.block_len,
                "block_bytes": f.block_bytes,
                "bits_per_value": f.bits_per_value(),
            })
        });
        print_json(&json!({ "formats": formats.collect::<Vec<_>>() }))?;
        return Ok(Outcome::Done);
    }
    let width = FORMATS.iter().map(|f| f.name.len()).max().unwrap_or(0);
    for f in FORMATS {
        say!(
            "{:<width$}  {:>6} bits a value, {:>3} bytes for {:>3} values: {} ({})",
            f.name,
            f.bits_per_value(),
            f.block_bytes,
            f.block_len,
            f.summary,
            f.role.in_words(),
        );
    }
    Ok(Outcome::Done)
}
