//! The format of a journal file (systemd's docs/JOURNAL_FILE_FORMAT.md), as far as a follower needs it: the header, and
//! the objects in the order in which they were appended. It follows neither hash tables nor chains of entry arrays, so
//! no file can cause an endless loop.
//!
//! Another process writes to the file meanwhile. Nothing in it is trusted: each contradiction is an error.

use std::io;
use std::ops::Range;

/// Features that a reader must know. The keyed hash does not matter, because this reader looks nothing up.
const KNOWN: u32 = 0b1_1111;
const COMPACT: u32 = 1 << 4;
/// The size of an object's header.
const OBJECT_HEADER: u64 = 16;
/// The size of an entry without its items.
const ENTRY_HEADER: u64 = 64;
/// Objects begin at multiples of this.
const ALIGNED: u64 = 8;
/// systemd refuses entries with more fields (`ENTRY_FIELD_COUNT_MAX`).
const MAX_ITEMS: u64 = 1024;

/// Something that can be read at any place: a file, or bytes in a test.
pub(in super::super) trait ReadAt {
    /// As `pread(2)`.
    fn read_at(&self, into: &mut [u8], at: u64) -> io::Result<usize>;
}

impl ReadAt for std::fs::File {
    fn read_at(&self, into: &mut [u8], at: u64) -> io::Result<usize> {
        std::os::unix::fs::FileExt::read_at(self, into, at)
    }
}

#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("it is no file of the systemd journal")]
    NotAJournal,
    /// A newer systemd wrote it.
    #[error("its form is not known to this version (incompatible flags {0:#x})")]
    Unknown(u32),
    /// Its sizes and places contradict each other, or an object is not written yet.
    #[error("what it has at {0:#x} makes no sense")]
    Broken(u64),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    compact: bool,
    /// Where the first object begins.
    pub(super) size: u64,
    /// Where the last object begins; 0 if there is none.
    pub(super) tail: u64,
    /// The time of the first entry, microseconds of the wall clock; 0 if there is none.
    pub(super) first_realtime: u64,
}

impl Header {
    pub(super) fn read(file: &impl ReadAt) -> Result<Self, Fault> {
        let mut bytes = [0; 192];
        exact(file, &mut bytes, 0)?;
        if !bytes.starts_with(b"LPKSHHRH") {
            return Err(Fault::NotAJournal);
        }
        let features = u32::from_le_bytes(part(&bytes, 12));
        if features & !KNOWN != 0 {
            return Err(Fault::Unknown(features));
        }
        let number = |at| u64::from_le_bytes(part(&bytes, at));
        Ok(Self { compact: features & COMPACT != 0, size: number(88), tail: number(136), first_realtime: number(184) })
    }
}

/// The place, kind and size of an object.
#[derive(Clone, Copy, Debug)]
pub(super) struct Object {
    at: u64,
    kind: u8,
    flags: u8,
    size: u64,
}

impl Object {
    /// The object that begins there.
    pub(super) fn read(file: &impl ReadAt, at: u64) -> Result<Self, Fault> {
        let mut bytes = [0; OBJECT_HEADER as usize];
        let count = fill(file, &mut bytes, at)?;
        Self::parse(&bytes[..count], at)
    }

    /// The object that begins there with these bytes.
    fn parse(bytes: &[u8], at: u64) -> Result<Self, Fault> {
        let size = u64::from_le_bytes(part(bytes, 8));
        let fits = at.is_multiple_of(ALIGNED) && bytes.len() as u64 >= OBJECT_HEADER && size >= OBJECT_HEADER;
        if !fits || at.checked_add(size).is_none_or(|end| end > u64::MAX - ALIGNED) {
            return Err(Fault::Broken(at));
        }
        Ok(Self { at, kind: bytes[0], flags: bytes[1], size })
    }

    /// Where the next object begins: always later in the file.
    pub(super) fn end(&self) -> u64 {
        (self.at + self.size).next_multiple_of(ALIGNED)
    }

    pub(super) fn is_entry(&self) -> bool {
        self.kind == 3
    }

    /// The places of an entry's fields; 0 for a field that journald has not written yet.
    pub(super) fn items(&self, file: &impl ReadAt, header: &Header) -> Result<Vec<u64>, Fault> {
        let width = if header.compact { 4 } else { 16 };
        let size = self.size.saturating_sub(ENTRY_HEADER);
        if size / width > MAX_ITEMS {
            return Err(Fault::Broken(self.at));
        }
        let mut bytes = vec![0; size as usize];
        exact(file, &mut bytes, self.at + ENTRY_HEADER)?;
        let place = |item: &[u8]| match item {
            [a, b, c, d] => u64::from(u32::from_le_bytes([*a, *b, *c, *d])),
            _ => u64::from_le_bytes(part(item, 0)),
        };
        Ok(bytes.chunks_exact(width as usize).map(place).collect())
    }
}

/// A field of an entry: `NAME=value`, packed or not.
#[derive(Clone, Debug)]
pub(super) struct Field {
    /// The compression: XZ 1, LZ4 2, ZSTD 4, none 0.
    pub(super) packed: u8,
    /// Its first bytes, as stored.
    pub(super) begin: Vec<u8>,
    place: Range<u64>,
}

impl Field {
    /// The field at that place, with at most `look` bytes of its content.
    pub(super) fn read(file: &impl ReadAt, header: &Header, at: u64, look: usize) -> Result<Self, Fault> {
        let head = if header.compact { 72 } else { 64 };
        let mut bytes = vec![0; head + look];
        let count = fill(file, &mut bytes, at)?;
        let object = Object::parse(&bytes[..count], at)?;
        let end = bytes.len().min(usize::try_from(object.size).unwrap_or(usize::MAX));
        if object.kind != 1 || end < head || count < end {
            return Err(Fault::Broken(at));
        }
        Ok(Self {
            packed: object.flags & 0b111,
            begin: bytes[head..end].to_vec(),
            place: at + head as u64..at + object.size,
        })
    }

    /// The whole content, unless it is longer than `max`.
    pub(super) fn whole(&self, file: &impl ReadAt, max: usize) -> Result<Option<Vec<u8>>, Fault> {
        let size = self.place.end - self.place.start;
        if size > max as u64 {
            return Ok(None);
        }
        let mut bytes = vec![0; size as usize];
        exact(file, &mut bytes, self.place.start)?;
        Ok(Some(bytes))
    }
}

/// All of these bytes; an error if the file has fewer.
fn exact(file: &impl ReadAt, into: &mut [u8], at: u64) -> Result<(), Fault> {
    if fill(file, into, at)? < into.len() { Err(Fault::Broken(at)) } else { Ok(()) }
}

/// As many bytes as there are.
fn fill(file: &impl ReadAt, into: &mut [u8], at: u64) -> io::Result<usize> {
    let mut count = 0;
    // pread(2) refuses such a place, and no file is that long.
    while count < into.len() && i64::try_from(at).is_ok() {
        match file.read_at(&mut into[count..], at.saturating_add(count as u64)) {
            Ok(0) => break,
            Ok(more) => count += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(count)
}

/// `N` bytes of a slice, filled up with zeroes.
fn part<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..at + N).and_then(|it| it.try_into().ok()).unwrap_or([0; N])
}
