//! The binary from outside: for every bad input one line on stderr and the right exit code.
#![allow(clippy::unwrap_used, reason = "a test ends at the line that failed")]

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{self, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use tracer::cli::{Form, Format};
use tracer::config::{Output, Replay};
use tracer::event::{Fact, Observation, Start};
use tracer::replay;
use tracer::sink::filter::Filter;

/// A directory that goes away with its test.
struct Dir(PathBuf);

impl Dir {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("tracer-cli-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn tracer() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tracer"));
    command.env_clear().stdin(Stdio::null());
    command
}

fn ran(args: &[&str]) -> process::Output {
    tracer().args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// Exit code, and exactly one line on stderr that holds these words.
#[track_caller]
fn refused(output: &process::Output, code: i32, words: &[&str]) {
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(stderr.starts_with("tracer: ") && stderr.ends_with('\n'), "{stderr}");
    for word in words {
        assert!(stderr.contains(word), "{word:?} is not in {stderr}");
    }
}

fn observations() -> Vec<Observation> {
    let start = Start {
        version: "0.1.0".into(),
        kernel: "6.12.0".into(),
        node_name: "n1".into(),
        boot_to_wall_ns: 1_700_000_000_000_000_000,
        node_netns: None,
        namespaces: Vec::new(),
        namespaces_incomplete: false,
        probers: vec!["kubelet".into()],
        all_connections: false,
        hooks: vec![],
        missing_hooks: vec![],
        sources: vec![],
    };
    vec![
        Observation { time_boot_ns: 1_000_000_000, fact: Fact::Start(Box::new(start)) },
        Observation { time_boot_ns: 2_000_000_000, fact: Fact::Tick },
    ]
}

const HEADER: &str = r#"{"format":"tracer-record","version":1,"tracer":"0.1.0","prober_pids":[812],"pods":3}"#;
const END: &str = r#"{"end":true,"observations":2,"time_boot_ns":3000000000}"#;

/// A recording: header, start, a tick, end.
fn recording() -> String {
    let lines: Vec<_> = observations().iter().map(|o| serde_json::to_string(o).unwrap()).collect();
    format!("{HEADER}\n{}\n{END}\n", lines.join("\n"))
}

fn records(output: &process::Output) -> Vec<serde_json::Value> {
    text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn wrong_usage_is_one_line() {
    refused(&ran(&[]), 2, &["no command is given: attach, run,", "tracer --help"]);
    refused(&ran(&["atach"]), 2, &["atach", "attach"]);
    refused(&ran(&["attach", "--outptu", "x"]), 2, &["--outptu", "--output"]);
    refused(&ran(&["replay"]), 2, &["<FILE>", "tracer replay --help"]);
    refused(&ran(&["attach", "-o", "xml"]), 2, &["xml", "pretty", "ndjson"]);
    refused(&ran(&["attach", "--duration", "30"]), 2, &["--duration", "30s"]);
    refused(
        &ran(&["attach", "--label", "lookback_down"]),
        2,
        &["lookback_down", "loopback_down", "connection_refused"],
    );
    refused(&ran(&["attach", "--prober", "a-name-beyond-the-kernel"]), 2, &["--prober", "15"]);
    refused(&ran(&["replay", "x", "--pods", "y"]), 2, &["--pods", "replay"]);
    refused(&ran(&["explain", "nodeport_colision"]), 2, &["nodeport_ephemeral_collision"]);
    refused(&ran(&["record", "-"]), 2, &["record FILE"]);
    refused(&ran(&["hooks", "--pods", "y"]), 2, &["--pods", "hooks"]);
    refused(&ran(&["hooks", "--until-failure"]), 2, &["--until-failure", "hooks"]);
    refused(&ran(&["hooks", "--fail-on", "ok"]), 2, &["--fail-on", "ok"]);
    refused(&ran(&["hooks", "--duration", "0"]), 2, &["--duration"]);
    refused(
        &ran(&["selftest", "--label", "conection_refused"]),
        2,
        &["conection_refused", "did you mean `connection_refused`?"],
    );
    refused(&ran(&["selftest", "--pods", "x"]), 2, &["--pods", "selftest"]);
}

#[test]
fn wrong_variables_are_wrong_usage() {
    let output = tracer().arg("attach").env("TRACER_DURATION", "soon").output().unwrap();
    refused(&output, 2, &["'TRACER_DURATION'", "soon"]);
    let output = tracer().args(["attach", "--duration", "later"]).env("TRACER_DURATION", "5m").output().unwrap();
    refused(&output, 2, &["'--duration <TIME>'", "later"]);
    let output = tracer().arg("attach").env("TRACER_LABEL", "loopback_down,nonsense").output().unwrap();
    refused(&output, 2, &["TRACER_LABEL", "`nonsense`"]);
    let output = tracer().arg("attach").env("TRACER_PODS", "/none/pods").output().unwrap();
    refused(&output, 2, &["TRACER_PODS /none/pods: No such file"]);
    let output = tracer().arg("attach").env("TRACER_OUTPUT_FILE", "/none/out").output().unwrap();
    refused(&output, 2, &["TRACER_OUTPUT_FILE /none/out: No such file"]);
    for (variable, value) in [("UNTIL_FAILURE", "maybe"), ("ATTEMPTS", "2"), ("LABEL", "loopback_down,")] {
        let variable = format!("TRACER_{variable}");
        refused(&tracer().arg("attach").env(&variable, value).output().unwrap(), 2, &[&variable]);
    }
    for flag in ["--label", "--prober"] {
        refused(&ran(&["attach", flag, ""]), 2, &[flag, "an empty name"]);
    }
    let dir = Dir::new();
    let mut command = tracer();
    for name in ["OUTPUT", "OUTPUT_FILE", "NAMESPACE", "LABEL", "DURATION", "ATTEMPTS", "PROBER", "PODS", "COMPARE"] {
        command.env(format!("TRACER_{name}"), "");
    }
    let output = command.args(["replay", &dir.file("good", recording())]).output().unwrap();
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""), "an empty variable is not set");
}

