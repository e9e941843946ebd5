//! Records of an incident, made of what the tracer says of the fixtures: the same verdicts at other times and of other pods.

use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::sh;

/// When the sample begins, on the clock of the boot; by the wall's it is two o'clock.
const BOOT_S: u64 = 90_000;
/// In nanoseconds.
const SECOND: u64 = 1_000_000_000;
/// A name that a page must not take for markup; `look.html` knows it, too.
const HOSTILE: &str = "<img src=x onerror=alert(1)><script>window.xss=1</script>&amp;\"'";

/// Records with their times.
pub(super) struct Sample {
    lines: Vec<(u64, Value)>,
}

/// What the tracer says of a fixture.
struct Fixture {
    start: Value,
    link_down: Option<Value>,
    verdict: Value,
}

impl Sample {
    /// A node whose `lo` goes down for six minutes, beside smaller troubles.
    pub(super) fn incident(tracer: &Path) -> Result<Self> {
        let lo = fixture(tracer, "loopback_down/any-v4")?;
        let mut sample = Self { lines: Vec::new() };
        sample.add(0.0, &lo.start);
        sample.add(489.2, lo.link_down.as_ref().context("the recording of loopback_down has no event")?);
        let slow = of_pod(&fixture(tracer, "slow_response/any-v4")?.verdict, "shop", "search-6d9f7c4b8-x2x7w");
        (0..14_u32).for_each(|n| sample.add(70.0 + f64::from(n * n) * 12.0, &slow));
        for (name, namespace, pod, count, first_s, period_s) in [
            ("loopback_down", "kube-system", "node-agent-9x2lq", 36, 489.3, 10.0),
            ("not_listening_yet", "shop", "cart-7d9bb5cf6d-lq8zt", 5, 1210.0, 5.0),
            ("tls_eof_noise", "ingress", "edge-proxy-0", 40, 15.0, 60.0),
        ] {
            let verdict = of_pod(&fixture(tracer, &format!("{name}/any-v4"))?.verdict, namespace, pod);
            (0..count).for_each(|n| sample.add(first_s + period_s * f64::from(n), &verdict));
        }
        sample.passes();
        sample.add(1500.0, &lost());
        sample.add(1.0, &warning());
        Ok(sample)
    }

    /// 250 pods on a node whose firewall drops, and one with a hostile name.
    pub(super) fn crowd(tracer: &Path) -> Result<Self> {
        let dropped = fixture(tracer, "firewall_drop/any-v4")?;
        let refused = fixture(tracer, "connection_refused/any-v4")?.verdict;
        let mut sample = Self { lines: Vec::new() };
        sample.add(0.0, &dropped.start);
        for pod in 0..250_u32 {
            let name = format!("worker-{pod}-5f6b8c9d7-{:05x}", pod * 7919);
            for n in 0..=pod % 13 {
                sample.add(f64::from(n * 30 + pod % 7), &of_pod(&dropped.verdict, "batch", &name));
            }
            if pod % 5 == 0 {
                sample.add(f64::from(pod), &of_pod(&refused, "batch", &name));
            }
        }
        let mut hostile = of_pod(&refused, HOSTILE, HOSTILE);
        hostile["verdict"]["summary"] = json!(HOSTILE);
        hostile["verdict"]["remediation"] =
            json!({ "text": HOSTILE, "commands": [{ "run": HOSTILE, "where": "node" }] });
        hostile["verdict"]["evidence"][0]["text"] = json!(HOSTILE);
        (0..40_u32).for_each(|n| sample.add(f64::from(n) * 9.0, &hostile));
        Ok(sample)
    }

    /// As NDJSON, in the order of time, numbered.
    pub(super) fn ndjson(mut self) -> String {
        self.lines.sort_by_key(|(time, _)| *time);
        let numbered = (0_u64..).zip(self.lines).map(|(seq, (_, mut record))| {
            record["seq"] = json!(seq);
            format!("{record}\n")
        });
        numbered.collect()
    }

