//! Finds out whether an entry is a line of the kubelet, and reads the line.
//!
//! Everybody on the node can send an entry with any `SYSLOG_IDENTIFIER`. journald itself writes the fields that begin
//! with an underscore, so only those identify the sender.

use std::collections::BTreeSet;

use super::file::{Fault, Field, Header, ReadAt};
use super::packed::unpack;

/// A longer message is skipped: no line that tracer understands is that long.
pub(super) const MAX_MESSAGE: usize = 64 << 10;
/// How much of a field is read to recognise it: its name, and 15 bytes for the name of a process.
const FIELD_PREFIX: usize = 32;

/// How many fields of other senders are remembered.
const MAX_OTHER_FIELDS: usize = 1024;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum JournalEntry {
    /// An entry of another sender.
    OtherFields,
    Line(String),
    /// A message of the kubelet that cannot be unpacked.
    Unreadable,
}

/// The signs of the kubelet as the sender: the name of a prober, root, and a transport that carries its own text.
const SIGNS: [&str; 3] = ["_COMM=", "_UID=", "_TRANSPORT="];

/// Places of fields that showed another sender. journald stores each value of a field once in a file, so most entries of
/// other senders have one of these.
#[derive(Debug, Default)]
pub(super) struct OtherFields(BTreeSet<u64>);

impl OtherFields {
    fn add(&mut self, at: u64) {
        if self.0.len() >= MAX_OTHER_FIELDS {
            self.0.clear();
        }
        self.0.insert(at);
    }
}

/// Reads the entry with these fields. `names`: the names of the probers.
pub(super) fn read(
    file: &impl ReadAt,
    header: &Header,
    items: &[u64],
    names: &[String],
    other_fields: &mut OtherFields,
) -> Result<JournalEntry, Fault> {
    if items.iter().any(|at| other_fields.0.contains(at)) {
        return Ok(JournalEntry::OtherFields);
    }
    let (mut signs, mut candidates) = (BTreeSet::new(), Vec::new());
    for at in items {
        let field = Field::read(file, header, *at, FIELD_PREFIX)?;
        if field.packed != 0 || field.begin.starts_with(b"MESSAGE=") {
            candidates.push(field);
        } else if let Some((sign, is_kubelets)) = sign(&field.begin, names) {
            if !is_kubelets {
                other_fields.add(*at);
                return Ok(JournalEntry::OtherFields);
            }
            signs.insert(sign);
        }
    }
    // The kubelet's command line is often packed, its message rarely.
    candidates.sort_by_key(|field| field.packed != 0);
    if signs.len() == SIGNS.len() { message(file, &candidates) } else { Ok(JournalEntry::OtherFields) }
}

/// Which of the [`SIGNS`] a field is, and whether its value is the kubelet's.
fn sign(field: &[u8], names: &[String]) -> Option<(&'static str, bool)> {
    let sign = SIGNS.into_iter().find(|sign| field.starts_with(sign.as_bytes()))?;
    let value = &field[sign.len()..];
    let is_kubelets = match sign {
        "_COMM=" => names.iter().any(|name| name.as_bytes() == value),
        "_UID=" => value == b"0",
        _ => [&b"stdout"[..], b"journal", b"syslog"].contains(&value),
    };
    Some((sign, is_kubelets))
}

/// The first of these fields that is the message. A packed field does not show its name.
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
