//! Fuzz target of the journal's files.

use std::io;
use std::time::UNIX_EPOCH;

use super::super::follow::LogReader as _;
use super::Journal;
use super::entry::MAX_MESSAGE;
use super::file::ReadAt;

impl ReadAt for &[u8] {
    fn read_at(&self, into: &mut [u8], at: u64) -> io::Result<usize> {
        let rest = usize::try_from(at).ok().and_then(|at| self.get(at..)).unwrap_or_default();
        let count = rest.len().min(into.len());
        into[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }
}

/// A file of the systemd journal.
pub fn journal(bytes: &[u8]) {
    let Ok(mut journal) = Journal::new(bytes, vec!["kubelet".to_owned()], UNIX_EPOCH) else { return };
    let mut count = 0;
    for _ in 0..2 {
        let _ = journal.read(&mut |line| {
            count += 1;
            // Lossy UTF-8 can make three bytes of one.
            assert!(line.len() <= 3 * MAX_MESSAGE, "a line of {} bytes", line.len());
            true
        });
    }
    // No object is smaller than 16 bytes, and none is read twice.
    assert!(count <= bytes.len() / 16, "{count} lines of {} bytes", bytes.len());
}
