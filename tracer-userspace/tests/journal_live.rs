//! `tracer attach` reads the kubelet's lines from a real journald, which is hidden from the one of this machine.
//! It has the capabilities of the DaemonSet. Its own mount namespace has no journal, so it must use the kubelet's.
//!
//! Needs root, systemd-journald, `systemd-cat` and `setpriv`. Run with
//! `cargo test -p tracer-userspace --test journal_live -- --ignored`.
#![allow(clippy::unwrap_used, reason = "a test ends at the line that failed")]

mod common;

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::Receiver;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use serde_json::{Value, json};

use common::{Killed, Signal, klog_header, next, printed, signal, soon};
use tracer_testing::TestFile;

const JOURNALD: &str = "/lib/systemd/systemd-journald";
const MACHINE: &str = "0123456789abcdef0123456789abcdef";
/// The capabilities in deploy/kustomize/base/daemonset.yaml.
const CAPABILITIES: &str =
    "-all,+bpf,+perfmon,+sys_admin,+sys_ptrace,+sys_resource,+net_admin,+dac_read_search,+syslog";

/// The name of the kubelet's process. No other test uses it.
fn prober() -> String {
    format!("kubelet-{}", std::process::id())
}

fn say(process: &mut Killed, line: &str) {
    writeln!(process.stdin.as_mut().unwrap(), "{line}").unwrap();
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    soon(what, || is_so().then_some(()));
}

/// The mount point for the machine id, if the test created it. It is removed when the test ends.
struct MountPoint(Option<&'static str>);

impl Drop for MountPoint {
    fn drop(&mut self) {
        if let Some(file) = self.0 {
            let _ = (umount2(file, MntFlags::MNT_DETACH), fs::remove_file(file));
        }
    }
}

/// Gives this thread and its children their own `/run`, `/var/log` and machine id.
fn hide_this_machine() -> MountPoint {
    const ID: &str = "/etc/machine-id";
    let none: Option<&str> = None;
    unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWNET).expect("root");
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
    for place in ["/run", "/var/log"] {
        mount(Some("tmpfs"), place, Some("tmpfs"), MsFlags::empty(), none).unwrap();
    }
    fs::write("/run/machine-id", MACHINE).unwrap();
    let place = MountPoint((!Path::new(ID).exists()).then_some(ID));
    if place.0.is_some() {
        fs::write(ID, "").unwrap();
    }
    mount(Some("/run/machine-id"), ID, none, MsFlags::MS_BIND, none).unwrap();
    place
}

fn journald() -> Killed {
    for directory in ["/run/systemd/journal", "/run/systemd/journald.conf.d", "/var/log/journal"] {
        fs::create_dir_all(directory).unwrap();
    }
    // This file makes journald write to disk at once: nothing sends it a flush request.
    fs::write("/run/systemd/journal/flushed", "").unwrap();
    let settings = "[Journal]\nStorage=persistent\nReadKMsg=no\nAudit=no\nForwardToSyslog=no\nRateLimitBurst=0\n";
    fs::write("/run/systemd/journald.conf.d/test.conf", settings).unwrap();
    let mut command = Command::new(JOURNALD);
    command.env("SYSTEMD_LOG_TARGET", "console").stdin(Stdio::null()).stderr(Stdio::null());
    let process = Killed(command.spawn().expect("systemd-journald (package systemd)"));
    wait_until("journald listens and writes", || {
        Path::new("/run/systemd/journal/stdout").exists() && current().exists()
    });
    process
}

fn current() -> PathBuf {
    Path::new("/var/log/journal").join(MACHINE).join("system.journal")
}

fn archived() -> usize {
    let names = fs::read_dir(current().parent().unwrap()).unwrap().flatten();
    names.filter(|it| it.file_name().to_string_lossy().starts_with("system@")).count()
}

/// Starts a process with these flags that writes its input to journald, by a socket as systemd gives one to a service.
fn service(comm: &str, flags: &[&str]) -> Killed {
    let script = format!("printf {comm} > /proc/$$/comm; while read -r line; do printf '%s\\n' \"$line\"; done");
    let mut command = Command::new("systemd-cat");
    // Any sender can choose its identifier, so tracer must not trust it.
    command.args(["-t", "kubelet", "sh", "-c", &script, comm]).args(flags);
    let process = Killed(command.stdin(Stdio::piped()).spawn().expect("systemd-cat"));
    let of = format!("/proc/{}/comm", process.id());
    wait_until(comm, || fs::read_to_string(&of).unwrap_or_default().trim() == comm);
    process
}

/// Starts `tracer attach` without the files of this node, and returns it with its records.
fn tracer(pods: &Path, more: &str) -> (Killed, Receiver<Value>) {
    let (tracer, prober, pods) = (env!("CARGO_BIN_EXE_tracer"), prober(), pods.display());
    let attach = format!("{tracer} attach -o json --prober {prober} --pods {pods} {more}");
    let hide = "mount -t tmpfs none /var/log && mount -t tmpfs none /run";
    let script = format!("{hide} && exec setpriv --bounding-set={CAPABILITIES} -- {attach}");
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", &script]);
    let mut process = Killed(command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("unshare"));
    let records = printed(&mut process);
    (process, records)
}

fn verdict(records: &Receiver<Value>) -> (String, String) {
    let record = next(records, "verdict");
    let text = |place: &str| record.pointer(place).and_then(Value::as_str).unwrap_or_default().to_owned();
    (text("/verdict/cause"), text("/k8s/pod_name"))
}

