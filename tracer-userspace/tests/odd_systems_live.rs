//! Systems that lack a part of a node. There tracer works, or ends with one line and exit code 3. Needs root.
//!
//! Run with `cargo test -p tracer-userspace --test odd_systems_live -- --ignored`. `TRACER` names another binary, such
//! as the static one.
#![allow(clippy::unwrap_used, reason = "a test ends at the line that failed")]

mod common;

use std::process::{Command, Output, Stdio};

use common::{Scratch, records, text};

/// Copies the binary and its libraries to `$1`, and runs it there with chroot.
const IN_EMPTY_ROOT: &str = r#"
cp "$2" "$1/tracer"
ldd "$2" | grep -o '/[^ )]*' | xargs --no-run-if-empty cp --parents --target-directory="$1"
root=$1
shift 2
exec chroot "$root" /tracer "$@"
"#;

/// Runs a script in new namespaces. Its arguments are an empty folder, the binary, and the command line.
fn ran(script: &str, command: &str) -> Output {
    let dir = Scratch::new();
    let binary = std::env::var("TRACER").unwrap_or_else(|_| env!("CARGO_BIN_EXE_tracer").to_owned());
    let mut odd = Command::new("unshare");
    odd.args(["--mount", "--net", "sh", "-ec", script, "sh"]);
    odd.arg(dir.root()).arg(binary).args(command.split(' ')).stdin(Stdio::null());
    odd.output().unwrap()
}

/// The command must end with exit code 3 and one line that contains `word`.
#[track_caller]
fn refuses(script: &str, command: &str, word: &str) {
    let output = ran(script, command);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{stderr}");
    let lines: Vec<&str> = stderr.lines().filter(|line| line.starts_with("tracer: ")).collect();
    assert!(matches!(lines[..], [line] if line.contains(word)), "{word:?} is not the one line of {stderr}");
}

/// The command must end with exit code 0, without an error, and with `word` in its last line.
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
fn an_empty_root_has_no_kernel_files() {
    works(IN_EMPTY_ROOT, "--version", "tracer ");
    works(IN_EMPTY_ROOT, "schema", "}");
    for command in ["attach --duration 1s", "run --duration 1s", "record /file --duration 1s"] {
        refuses(IN_EMPTY_ROOT, command, "/sys/kernel/btf/vmlinux");
    }
    refuses(IN_EMPTY_ROOT, "doctor", "/proc");
    refuses(IN_EMPTY_ROOT, "selftest", "/proc");
}

#[test]
#[ignore = "needs root"]
fn btf_can_come_from_a_file() {
    let hidden = r#"cp /sys/kernel/btf/vmlinux "$1"; mount -t tmpfs tmpfs /sys/kernel/btf; cd "$1"; shift; exec "$@""#;
    works(hidden, "attach --duration 1s --btf vmlinux", r#""type":"stop""#);
    works(hidden, "selftest --cause connection_refused --btf vmlinux", r#""status":"ok""#);
    refuses(hidden, "selftest", "--btf FILE is needed");
    refuses(hidden, "attach --duration 1s", "--btf FILE is needed");
}

#[test]
#[ignore = "needs root"]
fn a_read_only_root_works() {
    let read_only = "mount --rbind / \"$1\"; mount -o remount,ro,bind \"$1\"; exec chroot \"$@\"";
    works(read_only, "attach --duration 1s", r#""type":"stop""#);
}

#[test]
#[ignore = "needs root"]
fn it_works_without_cgroups_or_sysctls() {
    for hidden in ["/sys/fs/cgroup", "/proc/sys"] {
        let script = format!("mount -t tmpfs tmpfs {hidden}; shift; exec \"$@\"");
        works(&script, "attach --duration 1s", r#""type":"stop""#);
    }
}

/// With cgroup v1 alone, nobody has mounted cgroup2.
#[test]
#[ignore = "needs root"]
fn programs_are_attached_to_cgroups_that_are_not_mounted() {
    let script = "umount -a -t cgroup2; ! grep cgroup2 /proc/mounts; shift; exec \"$@\"";
    let finding = records(&ran(script, "doctor --check tracer_hooks -o json").stdout).remove(0);
    let hooks = finding["fields"]["hooks"].as_array().unwrap();
    let attached = |name: &str| hooks.iter().any(|hook| hook["hook"] == name && hook["program_type"] == "cgroup");
    assert!(attached("cgroup_skb") && attached("cgroup_answer"), "{finding}");
}

#[test]
#[ignore = "needs root"]
fn without_capabilities_or_root_it_is_refused() {
    let none = "shift; exec setpriv --bounding-set=-all --inh-caps=-all \"$@\"";
    refuses(none, "attach --duration 1s", "CAP_BPF and CAP_PERFMON");
    let rootless = "shift; exec unshare --user --map-root-user \"$@\"";
    refuses(rootless, "attach --duration 1s", "user namespace");
}
