//! A file system that never answers, as one on the network does without its server.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Context as _, Result, bail};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::poll::{PollFd, PollFlags, poll};

/// A FUSE file system without a daemon. On drop, each wait for it ends with an error.
#[derive(Debug)]
pub struct Hung {
    // Dropped first: the kernel then ends the file system's requests.
    daemon: File,
    root: File,
}

/// FUSE_INIT of linux/fuse.h
const INIT: u32 = 26;
/// `struct fuse_in_header`: len, opcode, unique, …
const IN_HEADER: usize = 40;

impl Hung {
    /// Mounts it in this folder for a moment: only [`Hung::path`] leads to it. A look-up waits for it, so that each other
    /// one waits for the lock of the folder, in state D.
    pub fn new(folder: &Path) -> Result<Self> {
        fs::create_dir_all(folder)?;
        let mut daemon = open().context("open /dev/fuse")?;
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", daemon.as_raw_fd());
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        mount(Some("hung"), folder, Some("fuse"), flags, Some(options.as_str())).context("mount a FUSE file system")?;
        let root = File::options().read(true).custom_flags(libc::O_PATH).open(folder);
        umount2(folder, MntFlags::MNT_DETACH)?;
        agree(&mut daemon)?;
        let hung = Self { daemon, root: root.context("open its root")? };
        let first = hung.path("first");
        thread::spawn(move || fs::metadata(first));
        let is_readable = poll(&mut [PollFd::new(hung.daemon.as_fd(), PollFlags::POLLIN)], 10_000_u16)? > 0;
        if is_readable { Ok(hung) } else { bail!("no look-up came to the FUSE file system") }
    }

    /// The path of a file, for other processes, too.
    pub fn path(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/fd/{}/{name}", std::process::id(), self.root.as_raw_fd()))
    }
}

pub(crate) fn open() -> std::io::Result<File> {
    File::options().read(true).write(true).open("/dev/fuse")
}

/// Answers the first request, as a daemon of version 7.12 does.
fn agree(daemon: &mut File) -> Result<()> {
    let mut request = [0; 1 << 14];
    let length = daemon.read(&mut request).context("read FUSE_INIT")?;
    let number = |at: usize| u32::from_ne_bytes([request[at], request[at + 1], request[at + 2], request[at + 3]]);
    if length < IN_HEADER || number(4) != INIT {
        bail!("{length} bytes of a FUSE request that is not FUSE_INIT");
    }
    // `struct fuse_out_header`: len, error, unique. Then `struct fuse_init_out` up to max_write, as in this version.
    let (version, max_write) = ([7, 12], 4096);
    let head = [40, 0, number(8), number(12)];
    let body = [version[0], version[1], 0, 0, 0, max_write];
    let reply: Vec<u8> = head.into_iter().chain(body).flat_map(u32::to_ne_bytes).collect();
    daemon.write_all(&reply).context("answer FUSE_INIT")
}
