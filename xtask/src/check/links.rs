//! Links inside of the documentation lead to a file, and to a heading of it.

use std::fs;
use std::path::Path;

use anyhow::{Result, bail};

use crate::{check::prose, sh};

/// Fails with each link that leads nowhere.
pub(crate) fn check() -> Result<()> {
    let text = |file: &str| fs::read_to_string(sh::root().join(file)).unwrap_or_default();
    let dead: Vec<_> = prose::pages()?.iter().flat_map(|file| dead(file, &text(file), text)).collect();
    if !dead.is_empty() {
        bail!("dead links:\n{}", dead.join("\n"));
    }
    Ok(())
}

/// Those of one page; `read` gives the text of a file, nothing where there is none.
fn dead(file: &str, page: &str, read: impl Fn(&str) -> String) -> Vec<String> {
    let mut found = Vec::new();
    for target in outside_code(page).flat_map(|line| line.split("](").skip(1)).filter_map(|rest| rest.split(')').next())
    {
        let (path, heading) = target.split_once('#').unwrap_or((target, ""));
        let to = if path.is_empty() { file.to_owned() } else { beside(file, path) };
        let text = if target.contains("://") { "external".to_owned() } else { read(&to) };
        let led =
            heading.is_empty() || target.contains("://") || outside_code(&text).any(|line| anchor(line) == heading);
        if text.is_empty() || !led {
            found.push(format!("  {file}: {target}"));
        }
    }
    found
}

/// The lines that are no code.
fn outside_code(page: &str) -> impl Iterator<Item = &str> {
    page.split("```").step_by(2).flat_map(str::lines)
}

/// A path as it is seen from a page.
fn beside(file: &str, path: &str) -> String {
    let mut folder: Vec<_> = Path::new(file).parent().and_then(Path::to_str).unwrap_or_default().split('/').collect();
    for part in path.split('/') {
        match part {
            ".." => drop(folder.pop()),
            part => folder.push(part),
        }
    }
    folder.join("/").trim_start_matches('/').to_owned()
}

/// What a code host makes of a heading; empty: the line is none.
fn anchor(line: &str) -> String {
    let Some((_, heading)) = line.split_once("# ").filter(|(marks, _)| marks.chars().all(|c| c == '#')) else {
        return String::new();
    };
    let kept = |c: &char| c.is_alphanumeric() || "-_ ".contains(*c);
    heading.trim().to_lowercase().chars().filter(kept).map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_that_lead_nowhere_are_found() {
        let read = |file: &str| if file == "docs/a.md" { "# The `A` page\n".to_owned() } else { String::new() };
        let of = |file: &str, link: &str| dead(file, &format!("[x]({link})\n```\n[y](no.md)\n```\n"), read).len();
        assert_eq!(of("README.md", "docs/a.md") + of("docs/b.md", "a.md#the-a-page") + of("b.md", "https://a.b/#c"), 0);
        assert_eq!(of("docs/causes/c.md", "../a.md") + of("docs/a.md", "a.md"), 0);
        assert_eq!(of("README.md", "a.md") + of("docs/b.md", "a.md#page") + of("docs/b.md", "#b"), 3);
    }
}
