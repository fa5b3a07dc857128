//! `eval.md`.

use std::fmt::Write as _;

use super::report::Report;
use super::sections::sections;

/// The report as Markdown.
pub fn markdown(report: &Report) -> String {
    let mut out = format!("# KV cache types on {}\n", cell(&report.model.path));
    let mut put =
        |text: std::fmt::Arguments<'_>| out.write_fmt(text).expect("a String takes any text");
    for section in sections(report) {
        put(format_args!("\n## {}\n", section.title));
        for text in section.text {
            put(format_args!("\n{}\n", cell(&text)));
        }
        for table in section.tables {
            put(format_args!("\n{}:\n\n", table.caption));
            put(format_args!("| {} |\n", table.head.join(" | ")));
            put(format_args!("|{}\n", "---|".repeat(table.head.len())));
            for mut row in table.rows {
                row.resize(table.head.len(), String::new());
                let cells: Vec<String> = row.iter().map(|c| cell(c)).collect();
                put(format_args!("| {} |\n", cells.join(" | ")));
            }
        }
    }
    out
}

/// Text that ends no cell and begins no tag.
fn cell(text: &str) -> String {
    let text = text
        .replace('\\', "\\\\")
        .replace('|', "\\|")
        .replace('<', "&lt;");
    text.replace(['\n', '\r'], " ")
}
