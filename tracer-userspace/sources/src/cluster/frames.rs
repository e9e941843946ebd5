//! Cuts an answer into objects while it arrives, so that only one of them is in memory in its large form:
//! a watch by its lines, a list by the elements of its `items`.

use super::failure::Failure;

/// Largest object: the API's own limit is 1.5 MiB in etcd, more as JSON.
const OBJECT_MAX: usize = 8 << 20;
/// Largest list without its items.
const SHELL_MAX: usize = 64 << 10;

/// Lines of a watch.
#[derive(Default)]
pub(crate) struct Lines {
    open: Vec<u8>,
}

impl Lines {
    /// Gives each line that this chunk ends.
    pub(crate) fn feed(
        &mut self,
        chunk: &[u8],
        mut each: impl FnMut(&[u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut parts = chunk.split_inclusive(|byte| *byte == b'\n');
        parts.try_for_each(|part| {
            push_all(&mut self.open, part, OBJECT_MAX)?;
            if part.ends_with(b"\n") {
                let given = if self.open.trim_ascii().is_empty() { Ok(()) } else { each(&self.open) };
                self.open.clear();
                return given;
            }
            Ok(())
        })
    }
}

/// Items of a list. What is around them is the shell: the list itself, with no items.
#[derive(Default)]
pub(crate) struct Items {
    shell: Vec<u8>,
    item: Vec<u8>,
    /// The last string of the outermost object: the key, where a bracket follows.
    key: Vec<u8>,
    depth: usize,
    in_string: bool,
    escaped: bool,
    in_items: bool,
}

impl Items {
    /// Gives each item that this chunk ends.
    pub(crate) fn feed(
        &mut self,
        chunk: &[u8],
        mut each: impl FnMut(&[u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        for &byte in chunk {
            let was_item = self.is_item();
            self.step(byte);
            if was_item || self.is_item() {
                push_all(&mut self.item, &[byte], OBJECT_MAX)?;
                if !self.is_item() {
                    each(&self.item)?;
                    self.item.clear();
                }
            } else if !(self.in_items && (byte == b',' || byte.is_ascii_whitespace())) {
                push_all(&mut self.shell, &[byte], SHELL_MAX)?;
            }
        }
        Ok(())
    }

    /// The list without its items, if it has ended.
    pub(crate) fn shell(&self) -> Result<&[u8], Failure> {
        if self.depth == 0 { Ok(&self.shell) } else { Err(Failure::Cut) }
    }

    const fn is_item(&self) -> bool {
        self.in_items && self.depth > 2
    }

    fn step(&mut self, byte: u8) {
        if self.in_string {
            self.step_string(byte);
            return;
        }
        match byte {
            b'"' => {
                self.in_string = true;
                if self.depth == 1 {
                    self.key.clear();
                }
            }
            b'[' if self.depth == 1 => {
                self.in_items = self.key == b"items";
                self.depth += 1;
            }
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => {
                self.depth = self.depth.saturating_sub(1);
                self.in_items &= self.depth > 1;
            }
            _ => {}
        }
    }

    fn step_string(&mut self, byte: u8) {
        match byte {
            _ if self.escaped => self.escaped = false,
            b'\\' => self.escaped = true,
            b'"' => self.in_string = false,
            _ if self.depth == 1 && self.key.len() < 16 => self.key.push(byte),
            _ => {}
        }
    }
}

fn push_all(into: &mut Vec<u8>, bytes: &[u8], max: usize) -> Result<(), Failure> {
    if into.len() + bytes.len() > max {
        return Err(Failure::Garbage(format!("an object of more than {max} bytes")));
    }
    into.extend_from_slice(bytes);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = r#"{ "kind":"items", "metadata":{"resourceVersion":"7","items":[{"no":1}]},
        "items": [ {"a":"}]\"{", "b":[{"c":1}]} , {"d":"\\"},{} ], "z":[1] }"#;

    /// Items and shell, fed in pieces of this size.
    fn cut(text: &str, size: usize) -> (Vec<String>, Result<String, Failure>) {
        let (mut reader, mut items) = (Items::default(), Vec::new());
        for chunk in text.as_bytes().chunks(size) {
            let add = |item: &[u8]| {
                items.push(String::from_utf8_lossy(item).into_owned());
                Ok(())
            };
            reader.feed(chunk, add).expect("small");
        }
        (items, reader.shell().map(|shell| String::from_utf8_lossy(shell).into_owned()))
    }

    #[test]
    fn a_list_is_cut_alike_however_it_arrives() {
        for size in 1..LIST.len() {
            let (items, shell) = cut(LIST, size);
            assert_eq!(items, [r#"{"a":"}]\"{", "b":[{"c":1}]}"#, r#"{"d":"\\"}"#, "{}"], "{size}");
            let shell: serde_json::Value = serde_json::from_str(&shell.expect("whole")).expect("JSON");
            assert_eq!(shell["metadata"]["resourceVersion"], "7");
            assert_eq!((&shell["items"], &shell["z"][0]), (&serde_json::json!([]), &serde_json::json!(1)));
        }
        assert_eq!(cut(&LIST[..60], 7).1, Err(Failure::Cut));
    }

    #[test]
    fn lists_of_the_serializer_are_cut_into_what_it_was_given() {
        let items = ["null", "{}", "[]", r#"[{"metadata":{"name":"a\"]}"}}]"#];
        for given in items {
            let (found, shell) = cut(&format!(r#"{{"items":{given},"kind":"PodList"}}"#), 3);
            let all: Vec<serde_json::Value> =
                serde_json::from_str::<serde_json::Value>(given).expect("JSON").as_array().cloned().unwrap_or_default();
            let found: Vec<serde_json::Value> =
                found.iter().map(|it| serde_json::from_str(it).expect("JSON")).collect();
            assert_eq!(found, all);
            assert!(shell.expect("whole").contains("PodList"));
        }
    }

    #[test]
    fn a_list_takes_the_memory_of_its_largest_item() {
        let (mut reader, mut count) = (Items::default(), 0);
        let item = format!("{{\"a\":\"{}\"}},\n  ", "x".repeat(1000));
        reader.feed(br#"{"items":["#, |_| Ok(())).expect("small");
        for _ in 0..10_000 {
            reader
                .feed(item.as_bytes(), |_| {
                    count += 1;
                    Ok(())
                })
                .expect("small");
        }
        assert_eq!((count, reader.shell.len()), (10_000, 10));
        assert!(reader.item.capacity() < 4096, "{}", reader.item.capacity());
        let endless = vec![b'x'; 1 << 20];
        let mut fed = reader.feed(b"{\"", |_| Ok(()));
        (0..9).for_each(|_| fed = fed.clone().and_then(|()| reader.feed(&endless, |_| Ok(()))));
        assert!(matches!(fed, Err(Failure::Garbage(_))));
    }

    #[test]
    fn lines_are_cut_alike_and_bounded() {
        let text = b"{\"a\":1}\n\n{\"b\":2}\n{\"open";
        for size in 1..text.len() {
            let (mut lines, mut found) = (Lines::default(), Vec::new());
            for chunk in text.chunks(size) {
                lines
                    .feed(chunk, |line| {
                        found.push(line.trim_ascii().to_vec());
                        Ok(())
                    })
                    .expect("small");
            }
            assert_eq!(found, [b"{\"a\":1}", b"{\"b\":2}"]);
        }
        let mut lines = Lines::default();
        let megabyte = vec![b'x'; 1 << 20];
        let fed = (0..9).try_for_each(|_| lines.feed(&megabyte, |_| Ok(())));
        assert!(matches!(fed, Err(Failure::Garbage(_))));
    }
}
