//! Runs the binary: each bad input gives one line on stderr and the right exit code.
#![allow(clippy::unwrap_used, reason = "a test ends at the line that failed")]

mod common;

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;

use common::{Scratch, ran, recorded_file, recording, refuses, reports_one_line, text, tracer};

#[test]
fn wrong_usage_is_one_line() {
    refuses(&["atach"], &["atach", "attach", "(see `tracer --help`)"]);
    refuses(&["attach", "--outptu", "x"], &["--outptu' found; tip: a similar", "--output"]);
    refuses(&["replay"], &["<FILE>", "tracer replay --help"]);
    refuses(&["attach", "-o", "xml"], &["xml", "pretty", "json"]);
    refuses(&["attach", "--duration", "30"], &["--duration", "30s"]);
    refuses(&["attach", "--cause", "lookback_down"], &["lookback_down", "loopback_down"]);
    refuses(&["attach", "--prober", "a-name-beyond-the-kernel"], &["--prober", "15", "write `a-name-beyond-t`"]);
    refuses(&["explain", "nodeport_colision"], &["nodeport_ephemeral_collision"]);
    refuses(&["explain", "nosuch"], &["`nosuch`: no such cause (`tracer explain` lists all)"]);
    refuses(&["record", "-"], &["record FILE"]);
    refuses(&["hooks"], &["hooks", "(see `tracer --help`)"]);
    refuses(&["attach", "--duration", "0"], &["--duration"]);
    refuses(
        &["selftest", "--cause", "conection_refused"],
        &["conection_refused", "did you mean `connection_refused`?"],
    );
    refuses(&["attach", "--no-api", "--kubeconfig", "/proc/self/exe"], &["--no-api and --kubeconfig exclude"]);
    for command in ["show", "report", "attach"] {
        refuses(&[command, "--output-file", "-"], &["--output-file", "stdout"]);
    }
}

#[test]
fn without_a_command_there_is_an_overview() {
    let output = ran(&[]);
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""));
    assert!(text(&output.stdout).lines().count() < 35, "one screen: {output:?}");
    assert_eq!(ran(&["version"]).stdout, ran(&["--version"]).stdout);
    assert!(text(&ran(&["--version"]).stdout).starts_with("tracer "));
}

#[test]
fn an_unknown_environment_variable_is_a_warning() {
    let (_dir, good) = recorded_file();
    let slip = |args: &[&str]| tracer().args(args).env("TRACER_DURATON", "5m").output().unwrap();
    let output = slip(&["replay", &good]);
    reports_one_line(&output, 0, &["tracer: warning: TRACER_DURATON", "did you mean TRACER_DURATION?"]);
    assert_eq!(text(&slip(&["replay", &good, "-q"]).stderr), "");
}

#[test]
fn a_filter_without_matches_is_reported() {
    let (_dir, good) = recorded_file();
    let shown = |args: &[&str]| ran(&[&["replay", &good], args].concat());
    let nothing = shown(&["-n", "nosuch", "-o", "json"]);
    reports_one_line(&nothing, 0, &["no pod matches `-n nosuch`"]);
    let pretty = shown(&["-n", "nosuch", "-o", "pretty"]);
    assert!(text(&pretty.stdout).ends_with("no pod matches `-n nosuch`\n"), "{pretty:?}");
    reports_one_line(&shown(&["-c", "nosuch", "-o", "json"]), 0, &["no container matches `-c nosuch`"]);
    reports_one_line(&shown(&["-p", "svc/cart"]), 2, &["--pod `svc/cart`", "deploy/NAME"]);
    let typed = tracer().args(["replay", &good, "-n", "nosuch"]).env("TRACER_ALL_NAMESPACES", "1").output().unwrap();
    reports_one_line(&typed, 0, &["no pod matches `-n nosuch`"]);
    let all = shown(&["-n", "nosuch", "-A"]);
    assert_eq!((all.status.code(), &all.stdout), (Some(0), &shown(&[]).stdout));
}

