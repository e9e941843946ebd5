//! Snapshots of all texts: pages of recordings, help, explanations, the schema, the metrics, the report.
//!
//! The snapshots of `--test recordings` have the decisions.
//! `INSTA_UPDATE=always cargo test -p tracer-userspace --test texts` updates these snapshots.
#![allow(clippy::unwrap_used, reason = "a test ends at the line that failed")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use serde_json::Value;
use tracer::engine::{AtStart, Engine};
use tracer_model::event::Observation;
use tracer_model::record::Cause;
use tracer_output::sink::metrics::{self, HookCount, Metrics};
use tracer_output::sink::{Format, Sink, SinkConfig};

use common::recorded::{Recording, fixtures, parsed, with_each};
use common::{Scratch, ran, snapshots, text, tracer};

/// Fixtures with page snapshots at several widths.
const AT_WIDTHS: &[&str] =
    &["connection_refused/any-v4", "healthy/any-v4", "loopback_down/any-v4", "unexplained/any-v4"];

#[test]
fn recordings_read_as_before() {
    let (fixtures, mut texts) = (fixtures(), BTreeMap::new());
    for (fixture, text) in fixtures.iter().zip(with_each(&fixtures, page_and_rest)) {
        texts.insert(fixture.name.clone(), text);
    }
    snapshots::compare("replay", &texts);
}

/// The page, and below it the sentences that only the records have.
fn page_and_rest(fixture: &Recording) -> String {
    let page = fixture.page(None);
    assert!(page.ends_with('\n'), "{}", fixture.name);
    let mut sentences = BTreeSet::new();
    fixture.records().iter().for_each(|record| collect(&parsed(record), &mut sentences));
    let rest: Vec<_> = sentences.into_iter().filter(|sentence| !page.contains(sentence.as_str())).collect();
    format!("{page}\nOnly in the records:\n{}", rest.join("\n"))
}

/// Collects each text of a record that has several words.
fn collect(value: &Value, sentences: &mut BTreeSet<String>) {
    match value {
        Value::String(text) if text.contains(' ') => drop(sentences.insert(text.clone())),
        Value::Array(items) => items.iter().for_each(|item| collect(item, sentences)),
        Value::Object(fields) => fields.values().for_each(|value| collect(value, sentences)),
        _ => {}
    }
}

/// Words in a clause of a text: a summary is one sentence, and a semicolon separates its clauses.
const WORDS: usize = 25;

#[test]
fn sentences_of_verdicts_are_short_and_of_one_kind() {
    let wrong: BTreeSet<String> = with_each(&fixtures(), wrong_sentences).into_iter().flatten().collect();
    assert!(wrong.is_empty(), "{} texts to rewrite:\n{}", wrong.len(), Vec::from_iter(wrong).join("\n"));
}

fn wrong_sentences(fixture: &Recording) -> Vec<String> {
    let records: Vec<_> = fixture.records().iter().map(|record| parsed(record)).collect();
    let verdicts = || records.iter().map(|record| &record["verdict"]);
    let fixes = verdicts().filter_map(|verdict| verdict["remediation"]["text"].as_str());
    let evidence = verdicts().filter_map(|verdict| verdict["evidence"].as_array()).flatten();
    // The texts of the kubelet are not ours.
    let evidence =
        evidence.filter_map(|it| it["text"].as_str()).filter(|text| !text.starts_with("The kubelet reports"));
    let summaries = verdicts().filter_map(|verdict| verdict["summary"].as_str());
    let long = summaries.chain(evidence).chain(fixes.clone()).filter(|text| longest_clause(text) > WORDS);
    let several = |text: &str| text.contains(". ") || text.contains("? ");
    let stopped = fixes.filter(|text| several(text) != text.ends_with(['.', '?']));
    long.chain(stopped).map(str::to_owned).collect()
}

/// The number of words. A name in quotes is one word, and an arrow is none.
fn longest_clause(text: &str) -> usize {
    let text = regex_lite::Regex::new("`[^`]*`|\"[^\"]*\"").unwrap().replace_all(text, "name");
    let words = |clause: &str| clause.split(' ').filter(|word| word.contains(char::is_alphanumeric)).count();
    regex_lite::Regex::new("[.;?] ").unwrap().split(&text).map(words).max().unwrap_or(0)
}