fn failed(pod: &str, output: &str) -> String {
    let of = "podUID=11111111-2222-3333-4444-555555555555 containerName=\"web\" probeResult=failure";
    let header = klog_header();
    format!("{header} \"Probe failed\" probeType=\"Readiness\" pod=\"default/{pod}\" {of} output={output:?}")
}

fn no_sandbox(pod: &str) -> String {
    let why = format!(
        "rpc error: code = Unknown desc = failed to setup network for sandbox: {}",
        "plugin says no; ".repeat(60)
    );
    format!("{} \"CreatePodSandbox for pod failed\" err={why:?} pod=\"default/{pod}\"", klog_header())
}

const PODS: &str = r#"{"apiVersion":"v1","kind":"PodList","items":[{"metadata":{"name":"web","namespace":"default",
"uid":"11111111-2222-3333-4444-555555555555"},"spec":{"containers":[{"name":"web","readinessProbe":
{"exec":{"command":["true"]},"timeoutSeconds":1,"periodSeconds":1}}]},"status":{"phase":"Running"}}]}"#;

fn pods() -> TestFile {
    TestFile::new("pods.json", PODS)
}

/// A line that the kubelet wrote before the tracer started.
const EARLY: &str = "before anybody looked";

fn holds(file: &Path, words: &str) -> bool {
    fs::read(file).unwrap_or_default().windows(words.len()).any(|it| it == words.as_bytes())
}

#[test]
#[ignore = "needs root and systemd-journald"]
fn the_kubelets_lines_in_the_journal_become_verdicts() {
    let _place = hide_this_machine();
    let journald = journald();
    let (mut kubelet, mut other) = (service(&prober(), &[]), service("other", &[]));
    say(&mut kubelet, &failed("web", EARLY));
    wait_until("journald writes the first line", || holds(&current(), EARLY));
    let pods = pods();
    let (tracer, records) = tracer(&pods.path, "");
    let sources = next(&records, "start")["sources"].to_string();
    let expected = format!("/root/var/log/journal/{MACHINE}/system.journal");
    assert!(sources.contains("the kubelet's lines in the journal") && sources.contains(&expected), "{sources}");

    say(&mut other, &failed("web", "command \"forged\" timed out"));
    say(&mut kubelet, &failed("web", "cat: no such file"));
    assert_eq!(verdict(&records), ("exec_failed".into(), "web".into()));

    // One line just before journald starts a new file, and one after that.
    say(&mut kubelet, &failed("web", "cat: again"));
    signal(&journald, Signal::SIGUSR2);
    wait_until("journald rotates", || archived() == 1);
    say(&mut kubelet, &failed("web", "command \"sleep\" timed out"));
    assert_eq!(verdict(&records), ("exec_failed".into(), "web".into()));
    assert_eq!(verdict(&records), ("exec_timeout".into(), "web".into()));

    // journald compresses a line of this length.
    say(&mut kubelet, &no_sandbox("late"));
    assert_eq!(verdict(&records), ("cni_not_ready".into(), "late".into()));

    // The kubelet restarts, so tracer reads the journal through another process. No line is lost or reported twice.
    drop(kubelet);
    let mut kubelet = service(&prober(), &[]);
    say(&mut kubelet, &failed("web", "cat: after a restart"));
    assert_eq!(verdict(&records), ("exec_failed".into(), "web".into()));

    signal(&tracer, Signal::SIGTERM);
    let stop = next(&records, "stop");
    let expected = json!({"exec_failed": 3, "exec_timeout": 1, "cni_not_ready": 1});
    assert_eq!(stop["verdicts"], expected, "no line is reported twice, or from another process");
}

#[test]
#[ignore = "needs root and systemd-journald"]
fn a_journal_can_be_named_by_its_directory() {
    let _place = hide_this_machine();
    let _journald = journald();
    // As on a node with its journal in another directory, which tracer cannot find through the prober.
    let place = PathBuf::from(format!("/tmp/tracer-journal-{}", std::process::id()));
    fs::create_dir(&place).unwrap();
    fs::set_permissions(&place, fs::Permissions::from_mode(0o700)).unwrap();
    let none: Option<&str> = None;
    mount(Some("/var/log/journal"), &place, none, MsFlags::MS_BIND, none).unwrap();
    let mut kubelet = service(&prober(), &[]);
    let pods = pods();
    let (_tracer, records) = tracer(&pods.path, &format!("--kubelet-log journal:{}", place.display()));
    let sources = next(&records, "start")["sources"].to_string();
    assert!(sources.contains(&format!("{}/{MACHINE}/system.journal", place.display())), "{sources}");
    say(&mut kubelet, &failed("web", "cat: no such file"));
    assert_eq!(verdict(&records), ("exec_failed".into(), "web".into()));
    nix::mount::umount2(&place, nix::mount::MntFlags::MNT_DETACH).unwrap();
    fs::remove_dir(&place).unwrap();
}

/// Its stderr is the journal, as of each service.
#[test]
#[ignore = "needs root and systemd-journald"]
fn the_file_that_the_kubelets_flags_name_is_followed() {
    let _place = hide_this_machine();
    let _journald = journald();
    let mut kubelet = service(&prober(), &["--logtostderr=false", "--log-file=/run/kubelet.log"]);
    fs::write("/run/kubelet.log", "").unwrap();
    let pods = pods();
    let (_tracer, records) = tracer(&pods.path, "");
    let sources = next(&records, "start")["sources"].to_string();
    assert!(sources.contains("probe outcomes (the kubelet's log /proc/"), "{sources}");
    say(&mut kubelet, &failed("web", "command \"sleep\" timed out"));
    fs::write("/run/kubelet.log", failed("web", "cat: no such file") + "\n").unwrap();
    assert_eq!(verdict(&records), ("exec_failed".into(), "web".into()));
}
