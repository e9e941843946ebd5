//! Checks the commands in the documentation. A shell parses each block, and tracer and xtask parse their command lines.

use std::os::unix::process::CommandExt as _;

use anyhow::{Context as _, Result, ensure};
use clap::Parser as _;

use super::pages;
use crate::deploy::text;
use crate::sh::{self, regex};
use crate::{Cli, tracer};

/// Checks all pages.
pub(crate) fn check() -> Result<()> {
    tracer::build()?;
    let mut tried = 0;
    for page in pages()? {
        let text = text(&sh::root().join(&page))?;
        for block in regex(r"(?ms)^ *```sh\n(.*?)^ *```").captures_iter(&text) {
            sh::capture(sh::command("sh").args(["-nc", &block[1]])).with_context(|| page.clone())?;
            for line in lines(&block[1]) {
                parse(&line).with_context(|| format!("{page}: {line}"))?;
                tried += 1;
            }
        }
    }
    ensure!(tried > 60, "only {tried} command lines were found");
    Ok(())
}

/// The command lines of a block, without comments and redirections.
fn lines(block: &str) -> Vec<String> {
    // The check needs no content of quoted words, and they could contain separators.
    let whole = regex("'[^']*'").replace_all(&block.replace("\\\n", " "), "quoted").into_owned();
    let code = whole.lines().map(|line| line.split(" #").next().unwrap_or_default());
    let parts: Vec<String> =
        code.flat_map(|line| regex(r"\|\||&&|[|;>]").split(line).map(str::to_owned).collect::<Vec<_>>()).collect();
    let parts = parts.iter().map(|part| regex(r"^\s*kubectl .* -- \S*/").replace(part, "").into_owned());
    let ours = regex(r"^\s*((kubectl )?tracer|cargo xtask)( |$)");
    // Brackets mark optional arguments.
    parts.filter(|part| ours.is_match(part)).map(|part| part.replace(['[', ']'], "")).collect()
}

/// Fails unless the program can parse the line.
fn parse(line: &str) -> Result<()> {
    let words: Vec<&str> =
        line.split_whitespace().skip_while(|word| !word.ends_with("tracer") && *word != "xtask").collect();
    if words[0] == "xtask" {
        return Cli::try_parse_from(words).map(drop).context("xtask cannot parse it");
    }
    let mut program = tracer::command();
    if line.trim_start().starts_with("kubectl tracer") {
        program.arg0("kubectl-tracer");
    }
    // tracer parses the arguments before `--help` first.
    sh::capture(program.args(&words[1..]).arg("--help")).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_are_found_and_parsed() {
        let block =
            "tracer replay x -o json | jq .a > y  # and\ncargo xtask check \\\n  links && tracer\nscp tracer b\n";
        let found: Vec<String> =
            lines(block).iter().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(found, ["tracer replay x -o json", "cargo xtask check links", "tracer"]);
        assert!(parse("cargo xtask check links").is_ok());
        assert!(parse("cargo xtask check nothing").is_err());
    }
}
