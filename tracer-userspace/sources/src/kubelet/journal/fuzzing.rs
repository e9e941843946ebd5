//! Fuzz target of the journal's files.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::time::UNIX_EPOCH;

use super::super::LogReader as _;
use super::Journal;
use super::entry::MAX_MESSAGE;
use super::file::ReadAt;

/// A file that changes while it is read.
pub(super) type Bytes = Rc<RefCell<Vec<u8>>>;

impl ReadAt for Bytes {
    fn read_at(&self, into: &mut [u8], at: u64) -> io::Result<usize> {
        let bytes = self.borrow();
        let rest = usize::try_from(at).ok().and_then(|at| bytes.get(at..)).unwrap_or_default();
        let count = rest.len().min(into.len());
        into[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }
}

/// A file of the systemd journal, to which others write between two readings.
pub fn journal(bytes: &[u8]) {
    let file = Bytes::new(bytes.to_vec().into());
    let Ok(mut journal) = Journal::new(file.clone(), vec!["kubelet".to_owned()], UNIX_EPOCH) else { return };
    let (mut count, mut random) = (0, bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>());
    for reading in 0..8 {
        if reading > 0 {
            change(&mut file.borrow_mut(), &mut random);
        }
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

/// Writes one byte. Half of the changes are in the header.
fn change(bytes: &mut [u8], random: &mut u64) {
    *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    let (place, in_header) = ((*random >> 33) as usize, *random >> 32 & 1 == 0);
    let end = if in_header { bytes.len().min(HEADER) } else { bytes.len() };
    bytes[place % end] = *random as u8;
}

const HEADER: usize = 264;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_byte_of_the_header_can_change() {
        let (mut bytes, mut random, mut changed) = (vec![0; 10 * HEADER], 7, [false; HEADER]);
        for _ in 0..20_000 {
            bytes.fill(0);
            change(&mut bytes, &mut random);
            changed.iter_mut().zip(&bytes).for_each(|(changed, byte)| *changed |= *byte != 0);
        }
        assert!(changed.iter().all(|changed| *changed));
    }
}
