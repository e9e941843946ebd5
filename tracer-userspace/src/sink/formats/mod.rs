//! `--format`: the records under the names of other schemas. Values are moved, never changed; what has
//! no name there stays under `tracer`, as it is. A format is a file with a table.

mod ecs;
mod otel;

use clap::ValueEnum;
use serde_json::{Map, Value};

use super::ndjson;
use crate::record::Record;

/// Names of the fields in NDJSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// As the contract has them.
    Tracer,
    /// OpenTelemetry's log data model and semantic conventions.
    Otel,
    /// Elastic Common Schema.
    Ecs,
}

/// One field: where it stands in a record, and where in the other form.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Keys joined by dots.
    pub from: &'static str,
    /// Keys joined by slashes, as the keys themselves may have dots.
    pub to: &'static str,
}

/// A row of a table.
const fn row(from: &'static str, to: &'static str) -> Row {
    Row { from, to }
}

/// A format.
struct Shape {
    rows: &'static [Row],
    /// Where everything else goes.
    rest: &'static str,
    /// What the other schema asks for and no field of ours is.
    add: fn(&Value, &mut Value),
}

impl Format {
    const fn shape(self) -> Option<&'static Shape> {
        match self {
            Self::Tracer => None,
            Self::Otel => Some(&otel::SHAPE),
            Self::Ecs => Some(&ecs::SHAPE),
        }
    }
}

/// One line in this format, its newline included.
#[must_use]
pub fn line(record: &Record, format: Format) -> Vec<u8> {
    let Some(shape) = format.shape() else { return ndjson::line(record) };
    let mut bytes = serde_json::to_vec(&shape.of(ndjson::value(record))).unwrap_or_default();
    bytes.push(b'\n');
    bytes
}

impl Shape {
    /// A record in this shape.
    fn of(&self, mut record: Value) -> Value {
        let mut out = Value::Object(Map::new());
        (self.add)(&record, &mut out);
        for row in self.rows {
            if let Some(value) = take(&mut record, row.from) {
                put(&mut out, row.to, value);
            }
        }
        if record.as_object().is_some_and(|rest| !rest.is_empty()) {
            put(&mut out, self.rest, record);
        }
        out
    }
}

/// Takes a value out; an object that is empty thereby goes, too.
fn take(object: &mut Value, path: &str) -> Option<Value> {
    let fields = object.as_object_mut()?;
    let Some((first, rest)) = path.split_once('.') else { return fields.remove(path) };
    let inner = fields.get_mut(first)?;
    let found = take(inner, rest);
    if found.is_some() && inner.as_object().is_some_and(Map::is_empty) {
        fields.remove(first);
    }
    found
}

/// Puts a value where a path says; objects on the way are made.
fn put(object: &mut Value, path: &str, value: Value) {
    let Some(fields) = object.as_object_mut() else { return };
    match path.split_once('/') {
        None => {
            fields.insert(path.to_owned(), value);
        }
        Some((first, rest)) => {
            let inner = fields.entry(first).or_insert_with(|| Value::Object(Map::new()));
            put(inner, rest, value);
        }
    }
}

#[cfg(test)]
mod tests;
