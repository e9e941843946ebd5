//! Runs `tracer replay` over complete, cut and damaged recordings, with `--compare`, and with several outputs.
#![allow(clippy::unwrap_used, reason = "a test ends at the line that failed")]

mod common;

use std::fs::File;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Stdio;

use tracer::replay::{self, ReplayConfig};
use tracer_output::sink::{Format, SinkConfig};

use common::{
    END, HEADER, Scratch, gzip, lines, ran, recorded_file, recording, recording_of, records, refuses, reports_one_line,
    text, tracer,
};
use serde_json::json;
use tracer_core::testing::{Stream, assert_has, assert_lacks, assert_starts};

#[test]
fn a_recording_is_replayed() {
    let dir = Scratch::new();
    let output = ran(&["replay", &dir.file("good", recording())]);
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""));
    let records = records(&output.stdout);
    assert_eq!(records[0]["type"], "start");
    assert_eq!(records[0]["time"], "2023-11-14T22:13:21.000000000Z");
    assert_eq!((&records[0]["prober_pids"][0], &records[0]["pods"]), (&812.into(), &3.into()));
    let stop = records.last().unwrap();
    assert_eq!((&stop["type"], &stop["reason"]), (&"stop".into(), &"end_of_stream".into()));
    assert_eq!(stop["time_boot_ns"], 3_000_000_000_u64);
}

