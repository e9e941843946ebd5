//! Reads the TCP sockets of the calling thread's namespace (`struct inet_diag_msg`, linux/inet_diag.h).

use std::collections::{BTreeSet, HashSet};
use std::io;
use std::net::{Ipv6Addr, SocketAddr};

use netlink_sys::protocols::NETLINK_SOCK_DIAG;

use super::netlink::{Netlink, attribute, family, field, octets};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// `struct inet_diag_req_v2`
const REQUEST: usize = 56;
/// `struct inet_diag_msg`; attributes follow it.
const MESSAGE: usize = 72;
const INET_DIAG_SKV6ONLY: u16 = 11;
/// The bit of listeners in a set of states.
pub(super) const LISTEN: u32 = 1 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TcpSocket {
    /// Whether it is an IPv6 socket. Its addresses may be IPv4 all the same.
    pub(super) v6: bool,
    /// Whether it is an IPv6 socket that accepts no IPv4 (`IPV6_V6ONLY`).
    pub(super) only_v6: bool,
    /// A number of `tracer_common::state`.
    pub(super) state: u8,
    /// How often it retransmitted.
    pub(super) retransmits: u8,
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    /// The number of the only device over which it gets packets; 0: any device.
    pub(super) device: u32,
    /// Unread bytes. Of a listener: the connections that wait.
    pub(super) received: u32,
    /// Unacknowledged bytes. Of a listener: its backlog.
    pub(super) sent: u32,
    /// 0 if no process holds it.
    pub(super) inode: u64,
}

impl TcpSocket {
    fn parse(message: &[u8]) -> Option<Self> {
        let v6 = i32::from(*message.first()?) != libc::AF_INET;
        let word = |at| field(message, at).map(u32::from_ne_bytes);
        let end = |port, addr| {
            let port = u16::from_be_bytes(field(message, port)?);
            if v6 {
                return Some((Ipv6Addr::from(field::<16>(message, addr)?).to_canonical(), port).into());
            }
            Some((field::<4>(message, addr)?, port).into())
        };
        Some(Self {
            v6,
            only_v6: attribute(message.get(MESSAGE..)?, INET_DIAG_SKV6ONLY).is_some_and(|it| it.first() != Some(&0)),
            state: *message.get(1)?,
            retransmits: *message.get(3)?,
            local: end(4, 8)?,
            remote: end(6, 24)?,
            device: word(40)?,
            received: word(56)?,
            sent: word(60)?,
            inode: word(68)?.into(),
        })
    }
}

/// Dumps the sockets in these states, with this local port; 0: any port. If one family fails, it still dumps the other.
pub(super) fn dump(states: u32, port: u16, mut each: impl FnMut(TcpSocket)) -> io::Result<()> {
    let dumped = [libc::AF_INET, libc::AF_INET6].map(|family| {
        let request = request(family as u8, states, port);
        let each = |message: &[u8]| TcpSocket::parse(message).into_iter().for_each(&mut each);
        Netlink::open(NETLINK_SOCK_DIAG)?.dump(SOCK_DIAG_BY_FAMILY, &request, each)
    });
    dumped.into_iter().collect()
}

/// How many devices may have listeners of their own on a port.
const MOST_DEVICES: usize = 64;

/// Finds a connection by a hash look-up; `None`: no socket has it. A listener bound to a device (SO_BINDTODEVICE) hands
/// that on to its connections: they are found with the number of that device only (`inet_match`).
pub(super) fn find(local: SocketAddr, remote: SocketAddr) -> io::Result<Option<TcpSocket>> {
    if let Some(found) = find_on(0, local, remote)? {
        return Ok(Some(found));
    }
    let mut devices = BTreeSet::new();
    dump(LISTEN, local.port(), |socket| {
        if socket.device != 0 && devices.len() <= MOST_DEVICES {
            devices.insert(socket.device);
        }
    })?;
    if devices.len() > MOST_DEVICES {
        return Err(io::Error::other("too many devices have listeners on this port"));
    }
    devices.into_iter().find_map(|device| find_on(device, local, remote).transpose()).transpose()
}

/// The same of the connections that are bound to this device; 0: to none. `inet_diag_find_one_icsk` may find a listener.
fn find_on(device: u32, local: SocketAddr, remote: SocketAddr) -> io::Result<Option<TcpSocket>> {
    let mut request = request(family(local.ip()), u32::MAX, local.port());
    request[44..48].copy_from_slice(&device.to_ne_bytes());
    request[10..12].copy_from_slice(&remote.port().to_be_bytes());
    for (at, ip) in [(12, local.ip()), (28, remote.ip())] {
        let bytes = octets(ip);
        request[at..at + bytes.len()].copy_from_slice(&bytes);
    }
    // INET_DIAG_NOCOOKIE
    request[48..56].fill(u8::MAX);
    match Netlink::open(NETLINK_SOCK_DIAG)?.ask(SOCK_DIAG_BY_FAMILY, &request, TcpSocket::parse) {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        found => Ok(found?.filter(|socket| 1 << socket.state != LISTEN)),
    }
}

fn request(family: u8, states: u32, port: u16) -> [u8; REQUEST] {
    let mut request = [0; REQUEST];
    request[..2].copy_from_slice(&[family, libc::IPPROTO_TCP as u8]);
    request[4..8].copy_from_slice(&states.to_ne_bytes());
    request[8..10].copy_from_slice(&port.to_be_bytes());
    request
}

pub fn listening_ports() -> io::Result<HashSet<u16>> {
    let mut ports = HashSet::new();
    dump(LISTEN, 0, |socket| _ = ports.insert(socket.local.port()))?;
    Ok(ports)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::socket::{setsockopt, sockopt};
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn the_connection_of_a_listener_on_one_device_is_found() {
        for device in [None, Some("lo")] {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
            device
                .into_iter()
                .for_each(|it| setsockopt(&listener, sockopt::BindToDevice, &it.into()).expect("a device"));
            let at = listener.local_addr().expect("its address");
            let client = TcpStream::connect(at).expect("a connection");
            let peer = client.local_addr().expect("its address");
            let found = find(at, peer).expect("an answer").map(|it| (it.local, it.remote));
            assert_eq!(found, Some((at, peer)), "{device:?}");
            let other = SocketAddr::new(peer.ip(), 1);
            assert_eq!(find(at, other).expect("an answer"), None);
        }
    }

    #[test]
    fn a_connect_is_read_with_its_destination() {
        let mut message = [0; MESSAGE];
        (message[0], message[3]) = (libc::AF_INET as u8, 3);
        message[6..8].copy_from_slice(&443_u16.to_be_bytes());
        message[24..28].copy_from_slice(&[10, 96, 0, 1]);
        let parsed = |message: &[u8]| TcpSocket::parse(message).map(|it| (it.remote, it.retransmits));
        let expected = Some((SocketAddr::from(([10, 96, 0, 1], 443)), 3));
        assert_eq!(parsed(&message), expected);
        message[0] = libc::AF_INET6 as u8;
        message[24..40].copy_from_slice(&std::net::Ipv4Addr::new(10, 96, 0, 1).to_ipv6_mapped().octets());
        assert_eq!(parsed(&message), expected, "a socket of both families");
        assert_eq!(parsed(&message[..20]), None);
    }
}
