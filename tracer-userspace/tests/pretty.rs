//! The output for people: recordings on terminals of several widths, and the live line.
//!
//! The live line needs root: `cargo test -p tracer-userspace --test pretty -- --ignored`.
#![allow(clippy::unwrap_used, reason = "a test ends at the line that failed")]

mod common;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use common::recorded::{self, with_each};
use common::{screen, soon, terminal, text, tracer};

/// Returns the output of a command on a terminal of 80 columns. Calls `meanwhile` several times a second.
fn on_terminal(command: &mut Command, meanwhile: impl Fn()) -> String {
    let (master, slave) = terminal(80);
    let mut child = command.stdout(slave.try_clone().unwrap()).stderr(slave.try_clone().unwrap()).spawn().unwrap();
    // The command holds copies of the slave, too. The thread below reads until the last one is closed.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    drop(slave);
    let (sender, output) = channel();
    std::thread::spawn(move || sender.send(screen(master)));
    let page = loop {
        match output.recv_timeout(Duration::from_millis(350)) {
            Err(RecvTimeoutError::Timeout) => meanwhile(),
            page => break page.unwrap(),
        }
    };
    assert!(child.wait().unwrap().success());
    page
}

/// A replay of a recording with one failure.
fn replay() -> Command {
    let mut command = tracer();
    let fixture = "../tests/fixtures/loopback_down/any-v4/observations.ndjson";
    command.arg("replay").arg(Path::new(env!("CARGO_MANIFEST_DIR")).join(fixture));
    command
}

/// The words of a page, without dashes: a narrow page has them in rows without a name.
fn words(text: &str) -> Vec<&str> {
    text.split_whitespace().filter(|word| *word != "-").collect()
}

#[test]
fn every_recording_fits_every_terminal_without_a_broken_word() {
    with_each(&recorded::fixtures(), |recording| {
        let whole = recording.page(None);
        for columns in [40, 80, 120, 200] {
            let page = recording.page(Some(columns));
            assert_eq!(words(&page), words(&whole), "{} at {columns}", recording.name);
            let fits = |line: &&str| line.chars().count() <= columns;
            // A long name or command is not broken: it has its own line, or is after a short word.
            let too_long: Vec<_> = page.lines().filter(|line| !fits(line) && !stays_whole(line, columns)).collect();
            assert!(too_long.is_empty(), "{} at {columns}: {too_long:#?}", recording.name);
        }
    });
}

/// Whether the line starts with a long name or a command, perhaps after one short word.
fn stays_whole(line: &str, columns: usize) -> bool {
    let tools = [
        "nsenter",
        "sh",
        "nft",
        "iptables",
        "sysctl",
        "kubectl",
        "ip",
        "ss",
        "tc",
        "conntrack",
        "tracepath",
        "timeout",
        "journalctl",
        "systemctl",
        "kill",
        "echo",
        "grep",
        "cat",
    ];
    let long = |word: &str| word.chars().count() + 10 > columns;
    let is_tool = |word: &str| tools.contains(&word.trim_start_matches('(').trim_end_matches("-nft"));
    line.split_whitespace().take(2).any(|word| long(word) || is_tool(word))
}

#[test]
fn a_terminal_gets_its_own_width_and_colours() {
    let mut shown = replay();
    let page = on_terminal(shown.env("TERM", "xterm"), || {});
    assert!(page.contains("\u{1b}[1;31mloopback_down\u{1b}[0m"), "{page}");
    let plain = on_terminal(shown.env("NO_COLOR", "1"), || {});
    let piped = replay().args(["-o", "pretty"]).env("COLUMNS", "80").output().unwrap().stdout;
    assert_eq!(plain.replace("\r\n", "\n"), text(&piped));
    let dumb = on_terminal(shown.env_remove("NO_COLOR").env("TERM", "dumb"), || {});
    assert_eq!(dumb, plain);
}

#[test]
fn without_a_terminal_only_clicolor_force_gives_colour() {
    let coloured = |name: &str, value: &str| {
        replay().args(["-o", "pretty"]).env(name, value).output().unwrap().stdout.contains(&0x1b)
    };
    assert!(coloured("CLICOLOR_FORCE", "1"));
    assert!(!coloured("CLICOLOR", "1") && !coloured("TERM", "xterm"));
}

/// The text of a terminal's line after all updates.
fn final_text(line: &str) -> &str {
    line.rsplit("\r\u{1b}[K").next().unwrap_or(line)
}

#[test]
#[ignore = "needs root"]
fn the_live_line_is_drawn_and_erased() {
    let mut attach = tracer();
    attach.args(["attach", "--all-connections", "--duration", "3s", "--prober", "nobody"]).env("TERM", "xterm");
    let page = on_terminal(&mut attach, || {
        TcpStream::connect("127.0.0.1:9").unwrap_err();
    });
    assert!(page.matches("\r\u{1b}[K0:00:").count() >= 2 && page.contains("  attempts "), "{page}");
    // At most four updates a second.
    assert!(page.matches("\u{1b}[K0:00:").count() <= 14, "{page}");
    let lines: Vec<&str> = page.split("\r\n").map(final_text).collect();
    assert!(lines.iter().any(|line| line.contains("connection_refused")), "{page}");
    let left: Vec<_> = lines.iter().filter(|line| line.contains("  attempts ")).collect();
    assert!(left.is_empty(), "{left:?}");
    let summary = page.rsplit("ended\u{1b}[0m (").next().unwrap();
    assert!(summary.contains("connection_refused") && !summary.contains("\u{1b}[K"), "{summary}");
}

#[test]
#[ignore = "needs root"]
fn json_dumb_terminals_and_pipes_have_no_live_line() {
    let attach = || {
        let mut attach = tracer();
        attach.args(["attach", "--duration", "700ms", "--prober", "nobody"]).env("TERM", "xterm");
        attach
    };
    let records = on_terminal(attach().args(["-o", "json"]), || {});
    assert!(!records.contains('\u{1b}'), "{records}");
    let dumb = on_terminal(attach().env("TERM", "dumb"), || {});
    assert!(!dumb.contains('\u{1b}'), "{dumb}");
    let output = attach().output().unwrap();
    assert!(!output.stderr.contains(&0x1b) && !output.stdout.contains(&0x1b));
}

/// Ctrl-S stops the output of a terminal, so writes to it block.
#[test]
#[ignore = "needs root"]
fn a_stopped_terminal_does_not_delay_the_end() {
    let (mut master, slave) = terminal(80);
    let mut attach = tracer();
    attach.args(["attach", "--duration", "2s", "--prober", "nobody"]).env("TERM", "xterm");
    let mut child = attach.stdout(Stdio::null()).stderr(slave).spawn().unwrap();
    // The command holds a copy of the terminal, too.
    drop(attach);
    let (mut drawn, mut chunk) = (Vec::new(), [0; 4096]);
    while !String::from_utf8_lossy(&drawn).contains("  attempts ") {
        let n = master.read(&mut chunk).unwrap();
        drawn.extend_from_slice(&chunk[..n]);
    }
    master.write_all(b"\x13").unwrap();
    let ended = soon("its end with a stopped terminal", || child.try_wait().unwrap());
    assert!(ended.success());
}
