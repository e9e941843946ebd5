//! Runs `tracer report`: where it writes the page. Each bad input gives one line and the right exit code.
#![allow(clippy::unwrap_used, reason = "a test ends at the line that failed")]

mod common;

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Output, Stdio};

use nix::sys::stat::Mode;

use common::{Scratch, gzip, reports_one_line, screen, terminal, text};
use tracer_testing::assert_has;

fn tracer(args: &[&str]) -> Command {
    let mut command = common::tracer();
    command.arg("report").args(args);
    command
}

fn ran(args: &[&str]) -> Output {
    tracer(args).output().unwrap()
}

#[track_caller]
fn refuses(args: &[&str], words: &[&str]) {
    reports_one_line(&ran(args), 2, words);
}

/// A file with the record of one verdict, and its directory.
fn record() -> (Scratch, String) {
    let dir = Scratch::new();
    let records = dir.file("records", verdict(1, 1, "loopback_down", None));
    (dir, records)
}

/// A verdict at the start of this minute.
fn verdict(minute: u32, seq: u64, cause: &str, revises: Option<u64>) -> String {
    let mut verdict = common::verdict(seq, "n1", "cart", cause);
    verdict["time"] = format!("2026-01-02T03:{minute:02}:00.000000000Z").into();
    if let Some(seq) = revises {
        verdict["revises"] = seq.into();
    }
    format!("{verdict}\n")
}

#[test]
fn a_page_goes_to_stdout_or_into_a_file() {
    let (dir, records) = record();
    let output = ran(&[&records]);
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""));
    let headline = "<h1>1 attempt failed because the loopback device of the node is down.</h1>";
    assert_has(&text(&output.stdout), &[headline]);
    let page = dir.text("page.html");
    for _ in 0..2 {
        assert_eq!(ran(&[&records, "--output-file", &page]).status.code(), Some(0), "a page may be replaced");
    }
    assert_eq!(fs::read(&page).unwrap(), output.stdout);
    assert_eq!(fs::metadata(&page).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::read_dir(dir.root()).unwrap().count(), 2, "a temporary file is left beside the page");
    let stdin = tracer(&["-"]).stdin(File::open(&records).unwrap()).output().unwrap();
    assert_eq!(text(&stdin.stdout), text(&output.stdout).replace(&records, "stdin"));
}

#[test]
fn only_a_page_is_overwritten() {
    let (dir, records) = record();
    let other = dir.file("other.ndjson", "precious\n");
    refuses(&[&records, "--output-file", &records], &["--output-file", "one of the inputs"]);
    refuses(&[&records, "--output-file", &other], &["--output-file", &other, "exists, and is no page"]);
    let variable = tracer(&[&records]).env("TRACER_OUTPUT_FILE", &other).output().unwrap();
    reports_one_line(&variable, 2, &["exists, and is no page"]);
    assert_eq!(fs::read(&other).unwrap(), b"precious\n");
    refuses(&[&records, "--output-file", "/none/page"], &["--output-file /none/page: No such file"]);
    refuses(&[&records, "--output-file", "/dev/full"], &["--output-file /dev/full: No space left"]);
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    reports_one_line(
        &tracer(&[&records]).stdout(full).output().unwrap(),
        2,
        &["tracer: error: stdout: No space left on device"],
    );
}

#[test]
fn an_unreadable_input_is_refused() {
    let (dir, records) = record();
    let page = dir.text("page.html");
    refuses(&["/none/records"], &["report FILE /none/records: No such file"]);
    refuses(&[&records, "/"], &["report FILE /: Is a directory"]);
    refuses(&[&records, &records], &["the same file twice"]);
    refuses(&[&dir.file("empty", ""), "--output-file", &page], &["empty: no record of tracer"]);
    assert!(!fs::exists(&page).unwrap());
    refuses(&[], &["stdin: no record of tracer"]);
    refuses(&[&records, "--cause", "nonsense"], &["--cause `nonsense`"]);
}

#[test]
fn a_damaged_line_is_named_and_skipped() {
    let dir = Scratch::new();
    let (good, second) = (verdict(1, 1, "loopback_down", None), verdict(1, 2, "loopback_down", None));
    let records = dir.file("records", format!("{good}garbage\n{second}"));
    let output = ran(&[&records]);
    reports_one_line(&output, 2, &["tracer: warning: ", "records:2: not a record"]);
    assert_has(&text(&output.stdout), &["2 attempts failed", "records:2: not a record"]);
    let many = dir.file("many", format!("{}{good}", "garbage\n".repeat(5000)));
    let output = ran(&[&many]);
    reports_one_line(&output, 2, &["many:1: not a record", "; 4999 more like this"]);
    assert!(text(&output.stdout).contains("4990 more lines"), "the page says more");
    let none = dir.file("none", "garbage\n".repeat(1000));
    refuses(&[&none], &["no record of tracer: ", "none:1: not a record", "; 999 more like this"]);
    let torn = ran(&[&dir.file("torn", format!("{good}{}", &good[..50]))]);
    reports_one_line(&torn, 0, &["torn:2: the last line is not whole"]);
}

