//! `eval.html`: one page that needs nothing but itself.

use std::fmt::Write as _;

use super::report::Report;
use super::sections::{Table, sections};

/// Colours for light and dark, and tables that scroll by themselves on small screens.
const STYLE: &str = include_str!("page.css");

/// The report as a page.
pub fn html(report: &Report) -> String {
    let title = escape(&format!("KV cache types on {}", report.model.path));
    let mut out = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n"
    );
    let mut put =
        |text: std::fmt::Arguments<'_>| out.write_fmt(text).expect("a String takes any text");
    for section in sections(report) {
        put(format_args!("<section>\n<h2>{}</h2>\n", section.title));
        for text in section.text {
            put(format_args!("<p>{}</p>\n", escape(&text)));
        }
        for plot in section.plots {
            put(format_args!("<div class=\"scroll\">{plot}</div>\n"));
        }
        for table in section.tables {
            put(format_args!("{}", html_table(&table)));
        }
        put(format_args!("</section>\n"));
    }
    put(format_args!("</main>\n</body>\n</html>\n"));
    out
}

fn html_table(table: &Table) -> String {
    // The label makes the region reachable with a keyboard, to scroll it.
    let caption = escape(&table.caption);
    let mut out = format!(
        "<div class=\"scroll\" role=\"region\" tabindex=\"0\" aria-label=\"{caption}\">\n<table>\n<caption>{caption}</caption>\n"
    );
    if table.head.iter().any(|h| !h.is_empty()) {
        let is_words = |i| {
            let cell = table.rows.first().and_then(|row| row.get(i));
            cell.is_some_and(|c: &String| !is_number(c))
        };
        let head = table.head.iter().enumerate().map(|(i, text)| {
            let class = if is_words(i) { " class=\"words\"" } else { "" };
            format!("<th scope=\"col\"{class}>{}</th>", escape(text))
        });
        out += &format!("<thead><tr>{}</tr></thead>\n", head.collect::<String>());
    }
    out += "<tbody>\n";
    for row in &table.rows {
        let last = row.len() - 1;
        let span = table.head.len() - last;
        out += "<tr>";
        for (i, cell) in row.iter().enumerate() {
            let text = escape(cell);
            out += &match i {
                0 => format!("<th scope=\"row\">{text}</th>"),
                _ if i == last && span > 1 => {
                    format!("<td colspan=\"{span}\" class=\"words\">{text}</td>")
                }
                _ if is_number(cell) => format!("<td>{text}</td>"),
                _ => format!("<td class=\"words\">{text}</td>"),
            };
        }
        out += "</tr>\n";
    }
    out + "</tbody>\n</table>\n</div>\n"
}

fn is_number(cell: &str) -> bool {
    let first = cell.split(' ').next().unwrap_or_default();
    cell == "-" || cell.len() < 30 && first.parse::<f64>().is_ok()
}

/// Text that is neither a tag nor the end of an attribute.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}
