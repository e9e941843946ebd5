//! `tracer show` prints records of files, logs and stdin as `attach` does.

mod common;

use std::io::Write as _;
use std::process::{Output, Stdio};

use common::{Scratch, gzip};

fn verdict(seq: u64, node: &str, pod: &str, cause: &str) -> String {
    format!("{}\n", common::verdict(seq, node, pod, cause))
}

fn show(args: &[&str], stdin: &str) -> (Option<i32>, String, String) {
    tracer("show", args, stdin)
}

fn tracer(command: &str, args: &[&str], stdin: &str) -> (Option<i32>, String, String) {
    let mut tracer = common::tracer();
    tracer.arg(command).args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = tracer.spawn().expect("tracer starts");
    child.stdin.take().expect("a pipe").write_all(stdin.as_bytes()).expect("stdin is read");
    let Output { status, stdout, stderr } = child.wait_with_output().expect("tracer ends");
    (status.code(), String::from_utf8(stdout).expect("UTF-8"), String::from_utf8(stderr).expect("UTF-8"))
}

#[test]
fn a_pods_log_is_shown_and_other_lines_get_one_warning() {
    let log = [
        "starting\n",
        &format!("2026-01-02T03:04:05.1Z stdout F {}", verdict(1, "n1", "cart", "loopback_down")),
        &format!("[pod/tracer-x/tracer] {}", verdict(2, "n1", "web", "slow_response")),
        "no record either\n",
    ]
    .concat();
    let (code, out, err) = show(&[], &log);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("loopback_down") && out.contains("why cart"), "{out}");
    assert!(
        out.contains("\n           run on the node:\n             ip link set lo up\n"),
        "a command alone on its line: {out}"
    );
    let summary = out.rfind("1 proven").unwrap();
    assert!(
        out[..summary].matches("loopback_down").count() == 2,
        "the node's cause comes before the application's: {out}"
    );
    assert_eq!(err.matches("not a record").count(), 1, "{err}");
    assert!(err.contains("stdin:1") && err.contains("1 more like this"), "{err}");
}