#[test]
fn what_is_not_utf8_is_named() {
    let bad = OsStr::from_bytes(b"\xff");
    let with = |args: &[&str]| tracer().args(args).arg(bad).output().unwrap();
    refused(&with(&["attach", "-n"]), 2, &["`-n \u{fffd}`: not valid UTF-8", "tracer attach --help"]);
    refused(&with(&["attach", "--duration"]), 2, &["`--duration \u{fffd}`"]);
    refused(&with(&["explain"]), 2, &["`explain \u{fffd}`"]);
    refused(&with(&["man"]), 2, &["`man \u{fffd}`"]);
    refused(
        &tracer().arg("doctor").arg(OsStr::from_bytes(b"--check=\xff")).output().unwrap(),
        2,
        &["`--check=\u{fffd}`"],
    );
    let both = tracer().arg("record").arg(bad).args(["-p", "x", "-c"]).arg(bad).output().unwrap();
    refused(&both, 2, &["`-c \u{fffd}`"]);
    for variable in
        ["NODE_NAME", "TRACER_NAMESPACE", "TRACER_POD", "TRACER_LABEL", "TRACER_DURATION", "TRACER_ATTEMPTS"]
    {
        // A path may be anything.
        let output = tracer().arg("attach").env("TRACER_PODS", bad).env(variable, bad).output().unwrap();
        refused(&output, 2, &[&format!("{variable}: not valid UTF-8")]);
    }
}

#[test]
fn lists_may_have_blanks_around_their_commas() {
    let dir = Dir::new();
    let good = dir.file("good", recording());
    let output =
        tracer().args(["replay", &good]).env("TRACER_LABEL", "loopback_down, mid_stream_rst").output().unwrap();
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""));
    refused(&ran(&["attach", "--prober", "a, "]), 2, &["--prober", "an empty name"]);
}

/// To open it waits for who writes to it, for ever perhaps.
#[test]
fn a_named_pipe_is_no_list() {
    let dir = Dir::new();
    let pipe = dir.0.join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRUSR).unwrap();
    for flag in ["--pods", "--services"] {
        refused(&ran(&["attach", flag, pipe.to_str().unwrap()]), 2, &[flag, "pipe: a named pipe: give a plain file"]);
    }
}

