use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;

use super::*;
use tracer_testing::Scratch;

fn pipe() -> (File, Output) {
    let (read, write): (OwnedFd, OwnedFd) = nix::unistd::pipe().unwrap();
    let mut output = Output::open(None, None, true).unwrap();
    output.file = File::from(write);
    output.chunk = chunk_of(&output.file);
    (File::from(read), output)
}

#[test]
fn records_of_a_slow_reader_are_dropped_and_counted() {
    let (mut read, mut output) = pipe();
    let record = [vec![b'x'; 9_999], vec![b'\n']].concat();
    let mut taken = 0;
    while output.accepts() {
        output.put(&record);
        output.flush();
        taken += 1;
    }
    assert!(taken > 800, "{taken}");
    assert_eq!(output.take_dropped(), 0, "no room yet for the loss record");
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
fn a_reader_that_is_gone_closes_the_output() {
    let (read, mut output) = pipe();
    output.check_reader();
    assert!(!output.is_closed());
    drop(read);
    output.check_reader();
    assert!(output.is_closed() && !output.has_failed());
    // `--output-file` is a pipe: records go to stdout until SIGHUP, as if one had waited for the reader.
    let (read, mut output) = pipe();
    (output.path, output.on_path) = (Some("fifo".into()), true);
    drop(read);
    output.check_reader();
    assert!(!output.is_closed() && output.trouble().is_some_and(|why| why.ends_with("fifo: Broken pipe")));
}

#[test]
fn a_file_is_private_and_reopened() {
    let scratch = Scratch::new();
    let path = scratch.path("out");
    let moved = path.with_extension("1");
    let mut output = Output::open(Some(&path), None, true).unwrap();
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
}

#[test]
fn a_symbolic_link_is_not_followed() {
    let scratch = Scratch::new();
    let path = scratch.path("link");
    std::os::unix::fs::symlink("/dev/null", &path).unwrap();
    let error = Output::open(Some(&path), None, true).unwrap_err();
    assert!(error.to_string().contains("symbolic link"), "{error}");
}

/// A file in a directory of its own, rotated at 100 bytes.
fn rotated() -> (Scratch, std::path::PathBuf, Output) {
    let scratch = Scratch::new();
    let path = scratch.path("out");
    let rotation = Rotation { max_bytes: 100, max_files: 3 };
    let output = Output::open(Some(&path), Some(rotation), true).unwrap();
    (scratch, path, output)
}

/// Makes directories of FILE.1 to FILE.3 that are not empty: not even root can rename a file onto them.
fn block(path: &Path) {
    (1..=3).for_each(|n| std::fs::create_dir_all(rotate::numbered(path, n).join("inside")).unwrap());
}

fn contents(path: &Path, n: u32) -> Option<String> {
    std::fs::read_to_string(rotate::numbered(path, n)).ok()
}

#[test]
fn a_full_file_is_rotated_between_records() {
    let (_scratch, path, mut output) = rotated();
    let records: Vec<String> = (0..40).map(|n| format!("{n:02} {}\n", "x".repeat(n))).collect();
    for chunk in records.chunks(7) {
        chunk.iter().for_each(|record| output.put(record.as_bytes()));
        output.flush();
    }
    output.finish();
    let mut all = String::new();
    for n in (1..=3).rev() {
        let text = contents(&path, n).unwrap();
        assert!(text.len() <= 100 && text.ends_with('\n'), "{n}: {text}");
        all.push_str(&text);
    }
    all.push_str(&std::fs::read_to_string(&path).unwrap());
    assert!(contents(&path, 4).is_none());
    assert!(records.concat().ends_with(&all) && all.len() > 150, "{all}");
    for n in 1..=3 {
        let mode = std::fs::metadata(rotate::numbered(&path, n)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}

#[test]
fn a_record_longer_than_a_file_has_a_file_of_its_own() {
    let (_scratch, path, mut output) = rotated();
    let long = format!("{}\n", "y".repeat(300));
    for record in ["1\n", &long, "2\n"] {
        output.put(record.as_bytes());
    }
    output.finish();
    assert_eq!(contents(&path, 2).unwrap(), "1\n");
    assert_eq!(contents(&path, 1).unwrap(), long);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "2\n");
}

#[test]
fn rotation_accepts_a_file_that_another_process_moved_or_truncated() {
    let (_scratch, path, mut output) = rotated();
    let record = [[b'z'; 59].as_slice(), b"\n"].concat();
    output.put(&record);
    output.flush();
    std::fs::rename(&path, path.with_extension("moved")).unwrap();
    output.put(&record);
    output.flush();
    assert_eq!(std::fs::read(&path).unwrap(), record);
    assert!(contents(&path, 1).is_none());
    File::options().write(true).open(&path).unwrap().set_len(0).unwrap();
    output.put(&record);
    output.finish();
    assert_eq!(std::fs::read(&path).unwrap(), record);
    assert!(contents(&path, 1).is_none());
}

#[test]
fn while_rotation_fails_records_wait_and_then_are_dropped_and_counted() {
    let (_scratch, path, mut output) = rotated();
    let record = [vec![b'w'; 99_999], vec![b'\n']].concat();
    output.put(b"first\n");
    output.flush();
    block(&path);
    let mut taken = 0_usize;
    while output.accepts() {
        output.put(&record);
        output.flush();
        taken += 1;
    }
    assert!((80..100).contains(&taken), "{taken}");
    assert_eq!((output.accepts(), output.dropped_so_far(), output.take_dropped()), (false, 2, 0));
    assert!(output.trouble().is_some_and(|why| why.contains("out: it cannot be rotated: Directory not empty")));
    assert_eq!(std::fs::read(&path).unwrap(), b"first\n");
    for n in 1..=3 {
        std::fs::remove_dir_all(rotate::numbered(&path, n)).unwrap();
    }
    output.check_reader();
    assert!(output.trouble().is_none() && !output.has_failed());
    assert_eq!(output.take_dropped(), 2);
    assert_eq!(std::fs::read(&path).unwrap(), record);
}

#[test]
fn records_that_wait_at_the_end_go_to_stdout() {
    let (_scratch, path, mut output) = rotated();
    let full = [[b'v'; 98].as_slice(), b"\n"].concat();
    output.put(&full);
    block(&path);
    // An empty line, since it is the stdout of this test.
    (0..2).for_each(|_| output.put(b"\n"));
    output.flush();
    assert!(output.on_path && output.unwritten() == 1, "the first fits");
    output.finish();
    assert_eq!((output.on_path, output.unwritten(), output.has_failed()), (false, 0, true));
    assert_eq!(std::fs::read(&path).unwrap(), [full, b"\n".to_vec()].concat());
}

#[test]
fn rotation_of_a_device_is_an_error() {
    let rotation = Rotation { max_bytes: 100, max_files: 3 };
    let error = Output::open(Some(Path::new("/dev/null")), Some(rotation), true).unwrap_err();
    assert_eq!(error.to_string(), "--output-max-size /dev/null: not a regular file: it cannot be rotated");
}

#[test]
fn a_deleted_file_that_cannot_be_opened_again_is_replaced_by_stdout() {
    let scratch = Scratch::new();
    let folder = scratch.path("folder");
    std::fs::create_dir(&folder).unwrap();
    let path = folder.join("out");
    let mut output = Output::open(Some(&path), None, true).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    output.reopen();
    output.flush();
    assert!(output.has_failed() && output.trouble().is_some_and(|why| why.contains("No such file")));
    std::fs::create_dir(&folder).unwrap();
    output.reopen();
    output.put(b"1\n");
    output.flush();
    assert!(!output.has_failed() && output.trouble().is_none());
    assert_eq!(std::fs::read(&path).unwrap(), b"1\n");
}

#[test]
fn a_record_that_a_slow_stdout_took_in_part_is_whole_in_the_file() {
    let scratch = Scratch::new();
    let (mut read, mut output) = pipe();
    (output.path, output.on_path) = (Some(scratch.path("out")), false);
    let record = [vec![b'x'; 9_999], vec![b'\n']].concat();
    (0..20).for_each(|_| output.put(&record));
    output.flush();
    let (written, whole) = (output.written, output.whole());
    assert!(written % record.len() > 0, "stdout is full");
    output.reopen();
    output.finish();
    let mut on_stdout = vec![0; written];
    read.read_exact(&mut on_stdout).unwrap();
    assert_eq!(on_stdout, record.repeat(20)[..written]);
    assert_eq!(std::fs::read(scratch.path("out")).unwrap(), record.repeat(20 - whole));
}

/// A full disk is visible in the health of the run as long as the records go to stdout.
#[test]
fn trouble_lasts_while_records_go_to_stdout() {
    let scratch = Scratch::new();
    let path = scratch.path("out");
    let mut output = Output::open(Some(&path), None, true).unwrap();
    output.fail(&io::ErrorKind::StorageFull.into());
    output.flush();
    assert!(output.trouble().is_some_and(|why| why.starts_with("--output-file ")));
    output.reopen();
    output.flush();
    assert!(output.trouble().is_none());
}
