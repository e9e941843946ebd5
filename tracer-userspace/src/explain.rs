//! `tracer explain`: what a label means. The pages in the documentation are made from the same text.

use std::fmt::Write as _;

use crate::classify::label::Label;
use crate::sink::screen::{Screen, unbroken_commands};

/// All labels, one line each.
#[must_use]
pub fn index() -> String {
    let width = Label::ALL.iter().map(|label| label.name().len()).max().unwrap_or(0);
    let mut text = String::new();
    for label in Label::ALL {
        let _ = writeln!(text, "{:width$}  {}", label.name(), label.page().title);
    }
    text.push_str("\n`tracer explain LABEL` says what decides a label, what looks alike and what mends it.\n");
    text
}

/// The page of a label, for a terminal.
#[must_use]
pub fn page(label: Label, screen: Screen) -> String {
    let page = label.page();
    let mut text = format!("{}\n", label.name());
    screen.lines(&mut text, "", "", page.title);
    for (heading, body) in sections(label) {
        let _ = writeln!(text, "\n{}", heading.to_uppercase());
        body.trim().lines().for_each(|line| screen.lines(&mut text, "  ", "  ", &unbroken_commands(line)));
    }
    text
}

/// The page of a label as Markdown, for the documentation.
#[must_use]
pub fn markdown(label: Label) -> String {
    let mut text = format!("# `{}`\n\n{}\n", label.name(), label.page().title);
    for (heading, body) in sections(label) {
        let _ = write!(text, "\n## {heading}\n\n{}\n", body.trim());
    }
    text
}

/// The table of all labels as Markdown, with links to their pages.
#[must_use]
pub fn index_markdown() -> String {
    let mut text = String::from("# Labels\n\n| label | what it says |\n|---|---|\n");
    for label in Label::ALL {
        let name = label.name();
        let _ = writeln!(text, "| [`{name}`]({name}.md) | {} |", label.page().title.replace('|', "\\|"));
    }
    text
}

/// The known label nearest to a name that is none.
#[must_use]
pub fn nearest(name: &str) -> Option<&'static str> {
    let name = name.to_lowercase().replace('-', "_");
    let part = Label::ALL.iter().map(|label| label.name()).find(|known| name.len() > 3 && known.contains(&name));
    part.or_else(|| {
        let distance = |known: &'static str| (strsim::damerau_levenshtein(known, &name), known);
        let near = Label::ALL.iter().map(|label| distance(label.name())).min();
        near.filter(|(slips, known)| slips * 2 <= known.len()).map(|(_, known)| known)
    })
}

/// Headings and texts of a page.
fn sections(label: Label) -> [(&'static str, &'static str); 4] {
    let page = label.page();
    [
        ("What it means", page.meaning),
        ("What decides it", page.evidence),
        ("What looks alike", page.lookalikes),
        ("What mends it", page.mend),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_index_has_every_label() {
        for label in Label::ALL {
            assert!(index().contains(label.name()));
            assert!(index_markdown().contains(&format!("[`{0}`]({0}.md)", label.name())));
        }
    }

    #[test]
    fn a_page_has_all_four_parts() {
        for label in Label::ALL {
            assert_eq!(markdown(*label).matches("\n## ").count(), 4);
            assert!(page(*label, Screen::default()).contains("WHAT MENDS IT"));
        }
    }

    #[test]
    fn a_page_fits_its_terminal() {
        let narrow = page(Label::LoopbackDown, Screen { colour: false, columns: Some(60) });
        assert!(narrow.lines().count() > 20 && narrow.lines().all(|line| line.chars().count() <= 60), "{narrow}");
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(&narrow), words(&page(Label::LoopbackDown, Screen::default())));
    }

    #[test]
    fn a_slip_finds_its_label() {
        assert_eq!(nearest("conection_refused"), Some("connection_refused"));
        assert_eq!(nearest("Loopback-Down"), Some("loopback_down"));
        assert_eq!(nearest("nodeport"), Some("nodeport_ephemeral_collision"));
        assert_eq!(nearest("xyz"), None);
    }
}