#[test]
fn an_error_about_another_format_says_how_to_read_it() {
    let (dir, good) = record();
    let recording = dir.file("recording", "{\"format\":\"tracer-record\",\"version\":1}\n{}\n");
    let output = ran(&[&good, &recording]);
    reports_one_line(
        &output,
        2,
        &["recording:1: a recording, which `tracer replay ", "| tracer report -` makes a page of: skipped"],
    );
    assert!(text(&output.stdout).starts_with("<!DOCTYPE html>"));
}

#[test]
fn rotated_files_are_read_oldest_first() {
    let dir = Scratch::new();
    // As a container runtime writes it: the time is read behind what the runtime adds.
    let newer = format!("2026-01-02T03:04:05.1Z stdout F {}", verdict(2, 2, "connection_refused", Some(1)));
    let older = verdict(1, 1, "unexplained", None);
    let plain = [dir.file("t.ndjson", &newer), dir.file("t.ndjson.1", &older)];
    let packed = [dir.file("t.1.gz", gzip(newer.as_bytes())), dir.file("t.2.gz", gzip(older.as_bytes()))];
    for [newer, older] in [plain, packed] {
        let output = ran(&[&newer, &older]);
        let page = text(&output.stdout);
        assert!(
            page.contains("a later verdict replaces them: 1 verdict<") && !page.contains("id=\"cause-B\""),
            "{page}"
        );
    }
}

#[test]
fn a_record_in_two_files_counts_once() {
    let dir = Scratch::new();
    let (first, second) = (verdict(1, 1, "loopback_down", None), verdict(2, 2, "loopback_down", None));
    let (one, both) = (dir.file("one", &first), dir.file("both", format!("{first}{second}")));
    assert_has(&text(&ran(&[&one, &both]).stdout), &["<h1>2 attempts failed because"]);
}

#[test]
fn a_file_may_vanish_or_shrink_while_others_are_read() {
    let dir = Scratch::new();
    let fifo = dir.text("fifo");
    nix::unistd::mkfifo(fifo.as_str(), Mode::S_IRWXU).unwrap();
    let (gone, short) = (
        dir.file("gone", verdict(1, 1, "loopback_down", None)),
        dir.file("short", verdict(1, 1, "loopback_down", None)),
    );
    let child = tracer(&[&gone, &short, &fifo]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // tracer opens the pipe last. When this returns, the other files are open.
    let mut writer = OpenOptions::new().write(true).open(&fifo).unwrap();
    fs::remove_file(&gone).unwrap();
    OpenOptions::new().write(true).open(&short).unwrap().set_len(0).unwrap();
    writer.write_all(verdict(3, 1, "loopback_down", None).as_bytes()).unwrap();
    drop(writer);
    let output = child.wait_with_output().unwrap();
    reports_one_line(&output, 2, &["short: it became shorter while it was read: 0 of"]);
    assert!(text(&output.stdout).contains("2 attempts failed"));
}

#[test]
fn a_page_is_not_written_to_a_terminal() {
    let (_dir, records) = record();
    let (master, slave) = terminal(40);
    let output = tracer(&[&records]).stdout(slave).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
    reports_one_line(&output, 2, &["the page is HTML", "--output-file"]);
    assert_eq!(screen(master), "");
}

#[test]
fn a_narrow_terminal_shows_the_progress() {
    let dir = Scratch::new();
    let records = dir.file("records", verdict(1, 1, "loopback_down", None).repeat(20_000));
    let (master, slave) = terminal(40);
    let mut command = tracer(&[&records, "--output-file", &dir.text("page.html")]);
    let mut child =
        command.stdout(Stdio::null()).stderr(slave).env("NO_COLOR", "1").env("TERM", "xterm").spawn().unwrap();
    drop(command);
    let screen = screen(master);
    assert!(child.wait().unwrap().success());
    assert!(screen.contains("MiB/") && screen.contains('['), "{screen:?}");
    assert!(!screen.contains("\u{1b}[3") && !screen.contains("\u{1b}[1m"), "colour: {screen:?}");
    let lines = screen
        .split(['\r', '\n'])
        .map(|line| line.replace("\u{1b}[2K", "").chars().filter(|c| !c.is_control()).count());
    assert!(lines.max() <= Some(42), "{screen:?}");
}