/// A daemon's environment is that of every command that is run beside it.
#[test]
fn a_variable_counts_where_its_flag_has_a_meaning() {
    for args in [&["explain"][..], &["schema"], &["man"], &["completions", "bash"]] {
        let output = tracer().args(args).env("TRACER_OUTPUT", "xml").env("TRACER_DURATION", "soon").output().unwrap();
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""), "{args:?}");
    }
    let socket = ["health", "--health-socket", "/none/socket"];
    refused(&tracer().args(socket).env("TRACER_OUTPUT", "xml").output().unwrap(), 2, &["/none/socket"]);
    refused(&tracer().arg("doctor").env("TRACER_OUTPUT", "xml").output().unwrap(), 2, &["TRACER_OUTPUT", "xml"]);
}

#[test]
fn the_file_for_records_can_be_a_variable_s_in_every_command_that_has_the_flag() {
    let dir = Dir::new();
    let (good, path) = (dir.file("good", recording()), dir.0.join("records"));
    let output = tracer().args(["replay", &good]).env("TRACER_OUTPUT_FILE", &path).output().unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(0), 0));
    assert_eq!(lines(&path), 2);
}

#[test]
fn unreadable_files_are_named_with_their_flag() {
    refused(&ran(&["attach", "--pods", "/none/pods.json"]), 2, &["--pods /none/pods.json: No such file"]);
    refused(&ran(&["attach", "--services", "/"]), 2, &["--services /: Is a directory"]);
    refused(&ran(&["replay", "/none/incident"]), 2, &["replay FILE /none/incident: No such file"]);
    refused(&ran(&["replay", "/"]), 2, &["replay FILE /: Is a directory"]);
    let dir = Dir::new();
    let good = dir.file("good", recording());
    refused(&ran(&["replay", &good, "--output-file", "/none/out"]), 2, &["--output-file /none/out: No such file"]);
    refused(&ran(&["replay", &good, "--compare", "/none/golden"]), 2, &["--compare /none/golden"]);
    refused(&ran(&["record", "/none/incident"]), 2, &["record FILE /none/incident: No such file"]);
    refused(&ran(&["record", "/"]), 2, &["record FILE /: Is a directory"]);
    refused(&ran(&["record", &good]), 2, &["record FILE", "File exists", "never overwritten"]);
}

#[test]
fn a_recording_is_replayed() {
    let dir = Dir::new();
    let output = ran(&["replay", &dir.file("good", recording())]);
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""));
    let records = records(&output);
    assert_eq!(records[0]["type"], "start");
    assert_eq!(records[0]["time"], "2023-11-14T22:13:21.000000000Z");
    assert_eq!((&records[0]["prober_pids"][0], &records[0]["pods"]), (&812.into(), &3.into()));
    let stop = records.last().unwrap();
    assert_eq!((&stop["type"], &stop["reason"]), (&"stop".into(), &"end_of_stream".into()));
    assert_eq!(stop["time_boot_ns"], 3_000_000_000_u64);
}

