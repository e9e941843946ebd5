//! Two files that journald 252 wrote and archived (`testdata/journal`): one in its compact form, one in the older form.

use std::time::Duration;

use super::file::Field;
use super::fuzzing::Bytes;
use super::*;
use crate::testing::Scratch;

const COMPACT: &[u8] = include_bytes!("../../../../testdata/journal/compact.journal");
const REGULAR: &[u8] = include_bytes!("../../../../testdata/journal/regular.journal");

fn bytes(of: &[u8]) -> Bytes {
    Bytes::new(of.to_vec().into())
}

fn names() -> Vec<String> {
    vec!["kubelet".to_owned()]
}

/// A time after all entries of the files.
fn later() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1 << 40)
}

fn lines(journal: &mut Journal<Bytes>) -> Vec<String> {
    let mut lines = Vec::new();
    journal
        .read(&mut |line| {
            lines.push(line.to_owned());
            true
        })
        .unwrap();
    lines
}

fn all(of: &[u8]) -> Vec<String> {
    lines(&mut Journal::new(bytes(of), names(), UNIX_EPOCH).unwrap())
}

#[test]
fn lines_of_the_kubelet_are_read_and_forged_ones_are_not() {
    for file_format in [COMPACT, REGULAR] {
        let lines = all(file_format);
        assert_eq!(lines.len(), 3, "{lines:#?}");
        assert!(lines[0].starts_with("E0612 08:01:02.123456    1234 prober.go:111] \"Probe failed\""), "{}", lines[0]);
        assert!(lines[0].ends_with("output=\"one\""), "{}", lines[0]);
        assert!(lines[1].contains("SyncLoop"), "{}", lines[1]);
        // Longer than 512 bytes: journald packed it.
        assert!(lines[2].contains("output=\"two word-1 ") && lines[2].ends_with("word-100 \""), "{}", lines[2]);
        let shown = String::from_utf8_lossy(file_format);
        assert!(shown.contains("output=\"forged\"") && !shown.contains("word-50"));
    }
}

#[test]
fn older_entries_are_skipped() {
    let mut journal = Journal::new(bytes(COMPACT), names(), later()).unwrap();
    assert!(lines(&mut journal).is_empty());
    assert_eq!(journal.at(), at_end().at());
}

fn at_end() -> Journal<Bytes> {
    let mut journal = Journal::new(bytes(COMPACT), names(), UNIX_EPOCH).unwrap();
    lines(&mut journal);
    journal
}

/// The header names an object before its content is written.
#[test]
fn a_file_that_grows_gives_each_line_once_and_whole() {
    for file_format in [COMPACT, REGULAR] {
        let file = bytes(file_format);
        let header = Header::read(&file).unwrap();
        let set_tail = |at: u64| file.borrow_mut()[136..144].copy_from_slice(&at.to_le_bytes());
        set_tail(0);
        let mut journal = Journal::new(file.clone(), names(), UNIX_EPOCH).unwrap();
        let (mut found, mut at) = (Vec::new(), header.size);
        while at <= header.tail {
            let object = Object::read(&file, at).unwrap();
            set_tail(at);
            if object.is_entry() {
                // Its last item is not written yet.
                let written = file.borrow()[at as usize..].to_vec();
                let end = object.end() as usize - 20;
                file.borrow_mut()[end..].fill(0);
                assert!(lines(&mut journal).is_empty(), "it is not whole yet");
                assert_eq!(Journal::new(file.clone(), names(), later()).unwrap().at(), at);
                file.borrow_mut()[at as usize..].copy_from_slice(&written);
            }
            found.extend(lines(&mut journal));
            at = object.end();
        }
        assert_eq!(found, all(file_format));
    }
}

#[test]
fn other_files_are_refused() {
    let refused = |of: &[u8]| Journal::new(bytes(of), names(), UNIX_EPOCH).map(|_| ()).unwrap_err().to_string();
    assert!(refused(b"").contains("no sense"));
    assert!(refused(&[b'x'; 300]).contains("no file of the systemd journal"));
    let mut newer = COMPACT.to_vec();
    newer[12] |= 1 << 6;
    assert!(refused(&newer).contains("not known to this version"));
}

#[test]
fn the_file_that_was_written_last_is_followed() {
    let scratch = Scratch::new();
    let root = scratch.root();
    let machine = "0123456789abcdef0123456789abcdef";
    let make = |path: &str, seconds: u64| {
        let path = PathBuf::from(scratch.file(path, ""));
        let file = File::options().write(true).open(&path).unwrap();
        file.set_modified(UNIX_EPOCH + Duration::from_secs(seconds)).unwrap();
        path
    };
    assert_eq!(below(root), None);
    let volatile = make(&format!("run/log/journal/{machine}/system.journal"), 10);
    make(&format!("var/log/journal/{}/system.journal", machine.replace('0', "f")), 5);
    make(&format!("var/log/journal/{machine}.tenant/system.journal"), 90);
    make(&format!("var/log/journal/{machine}/user-1000.journal"), 90);
    assert_eq!(below(root), Some(volatile.clone()));
    let flushed = make(&format!("var/log/journal/{machine}/system.journal"), 20);
    assert_eq!(below(root), Some(flushed.clone()));
    assert_eq!(within(flushed.parent().unwrap()), Some(flushed));
}

#[test]
fn a_size_that_cannot_be_is_an_error() {
    let header = Header::read(&bytes(COMPACT)).unwrap();
    let field = |size: u64| {
        let mut content = vec![0; 256];
        content[16] = 1;
        content[24..32].copy_from_slice(&size.to_le_bytes());
        bytes(&content)
    };
    let is_object = [32, u64::MAX - 32, u64::MAX - 16, u64::MAX].map(|size| Object::read(&field(size), 16).is_ok());
    assert_eq!(is_object, [true, true, false, false], "its end is a place in a file");
    let is_field = [71, 72].map(|size| Field::read(&field(size), &header, 16, 8).is_ok());
    assert_eq!(is_field, [false, true], "it has its header");
}
