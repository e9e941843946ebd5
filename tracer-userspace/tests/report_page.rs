//! The page of `tracer report` in a real browser, light and dark, wide and narrow. `report/look.html` has the checks:
//! nothing is fetched or cut off, the first screen shows the cause, and one click shows the evidence.
//!
//! Run with `cargo test -p tracer-userspace --test report_page -- --ignored`.
#![allow(clippy::unwrap_used, reason = "a test ends at the line that failed")]

mod common;

use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use common::Scratch;
use common::recorded::{Recording, fixtures, of_kernels, parsed};
use serde_json::{Value, json};

/// Chromium's numbers for a dark and a light scheme.
const SCHEMES: [u32; 2] = [0, 1];
const PROGRAMS: [&str; 3] = ["chromium-headless-shell", "chromium", "google-chrome"];
/// Two pages in two sizes each.
const PAGES_SHOWN: u32 = 4;
/// The browser's log has this before a message of a page, such as a violation of its content security policy.
const MESSAGE: &str = ":CONSOLE";

#[test]
#[ignore = "needs Chromium"]
fn a_browser_shows_the_page() {
    let starts = |name: &&&str| Command::new(name).arg("--version").output().is_ok();
    let Some(browser) = PROGRAMS.iter().find(starts) else {
        assert!(std::env::var_os("CI").is_none(), "no Chromium is installed");
        let _ = writeln!(std::io::stderr(), "SKIPPED: no Chromium is installed");
        return;
    };
    let dir = Scratch::new();
    let zoo = page(&dir, "zoo", &records(&of_kernels(), "kubelet-1.36/zoo"));
    let crowd = page(&dir, "crowd", &crowd());
    let [dark, light] = SCHEMES.map(|scheme| look(browser, &dir, scheme, &format!("{zoo}&{crowd}")));
    assert_ne!(dark, light, "light and dark have the same background");
}

/// Checks pages in the browser, and returns their background colour.
fn look(browser: &str, dir: &Scratch, scheme: u32, pages: &str) -> Value {
    let mut command = Command::new(browser);
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--enable-logging=stderr"]);
    // `look.html` may read its frames, because they are files, too.
    command.args(["--allow-file-access-from-files", "--window-size=1280,900", "--dump-dom"]);
    // The virtual clock stops while the browser loads or computes, so a busy machine makes no difference.
    command.args(["--virtual-time-budget=60000".into(), format!("--blink-settings=preferredColorScheme={scheme}")]);
    command.arg(format!("--user-data-dir={}", dir.text("profile")));
    let checks = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/report/look.html");
    let output = command.arg(format!("file://{}?{pages}", checks.display())).output().unwrap();
    let (page, log) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let result = page.split_once("<pre id=\"result\">").and_then(|(_, rest)| rest.split_once("</pre>"));
    let Some((result, _)) = result else { unreachable!("{browser} shows nothing: {log}") };
    let result = parsed(result);
    assert_eq!(result["faults"], json!([]));
    assert_eq!(log.lines().filter(|line| line.contains(MESSAGE)).collect::<Vec<_>>(), [""; 0]);
    assert_eq!(result["looks"], PAGES_SHOWN);
    result["paper"].clone()
}

fn page(dir: &Scratch, name: &str, records: &[Value]) -> String {
    let lines: String = records.iter().map(|record| format!("{record}\n")).collect();
    let (file, page) = (dir.file(format!("{name}.ndjson"), lines), dir.text(format!("{name}.html")));
    let output = common::ran(&["report", &file, "--output-file", &page]);
    assert!(output.status.success(), "{output:?}");
    page
}

fn records(recordings: &[Recording], name: &str) -> Vec<Value> {
    let recording = recordings.iter().find(|recording| recording.name == name).expect(name);
    recording.records().iter().map(|record| parsed(record)).collect()
}

/// A name that a page must not treat as markup. `look.html` has the same text.
const HOSTILE: &str = "<img src=x onerror=alert(1)><script>window.xss=1</script>&amp;\"'";

/// Copies of one verdict, at other times and for other pods: 250 pods, and one pod with a hostile name.
fn crowd() -> Vec<Value> {
    let mut records = records(&fixtures(), "firewall_drop/any-v4");
    records.retain(|record| record["type"] == "start" || record["type"] == "verdict");
    let verdict = records.pop().unwrap();
    let of_pod = |namespace: &str, pod: &str, minute: u32| {
        let mut verdict = verdict.clone();
        verdict["time"] = json!(format!("2026-11-21T02:{:02}:{:02}.000000000Z", minute % 60, minute % 7));
        verdict["k8s"]["namespace"] = json!(namespace);
        verdict["k8s"]["pod_name"] = json!(pod);
        verdict
    };
    for pod in 0..250_u32 {
        let name = format!("worker-{pod}-5f6b8c9d7-{:05x}", pod * 7919);
        records.extend((0..=pod % 13).map(|n| of_pod("batch", &name, n + pod)));
    }
    let mut hostile = of_pod(HOSTILE, HOSTILE, 59);
    hostile["verdict"]["summary"] = json!(HOSTILE);
    hostile["verdict"]["remediation"] = json!({ "text": HOSTILE, "commands": [{ "run": HOSTILE, "where": "node" }] });
    hostile["verdict"]["evidence"][0]["text"] = json!(HOSTILE);
    records.extend(std::iter::repeat_n(hostile, 40));
    (0..).zip(&mut records).for_each(|(seq, record): (u64, _)| record["seq"] = json!(seq));
    records
}