#[test]
fn stdin_is_replayed_the_same() {
    let (_dir, good) = recorded_file();
    let output = tracer().args(["replay", "-"]).stdin(File::open(&good).unwrap()).output().unwrap();
    assert_eq!(output.stdout, ran(&["replay", &good]).stdout);
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn another_file_than_a_recording_is_refused() {
    let dir = Scratch::new();
    let refuse = |content: &str, words: &[&str]| {
        let path = dir.file("bad", content);
        refuses(&["replay", &path], &[&[path.as_str()], words].concat());
    };
    refuse("", &[":1: empty"]);
    refuse("hello\n", &[":1: not a recording"]);
    refuse("{\"schema\":\"tracer/1\",\"type\":\"start\"}\n", &[":1: these are records: `tracer show FILE`"]);
    refuse("1T stdout F {\"schema\":\"tracer/1\",\"type\":\"start\"}\n", &[":1: these are records"]);
    refuse(
        &recording().replace("\"version\":1", "\"version\":2"),
        &[":1: a recording of version 2", "reads version 1"],
    );
    refuse(&recording().replace("\"observation\":\"tick\"", "\"observation\":7"), &[":3: not an observation"]);
    refuse(
        &recording().replace("\"observations\":2", "\"observations\":3"),
        &[":4:", "counts 3 observations, but there are 2"],
    );
    refuse(&format!("{}more\n", recording()), &[":5: text after the end marker"]);
    let headless = format!("{HEADER}\n{{\"time_boot_ns\":1,\"observation\":\"tick\"}}\n");
    refuse(&headless, &[":2: the first observation is not `start`"]);
}

/// Another version may have other kinds of observations.
#[test]
fn an_observation_of_an_unknown_kind_is_skipped_and_counted() {
    let dir = Scratch::new();
    let unknown = r#""observation":"probe_counts","failed":[{"pod":{"name":"web"},"failures":2}]"#;
    let known = ran(&["replay", &dir.file("known", recording())]);
    let output = ran(&["replay", &dir.file("unknown", recording().replace(r#""observation":"tick""#, unknown))]);
    assert_eq!((output.status.code(), &output.stdout), (Some(0), &known.stdout));
    assert!(text(&output.stderr).contains("1 observation of a kind that this tracer"), "{}", text(&output.stderr));
}

#[test]
fn a_compressed_recording_is_replayed_as_the_others() {
    let dir = Scratch::new();
    let whole = ran(&["replay", &dir.file("plain", recording())]);
    let packed = gzip(recording().as_bytes());
    let output = ran(&["replay", &dir.file("incident.gz", &packed)]);
    assert_eq!((output.status.code(), &output.stdout), (Some(0), &whole.stdout), "{}", text(&output.stderr));
    let cut = ran(&["replay", &dir.file("cut.gz", &packed[..packed.len() / 2])]);
    reports_one_line(&cut, 2, &["cut.gz"]);
}

#[test]
fn a_cut_recording_is_replayed_as_far_as_it_goes() {
    let dir = Scratch::new();
    let whole = recording();
    let cuts = [
        (whole.len() - END.len() - 1, ":4: cut in the middle after 2 observations"),
        (whole.len() - 30, ":4: cut"),
        (whole.len() - END.len() - 10, ":3: cut in the middle after 1 observation"),
    ];
    for (length, words) in cuts {
        let output = ran(&["replay", &dir.file("cut", &whole[..length])]);
        reports_one_line(&output, 2, &[words]);
        let records = records(&output.stdout);
        assert_eq!(records.first().unwrap()["type"], "start");
        let stop = records.last().unwrap();
        let line = words.trim_start_matches(':').split(':').next().unwrap();
        assert_eq!((&stop["type"], &stop["reason"]), (&"stop".into(), &format!("cut_at_line_{line}").into()));
    }
    let output = ran(&["replay", &dir.file("head", format!("{HEADER}\n"))]);
    reports_one_line(&output, 2, &[":2: cut in the middle after 0"]);
    assert_eq!(text(&output.stdout), "", "no start record, so no stop record");
    let output = ran(&["replay", &dir.file("nearly", &whole[..whole.len() - 1])]);
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""));
}

#[test]
fn wherever_a_recording_is_cut_it_is_reported() {
    let dir = Scratch::new();
    let whole = recording();
    let output = SinkConfig { attempts: true, ..SinkConfig::new(Format::Ndjson, Some(dir.path("out"))) };
    for length in 0..whole.len() - 1 {
        let file = PathBuf::from(dir.file("cut", &whole[..length]));
        let error = replay::replay(&ReplayConfig { output: output.clone(), file, compare: None }).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        let cut = error.to_string().contains("cut in the middle after");
        assert_eq!(cut, length >= HEADER.len(), "{length}: {error}");
    }
}

#[test]
fn records_before_a_damaged_line_are_printed() {
    let dir = Scratch::new();
    let output = ran(&["replay", &dir.file("bad", recording().replace("\"observation\":\"tick\"", "?"))]);
    reports_one_line(&output, 2, &[":3:"]);
    let records = records(&output.stdout);
    assert_eq!((records.len(), &records[0]["type"]), (2, &"start".into()));
    assert_eq!((&records[1]["type"], &records[1]["reason"]), (&"stop".into(), &"unreadable_at_line_3".into()));
}

#[test]
fn a_full_disk_loses_no_record() {
    let (_dir, good) = recorded_file();
    let output = ran(&["replay", &good, "--output-file", "/dev/full"]);
    reports_one_line(&output, 2, &["--output-file /dev/full: No space left on device", "stdout"]);
    assert_eq!(output.stdout, ran(&["replay", &good]).stdout);
    let full = File::options().write(true).open("/dev/full").unwrap();
    let output = tracer().args(["replay", &good]).stdout(full).output().unwrap();
    reports_one_line(&output, 2, &["stdout: No space left on device", "2 records were not written"]);
}

#[test]
fn a_closed_pipe_ends_it_without_an_error() {
    let (dir, good) = recorded_file();
    let records = dir.file("records", common::verdict(1, "n1", "cart", "loopback_down").to_string() + "\n");
    for args in [&["replay", good.as_str()][..], &["report", &records], &["explain"], &["schema"], &["--help"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = tracer().args(args).stdout(writer).stderr(Stdio::piped()).output().unwrap();
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""), "{args:?}");
    }
}

#[test]
fn compare_reports_a_difference_with_exit_code_1() {
    let (dir, good) = recorded_file();
    let same = dir.file("same", ran(&["replay", &good]).stdout);
    assert_eq!(ran(&["replay", &good, "--compare", &same]).status.code(), Some(0));
    let filtered = ["replay", &good, "--compare", &same, "-n", "nosuch"];
    assert_eq!(ran(&filtered).status.code(), Some(0), "the other verdicts are not missing");
    let verdict = r#"{"type":"verdict","verdict":{"cause":"loopback_down","summary":"lo is down"}}"#;
    let other = dir.file("other", format!("{verdict}\n"));
    reports_one_line(
        &ran(&["replay", &good, "--compare", &other]),
        1,
        &[&format!("{other}:1"), "loopback_down", "missing here"],
    );
    refuses(&["replay", &good, "--compare", &good], &[&format!("{good}:1: not a record"), "a recording"]);
    let broken = dir.file("broken", "{\n");
    refuses(&["replay", &good, "--compare", &broken], &[&format!("{broken}:1: not a record")]);
}

#[test]
fn pretty_starts_with_the_node_and_has_no_colour_in_a_pipe() {
    let dir = Scratch::new();
    let output = ran(&["replay", &dir.file("good", recording()), "-o", "pretty"]);
    let out = text(&output.stdout);
    assert_starts(&out, "tracer 0.1.0 on n1, 2023-11-14, times in UTC, kernel 6.12.0: ");
    assert_lacks(&out, &["\u{1b}"]);
}

#[test]
fn an_output_file_is_appended_to() {
    let (dir, good) = recorded_file();
    let path = dir.path("out");
    let by_flag = ran(&["replay", &good, "--output-file", path.to_str().unwrap()]);
    let by_variable = tracer().args(["replay", &good]).env("TRACER_OUTPUT_FILE", &path).output().unwrap();
    for output in [by_flag, by_variable] {
        assert_eq!((output.status.code(), output.stdout.len()), (Some(0), 0));
    }
    assert_eq!(lines(&path), 4);
}

#[test]
fn a_partly_written_record_is_removed_and_goes_to_stdout() {
    // The file may grow by only 124 bytes, as on a disk that is nearly full.
    let (dir, good) = recorded_file();
    let path = dir.path("out");
    let mut file = File::create(&path).unwrap();
    file.write_all(&[b'\n'; 900]).unwrap();
    let mut command = tracer();
    command.args(["replay", &good, "--output-file", path.to_str().unwrap()]);
    // SAFETY: the call is async-signal-safe.
    unsafe {
        command.pre_exec(|| {
            let limit = libc::rlimit { rlim_cur: 1024, rlim_max: 1024 };
            libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit);
            Ok(())
        });
    }
    let output = command.output().unwrap();
    reports_one_line(&output, 2, &["File too large (more than `ulimit -f` allows?)", "stdout"]);
    assert_eq!(output.stdout, ran(&["replay", &good]).stdout);
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 900, "half a record was left");
}

