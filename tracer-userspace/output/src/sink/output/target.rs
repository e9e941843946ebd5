//! Files and stdout: how they are opened, and how much may be written to them at once.

use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// A write of at most this size does not block a pipe that `poll` calls writable (PIPE_BUF).
const PIPE_CHUNK: usize = 4096;

/// Opens a file to append, or creates it with mode 0600. It follows no symbolic link, because tracer runs as root, and never
/// waits for a pipe's reader.
pub(super) fn open_file(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open(path)
}

/// Makes a file ready for rotation: it must be a regular file, and only its owner may read it. Gives its size.
pub(super) fn prepare_for_rotation(file: &File) -> io::Result<u64> {
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file: it cannot be rotated"));
    }
    file.set_permissions(Permissions::from_mode(0o600))?;
    Ok(meta.len())
}

/// stdout without Rust's buffer.
pub(super) fn stdout() -> io::Result<File> {
    io::stdout().as_fd().try_clone_to_owned().map(File::from)
}

/// How much to write at once: everything to a file, little to a pipe or terminal.
pub(super) fn chunk_of(file: &File) -> usize {
    match file.metadata() {
        Ok(meta) if meta.is_file() => usize::MAX,
        Ok(meta) if meta.file_type().is_char_device() => PIPE_CHUNK / 4,
        _ => PIPE_CHUNK,
    }
}

/// Whether a write would not block.
pub(super) fn ready(fd: BorrowedFd<'_>, timeout: PollTimeout) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::POLLOUT)];
    match poll(&mut fds, timeout) {
        Ok(n) => n > 0,
        Err(errno) => errno != nix::errno::Errno::EINTR,
    }
}
