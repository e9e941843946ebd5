//! Reads many objects that follow each other with one system call.

use std::cell::RefCell;
use std::io;

use super::file::ReadAt;

const WINDOW: usize = 16 << 10;

/// A file and a part of it in memory.
#[derive(Debug)]
pub(super) struct Ahead<F> {
    file: F,
    window: RefCell<Window>,
}

#[derive(Debug, Default)]
struct Window {
    at: u64,
    bytes: Vec<u8>,
}

impl Window {
    fn get(&self, at: u64, length: usize) -> Option<&[u8]> {
        let from = usize::try_from(at.checked_sub(self.at)?).ok()?;
        self.bytes.get(from..from.checked_add(length)?)
    }
}

impl<F: ReadAt> Ahead<F> {
    pub(super) fn new(file: F) -> Self {
        Self { file, window: RefCell::default() }
    }

    /// The file itself, to read at any place.
    pub(super) const fn direct(&self) -> &F {
        &self.file
    }

    /// Forgets what was read ahead: the file may have changed.
    pub(super) fn forget(&self) {
        self.window.borrow_mut().bytes.clear();
    }
}

impl<F: ReadAt> ReadAt for Ahead<F> {
    fn read_at(&self, into: &mut [u8], at: u64) -> io::Result<usize> {
        let mut window = self.window.borrow_mut();
        if let Some(bytes) = window.get(at, into.len()) {
            into.copy_from_slice(bytes);
            return Ok(into.len());
        }
        window.bytes.resize(WINDOW, 0);
        let count = self.file.read_at(&mut window.bytes, at);
        window.bytes.truncate(*count.as_ref().unwrap_or(&0));
        window.at = at;
        count?;
        let count = window.bytes.len().min(into.len());
        into[..count].copy_from_slice(&window.bytes[..count]);
        Ok(count)
    }
}
