//! The lines of a `sweep` as a picture: miss rate over size, in SVG written by hand. It decides nothing but where ink
//! goes, and is the same to the byte for the same lines.

use std::fmt::Write;

use crate::sweep::Sweep;
use crate::sweep_lines::Line;
use crate::sweep_space::Space;
use crate::table::{binary, count, grouped};

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 540.0;
/// The field in which lines run; beside it stand their labels.
const LEFT: f64 = 66.0;
const RIGHT: f64 = 716.0;
const TOP: f64 = 96.0;
const BOTTOM: f64 = 464.0;
/// From one label to the next, where they are few: two lines of text.
const LABEL_GAP: f64 = 40.0;
/// Told apart by most people who do not see all colours (Okabe and Ito).
const COLOURS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00"];

/// Where a size and a rate lie.
struct Field {
    most_size: f64,
    most_percent: f64,
}

impl Field {
    fn x(&self, size: u64) -> f64 {
        LEFT + (RIGHT - LEFT) * size as f64 / self.most_size
    }

    fn y(&self, rate: f64) -> f64 {
        BOTTOM - (BOTTOM - TOP) * 100.0 * rate / self.most_percent
    }
}

pub(crate) fn svg(sweep: &Sweep) -> String {
    let highest = sweep.lines.iter().flat_map(|line| &line.drawn).map(|&(_, misses)| misses).max().unwrap_or(0);
    let field = Field {
        most_size: sweep.sizes[sweep.sizes.len() - 1] as f64,
        most_percent: (10.0 * sweep.rate(highest)).ceil().max(1.0) * 10.0,
    };
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
         viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"Helvetica, Arial, 'DejaVu Sans', sans-serif\" \
         font-size=\"13\" fill=\"#444\">\n<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#fff\"/>\n"
    );
    // Writing to a string does not fail.
    let _ = title(sweep, &mut svg);
    let _ = grid(sweep, &field, &mut svg);
    let _ = chosen_size(sweep, &field, &mut svg);
    // The first line lies on top: the others are measured by it.
    for (index, line) in sweep.lines.iter().enumerate().rev() {
        let _ = curve(sweep, &field, line, colour(sweep, index), &mut svg);
    }
    let _ = points(sweep, &field, &mut svg);
    let _ = labels(sweep, &field, &mut svg);
    svg.push_str("</svg>\n");
    svg
}

fn title(sweep: &Sweep, svg: &mut String) -> std::fmt::Result {
    let model = escaped(&shortened(&sweep.header.model, 76));
    writeln!(svg, "<text x=\"24\" y=\"34\" font-size=\"18\" font-weight=\"bold\" fill=\"#111\">{model}</text>")?;
    let batch = if sweep.batch == 1 { String::new() } else { format!(", steps of {} tokens", sweep.batch) };
    let what = format!(
        "{}: misses, in percent of {} uses of {} in {}{batch}",
        shortened(&sweep.file_name, 60),
        grouped(sweep.uses),
        count(sweep.experts_used as u64, "expert"),
        count(u64::from(sweep.header.layers), "layer"),
    );
    writeln!(svg, "<text x=\"24\" y=\"56\">{}</text>", escaped(&what))
}

