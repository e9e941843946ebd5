//! The page of `tracer report` in a real browser: light and dark, wide and narrow. `look.html` says what has to be true
//! of it: nothing fetched, nothing cut off, the cause on the first screen, and the evidence a click away.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::{sh, tracer};

/// Chromium's numbers for a dark and a light scheme.
const SCHEMES: [u32; 2] = [0, 1];
const PROGRAMS: &[&str] = &["chromium-headless-shell", "chromium", "google-chrome"];
/// Two pages, each in two sizes.
const PAGES_SHOWN: u32 = 4;
/// What the browser writes on stderr before a message of a page, such as a refusal by its policy.
const MESSAGE: &str = ":CONSOLE";

/// The check.
pub(crate) fn check() -> Result<()> {
    let Some(browser) = PROGRAMS.iter().find(|name| sh::find(name).is_some()) else {
        ensure!(std::env::var_os("CI").is_none(), "no Chromium is installed");
        eprintln!("xtask: no Chromium is installed, so the page is not looked at: SKIPPED");
        return Ok(());
    };
    let place = sh::target().join("report");
    let _ = fs::remove_dir_all(&place);
    fs::create_dir_all(&place).with_context(|| place.display().to_string())?;
    tracer::build()?;
    let zoo = page(&place, "zoo", &zoo(&place)?)?;
    let crowd = page(&place, "crowd", &crowd()?)?;
    let pages = format!("{}&{}", zoo.display(), crowd.display());
    let [dark, light] = SCHEMES.map(|scheme| look(browser, &place, scheme, &pages));
    let (dark, light) = (dark.context("dark")?, light.context("light")?);
    ensure!(dark != light, "light and dark have the same paper: {light}");
    Ok(())
}

/// Looks at pages; the colour of their paper.
fn look(browser: &str, place: &Path, scheme: u32, pages: &str) -> Result<Value> {
    let mut command = sh::command(browser);
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--enable-logging=stderr"]);
    // The page with the demands may read what is in its frames, which are files, too.
    command.args(["--allow-file-access-from-files", "--window-size=1280,900", "--dump-dom"]);
    // The page's own clock: it stands still while something is loaded or computed, so a busy machine changes nothing.
    command.args(["--virtual-time-budget=60000".into(), format!("--blink-settings=preferredColorScheme={scheme}")]);
    command.arg(format!("--user-data-dir={}", place.join("profile").display()));
    let demands = sh::root().join("xtask/src/report/look.html");
    let output = command.arg(format!("file://{}?{pages}", demands.display())).output()?;
    let (page, log) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let result = page.split_once("<pre id=\"result\">").and_then(|(_, rest)| rest.split_once("</pre>"));
    let result = result.with_context(|| format!("{browser} shows nothing: {log}"))?.0;
    let result: Value = serde_json::from_str(result).with_context(|| format!("not the result of looks: {result:?}"))?;
    let faults = result["faults"].as_array().into_iter().flatten().map(Value::to_string);
    let messages = log.lines().filter(|line| line.contains(MESSAGE)).map(str::to_owned);
    let wrong: Vec<_> = faults.chain(messages).collect();
    ensure!(wrong.is_empty(), "the page is not as it has to be:\n  {}", wrong.join("\n  "));
    ensure!(result["looks"] == PAGES_SHOWN, "it was looked at {} times instead of {PAGES_SHOWN}", result["looks"]);
    Ok(result["paper"].clone())
}

/// The page of pods that fail in fifteen ways beside a real kubelet, for the documentation.
pub(crate) fn example() -> Result<String> {
    let place = sh::target().join("report-example");
    fs::create_dir_all(&place).with_context(|| place.display().to_string())?;
    let page = page(&place, "zoo", &zoo(&place)?)?;
    fs::read_to_string(&page).with_context(|| page.display().to_string())
}

/// Makes a page out of records.
fn page(place: &Path, name: &str, records: &[Value]) -> Result<PathBuf> {
    let (file, page) = (format!("{name}.ndjson"), place.join(name).with_extension("html"));
    let lines: String = records.iter().map(|record| format!("{record}\n")).collect();
    fs::write(place.join(&file), lines)?;
    let mut report = tracer::command();
    // The page names its sources as they were given: here without a path.
    report.current_dir(place).args(["report", &file]).arg("--output-file").arg(&page);
    sh::run(&mut report)?;
    Ok(page)
}

fn zoo(place: &Path) -> Result<Vec<Value>> {
    let recording = place.join("zoo.observations");
    fs::write(&recording, tracer::unpacked(&sh::root().join("tests/recordings/kubelet-1.36/zoo.ndjson.gz"))?)?;
    tracer::replay(&recording)
}

/// A name that a page must not take for markup; `look.html` knows it, too.
const HOSTILE: &str = "<img src=x onerror=alert(1)><script>window.xss=1</script>&amp;\"'";

/// 250 pods on a node whose firewall drops, and one with a hostile name: a verdict, at other times and of other pods.
fn crowd() -> Result<Vec<Value>> {
    let fixture = sh::root().join("tests/fixtures/firewall_drop/any-v4/observations.ndjson");
    let mut records = tracer::replay(&fixture)?;
    records.retain(|record| record["type"] == "start" || record["type"] == "verdict");
    let verdict = records.pop().context("a verdict of firewall_drop")?;
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
    hostile["verdict"]["remediation"] = json!(HOSTILE);
    hostile["verdict"]["evidence"][0]["text"] = json!(HOSTILE);
    records.extend(std::iter::repeat_n(hostile, 40));
    (0..).zip(&mut records).for_each(|(seq, record): (u64, _)| record["seq"] = json!(seq));
    Ok(records)
}
