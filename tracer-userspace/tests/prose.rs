//! Limits of the documentation: 25 words in a sentence, 120 columns in a line, and no old words. In blocks of code only
//! the columns count. The transcripts of docs/incidents.md may be wider.

#![expect(clippy::unwrap_used, reason = "a test ends at the line that failed")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use regex_lite::Regex;

const WORDS: usize = 25;
const COLUMNS: usize = 120;
/// The list of causes is generated: a row is as long as its title.
const PAGES: [&str; 6] = [
    ":(glob)*.md",
    ":(glob)docs/*.md",
    ":(glob)docs/causes/*.md",
    ":(glob)docs/design/*.md",
    ":!docs/causes/README.md",
    ":!docs/evidence.md",
];
const TRANSCRIPTS: &str = "docs/incidents.md";
/// Old words. The table of CONTRIBUTING.md has a plain word instead of each.
const DIALECT: [&str; 15] = [
    "mend", "mends", "mended", "told", "said", "whose", "anew", "twofold", "seldom", "hitherto", "played", "heeded",
    "ceases", "errand", "sighting",
];

/// Files without old words. The recordings have texts of former versions.
const FILES: [&str; 8] = [
    "*.rs",
    "*.md",
    "*.toml",
    "*.yaml",
    "*.yml",
    ":!tests/fixtures",
    ":!CONTRIBUTING.md",
    ":!tracer-userspace/tests/prose.rs",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn text(file: &String) -> String {
    fs::read_to_string(root().join(file)).unwrap_or_default()
}

fn files(paths: &[&str]) -> Vec<String> {
    let mut list = Command::new("git");
    list.current_dir(root()).args(["ls-files", "--cached", "--others", "--exclude-standard", "--"]).args(paths);
    String::from_utf8(list.output().unwrap().stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn each_page_keeps_the_limits() {
    let pages = files(&PAGES);
    assert!(pages.len() > 60, "only {} pages were found", pages.len());
    let found: Vec<_> = pages.iter().flat_map(|file| faults(file, &text(file))).collect();
    assert!(found.is_empty(), "{} places to rewrite (CONTRIBUTING.md, English):\n{}", found.len(), found.join("\n"));
}

#[test]
fn old_words_do_not_come_back() {
    let old: Vec<_> = files(&FILES).into_iter().filter(|file| dialect_words(&text(file)) > 0).collect();
    assert!(old.is_empty(), "words of {DIALECT:?} in {old:?}: see CONTRIBUTING.md, English");
}

/// How many old words a text has, also inside of names such as `is_told`.
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

fn regex(text: &str) -> Regex {
    Regex::new(text).unwrap()
}

/// The line without the targets of links, and with one word for each piece of code.
fn plain(line: &str) -> String {
    let line = regex("`[^`]*`").replace_all(line, "code").into_owned();
    regex(r"\]\([^)]*\)").replace_all(&line, "").into_owned()
}

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
fn only_transcripts_may_be_wide() {
    let text = format!("```text\n{}\n```\n", "x".repeat(200));
    assert_eq!((faults(TRANSCRIPTS, &text).len(), faults("README.md", &text).len()), (0, 1));
}
