//! The report for people, before it is Markdown or HTML: titles, sentences, tables,
//! plots.

use kvforge::quality::{self, Center, Outcome as Measured};

use super::parse::Estimate;
use super::plot::{self, Dot, Point, Series};
use super::report::{Copy, Outcome, Report, Row, Task};

pub(super) struct Section {
    pub title: &'static str,
    pub text: Vec<String>,
    /// SVG each.
    pub plots: Vec<String>,
    pub tables: Vec<Table>,
}

pub(super) struct Table {
    pub caption: String,
    pub head: Vec<String>,
    pub rows: Vec<Vec<String>>,
}

impl Table {
    fn new(caption: &str, head: &[&str]) -> Table {
        Table {
            caption: caption.into(),
            head: head.iter().map(|h| h.to_string()).collect(),
            rows: vec![],
        }
    }
}

pub(super) fn sections(report: &Report) -> Vec<Section> {
    let mut all = vec![divergence(report), copy(report)];
    all.extend(
        report
            .layers
            .as_ref()
            .map(|l| layers(&l.capture.path, &l.reports)),
    );
    all.push(how(report));
    all
}

fn divergence(report: &Report) -> Section {
    let task = &report.divergence;
    let scored = (report.ctx - 1 - report.ctx / 2) * report.chunks;
    let points = points(task);
    let caption = "Mean divergence from the f16 cache against bits a value";
    let top = dots(
        task,
        "text-top",
        "How often the most likely token stays the same, on the text",
    );
    Section {
        title: "How far predictions move",
        text: vec![
            format!(
                "{} of {} tokens of {}; the second half of each is scored, {scored} tokens in all. \
                 Kullback-Leibler divergence (KLD) of the next-token distribution from that of the same model \
                 with an f16 cache, in nats. After ± stands one standard error.",
                chunks(report.chunks),
                report.ctx,
                report.text.path
            ),
            "The row f16 is the floor: the same cache compared with itself, rounding of the saved \
             predictions alone. q8_0, q4_0 and iq4_nl are llama.cpp's own, with its rotation on. \
             Perplexity stands last because it misleads: a worse cache can score a lower one."
                .into(),
            "With a window, each query reads the newest tokens (and, if so named, the first ones) \
             from f16 copies. Bits a value count these copies: 16 (window + first) / context, less \
             the longer the context."
                .into(),
        ],
        plots: vec![plot::scatter("text-kld", caption, &points), top],
        tables: vec![figures(task, "Divergence from the f16 cache"), ratios(task)],
    }
}

fn copy(report: &Report) -> Section {
    let mut section = Section {
        title: "Copy task",
        text: vec![],
        plots: vec![],
        tables: vec![],
    };
    match &report.copy {
        Copy::NotRun { not_run, .. } => section.text.push(format!("not run: {not_run}")),
        Copy::Measured {
            window,
            passage_tokens,
            model_copies,
            task,
            ..
        } => {
            section.text.push(format!(
                "One passage of random words, {passage_tokens} tokens long, again and again in a window of \
                 {window}. Each scored token stood in the window before, so a cache that can still be read \
                 gives a perplexity near 1. With f16 it is {}.",
                decimal(task.base_ppl)
            ));
            if !model_copies {
                section.text.push(
                    "This model does not copy even with the f16 cache: the rows below prove \
                     nothing. A shorter window (--copy) may be within its reach."
                        .into(),
                );
            }
            let caption = "How often the most likely token stays the same, in the copy task";
            section.plots.push(dots(task, "copy-top", caption));
            section.tables.push(figures(task, "Copying"));
        }
    }
    section
}

