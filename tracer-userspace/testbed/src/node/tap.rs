//! Ethernet links of which a thread carries the frames: a path with a long round trip, and one that refuses.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use nix::errno::Errno;

use crate::server::frame::checksum;

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

/// Answers each TCP packet of IPv4 as a firewall does: with ICMP port unreachable.
pub(super) fn refuse(link: File) {
    thread::spawn(move || {
        let mut frame = vec![0; MAX_FRAME];
        while let Ok(length) = (&link).read(&mut frame) {
            if let Some(answer) = port_unreachable(&frame[..length]) {
                let _ = (&link).write(&answer);
            }
        }
    });
}

/// The error about a packet (RFC 792): its header, and eight bytes of what follows.
fn port_unreachable(frame: &[u8]) -> Option<Vec<u8>> {
    const ETHERNET: usize = 14;
    const TCP: u8 = 6;
    let (ethernet, packet) = frame.split_at_checked(ETHERNET)?;
    let header = 4 * usize::from(packet.first()? & 0xf);
    let quoted = packet.get(..header + 8).filter(|_| packet[0] >> 4 == 4 && packet[9] == TCP)?;
    let mut icmp = [&[3, 3, 0, 0, 0, 0, 0, 0], quoted].concat();
    let sum = checksum(&icmp);
    icmp[2..4].copy_from_slice(&sum);
    let length = u16::try_from(20 + icmp.len()).ok()?.to_be_bytes();
    let mut ip = [&[0x45, 0, length[0], length[1], 0, 0, 0, 0, 64, 1, 0, 0], &packet[16..20], &packet[12..16]].concat();
    let sum = checksum(&ip);
    ip[10..12].copy_from_slice(&sum);
    Some([&ethernet[6..12], &ethernet[..6], &ethernet[12..], &ip, &icmp].concat())
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
