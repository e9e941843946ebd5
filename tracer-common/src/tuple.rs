//! Addresses and ports of one direction of a flow.

/// IPv4 addresses are stored v4-mapped (`::ffff:a.b.c.d`, RFC 4291 2.5.5.2), so that an AF_INET6
/// server socket and its AF_INET client compare equal.
pub const V4_MAPPED_PREFIX: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

/// One direction of a TCP flow. Ports are in host byte order; 0 is a port that is not chosen yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Tuple {
    /// Source address, v4-mapped when IPv4.
    pub saddr: [u8; 16],
    /// Destination address, v4-mapped when IPv4.
    pub daddr: [u8; 16],
    /// Source port.
    pub sport: u16,
    /// Destination port.
    pub dport: u16,
    /// Always 0, so that the struct can be a map key.
    pub reserved: u32,
}
const _: () = assert!(core::mem::size_of::<Tuple>() == 40);

impl Tuple {
    /// The other direction.
    #[inline(always)]
    #[must_use]
    pub const fn reversed(&self) -> Self {
        Self { saddr: self.daddr, daddr: self.saddr, sport: self.dport, dport: self.sport, reserved: 0 }
    }
}
