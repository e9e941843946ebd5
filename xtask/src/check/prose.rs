//! The documentation is short: at most 25 words in a sentence, 120 columns in a line, and none of the words that
//! nobody uses. Blocks of code have columns only, and the transcripts of docs/incidents.md are as wide as they are.

use std::fs;

use anyhow::{Result, bail};

use crate::sh::{self, regex};

const WORDS: usize = 25;
const COLUMNS: usize = 120;
/// The list of causes is generated: a row is as long as its title.
const PAGES: [&str; 5] = [
    ":(glob)*.md",
    ":(glob)docs/*.md",
    ":(glob)docs/causes/*.md",
    ":(glob)docs/design/*.md",
    ":!docs/causes/README.md",
];
const TRANSCRIPTS: &str = "docs/incidents.md";
/// Each has a plain word instead.
const DIALECT: [&str; 9] = ["mend", "mends", "mended", "told", "said", "anew", "twofold", "seldom", "hitherto"];

/// How many of them all files may have, code included: to be lowered, never raised.
const MOST: usize = 40;
const FILES: [&str; 6] = ["*.rs", "*.md", "*.toml", "*.yaml", "*.yml", ":!tests/fixtures"];

/// Fails with each place that is too long, and with more old words than there were.
pub(crate) fn check() -> Result<()> {
    let text = |file: &String| fs::read_to_string(sh::root().join(file)).unwrap_or_default();
    let old: usize = files(&FILES)?.iter().map(|file| dialect_words(&text(file))).sum();
    if old > MOST {
        bail!("{old} words of {DIALECT:?} in all files, {MOST} at most");
    }
    let found: Vec<_> = pages()?.iter().flat_map(|file| faults(file, &text(file))).collect();
    if !found.is_empty() {
        bail!("{} places to rewrite:\n{}", found.len(), found.join("\n"));
    }
    Ok(())
}

/// The pages that people write.
pub(super) fn pages() -> Result<Vec<String>> {
    files(&PAGES)
}

fn files(paths: &[&str]) -> Result<Vec<String>> {
    let list = ["ls-files", "--cached", "--others", "--exclude-standard", "--"];
    let files = sh::capture(sh::command("git").args(list).args(paths))?;
    Ok(files.lines().map(str::to_owned).collect())
}

/// Also those inside of names, such as `is_told`.
fn dialect_words(text: &str) -> usize {
    text.split(|c: char| !c.is_alphabetic())
        .filter(|word| DIALECT.iter().any(|old| word.eq_ignore_ascii_case(old)))
        .count()
}

fn faults(file: &str, text: &str) -> Vec<String> {
    let (mut found, mut sentence, mut code) = (Vec::new(), Vec::new(), false);
    for (number, line) in (1..).zip(text.lines()) {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        if line.chars().count() > COLUMNS && !(code && file == TRANSCRIPTS) {
            found.push(format!("  {file}:{number}: over {COLUMNS} columns"));
        }
        let begins = ["- ", "* ", "#", "|", ">"].iter().any(|mark| line.trim_start().starts_with(mark));
        if begins || fence || line.trim().is_empty() {
            sentence.clear();
        }
        for word in plain(line).split_whitespace().filter(|_| !code && !fence) {
            let letters = word.trim_matches(|c: char| !c.is_alphanumeric());
            if DIALECT.iter().any(|old| letters.eq_ignore_ascii_case(old)) {
                found.push(format!("  {file}:{number}: \"{letters}\""));
            }
            sentence.extend((!letters.is_empty()).then(|| letters.to_owned()));
            if sentence.len() == WORDS + 1 {
                found.push(format!("  {file}:{number}: over {WORDS} words: {} …", sentence[..6].join(" ")));
            }
            if word == "|" || word.trim_end_matches(['*', ')', '"', '_']).ends_with(['.', '?', '!']) {
                sentence.clear();
            }
        }
    }
    found
}

/// Without the targets of links; each piece of code is one word.
fn plain(line: &str) -> String {
    let line = regex("`[^`]*`").replace_all(line, "code").into_owned();
    regex(r"\]\([^)]*\)").replace_all(&line, "").into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_sentences_long_lines_and_old_words_are_found() {
        let of = |text: &str| faults("README.md", text).len();
        assert_eq!(of(&"word ".repeat(25)), 1, "125 columns");
        assert_eq!(of(&"it is\n".repeat(13)), 1, "26 words of one sentence");
        assert_eq!(of(&"- it is\n".repeat(13)) + of(&"it is.\n".repeat(13)) + of(&"`it is` so ".repeat(10)), 0);
        assert_eq!(of("| a cell |\n".repeat(20).as_str()) + of(&format!("[it]({})", "is/".repeat(30))), 0);
        assert_eq!(of("```\nmend it\n```\nHe Said: `mend`"), 1, "one of them is code");
    }

    #[test]
    fn old_words_count_inside_of_names_too() {
        assert_eq!(dialect_words("fn is_told() {} // Mend it anew, mending"), 3);
    }

    #[test]
    fn transcripts_are_as_wide_as_they_are() {
        let text = format!("```text\n{}\n```\n", "x".repeat(200));
        assert_eq!((faults(TRANSCRIPTS, &text).len(), faults("README.md", &text).len()), (0, 1));
    }
}