/// All figures of a task; PPL last.
fn figures(task: &Task, caption: &str) -> Table {
    let head = [
        "K / V",
        "bits a value",
        "mean KLD",
        "median",
        "99 %",
        "max",
        "same top token, %",
        "RMS Δp, %",
        "cache, MiB",
        "PPL / f16's",
        "PPL",
    ];
    let mut table = Table::new(caption, &head);
    for row in &task.rows {
        let mut cells = vec![row.name(), row.bits()];
        match &row.outcome {
            Outcome::Measured { figures: f, .. } => cells.extend([
                decimal(f.mean_kld),
                short(f.median_kld),
                short(f.p99_kld),
                short(f.max_kld),
                decimal(f.same_top),
                decimal(f.rms_dp),
                f.cache_mib.map_or("-".into(), |m| format!("{m:.2}")),
                decimal(f.ppl_ratio),
                decimal(f.ppl),
            ]),
            Outcome::Refused { refused } => cells.push(format!("refused: {refused}")),
            Outcome::Failed { failed } => cells.push(format!("failed: {failed}")),
        }
        table.rows.push(cells);
    }
    table
}

fn ratios(task: &Task) -> Table {
    let caption = "Mean KLD over that of others. The runs score the same tokens, but the errors \
                   count as independent, which makes them larger than they are";
    let head = ["K / V", "/ q4_0", "/ q8_0", "centred / not centred"];
    let mut table = Table::new(caption, &head);
    for row in task.rows.iter().filter(|r| !r.is_floor()) {
        if let Outcome::Measured { ratios, .. } = &row.outcome {
            let ratios = [ratios.to_q4_0, ratios.to_q8_0, ratios.to_not_centred];
            let cells = ratios.map(|r| r.map_or("-".into(), decimal));
            table.rows.push([vec![row.name()], cells.to_vec()].concat());
        }
    }
    table
}

/// Rows that have a place on a logarithmic axis.
fn points(task: &Task) -> Vec<Point> {
    let drawn = |row: &&Row| row.bits_per_value < 16.0;
    let rows = task.rows.iter().filter(drawn);
    rows.filter_map(|row| {
        let kld = row.figures()?.mean_kld;
        (kld.value > 0.0).then(|| Point {
            name: row.name(),
            label: row.name_beside_mark(),
            bits: row.effective_bits,
            y: kld,
            ours: row.types.is_ours(),
            centred: row.centred,
        })
    })
    .collect()
}

fn dots(task: &Task, id: &str, caption: &str) -> String {
    let mut dots: Vec<Dot> = task
        .rows
        .iter()
        .filter(|row| !row.is_floor())
        .filter_map(|row| {
            Some(Dot {
                label: row.name(),
                x: row.figures()?.same_top,
                ours: row.types.is_ours(),
                centred: row.centred,
            })
        })
        .collect();
    dots.sort_by(|a, b| b.x.value.total_cmp(&a.x.value));
    plot::dots(id, caption, &dots)
}

fn layers(capture: &str, reports: &[quality::Report]) -> Section {
    let mut section = Section {
        title: "Error by layer",
        text: vec![format!(
            "Mean divergence of the attention rows in {capture} (in nats, keys coded, values exact), from \
             the reference codecs and not from the tree. q4_0_rot is q4_0 behind llama.cpp's rotation; \
             iq4_nl stands here without one."
        )],
        plots: vec![],
        tables: vec![],
    };
    for (report, number) in reports.iter().zip(1..) {
        let centre = match report.center {
            Center::None => "keys not centred",
            Center::Own => "keys centred with their own mean",
            Center::File => "keys centred with the mean of another text",
        };
        let series: Vec<Series> = report.formats.iter().filter_map(series).collect();
        let caption = format!("Divergence of attention rows by layer, {centre}");
        section
            .plots
            .push(plot::lines(&format!("layers-{number}"), &caption, &series));
        let names = series.iter().map(|s| s.name.as_str());
        let mut table = Table::new(
            &caption,
            &["layer"].into_iter().chain(names).collect::<Vec<_>>(),
        );
        let numbers = series.first().map_or(&[][..], |s| &s.points);
        for (i, (layer, _)) in numbers.iter().enumerate() {
            let values = series.iter().map(|s| short(s.points[i].1));
            table
                .rows
                .push([layer.to_string()].into_iter().chain(values).collect());
        }
        section.tables.push(table);
    }
    for entry in reports.iter().flat_map(|r| &r.formats) {
        if let Measured::NotRun { not_run } = &entry.outcome {
            // What does not fit does not fit with a centre either: said once.
            let text = format!("{}: not run: {not_run}", entry.format);
            if !section.text.contains(&text) {
                section.text.push(text);
            }
        }
    }
    section
}

