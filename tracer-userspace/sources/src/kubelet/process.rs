//! The kubelet as a process: its command-line flags, and files as it sees them (`/proc/PID/root`). So neither mounts
//! nor the mount namespace matter.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};

/// Larger than any certificate or kubelet configuration.
const MAX_SIZE: u64 = 1 << 20;

/// The root directory of a process. Symlinks that lead out of it are resolved inside it.
pub(crate) struct Root(PathBuf);

impl Root {
    pub(super) fn of(pid: u32) -> Self {
        Self(format!("/proc/{pid}/root").into())
    }

    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn at(path: &Path) -> Self {
        Self(path.to_owned())
    }

    /// Reads a file, up to [`MAX_SIZE`].
    pub(super) fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.open(path, OFlag::empty())?.take(MAX_SIZE).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// The paths of all entries of a directory, sorted.
    pub(super) fn list(&self, directory: &Path) -> io::Result<Vec<PathBuf>> {
        let opened = self.open(directory, OFlag::O_DIRECTORY)?;
        let entries = fs::read_dir(format!("/proc/self/fd/{}", opened.as_raw_fd()))?;
        let mut paths: Vec<_> = entries.flatten().map(|entry| directory.join(entry.file_name())).collect();
        paths.sort_unstable();
        Ok(paths)
    }

    fn open(&self, path: &Path, flags: OFlag) -> io::Result<File> {
        let root = File::open(&self.0)?;
        let how = OpenHow::new().flags(OFlag::O_PATH | OFlag::O_CLOEXEC);
        let how = how.resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
        opened(&File::from(openat2(&root, path, how)?), flags)
    }
}

/// Opens a plain file for reading. Any other kind of file is an error.
pub(super) fn open_file(path: &Path) -> io::Result<File> {
    let found = File::options().read(true).custom_flags(OFlag::O_PATH.bits()).open(path)?;
    let file = opened(&found, OFlag::empty())?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is not a file")) }
}

/// Reopens a file that was opened with `O_PATH`, for reading.
fn opened(found: &File, flags: OFlag) -> io::Result<File> {
    // open() of a device can have effects, and open() or read() of a pipe blocks.
    let kind = found.metadata()?.file_type();
    if !kind.is_file() && !kind.is_dir() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "neither a file nor a directory"));
    }
    let path = Path::new("/proc/self/fd").join(found.as_raw_fd().to_string());
    File::options().read(true).custom_flags((flags | OFlag::O_NONBLOCK).bits()).open(path)
}

/// The command line of a process, its name first; empty if it cannot be read.
pub(crate) fn arguments(pid: u32) -> Vec<String> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let mut args: Vec<String> = String::from_utf8_lossy(&line).split('\0').map(str::to_owned).collect();
    // A zero ends each argument.
    args.pop();
    args
}

/// The value of a flag: `--flag=value` or `--flag value`. The last one counts.
pub(crate) fn flag<'a>(args: &'a [String], name: &str) -> Option<&'a str> {
    let value = |at: usize| match args.get(at)?.strip_prefix(name)? {
        "" => args.get(at + 1).map(String::as_str),
        rest => rest.strip_prefix('='),
    };
    (0..args.len()).rev().find_map(value).filter(|it| !it.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Scratch;

    #[test]
    fn flags_are_read_in_both_forms() {
        let args = ["kubelet", "--config=/a", "--cert-dir", "/b", "--tls-cert-file-x=/c", "--config", "/d", "--last"];
        let args = args.map(str::to_owned);
        assert_eq!((flag(&args, "--config"), flag(&args, "--cert-dir")), (Some("/d"), Some("/b")));
        assert_eq!((flag(&args, "--tls-cert-file"), flag(&args, "--x"), flag(&args, "--last")), (None, None, None));
    }

    #[test]
    fn a_process_that_has_ended_has_no_arguments() {
        assert_eq!(arguments(0), Vec::<String>::new());
        let own = arguments(std::process::id());
        assert_eq!(own.first(), std::env::args().next().as_ref());
    }

    #[test]
    fn a_symlink_out_of_the_root_is_resolved_inside_it() {
        let own = Root::of(std::process::id());
        let scratch = Scratch::new();
        let place = scratch.root();
        fs::write(place.join("b.conf"), "b").expect("file");
        std::os::unix::fs::symlink("b.conf", place.join("a.conf")).expect("link");
        std::os::unix::fs::symlink("/proc/self/exe", place.join("c")).expect("link");
        let paths = own.list(place).expect("readable");
        assert_eq!(paths, ["a.conf", "b.conf", "c"].map(|name| place.join(name)));
        assert_eq!(own.read(&paths[0]).expect("readable"), b"b");
        assert!(own.read(&paths[2]).is_err(), "a link of /proc leads anywhere");
        assert!(own.read(Path::new("/dev/null")).is_err(), "open() of a device can have effects");
        assert!(own.read(place).is_err() && own.list(&paths[1]).is_err());
    }

    #[test]
    fn only_a_plain_file_is_opened_and_a_pipe_does_not_block() {
        let scratch = Scratch::new();
        let pipe = scratch.path("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).expect("pipe");
        let (tx, opened) = std::sync::mpsc::channel();
        let of_thread = pipe.clone();
        std::thread::spawn(move || tx.send(open_file(&of_thread).map(drop)));
        let opened = opened.recv_timeout(std::time::Duration::from_secs(10)).expect("nobody writes to it");
        assert!(opened.is_err() && open_file(Path::new("/dev/null")).is_err() && open_file(Path::new("/")).is_err());
        assert!(open_file(Path::new("/proc/self/exe")).is_ok());
    }
}