fn grid(sweep: &Sweep, field: &Field, svg: &mut String) -> std::fmt::Result {
    let step = tick_step(field.most_percent, 8.0);
    for percent in (0..=field.most_percent as usize).step_by(step) {
        let y = field.y(percent as f64 / 100.0);
        let colour = if percent == 0 { "#888" } else { "#e4e4e4" };
        writeln!(svg, "<path d=\"M{LEFT} {y:.1}H{RIGHT}\" stroke=\"{colour}\"/>")?;
        writeln!(svg, "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{percent} %</text>", LEFT - 8.0, y + 4.5)?;
    }
    let unit = match sweep.space {
        Space::Slots(_) => 1,
        Space::Bytes(_) => binary_unit(field.most_size),
    };
    let step = tick_step(field.most_size / unit as f64, 8.0) as u64 * unit;
    for size in (0..=field.most_size as u64).step_by(step as usize) {
        let x = field.x(size);
        writeln!(svg, "<path d=\"M{x:.1} {TOP}V{BOTTOM}\" stroke=\"#e4e4e4\"/>")?;
        let text = |y: f64, colour: &str, text: &str| {
            format!("<text x=\"{x:.1}\" y=\"{y}\" text-anchor=\"middle\" fill=\"{colour}\">{text}</text>")
        };
        match (&sweep.space, sweep.space.bytes(size)) {
            (Space::Slots(_), bytes) => {
                writeln!(svg, "{}", text(BOTTOM + 20.0, "#444", &grouped(size)))?;
                if let Some(bytes) = bytes {
                    writeln!(svg, "{}", text(BOTTOM + 37.0, "#888", &binary(bytes)))?;
                }
            }
            (Space::Bytes(_), _) => writeln!(svg, "{}", text(BOTTOM + 20.0, "#444", &binary(size).replace(".00", "")))?,
        }
    }
    let middle = (LEFT + RIGHT) / 2.0;
    let (size, below) = match (&sweep.space, sweep.space.bytes(0)) {
        (Space::Slots(_), Some(_)) => ("cache size in slots and bytes", 60.0),
        (Space::Slots(_), None) => ("cache size in slots", 46.0),
        (Space::Bytes(_), _) => ("cache size in bytes of all slots and their pads", 46.0),
    };
    writeln!(svg, "<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">{size}</text>", BOTTOM + below)
}

/// A mark at the size that is looked at.
fn chosen_size(sweep: &Sweep, field: &Field, svg: &mut String) -> std::fmt::Result {
    let size = sweep.chosen_size();
    let (x, text) = (field.x(size), sweep.space.label(size));
    writeln!(svg, "<path d=\"M{x:.1} {}V{BOTTOM}\" stroke=\"#666\" stroke-dasharray=\"2 3\"/>", TOP - 8.0)?;
    writeln!(svg, "<text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\" font-weight=\"bold\">{text}</text>", TOP - 16.0)
}

fn curve(sweep: &Sweep, field: &Field, line: &Line, colour: &str, svg: &mut String) -> std::fmt::Result {
    let points: Vec<String> = line
        .drawn
        .iter()
        .map(|&(size, misses)| format!("{:.1},{:.1}", field.x(size), field.y(sweep.rate(misses))))
        .collect();
    // What no cache can be set to is no whole line.
    let dash = if line.is_configurable { "" } else { " stroke-dasharray=\"7 4\"" };
    writeln!(
        svg,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2.5\" stroke-linejoin=\"round\"{dash}/>",
        points.join(" ")
    )
}

/// A point of each line at the size that is looked at, the best one's in a ring and above the others.
fn points(sweep: &Sweep, field: &Field, svg: &mut String) -> std::fmt::Result {
    let is_best = |index: usize| std::ptr::eq(&sweep.lines[index], sweep.best());
    let order = (0..sweep.lines.len()).rev().filter(|&index| !is_best(index));
    for index in order.chain((0..sweep.lines.len()).filter(|&index| is_best(index))) {
        let Some(misses) = sweep.lines[index].misses[sweep.chosen] else { continue };
        let (x, y) = (field.x(sweep.chosen_size()), field.y(sweep.rate(misses.count)));
        let colour = colour(sweep, index);
        if is_best(index) {
            writeln!(
                svg,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"9\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>"
            )?;
        }
        writeln!(
            svg,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4.5\" fill=\"{colour}\" stroke=\"#fff\" stroke-width=\"1.5\"/>"
        )?;
    }
    Ok(())
}

/// Each line's name at its end, and what it misses at the chosen size. Where ends meet, names stand one over another,
/// as the lines do at that size.
fn labels(sweep: &Sweep, field: &Field, svg: &mut String) -> std::fmt::Result {
    let end = |line: &Line| line.drawn.last().map_or(BOTTOM, |&(_, misses)| field.y(sweep.rate(misses)));
    let at_chosen = |line: &Line| line.misses[sweep.chosen].map_or(u64::MAX, |misses| misses.count);
    let mut order: Vec<usize> = (0..sweep.lines.len()).collect();
    let ends: Vec<f64> = sweep.lines.iter().map(end).collect();
    let (highest, lowest) = ends.iter().fold((BOTTOM, TOP), |(high, low), &end| (end.min(high), end.max(low)));
    let gap = LABEL_GAP.min((BOTTOM - TOP + LABEL_GAP) / order.len() as f64);
    match lowest - highest < gap {
        true => order.sort_by_key(|&index| at_chosen(&sweep.lines[index])),
        false => order.sort_by(|&a, &b| ends[b].total_cmp(&ends[a])),
    }
    let mut below = BOTTOM + gap / 2.0;
    for index in order {
        let (line, y_end, colour) = (&sweep.lines[index], ends[index], colour(sweep, index));
        let y = y_end.min(below - gap);
        below = y;
        let x_text = RIGHT + 26.0;
        writeln!(
            svg,
            "<path d=\"M{:.1} {y_end:.1}L{:.1} {y:.1}\" stroke=\"{colour}\" stroke-opacity=\"0.6\"/>",
            RIGHT + 2.0,
            x_text - 4.0
        )?;
        writeln!(
            svg,
            "<text x=\"{x_text}\" y=\"{:.1}\" font-weight=\"bold\" fill=\"{colour}\">{}</text>",
            y + 1.0,
            line.name
        )?;
        if let Some(misses) = line.misses[sweep.chosen] {
            let rate = 100.0 * sweep.rate(misses.count);
            let which = match sweep.bytes_a_token(misses) {
                Some(bytes) => format!(", {} a token", binary(bytes)),
                None => format!(" at {}", grouped(sweep.chosen_size())),
            };
            let best = if std::ptr::eq(line, sweep.best()) { ", best" } else { "" };
            writeln!(
                svg,
                "<text x=\"{x_text}\" y=\"{:.1}\" font-size=\"12\">{rate:.2} %{which}{best}</text>",
                y + 16.0
            )?;
        }
    }
    Ok(())
}

/// Bounds have one that is none of the others'.
fn colour(sweep: &Sweep, index: usize) -> &'static str {
    match sweep.lines[index].is_configurable {
        true => COLOURS[index % COLOURS.len()],
        false => "#555",
    }
}

