//! Layout of text for people: colour and columns.

use std::fmt::Write as _;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};

use textwrap::{Options, WordSplitter, WrapAlgorithm};

/// A screen with fewer columns has no room for a column of words beside the text.
pub const NARROW: usize = 60;
/// Lines are laid out for at least this many columns.
const NARROWEST: usize = 20;
/// Replaces the blanks of a command, so that lines are not broken there.
const GLUE: char = '\u{a0}';
/// Programs that a command in a fix can start with.
const TOOLS: &[&str] = &[
    "bpftool",
    "conntrack",
    "ip",
    "ip6tables",
    "ip6tables-legacy",
    "ip6tables-nft",
    "iptables",
    "iptables-legacy",
    "iptables-nft",
    "kubectl",
    "lsns",
    "nft",
    "nsenter",
    "sh",
    "ss",
    "sysctl",
    "tc",
    "tracepath",
    "tracer",
];

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

    /// A row with another column before the text.
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

/// Protects the commands in a text from line breaks, so that the user can copy them.
pub fn unbroken_commands(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut command: Option<Open> = None;
    for word in text.split_inclusive(' ') {
        let bare = word.trim_end();
        if command.is_none() && TOOLS.contains(&bare.trim_start_matches(['(', '`'])) {
            command = Some(Open::default());
        }
        command = command.and_then(|open| open.after(bare));
        let in_command = command.is_some();
        let glued = in_command && word.ends_with(' ');
        out.push_str(if glued { bare } else { word });
        out.extend(glued.then_some(GLUE));
    }
    out
}

/// The quotes and brackets of a command that are still open.
#[derive(Clone, Copy, Default)]
struct Open {
    quoted: bool,
    /// How many `$(` have no `)` yet.
    nested: usize,
}

impl Open {
    /// The state after a word; `None` if the command ends with this word.
    fn after(self, word: &str) -> Option<Self> {
        let quotes = word.matches('\'').count();
        let (opened, closed) = (word.matches("$(").count(), word.matches(')').count());
        let next =
            Self { quoted: self.quoted ^ (quotes % 2 == 1), nested: (self.nested + opened).saturating_sub(closed) };
        let inside = next.quoted || next.nested > 0 || (word.ends_with(')') && self.nested + opened >= closed);
        let ends = word.ends_with([';', ',', ':', ')', '`', '.', '?']);
        (inside || !ends).then_some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_stays_whole() {
        let text = "see nft -a list chain inet podpolicy ingress; then ip link set lo up (by hand)";
        let mut out = String::new();
        Screen { colour: false, columns: Some(60) }.row(&mut out, "fix", &unbroken_commands(text));
        let (first, second) = ("see nft -a list chain inet podpolicy ingress;", "then ip link set lo up (by hand)");
        assert_eq!(out, format!("  fix      {first}\n           {second}\n"));
    }

    #[test]
    fn shell_substitutions_and_quotes_belong_to_the_command() {
        let glued = |text: &str| unbroken_commands(text).split(' ').map(|it| it.replace(GLUE, " ")).collect::<Vec<_>>();
        let inner = "nsenter --net=$(find -L /run/netns/* /proc/*/ns/net -inum 2 -print -quit) sh -c 'nft list ruleset; iptables-save -c':";
        assert_eq!(glued(&format!("{inner} the counter")), [inner, "the", "counter"]);
        let set = "sh -c 'now=$(sysctl -n a); sysctl -w a=${now:+$now,}1'";
        assert_eq!(glued(&format!("{set}, and more")), [&format!("{set},"), "and", "more"]);
        assert_eq!(glued("(ip neigh) is"), ["(ip neigh)", "is"]);
        assert_eq!(glued("iptables-nft -t filter -vS INPUT; or"), ["iptables-nft -t filter -vS INPUT;", "or"]);
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
