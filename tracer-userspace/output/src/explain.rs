//! `tracer explain`: prints what a cause means, from the pages in `docs/causes`.

use std::fmt::Write as _;

use tracer_model::record::{Block, Cause, Section};
use tracer_terminal::screen::{Screen, unbroken_code};
use tracer_terminal::typed;

/// The pages of these causes; without causes, the list of all.
pub fn text(causes: &[Cause], markdown: bool, screen: Screen) -> String {
    match (causes, markdown) {
        ([], false) => index(screen),
        ([], true) => index_markdown(),
        (causes, _) => {
            let page = |cause: &Cause| if markdown { cause.page().to_owned() } else { page(*cause, screen) };
            causes.iter().map(page).collect::<Vec<_>>().join("\n")
        }
    }
}

/// All causes, each with its title. On a narrow screen, the title is below the name.
pub fn index(screen: Screen) -> String {
    let width = Cause::ALL.iter().map(|cause| cause.name().len()).max().unwrap_or(0);
    let beside = " ".repeat(width + 2);
    let mut text = String::new();
    for cause in Cause::ALL {
        let (name, title) = (cause.name(), cause.title());
        if screen.is_narrow() {
            let _ = writeln!(text, "{name}");
            screen.lines(&mut text, "    ", "    ", title);
        } else {
            screen.lines(&mut text, &format!("{name:width$}  "), &beside, title);
        }
    }
    text.push('\n');
    let hint = "`tracer explain CAUSE` explains what decides a cause, what looks alike and what fixes it.";
    screen.lines(&mut text, "", "", hint);
    text
}

pub fn page(cause: Cause, screen: Screen) -> String {
    let mut text = format!("{}\n", cause.name());
    screen.lines(&mut text, "", "", cause.title());
    for section in Section::ALL {
        let _ = writeln!(text, "\n{}", section.heading().to_uppercase());
        cause.section(section).iter().for_each(|block| print(&mut text, screen, block));
    }
    text
}

/// Without Markdown's emphasis: a terminal would show the asterisks.
fn plain(body: &str) -> String {
    unbroken_code(&body.replace("**", ""))
}

/// Commands stand alone on their lines, ready to paste.
fn print(text: &mut String, screen: Screen, block: &Block) {
    match block {
        Block::Text(body) => screen.lines(text, "  ", "  ", &plain(body)),
        Block::Item(depth, body) => {
            let indent = "  ".repeat(depth + 1);
            screen.lines(text, &format!("{indent}- "), &format!("{indent}  "), &plain(body));
        }
        Block::Commands(_, lines) => lines.iter().for_each(|line| {
            let _ = writeln!(text, "      {line}");
        }),
    }
}

/// The table of all causes as Markdown, with links to their pages.
pub fn index_markdown() -> String {
    let mut text = String::from(
        "# Causes\n\nIn the order of decision: of several that hold, the first one is the verdict's cause.\n\
         [What proves each cause](../evidence.md) on which kernel, by the recordings.\n\n\
         | cause | what it means | who has to act |\n|---|---|---|\n",
    );
    for cause in Cause::ALL {
        let (name, who) = (cause.name(), cause.scope().map_or("unknown".to_owned(), |scope| scope.to_string()));
        let _ = writeln!(text, "| [`{name}`]({name}.md) | {} | {who} |", cause.title().replace('|', "\\|"));
    }
    text
}

pub fn nearest(name: &str) -> Option<&'static str> {
    typed::nearest(name, Cause::ALL.iter().map(|cause| cause.name()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_fits_its_terminal() {
        let narrow = page(Cause::LoopbackDown, Screen { colour: false, columns: Some(60) });
        assert!(narrow.lines().count() > 20 && narrow.lines().all(|line| line.chars().count() <= 60), "{narrow}");
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(&narrow), words(&page(Cause::LoopbackDown, Screen::default())));
    }

    #[test]
    fn the_index_fits_its_terminal() {
        for columns in [40, 80, 100] {
            let text = index(Screen { colour: false, columns: Some(columns) });
            assert!(text.lines().all(|line| line.chars().count() <= columns), "{text}");
            assert_eq!(text.lines().filter(|line| line.starts_with("loopback_down")).count(), 1, "{text}");
        }
        assert_eq!(index(Screen::default()).lines().count(), Cause::ALL.len() + 2, "one line each");
    }
}
