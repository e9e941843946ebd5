//! Ethernet links of which a thread carries the frames: a path with a long round trip.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use nix::errno::Errno;

/// Longer than any frame.
const MAX_FRAME: usize = 1 << 16;

/// Makes a TAP device in the calling thread's namespace. It lives as long as the file.
pub(super) fn make(name: &str) -> Result<File> {
    let file = open().context("open /dev/net/tun")?;
    // SAFETY: ifreq is plain old data; zero is a valid value of every field.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as i16;
    // SAFETY: the descriptor is open and the request lives through the call.
    let made = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF as libc::Ioctl, &raw mut request) };
    Errno::result(made).with_context(|| format!("make the TAP device {name}"))?;
    Ok(file)
}

pub(crate) fn open() -> std::io::Result<File> {
    File::options().read(true).write(true).open("/dev/net/tun")
}

/// Carries frames between two TAP devices until one of them is gone. Frames from `far` arrive that much later.
pub(super) fn connect(near: File, far: File, delay: Duration) {
    let [near, far] = [near, far].map(Arc::new);
    carry(Arc::clone(&near), Arc::clone(&far), Duration::ZERO);
    carry(far, near, delay);
}

fn carry(from: Arc<File>, to: Arc<File>, delay: Duration) {
    let (sender, frames) = channel();
    thread::spawn(move || {
        let mut frame = vec![0; MAX_FRAME];
        while let Ok(length) = (&*from).read(&mut frame) {
            if sender.send((Instant::now() + delay, frame[..length].to_vec())).is_err() {
                break;
            }
        }
    });
    thread::spawn(move || {
        for (due, frame) in frames {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            // A device that is down takes none.
            let _ = (&*to).write(&frame);
        }
    });
}
