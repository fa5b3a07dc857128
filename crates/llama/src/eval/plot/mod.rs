//! Plots as SVG for a page that brings the colours (`page.css`): each has a title and a
//! description for those who do not see it, and its numbers stand in a table beside.

mod axis;
mod labels;

use std::fmt::Write as _;

use super::html::escape;
use super::parse::Estimate;
use super::sections::{decimal, short};
use axis::Axis;
use labels::{Box2, Labels};

/// Size of the font, and what a character takes at most on average.
const CHAR: f64 = 7.3;
/// Height of a line of text.
const LINE: f64 = 15.0;
/// Width of every plot.
const WIDTH: f64 = 760.0;
/// Colours that `page.css` has.
const COLOURS: usize = 8;

/// A pair of types in the plot of divergence against bits.
pub(super) struct Point {
    /// All that it is.
    pub name: String,
    /// The same without what its mark says.
    pub label: String,
    pub bits: f64,
    pub y: Estimate,
    pub ours: bool,
    pub centred: bool,
}

/// A pair of types on a line of its own.
pub(super) struct Dot {
    pub label: String,
    pub x: Estimate,
    pub ours: bool,
    pub centred: bool,
}

/// A type in the plot by layer.
pub(super) struct Series {
    pub name: String,
    /// Layer and value.
    pub points: Vec<(usize, f64)>,
}

/// An SVG being written.
struct Svg {
    out: String,
}

impl Svg {
    fn new(id: &str, title: &str, description: &str, height: f64) -> Svg {
        let (title, description) = (escape(title), escape(description));
        let out = format!(
            "<svg viewBox=\"0 0 {WIDTH:.0} {height:.0}\" role=\"img\" aria-labelledby=\"{id}-t {id}-d\">\
             <title id=\"{id}-t\">{title}</title><desc id=\"{id}-d\">{description}</desc>\n\
             <text class=\"head\" x=\"0\" y=\"14\">{title}</text>\n"
        );
        Svg { out }
    }

    fn put(&mut self, element: std::fmt::Arguments<'_>) {
        writeln!(self.out, "{element}").expect("a String takes any text");
    }

    fn line(&mut self, class: &str, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
        self.put(format_args!(
            "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"
        ));
    }

    fn text(&mut self, class: &str, (x, y): (f64, f64), text: &str) {
        let text = escape(text);
        self.put(format_args!(
            "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{text}</text>"
        ));
    }

    /// A circle for ours, a square for peers; hollow if not centred.
    fn mark(&mut self, (x, y): (f64, f64), ours: bool, centred: bool) {
        const R: f64 = 5.0;
        let hollow = if centred { "" } else { " hollow" };
        match ours {
            true => self.put(format_args!(
                "<circle class=\"ours{hollow}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{R}\"/>"
            )),
            false => self.put(format_args!(
                "<rect class=\"peer{hollow}\" x=\"{:.1}\" y=\"{:.1}\" width=\"{}\" height=\"{}\"/>",
                x - R,
                y - R,
                2.0 * R,
                2.0 * R
            )),
        }
    }

    /// What the marks mean, in one line that begins at `y`.
    fn legend(&mut self, y: f64, any_centred: bool) {
        let mut x = 6.0;
        let mut entry = |ours, centred, text: &str| {
            self.mark((x, y - 4.0), ours, centred);
            self.text("", (x + 11.0, y), text);
            x += 30.0 + CHAR * text.len() as f64;
        };
        entry(true, false, "kvforge");
        if any_centred {
            entry(true, true, "kvforge, centred");
        }
        entry(false, false, "llama.cpp's own");
        if any_centred {
            entry(false, true, "llama.cpp's own, centred");
        }
    }

    fn end(mut self) -> String {
        self.out += "</svg>";
        self.out
    }
}

fn colour(ours: bool) -> &'static str {
    if ours { "ours" } else { "peer" }
}

/// Divergence against bits a value, on a logarithmic axis, with a bar of one standard
/// error to either side.
pub(super) fn scatter(id: &str, title: &str, points: &[Point]) -> String {
    const HEIGHT: f64 = 500.0;
    let frame = Box2 {
        left: 64.0,
        top: 54.0,
        right: WIDTH - 12.0,
        bottom: HEIGHT - 48.0,
    };
    let described = points
        .iter()
        .map(|p| format!("{} at {} bits: {}", p.name, short(p.bits), decimal(p.y)));
    let described: Vec<String> = described.collect();
    let mut svg = Svg::new(id, title, &described.join("; "), HEIGHT);
    svg.legend(34.0, points.iter().any(|p| p.centred));
    // A bar that reaches zero ends where the axis does.
    let low = |p: &Point| (p.y.value - p.y.error).max(p.y.value / 3.0);
    let ys = points.iter().flat_map(|p| [low(p), p.y.value + p.y.error]);
    let y_axis = Axis::logarithmic(ys, frame.bottom, frame.top);
    let xs = points
        .iter()
        .map(|p| p.bits)
        .flat_map(|x| [x - 0.4, x + 0.4]);
    let x_axis = Axis::linear(xs, frame.left, frame.right);
    for (value, y) in y_axis.ticks() {
        svg.line("grid", (frame.left, y), (frame.right, y));
        svg.text("tick end", (frame.left - 8.0, y + 4.0), &short_tick(value));
    }
    for (value, x) in x_axis.ticks() {
        svg.line("grid", (x, frame.bottom), (x, frame.bottom + 5.0));
        svg.text("tick middle", (x, frame.bottom + 20.0), &value.to_string());
    }
    let middle = (frame.left + frame.right) / 2.0;
    svg.text(
        "tick middle",
        (middle, HEIGHT - 8.0),
        "bits a value, K and V averaged, exact copies included",
    );
    let at = |p: &Point| (x_axis.at(p.bits), y_axis.at(p.y.value));
    let mut labels = Labels::new(frame, points.iter().map(at));
    for p in points {
        let place = labels.place(at(p), CHAR * p.label.len() as f64);
        if let Some((from, to)) = place.leader {
            svg.line("leader", from, to);
        }
        svg.text("", (place.text.left, place.text.bottom - 4.0), &p.label);
    }
    for p in points {
        let (x, y) = at(p);
        let bar = (y_axis.at(low(p)), y_axis.at(p.y.value + p.y.error));
        svg.line(colour(p.ours), (x, bar.0), (x, bar.1));
        svg.mark((x, y), p.ours, p.centred);
    }
    svg.end()
}

