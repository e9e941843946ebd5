//! `tracer hooks` on this kernel. Needs root.
//!
//! Run with `cargo test -p tracer-userspace --test hooks_live -- --ignored`.
#![allow(clippy::unwrap_used, reason = "a test ends at the line that failed")]

mod common;

use std::collections::BTreeMap;
use std::net::TcpStream;
use std::process::{Command, Stdio};

use serde_json::Value;

use common::{as_nobody, records, tracer};

fn findings(stdout: &[u8]) -> BTreeMap<String, Value> {
    records(stdout).into_iter().map(|record| (record["check"].as_str().unwrap().to_owned(), record)).collect()
}

#[test]
#[ignore = "needs root"]
fn each_hook_has_its_program_type_and_cost() {
    let mut child = tracer()
        .args(["hooks", "--all-connections", "--duration", "3s", "-o", "json"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // Connections, so that the hooks run.
    let mut refused = 0_u32;
    while child.try_wait().unwrap().is_none() {
        refused += u32::from(TcpStream::connect("127.0.0.1:9").is_err());
    }
    let output = child.wait_with_output().unwrap();
    assert!(refused > 0 && output.status.success(), "{output:?}");
    let findings = findings(&output.stdout);
    let states = &findings["hooks/inet_sock_set_state"];
    assert_eq!((states["type"].as_str(), states["status"].as_str()), (Some("finding"), Some("ok")));
    let fields = &states["fields"];
    assert_eq!(fields["program_type"], "raw_tracepoint");
    for number in ["runs", "run_time_ns", "ns_per_run", "events"] {
        assert!(fields[number].as_u64().unwrap() > 0, "{number}: {fields}");
    }
    let share = fields["share_of_one_cpu"].as_f64().unwrap();
    assert!(share > 0.0 && share < 1.0, "{share}");
    let window = fields["window_s"].as_f64().unwrap();
    // On a busy machine the window is longer.
    assert!((2.9..30.0).contains(&window), "{window}");
    // A program that the kernel refuses has the kernel's reason in one line. A missing hook is a warning.
    for (check, finding) in &findings {
        let tried = finding["fields"]["tried"].as_array().unwrap();
        assert!(tried.iter().all(|it| !it["reason"].as_str().unwrap().is_empty()), "{check}: {tried:?}");
        let ended_well = finding["status"] == "ok" || finding["status"] == "warn" && !tried.is_empty();
        assert!(ended_well && !finding["observed"].as_str().unwrap().contains('\n'), "{check}: {finding}");
    }
    // If this kernel has fentry, the verifier accepts the first program.
    let tried = &findings["hooks/tcp_connect"]["fields"]["tried"];
    assert!(!tried.to_string().contains("verifier"), "{tried}");
}

#[test]
#[ignore = "needs root"]
fn a_missing_hook_fails_only_with_fail_on_warn() {
    let run = |fail_on| {
        let output = tracer().args(["hooks", "--duration", "1ms", "--fail-on", fail_on]).output().unwrap();
        let missing = findings(&output.stdout).values().filter(|finding| finding["status"] == "warn").count();
        (output.status.code(), missing)
    };
    assert_eq!(run("fail").0, Some(0));
    let (code, missing) = run("warn");
    assert_eq!(code, Some(i32::from(missing > 0)));
}

#[test]
#[ignore = "needs root"]
fn without_privileges_the_missing_capability_is_named() {
    let output = as_nobody(&mut Command::new("setpriv"), &["hooks"]).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(3), 0), "{stderr}");
    assert!(stderr.contains("CAP_BPF") && stderr.lines().count() == 1, "{stderr}");
}

/// `tracer hooks` with two capabilities, in a mount namespace of its own, after `prepare` in a shell there.
fn with_few_capabilities(prepare: &str) -> (BTreeMap<String, Value>, Option<i32>, String) {
    let script = format!(
        "({prepare}) >/dev/null 2>&1; exec setpriv --bounding-set -all,+bpf,+perfmon --inh-caps -all,+bpf,+perfmon \
         {} hooks --duration 100ms -o json",
        env!("CARGO_BIN_EXE_tracer")
    );
    let output = Command::new("unshare").args(["--mount", "sh", "-c", &script]).output().unwrap();
    (findings(&output.stdout), output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
#[ignore = "needs root"]
fn without_capabilities_a_hook_is_unknown_and_its_runs_are_absent() {
    let (findings, code, stderr) = with_few_capabilities("mount -t tracefs tracefs /sys/kernel/tracing");
    let answer = &findings["hooks/cgroup_answer"];
    assert_eq!((answer["status"].as_str(), answer["needs"].as_str()), (Some("unknown"), Some("CAP_NET_ADMIN")));
    assert_eq!(code, Some(3), "{stderr}");
    assert!(stderr.ends_with("are unknown: CAP_NET_ADMIN is missing\n"), "{stderr}");
    if std::fs::read_to_string("/proc/sys/kernel/bpf_stats_enabled").unwrap().trim() == "0" {
        assert!(stderr.contains("runs are not counted") && stderr.lines().count() == 2, "{stderr}");
        assert!(findings.values().all(|finding| finding["fields"].get("runs").is_none()), "{findings:?}");
    }
}

#[test]
#[ignore = "needs root"]
fn a_tracepoint_without_tracefs_needs_the_capability_to_mount_it() {
    let (findings, code, stderr) = with_few_capabilities("umount -l /sys/kernel/tracing /sys/kernel/debug");
    let setns = &findings["hooks/sys_exit_setns"];
    assert_eq!((setns["status"].as_str(), setns["needs"].as_str()), (Some("unknown"), Some("CAP_SYS_ADMIN")));
    assert_eq!(code, Some(3), "{stderr}");
}