#[test]
fn stdin_is_replayed_the_same() {
    let dir = Dir::new();
    let good = dir.file("good", recording());
    let output = tracer().args(["replay", "-"]).stdin(File::open(&good).unwrap()).output().unwrap();
    assert_eq!(output.stdout, ran(&["replay", &good]).stdout);
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn what_is_no_recording_is_refused() {
    let dir = Dir::new();
    let refuse = |content: &str, words: &[&str]| {
        let path = dir.file("bad", content);
        refused(&ran(&["replay", &path]), 2, &[&[path.as_str()], words].concat());
    };
    refuse("", &[":1: empty"]);
    refuse("hello\n", &[":1: not a recording"]);
    refuse("{\"schema\":\"tracer/1\",\"type\":\"start\"}\n", &[":1: these are records", "tracer record"]);
    refuse(
        &recording().replace("\"version\":1", "\"version\":2"),
        &[":1: a recording of version 2", "reads version 1"],
    );
    refuse(&recording().replace("\"fact\":\"tick\"", "\"fact\":\"tock\""), &[":3: not an observation", "tock"]);
    refuse(&recording().replace("\"observations\":2", "\"observations\":3"), &[":4:", "3 observations, 2 are there"]);
    refuse(&format!("{}more\n", recording()), &[":5: text after the end marker"]);
    let headless = format!("{HEADER}\n{{\"time_boot_ns\":1,\"fact\":\"tick\"}}\n");
    refuse(&headless, &[":2: the first observation is not `start`"]);
}

#[test]
fn a_compressed_recording_says_how_to_read_it() {
    let dir = Dir::new();
    let path = dir.file("incident.gz", [0x1f, 0x8b, 8, 0, b'\n']);
    refused(&ran(&["replay", &path]), 2, &["zcat"]);
}

#[test]
fn a_cut_recording_is_replayed_as_far_as_it_goes() {
    let dir = Dir::new();
    let whole = recording();
    let cuts = [
        (whole.len() - END.len() - 1, ":4: cut in the middle after 2"),
        (whole.len() - 30, ":4: cut"),
        (whole.len() - END.len() - 10, ":3: cut in the middle after 1"),
    ];
    for (length, words) in cuts {
        let output = ran(&["replay", &dir.file("cut", &whole[..length])]);
        refused(&output, 2, &[words]);
        let records = records(&output);
        assert_eq!(records.first().unwrap()["type"], "start");
        let stop = records.last().unwrap();
        let line = words.trim_start_matches(':').split(':').next().unwrap();
        assert_eq!((&stop["type"], &stop["reason"]), (&"stop".into(), &format!("cut_at_line_{line}").into()));
    }
    let output = ran(&["replay", &dir.file("head", format!("{HEADER}\n"))]);
    refused(&output, 2, &[":2: cut in the middle after 0"]);
    assert_eq!(text(&output.stdout), "", "nothing began that could stop");
    let output = ran(&["replay", &dir.file("nearly", &whole[..whole.len() - 1])]);
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""));
}

#[test]
fn wherever_a_recording_is_cut_it_is_said() {
    let dir = Dir::new();
    let whole = recording();
    let output = Output {
        form: Form::Ndjson,
        colour: false,
        columns: None,
        file: Some(dir.0.join("out")),
        filter: Filter::default(),
        attempts: true,
        until_failure: false,
        rotation: None,
        format: Format::Tracer,
    };
    for length in 0..whole.len() - 1 {
        let file = PathBuf::from(dir.file("cut", &whole[..length]));
        let error = replay::replay(&Replay { output: output.clone(), file, compare: None }).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        let cut = error.to_string().contains("cut in the middle after");
        assert_eq!(cut, length >= HEADER.len(), "{length}: {error}");
    }
}

#[test]
fn what_was_decided_before_a_damaged_line_is_printed() {
    let dir = Dir::new();
    let output = ran(&["replay", &dir.file("bad", recording().replace("\"fact\":\"tick\"", "?"))]);
    refused(&output, 2, &[":3:"]);
    let records = records(&output);
    assert_eq!((records.len(), &records[0]["type"]), (2, &"start".into()));
    assert_eq!((&records[1]["type"], &records[1]["reason"]), (&"stop".into(), &"unreadable_at_line_3".into()));
}

#[test]
fn a_full_disk_loses_no_record() {
    let dir = Dir::new();
    let good = dir.file("good", recording());
    let output = ran(&["replay", &good, "--output-file", "/dev/full"]);
    refused(&output, 2, &["--output-file /dev/full: No space left on device", "stdout"]);
    assert_eq!(output.stdout, ran(&["replay", &good]).stdout);
    let full = File::options().write(true).open("/dev/full").unwrap();
    let output = tracer().args(["replay", &good]).stdout(full).output().unwrap();
    refused(&output, 2, &["stdout: No space left on device", "2 records were not written"]);
}

#[test]
fn a_reader_that_leaves_ends_it_quietly() {
    let dir = Dir::new();
    let good = dir.file("good", recording());
    for args in [&["replay", good.as_str()][..], &["explain"], &["schema"], &["--help"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = tracer().args(args).stdout(writer).stderr(Stdio::piped()).output().unwrap();
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""), "{args:?}");
    }
}

