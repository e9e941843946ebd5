//! The lines of a watch, as they arrive.

use super::failure::Failure;

/// The longest line. etcd's limit for an object is 1.5 MiB, and its JSON is longer.
const OBJECT_MAX: usize = 8 << 20;

#[derive(Default)]
pub(crate) struct Lines {
    open: Vec<u8>,
}

impl Lines {
    /// Calls `take` for each line that this chunk completes.
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
