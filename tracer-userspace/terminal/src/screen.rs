//! Layout of text for people: colour and columns.

use std::fmt::Write as _;
use std::io::stdout;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};

use anstream::{AutoStream, ColorChoice};
use textwrap::{Options, WordSplitter, WrapAlgorithm};

/// A screen with fewer columns has no room for a column of words beside the text.
pub const NARROW: usize = 60;
/// Lines are laid out for at least this many columns.
const NARROWEST: usize = 20;
/// Replaces the blanks of a command, so that lines are not broken there.
const GLUE: &str = "\u{a0}";

/// The meaning of a piece of text, which gives its colour.
#[derive(Clone, Copy, Debug)]
pub enum Style {
    /// A proven failure: red, bold.
    Bad,
    /// A likely one: yellow.
    Mild,
    /// A possible one: cyan.
    Faint,
    /// No failure: green.
    Good,
    /// Important text: bold.
    Strong,
    /// Unimportant text: dim.
    Dim,
}

/// No warnings and no status line. It is one value for the process, because the process has one stderr.
static QUIET: AtomicBool = AtomicBool::new(false);

/// Turns warnings and the status line off, or on again.
pub fn set_quiet(quiet: bool) {
    QUIET.store(quiet, Ordering::Relaxed);
}

/// Whether warnings are turned off.
pub fn is_quiet() -> bool {
    QUIET.load(Ordering::Relaxed)
}

/// The screen that text is laid out for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Screen {
    pub colour: bool,
    /// Columns of the terminal. Without a terminal, lines are not wrapped.
    pub columns: Option<usize>,
}

impl Screen {
    /// With colour if the user wants it, and the columns of the terminal.
    pub fn of_stdout() -> Self {
        let colour = AutoStream::choice(&stdout()) != ColorChoice::Never;
        Self { colour, columns: columns(stdout()).or_else(columns_variable) }
    }

    /// Whether there is no room for a column of words beside the text.
    pub fn is_narrow(self) -> bool {
        self.columns.is_some_and(|columns| columns < NARROW)
    }

    pub fn paint(self, style: Style, text: &str) -> String {
        if !self.colour || text.trim().is_empty() {
            return text.to_owned();
        }
        let code = match style {
            Style::Bad => "1;31",
            Style::Mild => "33",
            Style::Faint => "36",
            Style::Good => "32",
            Style::Strong => "1",
            Style::Dim => "2",
        };
        format!("\u{1b}[{code}m{text}\u{1b}[0m")
    }

    /// Wraps a text between words. A word that is too long is not broken. The first line begins with `first`, the others
    /// with `rest`.
    pub fn lines(self, out: &mut String, first: &str, rest: &str, text: &str) {
        let Some(columns) = self.columns else {
            let _ = writeln!(out, "{first}{}", text.replace(GLUE, " "));
            return;
        };
        let options = Options::new(columns.max(NARROWEST))
            .initial_indent(first)
            .subsequent_indent(rest)
            .break_words(false)
            .word_splitter(WordSplitter::NoHyphenation)
            .wrap_algorithm(WrapAlgorithm::FirstFit);
        let _ = writeln!(out, "{}", textwrap::fill(text, options).replace(GLUE, " "));
    }

    /// The first line of a block. It may have colours.
    pub fn head(self, out: &mut String, text: &str) {
        self.lines(out, "", "    ", text);
    }

    /// A command alone on its line. It is not wrapped, so that the user can paste it.
    pub fn command(self, out: &mut String, command: &str) {
        let _ = writeln!(out, "{}{}", if self.is_narrow() { "    " } else { "             " }, safe(command));
    }

    /// A row of a block: a word in a narrow column, then the text.
    pub fn row(self, out: &mut String, word: &str, text: &str) {
        self.row_after(out, word, "", text);
    }

    pub fn row_after(self, out: &mut String, word: &str, column: &str, text: &str) {
        let text = safe(text);
        if self.is_narrow() {
            let word = self.paint(Style::Dim, if word.is_empty() { "-" } else { word });
            return self.lines(out, &format!("  {word} "), "    ", &format!("{}{text}", column.trim_start()));
        }
        let word = self.paint(Style::Dim, &format!("{word:<8}"));
        let rest = " ".repeat(11 + textwrap::core::display_width(column));
        self.lines(out, &format!("  {word} {column}"), &rest, &text);
    }
}

/// Columns of a terminal, if this is one and it knows them.
pub fn columns(fd: impl AsFd) -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(fd).ok()?;
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

/// The width from `COLUMNS`, for output to people without a terminal.
pub fn columns_variable() -> Option<usize> {
    std::env::var("COLUMNS").ok()?.parse().ok().filter(|&columns| columns > 0)
}

/// Replaces characters that control a terminal or the direction of text. A process name may contain them.
pub fn safe(text: &str) -> String {
    text.chars().map(|c| if is_unsafe(c) { '\u{fffd}' } else { c }).collect()
}

/// Control characters (escape sequences begin with one), line separators, marks that change the direction of text.
fn is_unsafe(c: char) -> bool {
    c.is_control() || matches!(c, '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Protects what stands between backticks from line breaks, so that the user can copy commands.
pub fn unbroken_code(text: &str) -> String {
    let pieces = text.split('`').zip([false, true].into_iter().cycle());
    let glued = pieces.map(|(piece, is_code)| if is_code { piece.replace(' ', GLUE) } else { piece.to_owned() });
    glued.collect::<Vec<_>>().join("`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_stays_whole() {
        let text = "see `nft -a list chain inet podpolicy ingress`; then `ip link set lo up` (by hand)";
        let mut out = String::new();
        Screen { colour: false, columns: Some(60) }.row(&mut out, "fix", &unbroken_code(text));
        let (first, second) = ("see `nft -a list chain inet podpolicy ingress`;", "then `ip link set lo up` (by hand)");
        assert_eq!(out, format!("  fix      {first}\n           {second}\n"));
    }

    #[test]
    fn unsafe_characters_are_replaced() {
        let hostile = "a\u{1b}[2J\u{9b}2J\rb\n\u{7f}\u{202e}c\u{2066}\u{2028}";
        assert_eq!(safe(hostile).replace('\u{fffd}', "?"), "a?[2J?2J?b???c??");
        assert_eq!(safe("kube-proxy_2 (é)"), "kube-proxy_2 (é)");
    }

    #[test]
    fn colours_do_not_change_line_breaks() {
        let text = "one two three four five six";
        let breaks = |colour| {
            let screen = Screen { colour, columns: Some(20) };
            let mut out = String::new();
            screen.head(
                &mut out,
                &text.split(' ').map(|word| screen.paint(Style::Bad, word)).collect::<Vec<_>>().join(" "),
            );
            out.lines().count()
        };
        assert_eq!(breaks(true), breaks(false));
    }
}
