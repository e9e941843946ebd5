//! Files that were compressed with gzip are read as the others.

use std::io::{self, Read};

use flate2::read::MultiGzDecoder;

/// How every gzip file begins.
const MAGIC: [u8; 2] = [0x1f, 0x8b];

/// A source, without its compression.
pub struct Unpacked {
    pub source: Box<dyn Read>,
    /// It was compressed: its size on disk is not the number of its bytes.
    pub was_gzip: bool,
}

/// Reads the first bytes, and unpacks the source while it is read if they are those of gzip.
///
/// # Errors
/// The source cannot be read.
pub fn unpack(mut source: impl Read + 'static) -> io::Result<Unpacked> {
    let mut begin = Vec::new();
    source.by_ref().take(MAGIC.len() as u64).read_to_end(&mut begin)?;
    let was_gzip = begin == MAGIC;
    let whole = io::Cursor::new(begin).chain(source);
    let source: Box<dyn Read> = if was_gzip { Box::new(MultiGzDecoder::new(whole)) } else { Box::new(whole) };
    Ok(Unpacked { source, was_gzip })
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use std::io::Write as _;

    fn read(bytes: Vec<u8>) -> io::Result<(String, bool)> {
        let Unpacked { mut source, was_gzip } = unpack(io::Cursor::new(bytes))?;
        let mut text = String::new();
        source.read_to_string(&mut text).map(|_| (text, was_gzip))
    }

    /// `cat a.gz b.gz` is a gzip file, too.
    #[test]
    fn gzip_is_unpacked_and_other_bytes_stay() -> io::Result<()> {
        let packed = |text: &str| {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(text.as_bytes()).and_then(|()| encoder.finish())
        };
        let two = [packed("one\n")?, packed("two\n")?].concat();
        assert_eq!(read(two.clone())?, ("one\ntwo\n".to_owned(), true));
        for plain in ["", "{", "{}\n"] {
            assert_eq!(read(plain.into())?, (plain.to_owned(), false));
        }
        let cut = read(two[..two.len() - 3].to_vec());
        assert_eq!(cut.err().map(|error| error.kind()), Some(io::ErrorKind::UnexpectedEof));
        Ok(())
    }
}
