//! Addresses and ports of one direction of a flow.

/// IPv4 addresses are stored v4-mapped (`::ffff:a.b.c.d`, RFC 4291 2.5.5.2), so that an AF_INET6
/// server socket and its AF_INET client compare equal.
pub const V4_MAPPED_PREFIX: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

/// Writes an IPv4 address (network order) v4-mapped.
#[inline(always)]
pub fn map_v4(dst: &mut [u8; 16], addr: [u8; 4]) {
    let mut i = 0;
    while i < 12 {
        dst[i] = V4_MAPPED_PREFIX[i];
        i += 1;
    }
    dst[12] = addr[0];
    dst[13] = addr[1];
    dst[14] = addr[2];
    dst[15] = addr[3];
}

/// One direction of a TCP flow. Ports are in host byte order; 0 stands for a port that is not chosen yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Tuple {
    /// Source address, v4-mapped when IPv4.
    pub saddr: [u8; 16],
    /// Destination address, v4-mapped when IPv4.
    pub daddr: [u8; 16],
    pub sport: u16,
    pub dport: u16,
    /// Always 0, so that the struct can be a map key.
    pub reserved: u32,
}
const _: () = assert!(core::mem::size_of::<Tuple>() == 40);

impl Tuple {
    #[inline(always)]
    pub const fn reversed(&self) -> Self {
        Self { saddr: self.daddr, daddr: self.saddr, sport: self.dport, dport: self.sport, reserved: 0 }
    }
    /// The tuple before the source port is chosen.
    #[inline(always)]
    pub const fn without_port(&self) -> Self {
        let mut tuple = *self;
        tuple.sport = 0;
        tuple
    }
}

#[cfg(test)]
mod tests {
    use core::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    fn mapped(addr: [u8; 4]) -> [u8; 16] {
        let mut dst = [0xaa; 16];
        map_v4(&mut dst, addr);
        dst
    }

    #[test]
    fn an_ipv4_address_equals_that_of_a_dual_stack_socket() {
        let server: Ipv6Addr = "::ffff:10.0.0.1".parse().expect("an address");
        assert_eq!(mapped([10, 0, 0, 1]), server.octets());
        // A listener on 0.0.0.0 has another address than one on `::`.
        assert_ne!(mapped([0; 4]), Ipv6Addr::UNSPECIFIED.octets());
        assert_eq!(Ipv6Addr::from(mapped([127, 0, 0, 1])).to_ipv4_mapped(), Some(Ipv4Addr::LOCALHOST));
    }

    #[test]
    fn a_tuple_that_is_reversed_twice_is_the_same() {
        let tuple =
            Tuple { saddr: mapped([10, 0, 0, 1]), daddr: mapped([10, 0, 0, 2]), sport: 40000, dport: 80, reserved: 0 };
        let back = tuple.reversed();
        assert_eq!((back.saddr, back.daddr, back.sport, back.dport), (tuple.daddr, tuple.saddr, 80, 40000));
        assert_eq!(back.reversed(), tuple);
        // A socket may connect to itself: then both directions are the same.
        let itself = Tuple { daddr: tuple.saddr, dport: tuple.sport, ..tuple };
        assert_eq!(itself.reversed(), itself);
    }

    #[test]
    fn all_connects_to_a_target_have_one_key() {
        let first =
            Tuple { saddr: mapped([10, 0, 0, 1]), daddr: mapped([10, 0, 0, 2]), sport: 40000, dport: 80, reserved: 0 };
        let key = first.without_port();
        assert_eq!(key, Tuple { sport: 40001, ..first }.without_port());
        assert_eq!((key.saddr, key.daddr, key.sport, key.dport), (first.saddr, first.daddr, 0, 80));
        assert_ne!(key, first.reversed().without_port());
    }
}
