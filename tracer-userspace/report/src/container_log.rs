//! The files of a container's log on a node: text of a CRI runtime (`TIME stdout F LINE`), or Docker's JSON.
//!
//! Both split a line of more than 16 KiB: into CRI lines with `P` before the last one, which has `F`, or into JSON with
//! a text that has no newline at its end. `kubectl logs` may write a prefix before each line, and mixes the records with
//! tracer's own messages.

use std::borrow::Cow;

use serde::Deserialize;

/// The longest record that is joined.
const MAX: usize = 1 << 20;

/// Gives the lines that the container wrote, as `show` and `report` read them.
#[derive(Debug, Default)]
pub(super) struct Unwrap {
    /// The begin of a line of stdout, where tracer's records are.
    begun: Vec<u8>,
}

/// A part of a container's line, as the runtime wrote it.
struct Piece<'a> {
    is_stdout: bool,
    is_partial: bool,
    text: Cow<'a, [u8]>,
}

impl Unwrap {
    /// The line that ends with this one; absent if it continues, and for stderr, which has no records. What is not in a
    /// runtime's format loses a prefix only.
    pub(super) fn take<'a>(&mut self, line: &'a [u8]) -> Option<Cow<'a, [u8]>> {
        let Some(Piece { is_stdout, is_partial, text }) = of_docker(line).or_else(|| of_cri(line)) else {
            return (!is_message(line)).then(|| Cow::Borrowed(without_prefix(line)));
        };
        if !is_stdout {
            return None;
        }
        if !is_partial && self.begun.is_empty() {
            return Some(text);
        }
        if self.begun.len() + text.len() <= MAX {
            self.begun.extend_from_slice(&text);
        }
        (!is_partial).then(|| Cow::Owned(std::mem::take(&mut self.begun)))
    }

    /// Whether a line has begun and not ended.
    pub(super) const fn is_open(&self) -> bool {
        !self.begun.is_empty()
    }
}

/// Removes what `kubectl logs --prefix` or `--timestamps` writes before a record.
fn without_prefix(bytes: &[u8]) -> &[u8] {
    const RECORD: &[u8] = br#"{"schema""#;
    let at = bytes.windows(RECORD.len()).position(|window| window == RECORD);
    at.and_then(|at| bytes.get(at..)).unwrap_or(bytes)
}

/// Whether this is a message of tracer, `tracer: warning: …`, perhaps after a prefix of `kubectl logs`.
fn is_message(line: &[u8]) -> bool {
    const MESSAGE: &[u8] = b"tracer: ";
    // A prefix has the names of a pod and a container, and a time.
    const LONGEST_PREFIX: usize = 512;
    if line.first() == Some(&b'{') {
        return false;
    }
    let line = &line[..line.len().min(LONGEST_PREFIX)];
    let at = line.windows(MESSAGE.len()).position(|window| window == MESSAGE);
    let is_prefix = |word: &[u8]| word.first().is_none_or(|byte| *byte == b'[' || byte.is_ascii_digit());
    at.is_some_and(|at| line[..at].split(|byte| *byte == b' ').all(is_prefix))
}

/// `2026-01-02T03:04:05.1Z stdout F {"schema"…`
fn of_cri(line: &[u8]) -> Option<Piece<'_>> {
    let mut words = line.splitn(4, |byte| *byte == b' ');
    let (time, stream, tag, text) = (words.next()?, words.next()?, words.next()?, words.next()?);
    let is_cri = time.first().is_some_and(u8::is_ascii_digit) && matches!(stream, b"stdout" | b"stderr");
    // Others may follow the tag, after a colon.
    let is_partial = match tag.split(|byte| *byte == b':').next()? {
        b"P" => true,
        b"F" => false,
        _ => return None,
    };
    is_cri.then_some(Piece { is_stdout: stream == b"stdout", is_partial, text: Cow::Borrowed(text) })
}

#[derive(Deserialize)]
struct OfDocker {
    log: String,
    stream: String,
}

/// `{"log":"{\"schema\"…\n","stream":"stdout","time":"2026-01-02T03:04:05.1Z"}`
fn of_docker(line: &[u8]) -> Option<Piece<'static>> {
    let OfDocker { mut log, stream } = serde_json::from_slice(line.starts_with(br#"{"log":"#).then_some(line)?).ok()?;
    let is_partial = !log.ends_with('\n');
    log.truncate(log.trim_end_matches('\n').len());
    Some(Piece { is_stdout: stream == "stdout", is_partial, text: Cow::Owned(log.into_bytes()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unwrapped(lines: &[&str]) -> Vec<String> {
        let mut unwrap = Unwrap::default();
        let lines = lines.iter().filter_map(|line| unwrap.take(line.as_bytes()));
        lines.map(|line| String::from_utf8_lossy(&line).into_owned()).collect()
    }

    #[test]
    fn lines_of_a_runtime_are_unwrapped_and_joined() {
        let cri =
            ["T stdout F a", "1T stdout F b", "1T stdout P c", "1T stderr F d", "1T stdout P:x e", "1T stdout F f"];
        assert_eq!(unwrapped(&cri), ["T stdout F a", "b", "cef"]);
        let docker = |text: &str, stream: &str| format!(r#"{{"log":"{text}","stream":"{stream}","time":"1T"}}"#);
        let docker = [docker(r#"{\"a\""#, "stdout"), docker(r"x\n", "stderr"), docker(r":1}\n", "stdout")];
        assert_eq!(unwrapped(&docker.each_ref().map(String::as_str)), [r#"{"a":1}"#]);
        assert_eq!(
            unwrapped(&[r#"{"schema":"tracer/1"}"#, r#"{"log":1}"#]),
            [r#"{"schema":"tracer/1"}"#, r#"{"log":1}"#]
        );
    }

    #[test]
    fn messages_of_tracer_are_skipped() {
        let messages = ["tracer: warning: a", "[pod/tracer-x/tracer] 2026-01-02T03:04:05Z tracer: error: b"];
        assert!(unwrapped(&messages).is_empty());
        let others = [r#"{"schema":"tracer/1","summary":"tracer: a"}"#, "a tracer: b"];
        assert_eq!(unwrapped(&others), others);
    }

    #[test]
    fn a_line_without_an_end_does_not_grow() {
        let mut unwrap = Unwrap::default();
        let piece = format!("1T stdout P {}", "x".repeat(MAX / 3));
        assert!((0..9).all(|_| unwrap.take(piece.as_bytes()).is_none()) && unwrap.begun.len() <= MAX);
    }
}
