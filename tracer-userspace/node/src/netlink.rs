//! Dumps over netlink: send one request, hand each answer to a closure.
//!
//! `netlink-packet-core` decodes only the message frame and the attribute frame. The few fields needed are picked by
//! number: a typed decoder that rejects a new attribute would lose the whole link, which may be `lo`.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd as _, BorrowedFd};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR, NetlinkBuffer, NlaBuffer,
    NlasIterator,
};
use netlink_sys::{Socket, SocketAddr};
use nix::sys::socket::{setsockopt, sockopt};
use nix::{setsockopt_impl, sockopt_impl};

/// The kernel uses at most 32 KiB for one message of a dump (`netlink_recvmsg`). A larger buffer gains nothing.
const BUFFER_SIZE: usize = 32 * 1024;

/// Receive buffer of a socket that listens to groups, in bytes.
const SUBSCRIBER_BUFFER: usize = 4 * 1024 * 1024;

const HEADER_SIZE: usize = 16;

sockopt_impl!(
    /// A classic BPF filter. The kernel copies it.
    AttachFilter,
    SetOnly,
    libc::SOL_SOCKET,
    libc::SO_ATTACH_FILTER,
    libc::sock_fprog
);

/// A netlink socket. It belongs to the namespace that it was opened in.
pub struct Netlink {
    socket: Socket,
    sequence: u32,
}