#[test]
fn a_difference_is_a_finding() {
    let dir = Dir::new();
    let good = dir.file("good", recording());
    let same = dir.file("same", ran(&["replay", &good]).stdout);
    assert_eq!(ran(&["replay", &good, "--compare", &same]).status.code(), Some(0));
    let verdict = r#"{"type":"verdict","verdict":{"label":"loopback_down","summary":"lo is down"}}"#;
    let other = dir.file("other", format!("{verdict}\n"));
    refused(
        &ran(&["replay", &good, "--compare", &other]),
        1,
        &[&format!("{other}:1"), "loopback_down", "missing here"],
    );
    refused(&ran(&["replay", &good, "--compare", &good]), 2, &[&format!("{good}:1: not a record"), "a recording"]);
    let broken = dir.file("broken", "{\n");
    refused(&ran(&["replay", &good, "--compare", &broken]), 2, &[&format!("{broken}:1: not a record")]);
}

#[test]
fn a_second_daemon_is_refused() {
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::net::{SocketAddr, UnixListener};
    let address = SocketAddr::from_abstract_name("tracer-run").unwrap();
    // Held by a daemon on this machine otherwise: as good.
    let _first = UnixListener::bind_addr(&address);
    refused(&ran(&["run"]), 2, &["another `tracer run`", "tracer attach"]);
}

#[test]
fn without_privileges_the_kernel_is_not_asked_for_long() {
    let dir = Dir::new();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tracer"));
    command.arg("attach").current_dir("/").stdin(Stdio::null());
    if nix::unistd::geteuid().is_root() {
        command.uid(65534).gid(65534);
    }
    // The build directory may be closed to that user: then nothing can be said here.
    let Ok(output) = command.output() else { return };
    refused(&output, 3, &[]);
    drop(dir);
}

#[test]
fn a_log_filter_does_not_touch_stdout() {
    let dir = Dir::new();
    let good = dir.file("good", recording());
    let output = tracer().args(["replay", &good]).env("TRACER_LOG", "trace").output().unwrap();
    assert_eq!(output.stdout, ran(&["replay", &good]).stdout);
}

#[test]
fn what_is_asked_for_is_printed() {
    assert!(text(&ran(&["--version"]).stdout).starts_with("tracer "));
    assert!(text(&ran(&["attach", "--help"]).stdout).contains("--until-failure"));
    assert!(text(&ran(&["--help"]).stdout).contains("\n  man "));
    assert!(text(&ran(&["explain"]).stdout).contains("unexplained"));
    assert!(text(&ran(&["explain", "loopback_down"]).stdout).contains("WHAT MENDS IT"));
    let schema: serde_json::Value = serde_json::from_slice(&ran(&["schema"]).stdout).unwrap();
    assert_eq!(schema["title"], "Record");
}

#[test]
fn pretty_is_for_people() {
    let dir = Dir::new();
    let output = ran(&["replay", &dir.file("good", recording()), "-o", "pretty"]);
    let out = text(&output.stdout);
    assert!(out.starts_with("tracer 0.1.0 on n1, kernel 6.12.0: ") && !out.contains('\u{1b}'), "{out}");
}

#[test]
fn an_output_file_is_appended_to() {
    let dir = Dir::new();
    let good = dir.file("good", recording());
    let path = dir.0.join("out");
    for _ in 0..2 {
        assert_eq!(ran(&["replay", &good, "--output-file", path.to_str().unwrap()]).stdout, b"");
    }
    assert_eq!(lines(&path), 4);
}

fn lines(path: &Path) -> usize {
    std::fs::read_to_string(path).unwrap().lines().count()
}

#[test]
fn a_torn_record_is_written_again_elsewhere() {
    // A file that may grow by a few bytes only, as a disk does that is nearly full.
    let dir = Dir::new();
    let good = dir.file("good", recording());
    let path = dir.0.join("out");
    let mut file = File::create(&path).unwrap();
    file.write_all(&[b'\n'; 900]).unwrap();
    let mut command = tracer();
    command.args(["replay", &good, "--output-file", path.to_str().unwrap()]);
    // SAFETY: both calls are async-signal-safe.
    unsafe {
        command.pre_exec(|| {
            let limit = libc::rlimit { rlim_cur: 1024, rlim_max: 1024 };
            libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
            libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit);
            Ok(())
        });
    }
    let output = command.output().unwrap();
    refused(&output, 2, &["File too large", "stdout"]);
    assert_eq!(output.stdout, ran(&["replay", &good]).stdout);
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 900, "half a record was left");
}