#[test]
fn pages_break_their_lines_as_before() {
    let mut texts = BTreeMap::new();
    for fixture in fixtures().iter().filter(|fixture| AT_WIDTHS.contains(&fixture.name.as_str())) {
        for columns in [40, 80, 120] {
            texts.insert(format!("{}.{columns}", fixture.name), fixture.page(Some(columns)));
        }
    }
    assert_eq!(texts.len(), AT_WIDTHS.len() * 3);
    snapshots::compare("pages", &texts);
}

#[test]
fn help_reads_as_before() {
    let help = |args: &[&str]| text(&ran(args).stdout).to_owned();
    let first = help(&["--help"]);
    let mut texts: BTreeMap<String, String> =
        commands(&first).map(|name| (name.to_owned(), help(&[name, "--help"]))).collect();
    assert!(texts.len() > 10, "{:?}", texts.keys());
    texts.insert("tracer".to_owned(), first);
    texts.insert("overview".to_owned(), help(&[]));
    snapshots::compare("help", &texts);
}

/// The names of the commands in the overview.
fn commands(help: &str) -> impl Iterator<Item = &str> {
    let groups = help.split("\nOptions:\n").next().unwrap();
    groups.lines().filter(|line| line.starts_with("  ")).filter_map(|line| line.split_whitespace().next())
}

#[test]
fn causes_are_explained_as_before() {
    let explain = |args: &[&str]| text(&ran(&[&["explain"], args].concat()).stdout).to_owned();
    let page = |cause: &Cause| (cause.name().to_owned(), explain(&[cause.name()]));
    let mut texts: BTreeMap<String, String> = Cause::ALL.iter().map(page).collect();
    texts.insert("list".to_owned(), explain(&[]));
    snapshots::compare("explain", &texts);
}

#[test]
fn formats_are_described_as_before() {
    let texts =
        [("schema", text(&ran(&["schema"]).stdout).to_owned()), ("metrics", metrics_page()), ("report", report())];
    assert!(!texts[0].1.contains("null"), "an absent field is left out");
    snapshots::compare("formats", &texts.map(|(name, text)| (name.to_owned(), text)).into());
}

/// The metrics of a daemon after the observations of a fixture.
fn metrics_page() -> String {
    let (metrics, registry) = Metrics::new(true, SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000));
    metrics.set_dropped("output", 0);
    let hook = HookCount { hook: "kfree_skb", attached: true, events: 7, runs: Some((7, 0.25)) };
    metrics.set_kernel(&[hook]);
    let config = SinkConfig::new(Format::Ndjson, Some("/dev/null".into()));
    let mut sink = Sink::open(&config, false).unwrap();
    sink.count_into(metrics);
    let mut engine = Engine::new(sink, AtStart::default(), None);
    let recording = fixtures().into_iter().find(|fixture| fixture.name == "loopback_down/any-v4").unwrap();
    for line in recording.observations().lines() {
        if let Ok(observation) = serde_json::from_str::<Observation>(line) {
            engine.push(&observation);
        }
    }
    sort_series(&metrics::text(&registry))
}

/// Sorts the series of each family, because their order is random.
fn sort_series(page: &str) -> String {
    let lines: Vec<&str> = page.lines().collect();
    let of_one_kind = |a: &&str, b: &&str| a.starts_with('#') == b.starts_with('#');
    let sorted = lines.chunk_by(of_one_kind).flat_map(|lines| {
        let mut lines = lines.to_vec();
        if !lines[0].starts_with('#') {
            lines.sort_unstable();
        }
        lines
    });
    sorted.collect::<Vec<_>>().join("\n")
}

/// A report of the records of a few fixtures. A file may have records of several nodes and runs.
fn report() -> String {
    let dir = Scratch::new();
    let chosen = fixtures().into_iter().filter(|fixture| AT_WIDTHS.contains(&fixture.name.as_str()));
    let records: String = chosen.flat_map(|fixture| fixture.records()).map(|record| record + "\n").collect();
    dir.file("records.ndjson", records);
    let output = tracer().args(["report", "records.ndjson"]).current_dir(dir.root()).output().unwrap();
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""));
    text(&output.stdout).to_owned()
}
