//! The page of `tracer report` in a real browser: light and dark, wide and narrow, nothing fetched, nothing cut off, the
//! cause on the first screen, and the evidence a click away. Pictures of it are left in `target/report`.

mod browser;
mod sample;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use self::browser::{Browser, Look};
use self::sample::{HOSTILE, Sample};
use crate::sh;

/// Screens.
const LOOKS: &[Look] = &[
    Look { scheme: "light", width: 1280, height: 800 },
    Look { scheme: "dark", width: 1280, height: 800 },
    Look { scheme: "light", width: 390, height: 844 },
    Look { scheme: "dark", width: 390, height: 844 },
];

/// A statement about the page that has to be true: what is said, and an expression.
type Demand = (&'static str, &'static str);

/// What is true of every page on every screen.
const ALWAYS: &[Demand] = &[
    ("nothing is wider than the window", "document.documentElement.scrollWidth <= innerWidth"),
    (
        "its headline says how many attempts failed",
        "/^[0-9,]+( of [0-9,]+)? attempts? failed: /.test(document.querySelector('h1').textContent)",
    ),
    (
        "the worst cause is on the first screen",
        "document.querySelector('.cause h2').getBoundingClientRect().bottom < innerHeight",
    ),
    (
        "its mend is on the first screen",
        "document.querySelector('.cause .mend').getBoundingClientRect().bottom < innerHeight",
    ),
    ("the style is in force", "getComputedStyle(document.querySelector('.cause')).borderLeftWidth === '5px'"),
    ("text can be read", CONTRAST),
    (
        "the bars are seen",
        "[...document.querySelectorAll('.bar')].slice(0, 50).every(bar => bar.getBoundingClientRect().width > 1)",
    ),
    (
        "each lane is described",
        "[...document.querySelectorAll('.plot[role]')].every(plot => plot.getAttribute('aria-label'))",
    ),
    (
        "nothing of a name became markup",
        "document.querySelectorAll('script, img, iframe, object, [onerror], [style]').length === 0 && window.xss === undefined",
    ),
    (
        "each link leads somewhere",
        "[...document.querySelectorAll('a')].every(a => document.getElementById(a.getAttribute('href').slice(1)))",
    ),
];

/// The contrast of WCAG 2, of text (4.5) and of bars (3).
const CONTRAST: &str = "(() => {
    const rgb = text => text.match(/[0-9.]+/g).slice(0, 3).map(Number);
    const light = text => rgb(text).map(c => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
        .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
    const ratio = (a, b) => (Math.max(light(a), light(b)) + 0.05) / (Math.min(light(a), light(b)) + 0.05);
    const paper = getComputedStyle(document.body).backgroundColor;
    const style = (query, name) => [...document.querySelectorAll(query)].slice(0, 200).map(e => getComputedStyle(e)[name]);
    const card = getComputedStyle(document.querySelector('.cause')).backgroundColor;
    return style('p, h1, h2, summary, .quiet, a.name', 'color').every(ink => ratio(ink, paper) >= 4.5 && ratio(ink, card) >= 4.5)
        && style('.bar', 'fill').every(fill => ratio(fill, paper) >= 3);
})()";

/// The check.
pub(crate) fn check() -> Result<()> {
    let place = sh::target().join("report");
    let _ = fs::remove_dir_all(&place);
    fs::create_dir_all(&place).with_context(|| place.display().to_string())?;
    sh::run(&mut sh::cargo(&["build", "--quiet", "-p", "tracer-userspace", "--bin", "tracer"]))?;
    let tracer = sh::target().join("debug/tracer");
    let incident = page(&tracer, &place, "incident", Sample::incident(&tracer)?)?;
    let crowd = page(&tracer, &place, "crowd", Sample::crowd(&tracer)?)?;
    let Some(mut browser) = Browser::start(&place.join("profile"))? else {
        return without_browser();
    };
    for &look in LOOKS {
        looked_at(&mut browser, &incident, look).with_context(|| format!("{}: {look:?}", incident.display()))?;
        looked_at(&mut browser, &crowd, look).with_context(|| format!("{}: {look:?}", crowd.display()))?;
    }
    hostile_names_are_text(&mut browser)?;
    colours_differ(&mut browser, &incident)?;
    drop(browser);
    // Helpers of the browser may still write there; the next run takes it away, too.
    let _ = fs::remove_dir_all(place.join("profile"));
    Ok(())
}