/// The fixture's clock is set back to before the start of its containers, and then forward again.
#[test]
fn records_after_a_step_of_the_clock_have_the_new_time() {
    let dir = Scratch::new();
    let fixture = common::recorded::fixtures().into_iter().find(|it| it.name == "probe_not_run/any-v4").unwrap();
    let output = ran(&["replay", &dir.file("recording", fixture.observations()), "-o", "json"]);
    let records = records(&output.stdout);
    let days = records.iter().map(|it| it["time"].as_str().unwrap().split_once('T').unwrap().0.to_owned());
    let mut days: Vec<String> = days.collect();
    days.dedup();
    assert_eq!(days, ["2026-11-25", "2026-11-20", "2026-11-25"]);
}

/// A probe that is refused every ten seconds, `times` in all.
fn repeated_refusals(times: u64) -> String {
    let mut all = Stream::new();
    all.http_readiness();
    for n in 0..times {
        let mut one = Stream::numbered(n, n * 10_000_000_000);
        one.connect().refused().wait_ms(100).tick();
        all.observations.extend(one.observations.into_iter().skip(1));
    }
    let end = json!({"end": true, "observations": all.observations.len(), "time_boot_ns": times * 10_000_000_000});
    recording_of(&all.observations, &end.to_string())
}

#[test]
fn a_repeated_failure_has_a_record_for_each_interval_and_all_are_counted() {
    let dir = Scratch::new();
    let recording = dir.file("recording", repeated_refusals(20));
    let counts = |args: &[&str]| {
        let output = ran(&[&["replay", recording.as_str(), "-o", "json"], args].concat());
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let records = records(&output.stdout);
        let verdicts = records.iter().filter(|it| it["type"] == "verdict");
        let counts: Vec<u64> = verdicts.map(|it| it["repeated"]["count"].as_u64().unwrap_or(0)).collect();
        (counts, records.last().unwrap()["verdicts"]["connection_refused"].as_u64(), output.stdout)
    };
    let (once_a_minute, total, printed) = counts(&[]);
    assert_eq!((once_a_minute, total), (vec![0, 0, 0, 0, 0, 0, 5, 6, 3], Some(20)));
    assert_eq!(counts(&["--repeat-interval", "0"]).0, [0; 20]);
    assert_eq!(counts(&["--repeat-interval", "25s"]).0, [0, 0, 0, 0, 0, 0, 2, 3, 3, 3, 3]);
    let shown = ran(&["show", &dir.file("records", &printed)]);
    let shown = text(&shown.stdout);
    assert_has(&shown, &[", again: as #1, 6 times since ", "\n20  connection_refused  20 proven  "]);
    let report = ran(&["report", &dir.file("records", &printed)]);
    assert!(text(&report.stdout).contains("20 failed attempts"), "{}", text(&report.stdout));
}

/// `--cause` also finds the causes that occur only beside another one, and `stop` counts what a filter hides.
#[test]
fn a_cause_beside_another_is_shown_and_the_rest_is_counted() {
    let dir = Scratch::new();
    let recordings = common::recorded::of_kernels();
    for (scenario, also) in
        [("slow_response_throttled", "cpu_throttled"), ("dependency_unreachable", "dependency_unreachable")]
    {
        let recording = recordings.iter().find(|it| it.name == format!("6.18/{scenario}")).expect(scenario);
        let file = dir.file(scenario, recording.observations());
        let records = |cause: &str| common::records(&ran(&["replay", &file, "--cause", cause]).stdout);
        let shown = records(also);
        let verdicts: Vec<_> = shown.iter().filter(|record| record["type"] == "verdict").collect();
        let has_it =
            |it: &&serde_json::Value| it["verdict"]["also"].as_array().is_some_and(|all| all.contains(&also.into()));
        assert!(!verdicts.is_empty() && verdicts.iter().all(has_it), "{scenario}: {verdicts:?}");
        let hidden = records("loopback_down");
        let stop = hidden.last().expect("a stop record");
        assert!(stop["filtered"].as_u64().is_some_and(|n| n >= verdicts.len() as u64), "{scenario}: {stop}");
        assert_eq!(stop["verdicts"], json!({}));
    }
}