#[test]
fn it_has_the_filters_and_formats_of_attach() {
    let scratch = Scratch::new();
    let (cart, web) = (verdict(1, "n1", "cart", "loopback_down"), verdict(2, "n1", "web", "slow_response"));
    let file = &scratch.file("records", cart + &web);
    assert_eq!(show(&[file, "--cause", "slow-response", "-o", "json"], "").1, web, "the line as it was");
    let (_, otlp, _) = show(&[file, "--cause", "slow-response", "-o", "otlp"], "");
    assert!(otlp.starts_with(r#"{"resourceLogs":["#) && otlp.lines().count() == 1, "{otlp}");
    let (_, out, _) = show(&[file, "-p", "cart"], "");
    assert!(out.contains("why cart") && !out.contains("why web"), "{out}");
}

#[test]
fn records_have_a_heading_for_each_node() {
    let records = verdict(1, "n1", "cart", "loopback_down") + &verdict(1, "n2", "web", "slow_response");
    let (_, out, _) = show(&[], &records);
    assert!(out.contains("== n2 ==\n") && out.matches("== n1 ==").count() == 1, "{out}");
}

#[test]
fn input_without_records_of_this_schema_is_one_line_and_exit_code_2() {
    let other = verdict(1, "n1", "cart", "loopback_down").replace("tracer/1", "tracer/9");
    let (code, out, err) = show(&[], &other);
    assert_eq!((code, out.as_str(), err.lines().count()), (Some(2), "", 1), "{err}");
    assert!(err.contains("show stdin: line 1: a record of schema tracer/9: this tracer reads tracer/1"), "{err}");
    let (code, _, err) = show(&["/nonexistent"], "");
    assert_eq!((code, err.lines().count()), (Some(2), 1), "{err}");
    let (code, _, err) = show(&[], "{\"format\":\"tracer-record\"}\n");
    assert!(code == Some(2) && err.contains("a recording: `tracer replay FILE` shows its verdicts"), "{err}");
    let (code, _, err) = show(&[], "nothing\n");
    assert_eq!((code, err.lines().count()), (Some(2), 1), "{err}");
}

#[test]
fn an_unknown_type_of_record_is_a_warning_of_show_and_report() {
    let newer = r#"{"schema":"tracer/1","type":"forecast","time":"2026-01-02T03:04:05Z","seq":2,"node_name":"n1"}"#;
    let records = verdict(1, "n1", "cart", "loopback_down") + newer + "\n";
    let note = "stdin:2: a record of type `forecast`, which this tracer does not know: skipped";
    let (code, _, err) = show(&[], &records);
    assert_eq!((code, err.lines().count(), err.contains(note)), (Some(0), 1, true), "{err}");
    let (code, page, err) = tracer("report", &["-"], &records);
    assert_eq!((code, err.lines().count(), err.contains(note)), (Some(0), 1, true), "{err}");
    assert!(page.contains("loopback_down"), "{page}");
}

#[test]
fn failures_are_counted_without_noise() {
    let failure = |seq| verdict(seq, "n1", "cart", "loopback_down");
    let noise = failure(2).replace(r#""outcome":"failure""#, r#""outcome":"noise""#);
    let revision = noise.replace(r#""seq":2"#, r#""seq":4,"revises":3"#);
    let (_, out, _) = show(&["-n", "nosuch"], &(failure(1) + &noise + &failure(3) + &revision));
    assert!(out.contains("0 of 1 failure shown"), "{out}");
    let (_, out, _) = show(&["-n", "shop"], &(failure(1) + &noise));
    assert!(out.contains("1 of 1 failure shown"), "{out}");
}

/// The kubelet's runtime splits a line of more than 16 KiB, and Docker wraps each in JSON.
#[test]
fn container_logs_of_a_node_are_read() {
    let (one, two) = (verdict(1, "n1", "cart", "loopback_down"), verdict(2, "n1", "web", "slow_response"));
    let (begin, end) = one.split_at(100);
    let docker = serde_json::json!({"log": two, "stream": "stdout", "time": "2026-01-02T03:04:05Z"});
    let (partial, last) = (format!("1Z stdout P {begin}\n"), format!("1Z stdout F {end}"));
    let log = format!("{partial}{last}{docker}\n");
    let (code, out, err) = show(&["-o", "json"], &log);
    assert_eq!((code, out, err.as_str()), (Some(0), format!("{one}{two}"), ""));
    let (code, page, err) = tracer("report", &["-"], &log);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert!(page.contains("loopback_down") && page.contains("slow_response"), "{page}");
    // The runtime wrote the begin of a record only, or a copy of the file ends there.
    for end in [&partial, partial.trim_end(), &format!("{partial}{}", &last[..40]), &format!("{partial}1Z std")] {
        for (command, args) in [("show", &["-o", "json"][..]), ("report", &["-"])] {
            let (code, _, err) = tracer(command, args, &format!("{log}{end}"));
            let line = 3 + end.lines().count();
            let expected = format!("tracer: warning: stdin:{line}: the last line is not whole\n");
            assert_eq!((code, err), (Some(0), expected), "{command} {end}");
        }
    }
}

/// A log that was rotated.
#[test]
fn a_compressed_log_is_read_as_the_others() {
    let scratch = Scratch::new();
    let file = scratch.file("log.gz", gzip(verdict(1, "n1", "cart", "loopback_down").as_bytes()));
    let (code, out, err) = show(&[&file], "");
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert!(out.contains("loopback_down"), "{out}");
    let packed = std::fs::read(&file).expect("a file");
    let (code, _, err) = show(&[&scratch.file("cut.gz", &packed[..packed.len() - 12])], "");
    assert!(code == Some(2) && err.contains("cut.gz:"), "{err}");
}

#[test]
fn output_that_cannot_be_written_is_exit_code_2() {
    let mut tracer = common::tracer();
    let full = std::fs::File::options().write(true).open("/dev/full").expect("a device");
    let scratch = Scratch::new();
    let file = scratch.file("records", verdict(1, "n1", "cart", "loopback_down"));
    let output = tracer.args(["show", &file]).stdout(full).output().expect("tracer ends");
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

/// Lines without a `start` record have no other date, and the first line of each day has it.
#[test]
fn each_day_has_its_date() {
    let at = |seq, time: &str| {
        let mut record: serde_json::Value =
            serde_json::from_str(&verdict(seq, "n1", "cart", "loopback_down")).expect("JSON");
        record["time"] = time.into();
        format!("{record}\n")
    };
    let log = [at(1, "2026-01-02T13:04:02Z"), at(2, "2026-01-02T23:04:02Z"), at(3, "2026-01-03T13:04:02Z")].concat();
    let (_, out, _) = show(&[], &log);
    let days: Vec<_> = out.lines().filter(|line| line.starts_with("2026-") && line.ends_with(" UTC")).collect();
    assert_eq!(days, ["2026-01-02 UTC", "2026-01-03 UTC"], "{out}");
}
