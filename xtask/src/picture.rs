//! `docs/attach.svg`, for README: a verdict as a terminal shows it, drawn from the replay of a recording.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Result;

use crate::sh;

const RECORDING: &str = "tests/fixtures/loopback_down/any-v4/observations.ndjson";
const COLUMNS: usize = 104;
/// Of the page: an event of the node, and the verdict that follows from it.
const BLOCKS: usize = 2;
/// Of a cell, and of the frame, in pixels.
const WIDTH: f64 = 8.0;
const HEIGHT: usize = 20;
const FRAME: usize = 16;
/// Colours of a terminal, by the codes that `screen` writes.
const STYLE: &str = "rect{fill:#161b22}text{font:13.3px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',\
monospace;fill:#e6edf3;white-space:pre}.c1{font-weight:bold}.c2{fill:#8b949e}.c32{fill:#3fb950}.c33{fill:#d29922}\
.c36{fill:#39c5cf}.c31{fill:#ff7b72}";

/// The picture.
pub(crate) fn drawn(tracer: &Path) -> Result<String> {
    let mut replay = sh::command(tracer);
    replay.args(["replay", "-o", "pretty"]).arg(sh::root().join(RECORDING));
    replay.env_clear().env("COLUMNS", COLUMNS.to_string()).env("CLICOLOR_FORCE", "1");
    Ok(svg(&blocks(&sh::capture(&mut replay)?)))
}

/// The command, and the first records with a time.
fn blocks(page: &str) -> Vec<&str> {
    let begins = |line: &&str| line.starts_with(|c: char| c.is_ascii_digit());
    let mut lines = vec!["\u{1b}[2m#\u{1b}[0m \u{1b}[1mtracer attach\u{1b}[0m", ""];
    let mut seen = 0;
    for line in page.lines().skip_while(|line| !begins(line)) {
        seen += usize::from(begins(&line));
        if seen > BLOCKS || line.is_empty() {
            break;
        }
        lines.push(line);
    }
    lines
}

fn svg(lines: &[&str]) -> String {
    let width = COLUMNS * 8 + 2 * FRAME;
    let height = lines.len() * HEIGHT + 2 * FRAME;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\">\n<style>{STYLE}</style>\n\
         <rect width=\"{width}\" height=\"{height}\" rx=\"8\"/>\n"
    );
    for (n, line) in (1..).zip(lines) {
        let _ = writeln!(out, "<text y=\"{}\">{}</text>", FRAME + n * HEIGHT - 6, spans(line));
    }
    out.push_str("</svg>\n");
    out
}

/// A line's parts, each in its colours and in its columns, however wide the reader's letters are.
fn spans(line: &str) -> String {
    let (mut out, mut column) = (String::new(), 0);
    for (n, part) in line.split("\u{1b}[").enumerate() {
        let (codes, text) = if n == 0 { ("0", part) } else { part.split_once('m').unwrap_or(("0", part)) };
        let length = text.chars().count();
        let classes: Vec<_> = codes.split(';').map(|code| format!("c{code}")).collect();
        let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        if !text.is_empty() {
            let (x, width) = (FRAME as f64 + column as f64 * WIDTH, length as f64 * WIDTH);
            let _ =
                write!(out, "<tspan class=\"{}\" x=\"{x}\" textLength=\"{width}\">{text}</tspan>", classes.join(" "));
        }
        column += length;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_picture_has_the_first_blocks_in_their_colours() {
        let page = "tracer 0.1.0\n  without\n01:00  \u{1b}[33mlink_down\u{1b}[0m\n  row\n01:01  <b>\n01:02  no more\n";
        let lines = blocks(page);
        assert_eq!(lines[2..], ["01:00  \u{1b}[33mlink_down\u{1b}[0m", "  row", "01:01  <b>"]);
        let svg = svg(&lines);
        assert!(svg.contains("<tspan class=\"c33\" x=\"72\" textLength=\"72\">link_down</tspan>"), "{svg}");
        assert!(svg.contains("&lt;b&gt;"), "{svg}");
    }
}
