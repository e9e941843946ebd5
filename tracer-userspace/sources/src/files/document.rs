//! The documents of a file: one of JSON, or as many of YAML as `---` parts.

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::{FileError, Source};
use tracer_terminal::error::without_value;

/// A document and its place in the file.
pub(super) struct Document<'a> {
    source: &'a Source<'a>,
    bytes: &'a [u8],
    /// Lines of the file before it.
    lines_before: usize,
}

/// What a document gave.
pub(super) enum Taken {
    Used,
    Other(Option<String>),
}

#[derive(Deserialize)]
#[serde(expecting = "a Kubernetes object")]
struct ObjectHead {
    kind: Option<String>,
}

/// The items of a list. Some writers print an empty list as `items: null`.
#[derive(Deserialize)]
struct Items<T> {
    #[serde(default = "Option::default")]
    items: Option<Vec<T>>,
}

/// The documents that are more than comments. Each line that begins with `---` separates two of them, because no
/// content may have such a line (YAML 1.2, 9.1.2).
pub(super) fn split<'a>(source: &'a Source<'a>) -> Vec<Document<'a>> {
    let bytes = &source.bytes;
    if is_json(bytes) {
        return vec![Document { source, bytes, lines_before: 0 }];
    }
    let (mut documents, mut begin, mut line_of_begin, mut at) = (Vec::new(), 0, 0, 0);
    for (n, line) in bytes.split_inclusive(|byte| *byte == b'\n').enumerate() {
        if parts(line) && at > begin {
            documents.push(Document { source, bytes: &bytes[begin..at], lines_before: line_of_begin });
            (begin, line_of_begin) = (at, n);
        }
        at += line.len();
    }
    documents.push(Document { source, bytes: &bytes[begin..], lines_before: line_of_begin });
    documents.retain(|document| !document.is_empty());
    documents
}

/// Whether the line is `---`, or begins so and continues with the document.
fn parts(line: &[u8]) -> bool {
    line.strip_prefix(b"---").is_some_and(|rest| rest.first().is_none_or(u8::is_ascii_whitespace))
}

fn is_json(bytes: &[u8]) -> bool {
    let first = bytes.iter().find(|byte| !byte.is_ascii_whitespace());
    matches!(first, Some(b'{' | b'['))
}

impl Document<'_> {
    /// Whether it has only comments, directives and its marker.
    fn is_empty(&self) -> bool {
        let mut lines = self.bytes.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
        lines.all(|line| {
            line.is_empty() || line.starts_with(b"#") || line.starts_with(b"%") || line == b"---" || line == b"..."
        })
    }

    pub(super) fn kind(&self) -> Result<Option<String>, FileError> {
        self.decode::<ObjectHead>().map(|header| header.kind)
    }

    pub(super) fn decode<T: DeserializeOwned>(&self) -> Result<T, FileError> {
        if is_json(self.bytes) {
            let wrong = |error: serde_json::Error| self.syntax(error.line(), error.column(), &error.to_string());
            serde_json::from_slice(self.bytes).map_err(wrong)
        } else {
            serde_yaml_ng::from_slice(self.bytes).map_err(|error| {
                let (line, column) = error.location().map_or((1, 1), |at| (at.line(), at.column()));
                self.syntax(line, column, &error.to_string())
            })
        }
    }

    pub(super) fn items<T: DeserializeOwned>(&self) -> Result<Vec<T>, FileError> {
        Ok(self.decode::<Items<T>>()?.items.unwrap_or_default())
    }

    /// An error at this place of the document. If something is missing at the end, the place is the last character:
    /// parsers count one more line after the last newline.
    fn syntax(&self, line: usize, column: usize, message: &str) -> FileError {
        let text = String::from_utf8_lossy(self.bytes.trim_ascii_end());
        let (lines, last) = (text.lines().count().max(1), text.lines().last().unwrap_or_default());
        let (line, column) = if line > lines { (lines, last.chars().count() + 1) } else { (line, column) };
        let message = without_value(message);
        // The place is printed before the message.
        let message = message.split(" at line ").next().unwrap_or_default();
        self.source.syntax(self.lines_before + line, column, message)
    }
}