impl Netlink {
    /// Opens a socket for requests and their answers.
    pub fn open(protocol: isize) -> io::Result<Self> {
        let mut socket = Socket::new(protocol)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Self { socket, sequence: 0 })
    }

    /// Opens a socket that only listens to `groups`.
    pub fn subscribe(protocol: isize, groups: &[u32]) -> io::Result<Self> {
        let mut socket = Socket::new(protocol)?;
        socket.bind_auto()?;
        socket.set_non_blocking(true)?;
        // The default buffer holds some 256 messages, but one command can remove thousands of rules.
        // Without CAP_NET_ADMIN the default stays.
        let _ = setsockopt(&socket, sockopt::RcvBufForce, &SUBSCRIBER_BUFFER);
        for group in groups {
            socket.add_membership(*group)?;
        }
        Ok(Self { socket, sequence: 0 })
    }

    /// Installs a filter: the socket then receives only messages of this kind.
    pub fn only(self, kind: u16) -> io::Result<Self> {
        const LOAD_HALF: u16 = (libc::BPF_LD | libc::BPF_H | libc::BPF_ABS) as u16;
        const JUMP_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
        const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
        let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
        // The filter loads in network byte order, but the kernel wrote the field in host order (`struct nlmsghdr`).
        let kind = u16::from_be_bytes(kind.to_ne_bytes());
        let mut steps = [
            step(LOAD_HALF, 0, 0, 4),
            step(JUMP_EQUAL, 0, 1, kind.into()),
            step(RETURN, 0, 0, u32::MAX),
            step(RETURN, 0, 0, 0),
        ];
        let filter = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
        setsockopt(&self.socket, AttachFilter, &filter)?;
        Ok(self)
    }

    /// Sends a dump request and calls `each` with every answer's payload. If the table changed during the dump, the
    /// result is the error `Interrupted`: see [`consistent`].
    pub fn dump(&mut self, kind: u16, payload: &[u8], each: impl FnMut(&[u8])) -> io::Result<()> {
        self.send(kind, NLM_F_DUMP, payload, each)
    }

    /// Sends a request that has one answer, or an error, and parses the answer.
    pub fn ask<T>(&mut self, kind: u16, payload: &[u8], parse: impl Fn(&[u8]) -> Option<T>) -> io::Result<Option<T>> {
        let mut answer = None;
        // The acknowledgement is the last message, as NLMSG_DONE is for a dump.
        self.send(kind, NLM_F_ACK, payload, |message| answer = parse(message))?;
        Ok(answer)
    }

    /// Sends a request that changes something. `flags` are for example `NLM_F_CREATE`.
    pub fn change(&mut self, kind: u16, flags: u16, payload: &[u8]) -> io::Result<()> {
        self.send(kind, NLM_F_ACK | flags, payload, |_| ())
    }

    fn send(&mut self, kind: u16, flags: u16, payload: &[u8], mut each: impl FnMut(&[u8])) -> io::Result<()> {
        self.sequence += 1;
        self.socket.send(&request(kind, flags, self.sequence, payload), 0)?;
        let mut buffer = vec![0; BUFFER_SIZE];
        let mut progress = Progress::default();
        while !progress.done {
            let size = self.socket.recv(&mut &mut buffer[..], 0)?;
            read_answers(&buffer[..size], self.sequence, &mut progress, &mut each)?;
        }
        if progress.interrupted { Err(io::ErrorKind::Interrupted.into()) } else { Ok(()) }
    }

    /// Hands each message that has arrived to `each`. `None` stands for messages that are lost: the socket's buffer was
    /// full (ENOBUFS), or the message is longer than ours.
    pub fn drain(&self, mut each: impl FnMut(Option<Message<'_>>)) {
        let mut scratch = [0; BUFFER_SIZE];
        loop {
            match self.socket.recv(&mut &mut scratch[..], libc::MSG_TRUNC) {
                Ok(size) => messages(scratch.get(..size), &mut each),
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => each(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    }

    /// For `poll(2)`.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn request(kind: u16, flags: u16, sequence: u32, payload: &[u8]) -> Vec<u8> {
    let length = HEADER_SIZE + payload.len();
    let mut bytes = vec![0; length];
    let mut frame = NetlinkBuffer::new(&mut bytes);
    frame.set_length(length as u32);
    frame.set_message_type(kind);
    frame.set_flags(NLM_F_REQUEST | flags);
    frame.set_sequence_number(sequence);
    frame.payload_mut().copy_from_slice(payload);
    bytes
}

/// The state of a dump while its answers are read.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Progress {
    done: bool,
    interrupted: bool,
}

/// Reads the answers in one datagram.
pub fn read_answers(
    mut bytes: &[u8],
    sequence: u32,
    progress: &mut Progress,
    each: &mut impl FnMut(&[u8]),
) -> io::Result<()> {
    while bytes.len() >= HEADER_SIZE {
        let frame = NetlinkBuffer::new_checked(bytes).map_err(io::Error::other)?;
        let (length, kind) = (frame.length() as usize, frame.message_type());
        if frame.sequence_number() == sequence {
            progress.interrupted |= frame.flags() & NLM_F_DUMP_INTR != 0;
            if matches!(kind, NLMSG_DONE | NLMSG_ERROR) {
                progress.done = true;
                return status(frame.payload());
            }
            each(frame.payload());
        }
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(())
}

#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// The type of the message, such as `RTM_NEWLINK`.
    pub kind: u16,
    /// The port of the socket that sent the request; 0: the kernel sent the message by itself.
    pub port: u32,
    /// The bytes after the header.
    pub payload: &'a [u8],
}

/// Hands each message of a datagram to `each`. `None`: the datagram was longer than the buffer.
pub fn messages(bytes: Option<&[u8]>, each: &mut impl FnMut(Option<Message<'_>>)) {
    let Some(mut bytes) = bytes else { return each(None) };
    while let Ok(frame) = NetlinkBuffer::new_checked(bytes) {
        each(Some(Message { kind: frame.message_type(), port: frame.port_number(), payload: frame.payload() }));
        bytes = bytes.get((frame.length() as usize).next_multiple_of(4)..).unwrap_or_default();
    }
}

/// Repeats a dump that was interrupted: kube-proxy and CNI plugins change tables while they are dumped.
pub fn consistent<T>(mut dump: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    const ATTEMPTS: usize = 4;
    let is_interrupted =
        |result: &io::Result<T>| matches!(result, Err(error) if error.kind() == io::ErrorKind::Interrupted);
    let found = (1..ATTEMPTS).map(|_| dump()).find(|result| !is_interrupted(result));
    found.unwrap_or_else(dump)
}

/// The status that ends a dump: 0 or a negative errno.
fn status(payload: &[u8]) -> io::Result<()> {
    match field::<4>(payload, 0).map(i32::from_ne_bytes) {
        Some(code) if code < 0 => Err(io::Error::from_raw_os_error(code.saturating_neg())),
        _ => Ok(()),
    }
}

pub fn field<const N: usize>(bytes: &[u8], offset: usize) -> Option<[u8; N]> {
    bytes.get(offset..offset + N)?.try_into().ok()
}

/// The attributes of a message or of a nested attribute: number and value. Stops at a malformed attribute.
pub fn attributes(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    NlasIterator::new(bytes).map_while(Result::ok).map(|attribute: NlaBuffer<&[u8]>| {
        let value = attribute.into_inner();
        let length = NlaBuffer::new(value).length() as usize;
        (NlaBuffer::new(value).kind(), value.get(4..length).unwrap_or_default())
    })
}

/// The value of the first attribute with this number.
pub fn attribute(bytes: &[u8], number: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(kind, _)| *kind == number).map(|(_, value)| value)
}

/// A NUL-terminated string.
pub fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// The value of the first attribute with this number, as an integer in host byte order.
pub(super) fn number(bytes: &[u8], attr: u16) -> Option<u32> {
    attribute(bytes, attr).and_then(|value| field(value, 0)).map(u32::from_ne_bytes)
}

/// An address of either family.
pub fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => field::<4>(bytes, 0).map(IpAddr::from),
        16 => field::<16>(bytes, 0).map(IpAddr::from),
        _ => None,
    }
}

