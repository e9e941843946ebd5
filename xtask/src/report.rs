//! The page of `tracer report` in a real browser: light and dark, wide and narrow. `look.html` says what has to be true
//! of it: nothing fetched, nothing cut off, the cause on the first screen, and the evidence a click away.

mod sample;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use self::sample::Sample;
use crate::sh;

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
    sh::run(&mut sh::cargo(&["build", "--quiet", "-p", "tracer-userspace", "--bin", "tracer"]))?;
    let tracer = sh::debug_bin("tracer");
    let incident = page(&tracer, &place, "incident", Sample::incident(&tracer)?)?;
    let crowd = page(&tracer, &place, "crowd", Sample::crowd(&tracer)?)?;
    let pages = format!("{}&{}", incident.display(), crowd.display());
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

/// The page of the incident, for the documentation.
pub(crate) fn example(tracer: &Path) -> Result<String> {
    let place = sh::target().join("report-example");
    fs::create_dir_all(&place).with_context(|| place.display().to_string())?;
    let page = page(tracer, &place, "incident", Sample::incident(tracer)?)?;
    fs::read_to_string(&page).with_context(|| page.display().to_string())
}

/// Makes a page out of records.
fn page(tracer: &Path, place: &Path, name: &str, sample: Sample) -> Result<PathBuf> {
    let (records, page) = (format!("{name}.ndjson"), place.join(name).with_extension("html"));
    fs::write(place.join(&records), sample.ndjson())?;
    let mut report = sh::command(tracer);
    // The page names its sources as they were given: here without a path.
    report.current_dir(place).env_clear().args(["report", &records]).arg("--output-file").arg(&page);
    sh::run(&mut report)?;
    Ok(page)
}