/// With `cargo xtask setup` it is there; elsewhere its absence is said.
fn without_browser() -> Result<()> {
    if std::env::var_os("CI").is_some() {
        bail!("no Chromium is installed");
    }
    eprintln!("xtask: no Chromium is installed, so the page is not looked at: SKIPPED");
    Ok(())
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

/// All demands on one screen.
fn looked_at(browser: &mut Browser, page: &Path, look: Look) -> Result<()> {
    browser.load(page, look)?;
    let name = page.file_stem().unwrap_or_default().to_string_lossy();
    let picture = |what: &str| page.with_file_name(format!("{name}-{}-{}{what}.png", look.scheme, look.width));
    save(&picture(""), &browser.picture()?)?;
    for (what, expression) in ALWAYS {
        demand(browser, what, expression)?;
    }
    evidence_opens_by_a_click(browser)?;
    browser.value("document.getElementById('timeline').scrollIntoView()")?;
    save(&picture("-timeline"), &browser.picture()?)?;
    a_bar_leads_to_its_evidence(browser)?;
    save(&picture("-evidence"), &browser.picture()?)?;
    the_keyboard_opens_it(browser)?;
    demand(browser, "still nothing is wider than the window", ALWAYS[0].1)?;
    let complaints = browser.complaints();
    if !complaints.is_empty() {
        bail!("the page complains:\n  {}", complaints.join("\n  "));
    }
    Ok(())
}

fn demand(browser: &mut Browser, what: &str, expression: &str) -> Result<()> {
    match browser.value(expression)? {
        Value::Bool(true) => Ok(()),
        other => bail!("not so: {what} ({other}): {expression}"),
    }
}

fn evidence_opens_by_a_click(browser: &mut Browser) -> Result<()> {
    const SEEN: &str = "document.querySelector('.evidence .seen').checkVisibility({contentVisibilityAuto: true})";
    demand(browser, "evidence is folded", &format!("!{SEEN}"))?;
    browser.click("document.querySelector('.evidence summary')")?;
    demand(browser, "a click opens the evidence", SEEN)
}

fn a_bar_leads_to_its_evidence(browser: &mut Browser) -> Result<()> {
    browser.click("document.querySelector('.lane a .bar')")?;
    demand(
        browser,
        "a click on a bar opens its evidence and brings it into view",
        "(() => { const e = document.querySelector(':target'); const r = e.getBoundingClientRect(); \
         return e.closest('details').open && r.top >= 0 && r.top < innerHeight && r.height > 50; })()",
    )
}

fn the_keyboard_opens_it(browser: &mut Browser) -> Result<()> {
    const CASE: &str = "document.querySelector('.case:not([open])')";
    browser.value(&format!("{CASE}.id = 'by-keyboard'; document.querySelector('#by-keyboard summary').focus()"))?;
    browser.enter()?;
    demand(browser, "Enter opens a case", "document.getElementById('by-keyboard').open")
}

fn colours_differ(browser: &mut Browser, page: &Path) -> Result<()> {
    let mut papers = Vec::new();
    for look in &LOOKS[..2] {
        browser.load(page, *look)?;
        papers.push(browser.value("getComputedStyle(document.body).backgroundColor")?);
    }
    if papers[0] == papers[1] {
        bail!("light and dark have the same paper: {}", papers[0]);
    }
    Ok(())
}

/// The page of the crowd is loaded last: its worst pod has a hostile name.
fn hostile_names_are_text(browser: &mut Browser) -> Result<()> {
    let name = serde_json::to_string(HOSTILE)?;
    demand(browser, "a hostile name is shown as it is", &format!("document.body.textContent.includes({name})"))
}

fn save(path: &Path, base64: &str) -> Result<()> {
    let picture = STANDARD.decode(base64).context("a picture that is none")?;
    fs::write(path, picture).with_context(|| path.display().to_string())
}
