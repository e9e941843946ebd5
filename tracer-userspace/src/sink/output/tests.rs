#![allow(clippy::unwrap_used, reason = "a test ends at the line that failed")]

use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;

use super::*;

fn pipe() -> (File, Output) {
    let (read, write): (OwnedFd, OwnedFd) = nix::unistd::pipe().unwrap();
    let mut output = Output::open(None, true).unwrap();
    output.file = File::from(write);
    output.chunk = chunk_of(&output.file);
    (File::from(read), output)
}

#[test]
fn a_slow_reader_blocks_nobody() {
    let (mut read, mut output) = pipe();
    let record = [vec![b'x'; 9_999], vec![b'\n']].concat();
    let mut taken = 0;
    while output.accepts() {
        output.put(&record);
        output.flush();
        taken += 1;
    }
    assert!(taken > 800, "{taken}");
    assert_eq!(output.take_dropped(), 0, "no room yet to say so");
    let reader = std::thread::spawn(move || {
        let mut all = Vec::new();
        read.read_to_end(&mut all).map(|_| all)
    });
    output.finish();
    assert!(!output.has_failed() || output.dropped > 0);
    assert_eq!(output.take_dropped(), 1);
    drop(output);
    assert_eq!(reader.join().unwrap().unwrap(), record.repeat(taken));
}

#[test]
fn a_reader_that_left_is_noticed() {
    let (read, mut output) = pipe();
    output.check_reader();
    assert!(!output.is_closed());
    drop(read);
    output.check_reader();
    assert!(output.is_closed() && !output.has_failed());
}

#[test]
fn a_file_is_private_and_reopened() {
    let path = std::env::temp_dir().join(format!("tracer-output-{}", std::process::id()));
    let moved = path.with_extension("1");
    let mut output = Output::open(Some(&path), true).unwrap();
    output.put(b"1\n");
    output.flush();
    std::fs::rename(&path, &moved).unwrap();
    output.put(b"2\n");
    output.reopen();
    output.put(b"3\n");
    output.finish();
    assert_eq!(std::fs::read(&moved).unwrap(), b"1\n2\n");
    assert_eq!(std::fs::read(&path).unwrap(), b"3\n");
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    std::fs::remove_file(&path).unwrap();
    std::fs::remove_file(&moved).unwrap();
}

#[test]
fn a_symbolic_link_is_not_followed() {
    let path = std::env::temp_dir().join(format!("tracer-link-{}", std::process::id()));
    std::os::unix::fs::symlink("/dev/null", &path).unwrap();
    let error = Output::open(Some(&path), true).unwrap_err();
    std::fs::remove_file(&path).unwrap();
    assert!(error.to_string().contains("symbolic link"), "{error}");
}
