//! Runs `tracer doctor` over a folder of files: rows, exit codes and errors. Needs no privileges.

mod common;

use std::process::Output;

use common::{Scratch, records, refuses, tracer};
use tracer_testing::{assert_has, assert_starts};

fn tree(files: &[(&str, &str)]) -> Scratch {
    let root = Scratch::new();
    root.file("etc/hostname", "");
    files.iter().for_each(|(path, content)| _ = root.file(path, content));
    root
}

fn doctor_of(root: &Scratch, args: &[&str]) -> Output {
    doctor(&[&["--root", &root.text("")], args].concat())
}

fn doctor(args: &[&str]) -> Output {
    tracer().arg("doctor").args(args).output().expect("tracer")
}

const HEALTHY: &[(&str, &str)] = &[
    ("proc/sys/net/core/somaxconn", "4096\n"),
    ("proc/sys/net/ipv4/ip_forward", "1\n"),
    ("sys/class/net/lo/flags", "0x9\n"),
];

fn not_forwarding() -> Scratch {
    let mut files = HEALTHY.to_vec();
    files[1].1 = "0\n";
    tree(&files)
}

#[test]
fn a_wrong_setting_is_a_failed_row_and_exit_code_1() {
    let checks = ["--check", "somaxconn,ip_forward,loopback_up", "--node-name", "n1"];
    let output = doctor_of(&tree(HEALTHY), &checks);
    assert_eq!(output.status.code(), Some(0));
    assert!(
        records(&output.stdout)
            .iter()
            .all(|row| row["status"] == "ok" && row["schema"] == "tracer/1" && row["node_name"] == "n1")
    );
    let output = doctor_of(&not_forwarding(), &checks);
    assert_eq!(output.status.code(), Some(1));
    let rows = records(&output.stdout);
    let bad: Vec<_> = rows.iter().filter(|row| row["status"] == "fail").collect();
    assert_eq!((bad.len(), bad[0]["check"].as_str()), (1, Some("ip_forward")));
    assert_eq!(bad[0]["remediation"]["commands"][0]["run"], "sysctl -w net.ipv4.ip_forward=1");
    let numbers: Vec<_> = rows.iter().filter_map(|row| row["seq"].as_u64()).collect();
    assert_eq!(numbers, (0..rows.len() as u64).collect::<Vec<_>>());
}

#[test]
fn a_warning_fails_only_with_fail_on_warn() {
    let mut files = HEALTHY.to_vec();
    files[0].1 = "128\n";
    let tree = tree(&files);
    assert_eq!(doctor_of(&tree, &["--check", "somaxconn"]).status.code(), Some(0));
    assert_eq!(doctor_of(&tree, &["--check", "somaxconn", "--fail-on", "warn"]).status.code(), Some(1));
}

#[test]
fn pretty_is_a_table_with_the_commands() {
    let tree = not_forwarding();
    let pretty = |args: &[&str]| {
        let output = doctor_of(&tree, &[&["-o", "pretty", "--node-name", "n1"], args].concat());
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    let text = pretty(&[]);
    assert_starts(&text, "fail    ip_forward IPv4\n");
    assert_has(&text, &["\n             sysctl -w net.ipv4.ip_forward=1\n"]);
    assert!(text.lines().last().is_some_and(|line| line.starts_with("n1: 1 fail, ")), "{text}");
    assert!(!text.contains('\u{1b}'), "no colour into a pipe");
    assert!(pretty(&["--color", "always"]).contains('\u{1b}'));
    let problems = pretty(&["--check", "somaxconn,ip_forward,loopback_up", "--problems"]);
    assert!(!problems.contains("\nok ") && problems.ends_with("3 ok\n"), "{problems}");
}

#[test]
fn problems_hides_rows_that_are_ok() {
    let output = doctor_of(&not_forwarding(), &["--check", "somaxconn,ip_forward,loopback_up", "--problems"]);
    assert_eq!(output.status.code(), Some(1));
    let rows = records(&output.stdout);
    assert!(!rows.is_empty() && rows.iter().all(|row| row["status"] != "ok"), "{output:?}");
}

#[test]
fn probe_budgets_come_from_the_list_of_pods() {
    let pods = r#"{"kind":"PodList","apiVersion":"v1","items":[{"kind":"Pod","metadata":{"name":"cart","namespace":"shop","uid":"u"},
        "spec":{"containers":[{"name":"main","livenessProbe":{"tcpSocket":{"port":9502},"periodSeconds":5,"initialDelaySeconds":2}}]}}]}"#;
    let tree = tree(&[("pods.json", pods)]);
    let file = tree.text("pods.json");
    let output = doctor_of(&tree, &["--check", "probe_budgets", "--pods", &file]);
    let rows = records(&output.stdout);
    assert_eq!(
        (rows[0]["status"].as_str(), rows[0]["fields"]["budget_s"].as_u64()),
        (Some("warn"), Some(17)),
        "{rows:?}"
    );
}

#[test]
fn wrong_usage_is_one_line_and_exit_code_2() {
    for (args, words) in [
        (&["--check", "contrack"][..], "did you mean `conntrack`?"),
        (&["--root", "/no/such/folder"], "--root /no/such/folder: No such file or directory"),
        (&["--root", "/dev"], "--root /dev: has no files of a node: neither `proc/sys` nor `etc` is in it"),
        (&["--btf", "/proc/self/exe"], "--btf /proc/self/exe: not a BTF file of this machine"),
        (&["--prober", "/usr/bin/kubelet"], "--prober `/usr/bin/kubelet`: a path, not the name of a process"),
        (&["--duration", "5s"], "--duration has no meaning for `tracer doctor`"),
        (&["--pods", "/no/such/file"], "--pods /no/such/file"),
        (&["--fail-on", "ok"], "--fail-on"),
    ] {
        refuses(&[&["doctor"], args].concat(), &[words]);
    }
}

/// kubectl prints such a list if the node name is empty.
#[test]
fn an_empty_list_of_pods_is_unknown() {
    let empty = r#"{"apiVersion":"v1","kind":"List","items":[]}"#;
    let tree = tree(&[("pods.json", empty)]);
    let pods = tree.text("pods.json");
    let output = doctor_of(&tree, &["--check", "probe_budgets", "--pods", &pods]);
    let row = &records(&output.stdout)[0];
    assert!(
        row["status"] == "unknown"
            && row["remediation"]["commands"][0]["run"].as_str().is_some_and(|fix| fix.contains("${NODE:?}"))
    );
    let words = "names no pod: use the node's name as `kubectl get nodes` has it";
    assert!(String::from_utf8_lossy(&output.stderr).contains(words), "{output:?}");
}

/// The name that the user gave is in the warning and in the row, not the kubelet.
#[test]
fn a_prober_that_does_not_run_is_named() {
    let output = doctor(&["--prober", "kublet", "--check", "kubelet_log", "-o", "json"]);
    let name = "no process named kublet runs here";
    assert!(String::from_utf8_lossy(&output.stderr).contains(name), "{output:?}");
    let observed = records(&output.stdout)[0]["observed"].as_str().map(str::to_lowercase);
    assert!(observed.is_some_and(|it| it.contains(name)), "{output:?}");
}
