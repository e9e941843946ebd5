//! `docs/incidents.md`: what the tracer says of each incident, by a replay of its recording. The text around it is written
//! by hand; below each line `$ tracer replay …` stands what that command prints.

use std::path::Path;

use anyhow::{Context as _, Result};

use crate::sh;

const COMMAND: &str = "$ tracer replay ";
const FENCE: &str = "```";
/// Rows of a block begin so: below the first line they name the missing hooks.
const ROW: &str = "  ";

/// The page with each transcript made again.
pub(crate) fn told(page: &str, tracer: &Path) -> Result<String> {
    let mut out = String::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        out.push_str(line);
        out.push('\n');
        if let Some(args) = line.strip_prefix(COMMAND) {
            lines.by_ref().take_while(|line| !line.starts_with(FENCE)).for_each(drop);
            out.push_str(&replay(tracer, args)?);
            out.push_str(FENCE);
            out.push('\n');
        }
    }
    Ok(out)
}

fn replay(tracer: &Path, args: &str) -> Result<String> {
    let mut command = sh::command(tracer);
    command.arg("replay").args(args.split(' ')).env_clear();
    let text = sh::capture(&mut command).with_context(|| format!("tracer replay {args}"))?;
    let mut lines = text.lines();
    let first = lines.next();
    let shown = first.into_iter().chain(lines.skip_while(|line| line.starts_with(ROW)));
    Ok(shown.map(|line| format!("{line}\n")).collect())
}