/// 1, 2 or 5 times a power of ten, so that up to `about` such steps make `most`.
fn tick_step(most: f64, about: f64) -> usize {
    let mut step = 1_usize;
    for factor in [2, 5, 10].into_iter().cycle() {
        if most / step as f64 <= about {
            break;
        }
        let power = 10_usize.pow(step.ilog10());
        step = power * factor;
    }
    step
}

/// The largest of bytes, KiB, MiB and so on that `most` has four of.
fn binary_unit(most: f64) -> u64 {
    (0..=5).rev().map(|power| 1 << (10 * power)).find(|&unit| most >= 4.0 * unit as f64).unwrap_or(1)
}

fn shortened(text: &str, most: usize) -> String {
    match text.chars().count() > most {
        true => text.chars().take(most - 1).chain(['…']).collect(),
        false => text.to_owned(),
    }
}

/// As text between tags; what XML does not allow at all is left out.
fn escaped(text: &str) -> String {
    let text: String = text.chars().filter(|letter| !letter.is_control()).collect();
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_few() {
        let steps = [1.0, 8.0, 9.0, 60.0, 63.0, 100.0, 512.0, 12_288.0].map(|most| tick_step(most, 8.0));
        assert_eq!(steps, [1, 1, 2, 10, 10, 20, 100, 2000]);
    }

    #[test]
    fn ticks_of_bytes_are_of_a_unit_that_makes_several() {
        let units = [3.0, 4096.0, 4095.0, 1.6e9, 9e9, 1e25].map(binary_unit);
        assert_eq!(units, [1, 1 << 10, 1, 1 << 20, 1 << 30, 1 << 50]);
    }

    #[test]
    fn names_are_text_and_no_tags() {
        assert_eq!(escaped("a<b>&\u{1b}c\n"), "a&lt;b&gt;&amp;c");
        assert_eq!((shortened("abcd", 4), shortened("abcde", 4)), ("abcd".to_owned(), "abc…".to_owned()));
    }
}
