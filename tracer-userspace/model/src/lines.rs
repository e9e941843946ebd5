//! Lines of a stream that arrives in chunks.

/// Splits chunks into lines of at most `max` bytes. A longer line is not kept in memory.
#[derive(Debug)]
pub struct Lines {
    max: usize,
    /// The start of a line without its end; absent while the rest of a line that is too long is skipped.
    open: Option<Vec<u8>>,
}

impl Lines {
    pub const fn new(max: usize) -> Self {
        Self { max, open: Some(Vec::new()) }
    }

    /// Gives each line that this chunk completes, without its newline. Gives `None` as soon as a line is too long, once.
    ///
    /// # Errors
    /// That of `each`. The rest of the chunk is lost.
    pub fn feed<E>(&mut self, chunk: &[u8], mut each: impl FnMut(Option<&[u8]>) -> Result<(), E>) -> Result<(), E> {
        chunk.split_inclusive(|byte| *byte == b'\n').try_for_each(|part| {
            let end = part.strip_suffix(b"\n");
            let bytes = end.unwrap_or(part);
            let given = match &mut self.open {
                None => Ok(()),
                Some(open) if open.len() + bytes.len() > self.max => {
                    self.open = None;
                    each(None)
                }
                Some(open) if open.is_empty() && end.is_some() => each(Some(bytes)),
                Some(open) => {
                    open.extend_from_slice(bytes);
                    end.map_or(Ok(()), |_| each(Some(open)))
                }
            };
            if end.is_some() {
                self.open.get_or_insert_default().clear();
            }
            given
        })
    }

    /// The rest of the stream: a last line without a newline.
    pub fn end(&self) -> Option<&[u8]> {
        self.open.as_deref().filter(|open| !open.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines of a text in chunks of this size, and the text after the last newline. `-`: a line was too long.
    fn lines(text: &str, size: usize, mut each: impl FnMut(&str) -> Result<(), ()>) -> Result<Option<Vec<u8>>, ()> {
        let mut lines = Lines::new(5);
        let mut feed = |chunk| lines.feed(chunk, |line| each(line.map_or("-", |it| std::str::from_utf8(it).unwrap())));
        text.as_bytes().chunks(size).try_for_each(&mut feed)?;
        Ok(lines.end().map(<[u8]>::to_vec))
    }

    #[test]
    fn chunks_may_end_anywhere_in_a_line() {
        let text = "one\n\n12345\n123456\ntwo\nlonger than a chunk\nthree\nopen";
        for size in 1..=text.len() {
            let mut found = Vec::new();
            let all = lines(text, size, |line| {
                found.push(line.to_owned());
                Ok(())
            });
            assert_eq!(
                (all, found.join(" ").as_str()),
                (Ok(Some(b"open".into())), "one  12345 - two - three"),
                "{size}"
            );
            let mut count = 0;
            let cut = lines(text, size, |line| {
                count += 1;
                if line == "-" { Err(()) } else { Ok(()) }
            });
            assert_eq!((cut, count), (Err(()), 4), "it fails at once");
        }
        assert_eq!(lines("123456", 3, |_| Err(())), Err(()), "before its end arrives");
        assert_eq!(lines("123456", 3, |_| Ok(())), Ok(None), "it is given once");
        assert_eq!(lines("one\n", 3, |_| Ok(())), Ok(None));
    }
}
