//! The page of a cause in `docs/causes`, in simple Markdown: a title line, and four sections with paragraphs, lists and
//! commands.

use super::{Cause, Command, Place, Remediation};

/// The sections of a page, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// What happened.
    Meaning,
    /// The evidence that decides the cause, for each confidence.
    Evidence,
    /// Failures that look the same and have another cause.
    Lookalikes,
    /// What to do.
    Fix,
}

/// A part of a section. Lines of the source are joined, except those of commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Block {
    Text(String),
    /// An item of a list (depth 0), or of a nested list (1).
    Item(usize, String),
    /// Lines to run, and where; without a place, it depends on the case.
    Commands(Option<Place>, Vec<String>),
}

impl Section {
    pub const ALL: [Self; 4] = [Self::Meaning, Self::Evidence, Self::Lookalikes, Self::Fix];

    pub const fn heading(self) -> &'static str {
        match self {
            Self::Meaning => "What it means",
            Self::Evidence => "How tracer knows",
            Self::Lookalikes => "Often confused with",
            Self::Fix => "Fix",
        }
    }
}

impl Cause {
    /// What happened, in one line.
    pub fn title(self) -> &'static str {
        self.page().lines().nth(2).unwrap_or_default()
    }

    /// A section of its page.
    pub fn section(self, section: Section) -> Vec<Block> {
        let of_heading = |part: &&'static str| part.lines().next() == Some(section.heading());
        let part = self.page().split("\n## ").find(of_heading);
        blocks(part.and_then(|part| part.split_once('\n')).map(|(_, body)| body).unwrap_or_default())
    }

    /// The general fix: the first paragraph of its section, and the commands with a place.
    pub fn fix(self) -> Remediation {
        let mut fix = Remediation::default();
        for block in self.section(Section::Fix) {
            match block {
                Block::Text(text) if fix.text.is_empty() => fix.text = text,
                Block::Commands(Some(place), lines) => {
                    fix = fix.run(lines.into_iter().map(|run| Command { run, place }));
                }
                _ => {}
            }
        }
        fix
    }
}

fn blocks(body: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut joins = false;
    let mut lines = body.lines();
    while let Some(line) = lines.next() {
        if let Some(kind) = line.strip_prefix("```") {
            let commands = lines.by_ref().take_while(|line| !line.starts_with("```"));
            let place = kind.split_whitespace().find_map(Place::from_name);
            blocks.push(Block::Commands(place, commands.map(str::to_owned).collect()));
            joins = false;
        } else if let Some(item) = line.trim_start().strip_prefix("- ") {
            let depth = usize::from(line.starts_with(' '));
            blocks.push(Block::Item(depth, item.trim().to_owned()));
            joins = true;
        } else if line.trim().is_empty() {
            joins = false;
        } else if let Some(Block::Text(text) | Block::Item(_, text)) = blocks.last_mut().filter(|_| joins) {
            *text = format!("{text} {}", line.trim());
        } else {
            blocks.push(Block::Text(line.trim().to_owned()));
            joins = true;
        }
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_has_its_parts() {
        for &cause in Cause::ALL {
            let page = cause.page();
            assert!(page.starts_with(&format!("# `{cause}`\n\n{}\n\n## ", cause.title())), "{cause}");
            let headings: Vec<_> = page.lines().filter_map(|line| line.strip_prefix("## ")).collect();
            assert_eq!(headings, Section::ALL.map(Section::heading), "{cause}");
            for section in Section::ALL {
                let blocks = cause.section(section);
                assert!(!blocks.is_empty() && blocks.iter().all(is_written), "{cause}: {}", section.heading());
            }
        }
    }

    fn is_written(block: &Block) -> bool {
        match block {
            Block::Text(text) | Block::Item(_, text) => !text.is_empty() && !text.contains("  "),
            Block::Commands(_, lines) => !lines.is_empty(),
        }
    }

    #[test]
    fn the_lines_of_a_paragraph_or_item_are_joined() {
        let source = "\nOne\ntwo.\n\n- a\n  b\n  - c\n\n```sh node\nip link\nip route\n```\nEnd.\n";
        let expected = [
            Block::Text("One two.".into()),
            Block::Item(0, "a b".into()),
            Block::Item(1, "c".into()),
            Block::Commands(Some(Place::Node), vec!["ip link".into(), "ip route".into()]),
            Block::Text("End.".into()),
        ];
        assert_eq!(blocks(source), expected);
    }
}