pub(super) fn octets(addr: IpAddr) -> Vec<u8> {
    match addr {
        IpAddr::V4(addr) => addr.octets().to_vec(),
        IpAddr::V6(addr) => addr.octets().to_vec(),
    }
}

/// The family of an address, as the header of a request has it.
pub(super) const fn family(addr: IpAddr) -> u8 {
    (if addr.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }) as u8
}

/// Appends an attribute.
pub fn push(bytes: &mut Vec<u8>, number: u16, value: &[u8]) {
    bytes.extend_from_slice(&(4 + value.len() as u16).to_ne_bytes());
    bytes.extend_from_slice(&number.to_ne_bytes());
    bytes.extend_from_slice(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

/// Appends an attribute that holds a NUL-terminated string.
pub fn push_text(bytes: &mut Vec<u8>, number: u16, value: &str) {
    push(bytes, number, &[value.as_bytes(), b"\0"].concat());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_padded_to_four_bytes_and_found_again() {
        let mut bytes = Vec::new();
        push_text(&mut bytes, 1, "nat");
        push_text(&mut bytes, 2, "KUBE-NODEPORTS");
        assert_eq!(bytes.len() % 4, 0);
        assert_eq!(attribute(&bytes, 1).map(text).as_deref(), Some("nat"));
        assert_eq!(attribute(&bytes, 2).map(text).as_deref(), Some("KUBE-NODEPORTS"));
        assert_eq!(attribute(&bytes, 3), None);
    }

    #[test]
    fn truncated_attributes_end_the_walk() {
        let mut bytes = Vec::new();
        push_text(&mut bytes, 1, "nat");
        bytes.truncate(6);
        assert_eq!(attribute(&bytes, 1), None);
        assert_eq!(field::<4>(&bytes, 4), None);
    }

    #[test]
    fn an_error_answer_becomes_an_errno() {
        let bytes = request(NLMSG_ERROR, 0, 1, &(-libc::ENOENT).to_ne_bytes());
        let mut progress = Progress::default();
        let error = read_answers(&bytes, 1, &mut progress, &mut |_| ()).expect_err("ENOENT");
        assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
        let mut progress = Progress::default();
        assert!(read_answers(&bytes[..10], 1, &mut progress, &mut |_| ()).is_ok());
        assert_eq!(progress, Progress::default());
    }

    #[test]
    fn an_interrupted_dump_is_repeated() {
        let mut attempts = 0;
        let result = consistent(|| {
            attempts += 1;
            if attempts < 3 { Err(io::ErrorKind::Interrupted.into()) } else { Ok(attempts) }
        });
        assert_eq!(result.ok(), Some(3));
    }
}
