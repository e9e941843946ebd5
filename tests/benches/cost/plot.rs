//! Draws the curves of `growth` as SVG. Both axes are logarithmic, so what grows with the size is a straight line like
//! the dashed one. Colours and the missing background suit a light and a dark page.

use std::fmt::Write as _;

use super::growth::{Curve, STEADY_MEASURES};

const COLOURS: [&str; 7] = ["#1f8fd6", "#e07b00", "#2ca25f", "#d04a4a", "#9a6ad6", "#b0832f", "#d65aa8"];
const WIDTH: f64 = 420.0;
const HEIGHT: f64 = 250.0;
/// The room for the numbers left of a panel, and for its title above.
const LEFT: f64 = 60.0;
const TOP: f64 = 40.0;
const PANEL: (f64, f64) = (330.0, 170.0);

/// The plots, or nothing without curves.
pub(super) fn svg(curves: &[&Curve]) -> Option<String> {
    let mut parts: Vec<&str> = curves.iter().map(|curve| curve.what).collect();
    parts.dedup();
    let mut measures: Vec<&str> = curves.iter().map(|curve| curve.measure).collect();
    measures.truncate(STEADY_MEASURES);
    let rows = measures.len().div_ceil(2) as f64;
    let (wide, high) = (2.0 * WIDTH, rows * HEIGHT + 22.0 * (parts.len().div_ceil(2) as f64 + 1.0));
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {wide} {high}\" width=\"{wide}\" \
         font-family=\"sans-serif\" font-size=\"13\" fill=\"#808080\">\n"
    );
    for (at, measure) in measures.iter().enumerate() {
        let of: Vec<&Curve> = curves.iter().copied().filter(|curve| curve.measure == *measure).collect();
        let (x, y) = ((at % 2) as f64 * WIDTH + LEFT, (at / 2) as f64 * HEIGHT + TOP);
        panel(&mut svg, x, y, &of, &parts);
    }
    for (at, part) in parts.iter().enumerate() {
        let (x, y) = ((at % 2) as f64 * WIDTH + LEFT, rows * HEIGHT + 22.0 * (at / 2) as f64 + 10.0);
        let sizes = curves.iter().find(|curve| curve.what == *part)?.sizes.map(|size| size.to_string()).join(", ");
        line(&mut svg, [(x, y - 4.0), (x + 24.0, y - 4.0)], colour(at));
        text(&mut svg, x + 32.0, y, "start", &format!("{part}: {sizes}"));
    }
    let (x, y) = (LEFT, high - 12.0);
    dashed(&mut svg, [(x, y - 4.0), (x + 24.0, y - 4.0)]);
    text(&mut svg, x + 32.0, y, "start", "ten times the cost for ten times the size");
    (!curves.is_empty()).then(|| svg + "</svg>\n")
}

fn colour(at: usize) -> &'static str {
    COLOURS[at % COLOURS.len()]
}

/// One measure: a line for each part.
fn panel(svg: &mut String, x: f64, y: f64, curves: &[&Curve], parts: &[&str]) {
    let Some(first) = curves.first() else { return };
    let values = || curves.iter().flat_map(|curve| curve.values).filter(|value| *value > 0.0);
    let lowest = values().fold(f64::INFINITY, f64::min).log10().floor();
    let highest = values().fold(f64::NEG_INFINITY, f64::max).log10().ceil().max(lowest + 1.0);
    let across = |at: usize| x + PANEL.0 * at as f64 / 2.0;
    // A value of 0 is drawn at the bottom.
    let up = |log: f64| y + PANEL.1 * (1.0 - ((log - lowest) / (highest - lowest)).max(0.0));
    text(svg, x, y - 14.0, "start", &format!("{}, {}", first.measure, first.unit));
    for log in lowest as i32..=highest as i32 {
        let at = up(f64::from(log));
        let _ = writeln!(svg, "<path d=\"M{x:.0} {at:.1}h{:.0}\" stroke=\"#808080\" stroke-opacity=\"0.3\"/>", PANEL.0);
        text(svg, x - 6.0, at + 4.0, "end", &10_f64.powi(log).to_string());
    }
    for (at, label) in ["×1", "×10", "×100"].into_iter().enumerate() {
        text(svg, across(at), y + PANEL.1 + 18.0, "middle", label);
    }
    let steps = (highest - lowest).min(2.0);
    dashed(svg, [(x, up(lowest)), (x + PANEL.0 * steps / 2.0, up(lowest + steps))]);
    for curve in curves {
        let place = parts.iter().position(|part| *part == curve.what).unwrap_or_default();
        let points = [0, 1, 2].map(|at| (across(at), up(curve.values[at].log10())));
        line(svg, points, colour(place));
    }
}

fn line<const N: usize>(svg: &mut String, points: [(f64, f64); N], colour: &str) {
    let points = points.map(|(x, y)| format!("{x:.1},{y:.1}")).join(" ");
    let _ = writeln!(svg, "<polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>");
}

fn dashed(svg: &mut String, [from, to]: [(f64, f64); 2]) {
    let points = format!("{:.1},{:.1} {:.1},{:.1}", from.0, from.1, to.0, to.1);
    let _ = writeln!(svg, "<polyline points=\"{points}\" stroke=\"#808080\" stroke-dasharray=\"4 4\"/>");
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, words: &str) {
    let _ = writeln!(svg, "<text x=\"{x:.0}\" y=\"{y:.0}\" text-anchor=\"{anchor}\">{words}</text>");
}