fn series(entry: &quality::Entry) -> Option<Series> {
    let Measured::Measured { layers, .. } = &entry.outcome else {
        return None;
    };
    let points = layers
        .iter()
        .map(|l| (l.layer, l.figures.attention_kl_mean));
    Some(Series {
        name: entry.format.into(),
        points: points.collect(),
    })
}

/// What made the numbers.
fn how(report: &Report) -> Section {
    let mut facts = Table::new("What was measured, where and when", &["", ""]);
    let mut fact = |name: &str, value: String| facts.rows.push(vec![name.into(), value]);
    fact("date", report.date.clone());
    fact("kvforge", report.kvforge.into());
    fact("command", report.command.clone());
    fact("tree", report.tree.clone());
    let host = &report.host;
    fact(
        "machine",
        format!(
            "{}, {}, {}, {} threads",
            host.cpu, host.os, host.arch, report.threads
        ),
    );
    for (name, value) in &report.settings {
        fact(name, value.clone());
    }
    let mut digests = Table::new("BLAKE3 of what went in", &["file", "digest"]);
    let mut files = vec![("model ", &report.model), ("text ", &report.text)];
    files.extend(report.calibration.iter().map(|c| ("calibration ", c)));
    files.extend(report.layers.iter().map(|l| ("capture ", &l.capture)));
    for (what, file) in files {
        digests
            .rows
            .push(vec![format!("{what}{}", file.path), file.blake3.clone()]);
    }
    let program = report.program.iter();
    digests
        .rows
        .extend(program.map(|(name, hash)| vec![name.clone(), hash.clone()]));
    let mut commands = Table::new("Commands", &["run", "command"]);
    let mut tasks = vec![("text", &report.divergence)];
    if let Copy::Measured { task, .. } = &report.copy {
        tasks.push(("copy", task));
    }
    for (name, task) in tasks {
        commands
            .rows
            .push(vec![format!("{name}: base"), task.base_command.clone()]);
        let rows = task.rows.iter();
        commands
            .rows
            .extend(rows.map(|r| vec![format!("{name}: {}", r.name()), r.command.clone()]));
    }
    Section {
        title: "How this was made",
        text: vec![],
        plots: vec![],
        tables: vec![facts, digests, commands],
    }
}

/// As many decimals as the error has meaning: `0.0559 ± 0.0016`.
pub(super) fn decimal(e: Estimate) -> String {
    if e.error <= 0.0 {
        return format!("{} ± 0", short(e.value));
    }
    let places = (1 - e.error.log10().floor() as i32).clamp(0, 6) as usize;
    format!("{:.places$} ± {:.places$}", e.value, e.error)
}

/// Three digits: `12.3`, `0.0123`, `1.23e-5`.
pub(super) fn short(x: f64) -> String {
    if x == 0.0 {
        return "0".into();
    }
    if x.abs() < 1e-4 {
        return format!("{x:.2e}");
    }
    let before_point = x.abs().log10().floor() as i32;
    let places = (2 - before_point).max(0) as usize;
    format!("{x:.places$}")
}

/// `1 chunk`, `2 chunks`.
fn chunks(n: usize) -> String {
    format!("{n} chunk{}", if n == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_digits_that_mean_something() {
        for (value, error, text) in [
            (0.055903, 0.001558, "0.0559 ± 0.0016"),
            (84.786, 0.795, "84.79 ± 0.80"),
            (5432.1, 123.0, "5432 ± 123"),
            (-0.000001, 0.000001, "-0.000001 ± 0.000001"),
            (100.0, 0.0, "100 ± 0"),
        ] {
            assert_eq!(decimal(Estimate { value, error }), text);
        }
        assert_eq!(
            [12.34, 0.01234, 0.0, 1.234e-5].map(short),
            ["12.3", "0.0123", "0", "1.23e-5"]
        );
    }
}
