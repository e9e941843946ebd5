//! The page of a cause: Markdown of a small kind, in `docs/causes`. A title line and four sections; paragraphs, lists and
//! commands.

use super::Cause;

/// The sections of a page, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// What happened.
    Meaning,
    /// What decides it, and what each confidence rests on.
    Evidence,
    /// What looks the same from outside and has another cause.
    Lookalikes,
    /// What to do about it.
    Fix,
}

/// A part of a section. Lines of the source are joined, but those of commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Block {
    /// A paragraph.
    Text(String),
    /// An item of a list.
    Item(String),
    /// Lines to run.
    Commands(Vec<String>),
}

impl Section {
    /// Every section.
    pub const ALL: [Self; 4] = [Self::Meaning, Self::Evidence, Self::Lookalikes, Self::Fix];

    /// Its heading.
    #[must_use]
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
    #[must_use]
    pub fn title(self) -> &'static str {
        self.page().lines().nth(2).unwrap_or_default()
    }

    /// A section of its page.
    #[must_use]
    pub fn section(self, section: Section) -> Vec<Block> {
        let of_heading = |part: &&'static str| part.lines().next() == Some(section.heading());
        let part = self.page().split("\n## ").find(of_heading);
        blocks(part.and_then(|part| part.split_once('\n')).map(|(_, body)| body).unwrap_or_default())
    }

    /// What to do about it in general: how its section begins.
    #[must_use]
    pub fn fix(self) -> String {
        let first = self.section(Section::Fix).into_iter().next();
        match first {
            Some(Block::Text(text) | Block::Item(text)) => text,
            Some(Block::Commands(lines)) => lines.join("\n"),
            None => String::new(),
        }
    }
}

fn blocks(body: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut joins = false;
    let mut lines = body.lines();
    while let Some(line) = lines.next() {
        if line.starts_with("```") {
            let commands = lines.by_ref().take_while(|line| !line.starts_with("```"));
            blocks.push(Block::Commands(commands.map(str::to_owned).collect()));
            joins = false;
        } else if let Some(item) = line.strip_prefix("- ") {
            blocks.push(Block::Item(item.trim().to_owned()));
            joins = true;
        } else if line.trim().is_empty() {
            joins = false;
        } else if let Some(Block::Text(text) | Block::Item(text)) = blocks.last_mut().filter(|_| joins) {
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
            Block::Text(text) | Block::Item(text) => !text.is_empty() && !text.contains("  "),
            Block::Commands(lines) => !lines.is_empty(),
        }
    }

    #[test]
    fn lines_of_a_paragraph_and_of_an_item_are_one() {
        let source = "\nOne\ntwo.\n\n- a\n  b\n- c\n\n```sh\nip link\nip route\n```\nEnd.\n";
        let expected = [
            Block::Text("One two.".into()),
            Block::Item("a b".into()),
            Block::Item("c".into()),
            Block::Commands(vec!["ip link".into(), "ip route".into()]),
            Block::Text("End.".into()),
        ];
        assert_eq!(blocks(source), expected);
    }
}
