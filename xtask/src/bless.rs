//! `cargo xtask bless`: generates files again. `cargo xtask check generated` names the files that are out of date.
//!
//! tracer itself prints the page of all causes, the schema, the transcripts of incidents, the picture of the README and a
//! page of `tracer report`. Other lists follow the table of causes. The plain manifest (`deploy/daemonset.yaml`) is
//! generated, too.
//! Snapshots of tests are not: `cargo insta` updates them.

mod evidence;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anstyle_svg::{Term, WIN10_CONSOLE};
use anyhow::{Context as _, Result, bail};

use crate::{causes, deploy, sh, tracer};

/// Contents of generated files.
type Files = BTreeMap<PathBuf, String>;

pub(crate) fn run() -> Result<()> {
    for (path, content) in stale()? {
        println!("{}", shown(&path));
        fs::write(&path, content)?;
    }
    Ok(())
}

/// Fails if a generated file is out of date.
pub(crate) fn check() -> Result<()> {
    let names: Vec<_> = stale()?.keys().map(|path| shown(path)).collect();
    if names.is_empty() {
        return Ok(());
    }
    bail!("generated files are out of date, run `cargo xtask bless` and look at the changes: {}", names.join(", "))
}

fn shown(path: &Path) -> String {
    path.strip_prefix(sh::root()).unwrap_or(path).display().to_string()
}

/// The files that are out of date, with their new contents.
fn stale() -> Result<Files> {
    tracer::build()?;
    let docs = sh::root().join("docs");
    let [incidents, summary, runbook] = ["incidents.md", "SUMMARY.md", "runbook.md"].map(|name| docs.join(name));
    let mut files = Files::from([
        (summary.clone(), causes::in_contents(&fs::read_to_string(summary)?)),
        (runbook.clone(), causes::in_runbook(&fs::read_to_string(runbook)?)?),
        (docs.join("evidence.md"), evidence::page()?),
        (docs.join("causes/README.md"), tracer::output(&["explain", "--markdown"])?),
        (docs.join("schema.json"), tracer::output(&["schema"])?),
        (docs.join("report-example.html"), example()?),
        (docs.join("attach.svg"), picture()?),
        (incidents.clone(), with_transcripts(&fs::read_to_string(incidents)?)?),
    ]);
    files.extend(deploy::generated()?);
    files.retain(|path, content| fs::read_to_string(path).ok().as_ref() != Some(content));
    Ok(files)
}

/// The start of a transcript, and its end.
const COMMAND: &str = "$ tracer replay ";
const FENCE: &str = "```";
/// Rows of a block start with this. Below the first line of a replay, they name the missing hooks.
const ROW: &str = "  ";

/// The page with the current output of its commands. The rest is written by hand.
fn with_transcripts(page: &str) -> Result<String> {
    let (mut out, mut lines) = (Vec::new(), page.lines());
    while let Some(line) = lines.next() {
        out.push(line.to_owned());
        if let Some(args) = line.strip_prefix(COMMAND) {
            lines.by_ref().take_while(|line| !line.starts_with(FENCE)).for_each(drop);
            let text = tracer::output(&["replay"].into_iter().chain(args.split(' ')).collect::<Vec<_>>())?;
            let mut printed = text.lines().map(str::to_owned);
            out.extend(printed.next());
            out.extend(printed.skip_while(|line| line.starts_with(ROW)));
            out.push(FENCE.to_owned());
        }
    }
    Ok(out.join("\n") + "\n")
}

/// A report about pods of a real kubelet that fail in fifteen ways.
fn example() -> Result<String> {
    let place = sh::target().join("report-example");
    fs::create_dir_all(&place).with_context(|| place.display().to_string())?;
    let recording = place.join("zoo.observations");
    fs::write(&recording, tracer::unpacked(&sh::root().join("tests/recordings/kubelet-1.36/zoo.ndjson.gz"))?)?;
    fs::write(
        place.join("zoo.ndjson"),
        sh::capture(tracer::command().arg("replay").arg(recording).args(["-o", "json"]))?,
    )?;
    // The page shows the file name as given, so here without a path.
    sh::capture(tracer::command().current_dir(place).args(["report", "zoo.ndjson"]))
}

const PICTURED: &str = "tests/fixtures/loopback_down/any-v4/observations.ndjson";
/// How many of its records the picture shows: an event of the node, and the verdict that follows.
const BLOCKS: usize = 2;

fn picture() -> Result<String> {
    let mut replay = tracer::command();
    replay.args(["replay", "-o", "pretty", PICTURED]).env("COLUMNS", "104").env("CLICOLOR_FORCE", "1");
    let page = sh::capture(&mut replay)?;
    let lines = first_blocks(&page).context("the replay for the picture has no records")?;
    let terminal = format!("\u{1b}[2m#\u{1b}[0m \u{1b}[1mtracer attach\u{1b}[0m\n\n{}", lines.join("\n"));
    let (text, paper) = ((0xe6, 0xed, 0xf3), (0x16, 0x1b, 0x22));
    let svg = Term::new().palette(WIN10_CONSOLE).fg_color(text.into()).bg_color(paper.into()).render_svg(&terminal);
    // Dimmed text must be readable on a small screen.
    Ok(svg.replace("opacity: 0.4", "opacity: 0.7"))
}

fn first_blocks(page: &str) -> Option<Vec<&str>> {
    // A block starts with a time, such as `01:49:05.670`. The line about missing hooks starts with a number.
    let begins = |line: &&str| line.find(':') == Some(2) && line.starts_with(|c: char| c.is_ascii_digit());
    let lines: Vec<&str> = page.lines().skip_while(|line| !begins(line)).take_while(|line| !line.is_empty()).collect();
    let starts = (0..lines.len()).filter(|at| begins(&lines[*at]));
    let end = starts.chain([lines.len()]).nth(BLOCKS)?;
    Some(lines[..end].to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_picture_has_the_first_blocks() {
        let blocks = |page: &str| first_blocks(page).map(|lines| lines.join("|"));
        let page = "tracer 0.1.0\n7 of 21 hooks missing: IPVS\n01:00  link_down\n  row\n01:01  <b>\n";
        assert_eq!(blocks(page).as_deref(), Some("01:00  link_down|  row|01:01  <b>"));
        assert_eq!(blocks(&format!("{page}01:02  no more\n")), blocks(page));
        assert_eq!(blocks("tracer 0.1.0\n"), None);
    }
}
