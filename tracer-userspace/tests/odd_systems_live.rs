//! Systems that lack what a node has: each gets one clear line and exit code 3, or works. Needs root.
//!
//! Run with `cargo test -p tracer-userspace --test odd_systems_live -- --ignored`. `TRACER` names another binary, such as
//! the static one.
#![allow(clippy::unwrap_used, reason = "a test ends at the line that failed")]

mod common;

use std::process::{Command, Output, Stdio};

use common::{Dir, text};

/// Fills `$1` with the binary, and with its libraries if it has any, and enters it.
const NOTHING: &str = r#"
cp "$2" "$1/tracer"
ldd "$2" | grep -o '/[^ )]*' | xargs --no-run-if-empty cp --parents --target-directory="$1"
root=$1
shift 2
exec chroot "$root" /tracer "$@"
"#;

/// Runs a script in namespaces of its own; its arguments are an empty folder, the binary, and the command line.
fn ran(script: &str, command: &str) -> Output {
    let dir = Dir::new();
    let binary = std::env::var("TRACER").unwrap_or_else(|_| env!("CARGO_BIN_EXE_tracer").to_owned());
    let mut odd = Command::new("unshare");
    odd.args(["--mount", "--net", "sh", "-ec", script, "sh"]);
    odd.arg(&dir.0).arg(binary).args(command.split(' ')).stdin(Stdio::null());
    odd.output().unwrap()
}

/// Exit code 3, and one line.
#[track_caller]
fn refuses(script: &str, command: &str, word: &str) {
    let output = ran(script, command);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{stderr}");
    let lines: Vec<&str> = stderr.lines().filter(|line| line.starts_with("tracer: ")).collect();
    assert!(matches!(lines[..], [line] if line.contains(word)), "{word:?} is not the one line of {stderr}");
}

/// Exit code 0, no error, and this at the end of the output.
#[track_caller]
fn works(script: &str, command: &str, word: &str) {
    let output = ran(script, command);
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert!(!stderr.contains("tracer: error"), "{stderr}");
    assert!(stdout.lines().last().unwrap().contains(word), "{stdout}");
}

#[test]
#[ignore = "needs root"]
fn a_root_with_nothing_in_it() {
    works(NOTHING, "--version", "tracer ");
    works(NOTHING, "schema", "}");
    for command in ["attach --duration 1s", "run --duration 1s", "record /file --duration 1s", "hooks --duration 1s"] {
        refuses(NOTHING, command, "/sys/kernel/btf/vmlinux");
    }
    refuses(NOTHING, "doctor", "/proc");
    refuses(NOTHING, "selftest", "/proc");
}

#[test]
#[ignore = "needs root"]
fn a_kernel_without_btf_has_it_from_a_file() {
    let hidden = r#"cp /sys/kernel/btf/vmlinux "$1"; mount -t tmpfs tmpfs /sys/kernel/btf; cd "$1"; shift; exec "$@""#;
    works(hidden, "attach --duration 1s --btf vmlinux", r#""type":"stop""#);
    refuses(hidden, "attach --duration 1s", "--btf FILE is needed");
    refuses(hidden, "attach --duration 1s --btf /proc/self/exe", "/proc/self/exe, cannot be read: not BTF");
}

#[test]
#[ignore = "needs root"]
fn a_root_that_cannot_be_written() {
    let read_only = "mount --rbind / \"$1\"; mount -o remount,ro,bind \"$1\"; exec chroot \"$@\"";
    works(read_only, "attach --duration 1s", r#""type":"stop""#);
}

#[test]
#[ignore = "needs root"]
fn without_control_groups_and_without_settings() {
    for hidden in ["/sys/fs/cgroup", "/proc/sys"] {
        let script = format!("mount -t tmpfs tmpfs {hidden}; shift; exec \"$@\"");
        works(&script, "attach --duration 1s", r#""type":"stop""#);
    }
}

#[test]
#[ignore = "needs root"]
fn a_container_without_capabilities_or_without_root() {
    let none = "shift; exec setpriv --bounding-set=-all --inh-caps=-all \"$@\"";
    refuses(none, "attach --duration 1s", "CAP_BPF and CAP_PERFMON");
    let rootless = "shift; exec unshare --user --map-root-user \"$@\"";
    refuses(rootless, "attach --duration 1s", "user namespace");
}
