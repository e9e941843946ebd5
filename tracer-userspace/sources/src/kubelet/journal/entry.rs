//! Whether an entry is a line of the kubelet, and the line.
//!
//! Anybody on the node may send an entry with any `SYSLOG_IDENTIFIER`. Fields that begin with an underscore are
//! journald's own word on the sender: only those are asked.

use std::collections::BTreeSet;

use super::file::{Fault, Field, Header, ReadAt};
use super::packed::unpack;

/// A longer message is skipped: no line of use is that long.
pub(super) const MAX_MESSAGE: usize = 64 << 10;
/// Enough of a field to tell one that is asked: its name, and a process's name of 15 bytes.
const FIELD_PREFIX: usize = 32;

/// Fields of others that are remembered.
const MAX_OTHER_FIELDS: usize = 1024;

/// What an entry has for the follower.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum JournalEntry {
    /// Of somebody else.
    OtherFields,
    /// A message of the kubelet.
    Line(String),
    /// The kubelet's, and its message cannot be unpacked.
    Unreadable,
}

/// The marks of a sender that is the kubelet: one of the probers, as root, by one of the ways that carry its own words.
#[derive(Debug, Default)]
struct Sender {
    name: bool,
    root: bool,
    way: bool,
}

impl Sender {
    fn is_kubelet(&self) -> bool {
        self.name && self.root && self.way
    }
}

/// Places of fields by which an entry was found to be somebody else's. journald keeps each value of a field once in
/// a file, so that most entries are known by one of these.
#[derive(Debug, Default)]
pub(super) struct OtherFields(BTreeSet<u64>);

impl OtherFields {
    fn has_one(&self, items: &[u64]) -> bool {
        items.iter().any(|at| self.0.contains(at))
    }

    fn add(&mut self, at: u64) {
        if self.0.len() >= MAX_OTHER_FIELDS {
            self.0.clear();
        }
        self.0.insert(at);
    }
}

/// Reads the entry with these fields; `names` are those of the probers.
pub(super) fn read(
    file: &impl ReadAt,
    header: &Header,
    items: &[u64],
    names: &[String],
    other_fields: &mut OtherFields,
) -> Result<JournalEntry, Fault> {
    if other_fields.has_one(items) {
        return Ok(JournalEntry::OtherFields);
    }
    let mut sender = Sender::default();
    let mut candidates = Vec::new();
    for at in items {
        let field = Field::read(file, header, *at, FIELD_PREFIX)?;
        if field.packed != 0 || field.begin.starts_with(b"MESSAGE=") {
            candidates.push(field);
        } else if !weigh(&field.begin, names, &mut sender) {
            other_fields.add(*at);
            return Ok(JournalEntry::OtherFields);
        }
    }
    // The kubelet's command line is often packed, its message rarely.
    candidates.sort_by_key(|field| field.packed != 0);
    if sender.is_kubelet() { message(file, &candidates) } else { Ok(JournalEntry::OtherFields) }
}

/// Notes what a field says of the sender; false if it is somebody else for certain.
fn weigh(field: &[u8], names: &[String], sender: &mut Sender) -> bool {
    let value = |name: &str| field.strip_prefix(name.as_bytes());
    if let Some(comm) = value("_COMM=") {
        sender.name = names.iter().any(|name| name.as_bytes() == comm);
        sender.name
    } else if let Some(uid) = value("_UID=") {
        sender.root = uid == b"0";
        sender.root
    } else if let Some(way) = value("_TRANSPORT=") {
        sender.way = [&b"stdout"[..], b"journal", b"syslog"].contains(&way);
        sender.way
    } else {
        true
    }
}

/// The first of these fields that is the message. A packed one does not show its name.
fn message(file: &impl ReadAt, candidates: &[Field]) -> Result<JournalEntry, Fault> {
    for field in candidates {
        let Some(bytes) = field.whole(file, MAX_MESSAGE)? else { continue };
        let content = unpack(field.packed, bytes, MAX_MESSAGE);
        if let Some(message) = content.as_deref().and_then(|it| it.strip_prefix(b"MESSAGE=")) {
            return Ok(JournalEntry::Line(String::from_utf8_lossy(message).into_owned()));
        }
    }
    Ok(JournalEntry::Unreadable)
}
