//! `tracer show`: prints records as `attach` does.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::faults::Faults;
use super::faults::Problem;
use super::input;
use super::{is_recording, line, no_record};
use tracer_model::recent::Recent;
use tracer_model::record::{Body, Outcome, Record, SCHEMA};
use tracer_output::sink::output::Output;
use tracer_output::sink::pretty::Pretty;
use tracer_output::sink::{Format, SinkConfig};
use tracer_terminal::error::{self, Error};
use tracer_terminal::screen::{Screen, safe};

/// Verdicts of a node that are remembered, because a revision of a shown verdict is shown, too.
const REMEMBERED: usize = 4096;

#[derive(Clone, Debug)]
pub struct ShowConfig {
    /// The records; `-` is stdin.
    pub files: Vec<PathBuf>,
    /// Which records are shown, and how.
    pub output: SinkConfig,
}

/// Shows the records. The exit code is 2 if a file could not be read to its end.
pub fn show(config: &ShowConfig) -> Result<u8, Error> {
    let inputs = input::open("show FILE", &config.files)?;
    let names: Vec<_> = inputs.iter().map(|input| input.name.clone()).collect();
    let (mut view, mut faults, mut whole) = (Shown::open(&config.output)?, Faults::default(), true);
    for input in inputs {
        let name = input.name.clone();
        whole &= input.each_line(&mut faults, |number, line| view.take(&name, number, line))?;
    }
    view.end();
    if view.records == 0 {
        return Err(no_record("show", &names, &faults));
    }
    if let Some(line) = faults.line_of_all() {
        error::warn(&line);
    }
    Ok(if whole && !view.output.has_failed() { 0 } else { 2 })
}

struct Shown {
    config: SinkConfig,
    output: Output,
    /// By name.
    nodes: BTreeMap<String, Node>,
    /// The node of the last line.
    last: String,
    records: u64,
}

#[derive(Default)]
struct Node {
    pretty: Pretty,
    /// Failures by `attempt` records and by verdicts: a file may have only one of them.
    failed: (u64, u64),
    /// `seq` of the verdicts about failures.
    failures: Recent<u64, (), REMEMBERED>,
    /// `seq` of the verdicts that were shown.
    verdicts: Recent<u64, (), REMEMBERED>,
    /// The run started and has not ended.
    runs: bool,
}

impl Shown {
    fn open(config: &SinkConfig) -> Result<Self, Error> {
        let output = Output::open(config.file.as_deref(), None, false)?;
        Ok(Self { config: config.clone(), output, nodes: BTreeMap::new(), last: String::new(), records: 0 })
    }

    fn take(&mut self, file: &str, number: usize, line: &[u8]) -> Result<(), Problem> {
        match (line::schema(line), line::whole(line)) {
            (Some(other), _) if other != SCHEMA && other.starts_with("tracer/") => {
                let other = format!("a record of schema {other}: this tracer reads {SCHEMA}");
                Err(Problem::Command(Error::Usage(format!("show {file}: line {number}: {other}"))))
            }
            (_, Err(_)) if number == 1 && is_recording(line) => {
                Err(Problem::File("a recording: `tracer replay FILE` shows its verdicts".into()))
            }
            (_, record) => record.map(|record| self.show(&record, line)),
        }
    }

    fn show(&mut self, record: &Record, line: &[u8]) {
        self.records += 1;
        let screen = self.screen();
        let new = || Node { pretty: Pretty::new(self.config.filter.clone(), self.config.verbose), ..Node::default() };
        let node = self.nodes.entry(record.node_name.clone()).or_insert_with(new);
        node.count(record);
        node.pretty.count(&record.body);
        if !node.wants(record, &self.config) {
            node.runs = true;
            return;
        }
        match self.config.format {
            // The line is copied, so that fields of a newer tracer stay.
            Format::Ndjson => return self.output.put(&[line, b"\n"].concat()),
            Format::Pretty => {}
            format => return self.output.put(&format.line(record)),
        }
        let mut text = String::new();
        if matches!(record.body, Body::Start(_)) {
            text += &node.end(screen);
            *node = new();
        }
        node.runs = !matches!(record.body, Body::Stop(_));
        text += &node.pretty.text(record, node.failed(), screen);
        if self.nodes.len() > 1 && self.last != record.node_name {
            text.insert_str(0, &format!("{}\n", heading(&record.node_name)));
        }
        self.last.clone_from(&record.node_name);
        self.output.put(text.as_bytes());
    }

    fn screen(&self) -> Screen {
        Screen { colour: self.config.colour, columns: self.output.columns().or(self.config.columns) }
    }

    /// The summaries of runs that have no `stop` record in the files.
    fn end(&mut self) {
        let screen = self.screen();
        let several = self.nodes.len() > 1;
        for (name, node) in &self.nodes {
            let text = node.end(screen);
            if !text.is_empty() && self.config.format == Format::Pretty {
                let head = if several { heading(name) } else { String::new() };
                self.output.put(format!("{head}\n{text}").as_bytes());
            }
        }
        self.output.finish();
        let nothing = self.nodes.values().all(|node| node.verdicts.values().next().is_none());
        if nothing && self.config.format != Format::Pretty {
            let hidden = self.nodes.values().filter_map(|node| node.pretty.shown(0, node.failed()));
            hidden.for_each(|hidden| error::warn(&hidden));
        }
    }
}

fn heading(node: &str) -> String {
    format!("\n== {} ==", safe(node))
}

impl Node {
    fn count(&mut self, record: &Record) {
        match &record.body {
            Body::Attempt(body) => self.failed.0 += u64::from(body.outcome == Some(Outcome::Failure)),
            Body::Verdict(body) => {
                let was_failure = body.revises.is_some_and(|seq| self.failures.remove(&seq).is_some());
                self.failed.1 = self.failed.1.saturating_sub(was_failure.into());
                if body.verdict.outcome == Outcome::Failure {
                    self.failed.1 += body.count();
                    self.failures.insert(record.seq, ());
                }
            }
            _ => {}
        }
    }

    fn failed(&self) -> u64 {
        self.failed.0.max(self.failed.1)
    }

    fn wants(&mut self, record: &Record, config: &SinkConfig) -> bool {
        let passes = config.filter.passes(&record.body);
        match &record.body {
            Body::Attempt(body) => passes && (config.attempts || body.outcome == Some(Outcome::Open)),
            Body::Verdict(body) => {
                let wanted = passes || body.revises.is_some_and(|seq| self.verdicts.contains_key(&seq));
                if wanted {
                    self.verdicts.insert(record.seq, ());
                }
                wanted
            }
            _ => true,
        }
    }

    fn end(&self, screen: Screen) -> String {
        if self.runs { self.pretty.summary(self.failed(), screen) } else { String::new() }
    }
}