/// kubectl runs the plugin `tracer` as `kubectl-tracer`.
#[test]
fn the_name_kubectl_tracer_makes_it_a_plugin() {
    let dir = Scratch::new();
    let plugin = dir.text("kubectl-tracer");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_tracer"), &plugin).unwrap();
    let help = std::process::Command::new(&plugin).arg("--help").output().unwrap();
    assert!(help.status.success() && text(&help.stdout).contains("kubectl tracer"), "{}", text(&help.stdout));
    let wrong = std::process::Command::new(&plugin).args(["why", "svc/cart"]).output().unwrap();
    reports_one_line(&wrong, 2, &["svc/cart", "deploy/NAME"]);
    refuses(&["kubectl", "why", "svc/cart"], &["svc/cart", "kubectl tracer why --help"]);
    refuses(&["kubectl", "why", "cart", "--kubeconfig", "/none"], &["--kubeconfig /none"]);
    let list = ran(&["kubectl", "explain"]);
    assert_eq!((list.status.code(), &list.stdout), (Some(0), &ran(&["explain"]).stdout));
}

#[test]
fn an_error_about_a_kubeconfig_names_the_file() {
    let dir = Scratch::new();
    let (bad, good) = (dir.file("bad", "a: [\n"), dir.file("good", "{apiVersion: v1, kind: Config, contexts: []}\n"));
    let top = |args: &[&str]| tracer().args(["kubectl", "top"]).args(args).env("KUBECONFIG", &bad).output().unwrap();
    reports_one_line(&top(&[]), 2, &[&format!("KUBECONFIG {bad}: ")]);
    let context = format!("--context `nosuch`: not in --kubeconfig {good}");
    reports_one_line(&top(&["--kubeconfig", &good, "--context", "nosuch"]), 2, &[&context]);
}

#[test]
fn a_wrong_value_of_a_variable_is_wrong_usage() {
    for (variable, value, words) in [
        ("TRACER_DURATION", "soon", &["'TRACER_DURATION'", "soon"][..]),
        ("TRACER_CAUSE", "loopback_down,nonsense", &["TRACER_CAUSE", "`nonsense`"]),
        ("TRACER_CAUSE", "loopback_down,", &["TRACER_CAUSE"]),
        ("TRACER_PODS", "/none/pods", &["TRACER_PODS /none/pods: No such file"]),
        ("TRACER_OUTPUT_FILE", "/none/out", &["TRACER_OUTPUT_FILE /none/out: No such file"]),
        ("TRACER_UNTIL_FAILURE", "maybe", &["TRACER_UNTIL_FAILURE"]),
        ("TRACER_ATTEMPTS", "2", &["TRACER_ATTEMPTS", "write true or false"]),
    ] {
        reports_one_line(&tracer().arg("attach").env(variable, value).output().unwrap(), 2, words);
    }
    let output = tracer().args(["attach", "--duration", "later"]).env("TRACER_DURATION", "5m").output().unwrap();
    reports_one_line(&output, 2, &["'--duration <TIME>'", "later"]);
    let dir = Scratch::new();
    let mut command = tracer();
    for name in ["OUTPUT", "OUTPUT_FILE", "NAMESPACE", "CAUSE", "DURATION", "ATTEMPTS", "PROBER", "PODS", "COMPARE"] {
        command.env(format!("TRACER_{name}"), "");
    }
    let output = command.args(["replay", &dir.file("good", recording())]).output().unwrap();
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""), "an empty variable is not set");
}

#[test]
fn an_argument_that_is_not_utf8_is_named() {
    let bad = OsStr::from_bytes(b"\xff");
    let with = |args: &[&str]| tracer().args(args).arg(bad).output().unwrap();
    reports_one_line(&with(&["attach", "-n"]), 2, &["`-n \u{fffd}`: not valid UTF-8", "tracer attach --help"]);
    reports_one_line(&with(&["attach", "--duration"]), 2, &["`--duration \u{fffd}`"]);
    reports_one_line(&with(&["explain"]), 2, &["`explain \u{fffd}`"]);
    reports_one_line(&with(&["man"]), 2, &["`man \u{fffd}`"]);
    reports_one_line(
        &tracer().arg("doctor").arg(OsStr::from_bytes(b"--check=\xff")).output().unwrap(),
        2,
        &["`--check=\u{fffd}`"],
    );
    let both = tracer().arg("record").arg(bad).args(["-p", "x", "-c"]).arg(bad).output().unwrap();
    reports_one_line(&both, 2, &["`-c \u{fffd}`"]);
    for variable in
        ["NODE_NAME", "TRACER_NAMESPACE", "TRACER_POD", "TRACER_CAUSE", "TRACER_DURATION", "TRACER_ATTEMPTS"]
    {
        // A path need not be UTF-8, so TRACER_PODS is not the error.
        let output = tracer().arg("attach").env("TRACER_PODS", bad).env(variable, bad).output().unwrap();
        reports_one_line(&output, 2, &[&format!("{variable}: not valid UTF-8")]);
    }
}

