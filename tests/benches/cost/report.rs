//! The rows of the measurement as a table and as JSON, with a description of the machine.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde::Serialize;
use serde_json::{Value, json};
use tracer_tests::stats::Sample;

use super::growth::Curve;

#[derive(Clone, Copy, Debug)]
pub(super) enum Target {
    AtLeast(f64),
    Below(f64),
}

impl Target {
    fn met(self, value: f64) -> bool {
        match self {
            Self::AtLeast(least) => value >= least,
            Self::Below(limit) => value < limit,
        }
    }

    fn shown(self) -> String {
        match self {
            Self::AtLeast(least) => format!(">= {least}"),
            Self::Below(limit) => format!("< {limit}"),
        }
    }
}

/// One measured quantity.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    name: String,
    value: f64,
    /// Its unit. Empty for a ratio.
    unit: &'static str,
    target: String,
    /// Whether the target is met. Absent without a target.
    met: Option<bool>,
    /// Spread and circumstances as text for people.
    detail: String,
    /// Spread and circumstances as JSON for programs.
    data: Value,
    /// What the plots show of it.
    #[serde(skip)]
    pub(super) curve: Option<Curve>,
}

impl Row {
    /// A row without target.
    pub(super) fn new(name: impl Into<String>, value: f64, unit: &'static str) -> Self {
        let (target, detail) = ("-".to_owned(), String::new());
        Self { name: name.into(), value, unit, target, met: None, detail, data: Value::Null, curve: None }
    }

    pub(super) fn target(mut self, target: Target) -> Self {
        self.target = target.shown();
        self.met = Some(target.met(self.value));
        self
    }

    pub(super) fn detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = detail.into();
        self
    }

    pub(super) fn data(mut self, data: Value) -> Self {
        self.data = data;
        self
    }

    pub(super) fn curve(mut self, curve: Curve) -> Self {
        self.curve = Some(curve);
        self
    }

    fn cells(&self) -> [String; 5] {
        let digits = if self.value.abs() >= 1000.0 {
            0
        } else if self.unit.is_empty() {
            3
        } else {
            2
        };
        let value = format!("{:.digits$} {}", self.value, self.unit).trim_end().to_owned();
        let met = match self.met {
            Some(true) => "yes",
            Some(false) => "NO",
            None => "",
        };
        [self.name.clone(), value, self.target.clone(), met.to_owned(), self.detail.clone()]
    }
}

/// Median, spread and number of a sample, for a row's data.
pub(super) fn spread(sample: &Sample) -> Value {
    json!({"n": sample.len(), "min": sample.min(), "p50": sample.median(), "p99": sample.quantile(0.99), "max": sample.max()})
}

/// The machine and its state at the beginning.
pub(super) fn machine() -> Value {
    let text = |path| fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split_once(':')).map(|(_, value)| value.trim().to_owned())
    };
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    json!({
        "kernel": text("/proc/sys/kernel/osrelease").trim(),
        "cpu": field(&text("/proc/cpuinfo"), "model name"),
        "cores": cores,
        "memory": field(&text("/proc/meminfo"), "MemTotal"),
        "load_average": text("/proc/loadavg").trim(),
    })
}

/// The table as Markdown, so that it can be copied to a page.
pub(super) fn table(machine: &Value, rows: &[Row]) -> String {
    let heading = ["row", "measured", "target", "met", "detail"].map(str::to_owned);
    let cells: Vec<_> = std::iter::once(heading).chain(rows.iter().map(Row::cells)).collect();
    let width = |column: usize| cells.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; 5] = std::array::from_fn(width);
    let line = |row: &[String; 5]| {
        let padded: Vec<_> = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        format!("| {} |\n", padded.join(" | "))
    };
    let rule = widths.map(|width| "-".repeat(width));
    let body: String = std::iter::once(&cells[0]).chain([&rule]).chain(&cells[1..]).map(line).collect();
    let missed = rows.iter().filter(|row| row.met == Some(false)).count();
    let of = rows.iter().filter(|row| row.met.is_some()).count();
    format!("{}\n{body}{} of {of} targets met\n", headline(machine), of - missed)
}

fn headline(machine: &Value) -> String {
    let text = |key: &str| machine[key].as_str().unwrap_or("?").to_owned();
    format!(
        "kernel {}, {} ({} cores), load average at the start {}\n",
        text("kernel"),
        text("cpu"),
        machine["cores"],
        text("load_average")
    )
}

pub(super) fn write(path: &Path, machine: &Value, rows: &[Row]) -> Result<()> {
    let text = serde_json::to_string_pretty(&json!({"machine": machine, "rows": rows}))?;
    fs::write(path, text + "\n").with_context(|| format!("write {}", path.display()))
}