    /// A record, so many seconds after the begin: less than an hour.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "some minutes in nanoseconds")]
    fn add(&mut self, seconds: f64, record: &Value) {
        let after_ns = (seconds * 1e9) as u64;
        let boot_ns = BOOT_S * SECOND + after_ns;
        let was = record["time_boot_ns"].as_u64().unwrap_or(boot_ns);
        let (s, fraction) = (after_ns / SECOND, after_ns % SECOND);
        let mut record = record.clone();
        shift(&mut record, was, boot_ns);
        record["time"] = json!(format!("2026-11-21T02:{:02}:{:02}.{fraction:09}Z", s / 60, s % 60));
        record["time_boot_ns"] = json!(boot_ns);
        self.lines.push((after_ns, record));
    }

    /// Attempts that passed, of five pods.
    fn passes(&mut self) {
        let pods = ["search-6d9f7c4b8-x2x7w", "cart-7d9bb5cf6d-lq8zt", "web-0", "web-1", "web-2"];
        for (first_s, name) in (0_u32..).zip(pods) {
            let record = json!({"schema": "tracer/1", "type": "attempt", "node_name": "node-1", "subject": "probe",
                "outcome": "success", "k8s": {"namespace": "shop", "pod_name": name},
                "dst": {"addr": "10.88.0.2", "port": 8080}, "process": {"pid": 2493, "comm": "kubelet"},
                "phases_ms": {"total": 1.2}});
            (0..240).for_each(|n| self.add(f64::from(first_s + 10 * n), &record));
        }
    }
}

/// What the tracer says of a recording.
fn fixture(tracer: &Path, name: &str) -> Result<Fixture> {
    let observations = sh::root().join("tests/fixtures").join(name).join("observations.ndjson");
    let mut replay = sh::command(tracer);
    replay.env_clear().arg("replay").arg(observations).args(["-o", "json"]);
    let records = sh::records(&sh::capture(&mut replay)?)?;
    let first = |kind: &str, test: &dyn Fn(&Value) -> bool| {
        records.iter().find(|record| record["type"] == kind && test(record)).cloned()
    };
    let missing = || format!("no such record in a replay of {name}");
    Ok(Fixture {
        start: first("start", &|_| true).with_context(missing)?,
        link_down: first("node", &|record| record["event"] == "link_down"),
        verdict: first("verdict", &|_| true).with_context(missing)?,
    })
}

/// The verdict as one about another pod.
fn of_pod(verdict: &Value, namespace: &str, name: &str) -> Value {
    let mut verdict = verdict.clone();
    verdict["k8s"]["namespace"] = json!(namespace);
    verdict["k8s"]["pod_name"] = json!(name);
    verdict
}

fn lost() -> Value {
    let boot = |seconds: u64| (BOOT_S + seconds) * SECOND;
    json!({"schema": "tracer/1", "type": "loss", "node_name": "node-1", "time_boot_ns": boot(1500),
        "where": "ring", "count": 1204, "from_boot_ns": boot(1440), "to_boot_ns": boot(1500)})
}

fn warning() -> Value {
    json!({"schema": "tracer/1", "type": "finding", "node_name": "node-1", "check": "ip_forward", "status": "fail",
        "observed": "net.ipv4.ip_forward = 0", "expected": "net.ipv4.ip_forward = 1",
        "why": "without it the kernel drops whatever is not for the node itself",
        "remediation": "sysctl -w net.ipv4.ip_forward=1"})
}

/// Moves every time on the clock of the boot as far as this one.
fn shift(value: &mut Value, was: u64, is: u64) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match (name.ends_with("boot_ns"), value.as_u64()) {
                    (true, Some(ns)) => *value = json!((ns + is).saturating_sub(was)),
                    _ => shift(value, was, is),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| shift(item, was, is)),
        _ => {}
    }
}