/// One line for each pair: a mark with its error, and the number.
pub(super) fn dots(id: &str, title: &str, dots: &[Dot]) -> String {
    const ROW: f64 = 26.0;
    const TOP: f64 = 50.0;
    let longest = dots
        .iter()
        .map(|d| d.label.chars().count())
        .max()
        .unwrap_or(0);
    let (left, right) = (CHAR * longest as f64 + 16.0, WIDTH - 120.0);
    let bottom = TOP + ROW * dots.len() as f64;
    let described: Vec<String> = dots
        .iter()
        .map(|d| format!("{}: {} %", d.label, decimal(d.x)))
        .collect();
    let mut svg = Svg::new(id, title, &described.join("; "), bottom + 28.0);
    svg.legend(34.0, dots.iter().any(|d| d.centred));
    let ends = dots.iter().map(|d| d.x.value - d.x.error).chain([100.0]);
    let axis = Axis::linear(ends, left, right);
    for (value, x) in axis.ticks() {
        svg.line("grid", (x, TOP), (x, bottom));
        svg.text("tick middle", (x, bottom + 18.0), &format!("{value} %"));
    }
    for (dot, n) in dots.iter().zip(0..) {
        let y = TOP + ROW * (n as f64 + 0.5);
        svg.text("end", (left - 10.0, y + 4.0), &dot.label);
        let error = dot.x.error;
        let to = (dot.x.value + error).min(100.0);
        svg.line(
            colour(dot.ours),
            (axis.at(dot.x.value - error), y),
            (axis.at(to), y),
        );
        svg.mark((axis.at(dot.x.value), y), dot.ours, dot.centred);
        svg.text("", (right + 14.0, y + 4.0), &decimal(dot.x));
    }
    svg.end()
}

/// A line for each type over the layers, named at its end.
pub(super) fn lines(id: &str, title: &str, series: &[Series]) -> String {
    const HEIGHT: f64 = 420.0;
    let longest = series
        .iter()
        .map(|s| s.name.chars().count())
        .max()
        .unwrap_or(0);
    let frame = Box2 {
        left: 64.0,
        top: 30.0,
        right: WIDTH - 16.0 - CHAR * longest as f64,
        bottom: HEIGHT - 44.0,
    };
    let means = series.iter().map(|s| {
        let sum: f64 = s.points.iter().map(|(_, y)| y).sum();
        format!(
            "{}: mean {}",
            s.name,
            short(sum / s.points.len().max(1) as f64)
        )
    });
    let means: Vec<String> = means.collect();
    let mut svg = Svg::new(id, title, &means.join("; "), HEIGHT);
    let all = || series.iter().flat_map(|s| s.points.iter());
    let y_axis = Axis::logarithmic(
        all().map(|p| p.1).filter(|y| *y > 0.0),
        frame.bottom,
        frame.top,
    );
    let x_axis = Axis::linear(
        all().map(|p| p.0 as f64),
        frame.left + 8.0,
        frame.right - 8.0,
    );
    for (value, y) in y_axis.ticks() {
        svg.line("grid", (frame.left, y), (frame.right, y));
        svg.text("tick end", (frame.left - 8.0, y + 4.0), &short_tick(value));
    }
    for (value, x) in x_axis.ticks().filter(|(value, _)| value.fract() == 0.0) {
        svg.line("grid", (x, frame.bottom), (x, frame.bottom + 5.0));
        svg.text("tick middle", (x, frame.bottom + 20.0), &value.to_string());
    }
    svg.text(
        "tick middle",
        ((frame.left + frame.right) / 2.0, HEIGHT - 6.0),
        "layer",
    );
    let mut ends = vec![];
    for (s, n) in series.iter().zip(0..) {
        let drawn = s.points.iter().filter(|p| p.1 > 0.0);
        let at: Vec<(f64, f64)> = drawn
            .map(|p| (x_axis.at(p.0 as f64), y_axis.at(p.1)))
            .collect();
        let list: Vec<String> = at.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let class = format!("c{}", n % COLOURS);
        let dash = ["", " stroke-dasharray=\"7 3\""][n / COLOURS % 2];
        svg.put(format_args!(
            "<polyline class=\"{class}\"{dash} points=\"{}\"/>",
            list.join(" ")
        ));
        ends.extend(at.last().map(|end| (*end, class, &s.name)));
    }
    let heights: Vec<f64> = ends.iter().map(|((_, y), ..)| *y).collect();
    let spread = labels::spread(&heights, LINE, frame.top, frame.bottom);
    for ((end, class, name), label) in ends.iter().zip(spread) {
        svg.line(class, *end, (frame.right + 4.0, label));
        svg.text(class, (frame.right + 8.0, label + 4.0), name);
    }
    svg.end()
}

/// `0.05`, `1e-5`
fn short_tick(x: f64) -> String {
    if x < 1e-4 {
        format!("{x:e}")
    } else {
        x.to_string()
    }
}