#[test]
fn a_list_may_have_spaces_around_commas() {
    let (_dir, good) = recorded_file();
    let output =
        tracer().args(["replay", &good]).env("TRACER_CAUSE", "loopback_down, mid_stream_rst").output().unwrap();
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""));
    refuses(&["attach", "--prober", "a, "], &["--prober", "an empty name"]);
}

/// To open a named pipe would wait for a writer, perhaps without end.
#[test]
fn a_named_pipe_is_refused_as_a_list() {
    let dir = Scratch::new();
    let pipe = dir.path("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRUSR).unwrap();
    for flag in ["--pods", "--services"] {
        refuses(&["attach", flag, pipe.to_str().unwrap()], &[flag, "pipe: a named pipe: give a plain file"]);
    }
}

/// In the daemon's container, every command gets the environment of the daemon.
#[test]
fn a_command_ignores_variables_of_flags_that_it_lacks() {
    for args in [&["explain"][..], &["schema"], &["man"], &["completions", "bash"]] {
        let output = tracer().args(args).env("TRACER_OUTPUT", "xml").env("TRACER_DURATION", "soon").output().unwrap();
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""), "{args:?}");
    }
    let socket = ["health", "--health-socket", "/none/socket"];
    reports_one_line(&tracer().args(socket).env("TRACER_OUTPUT", "xml").output().unwrap(), 2, &["/none/socket"]);
    reports_one_line(
        &tracer().arg("doctor").env("TRACER_OUTPUT", "xml").output().unwrap(),
        2,
        &["TRACER_OUTPUT", "xml"],
    );
}

#[test]
fn unreadable_files_are_named_with_their_flag() {
    refuses(&["attach", "--pods", "/none/pods.json"], &["--pods /none/pods.json: No such file"]);
    refuses(&["attach", "--services", "/"], &["--services /: Is a directory"]);
    refuses(&["replay", "/none/incident"], &["replay FILE /none/incident: No such file"]);
    refuses(&["replay", "/"], &["replay FILE /: Is a directory"]);
    let (_dir, good) = recorded_file();
    refuses(&["replay", &good, "--output-file", "/none/out"], &["--output-file /none/out: No such file"]);
    refuses(&["replay", &good, "--compare", "/none/golden"], &["--compare /none/golden"]);
    refuses(&["record", "/none/incident"], &["record FILE /none/incident: No such file"]);
    refuses(&["record", "/"], &["record FILE /: Is a directory"]);
    refuses(&["record", &good], &["record FILE", "File exists", "never overwritten"]);
}

#[test]
fn a_second_daemon_is_refused() {
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::net::{SocketAddr, UnixListener};
    let address = SocketAddr::from_abstract_name("tracer-run").unwrap();
    // tracer identifies the holder of the name by its comm. If a real daemon holds the name, bind fails: as good.
    std::fs::write("/proc/self/comm", "tracer").unwrap();
    let _first = UnixListener::bind_addr(&address);
    refuses(&["run"], &["another `tracer run`", "tracer attach"]);
}

/// Runs as root without capabilities, because another user may not read the build directory.
#[test]
fn without_privileges_the_missing_capabilities_are_named() {
    let mut command = tracer();
    command.arg("attach");
    // SAFETY: the call is async-signal-safe.
    unsafe {
        command.pre_exec(|| {
            let noroot = libc::SECBIT_NOROOT as libc::c_ulong;
            let refused = nix::unistd::geteuid().is_root() && libc::prctl(libc::PR_SET_SECUREBITS, noroot) != 0;
            if refused { Err(io::Error::last_os_error()) } else { Ok(()) }
        });
    }
    reports_one_line(&command.output().unwrap(), 3, &["CAP_BPF"]);
}

#[test]
fn a_log_filter_does_not_touch_stdout() {
    let (_dir, good) = recorded_file();
    let output = tracer().args(["replay", &good]).env("TRACER_LOG", "trace").output().unwrap();
    assert_eq!(output.stdout, ran(&["replay", &good]).stdout);
    let wrong = tracer().args(["replay", &good]).env("TRACER_LOG", "foo").output().unwrap();
    reports_one_line(&wrong, 0, &["tracer: warning: TRACER_LOG=foo: `foo` is no level"]);
}
