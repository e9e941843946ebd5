//! The ephemeral ports: connect() takes its source port from them.

use std::fmt;

use super::finding::Unread;
use super::view::View;
use tracer_model::event::port_ranges;
pub(super) use tracer_model::event::port_ranges::NODE_PORTS;
use tracer_node::settings::{parse_range, parse_ranges};

/// `ip_local_port_range` and `ip_local_reserved_ports`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PortRange {
    pub(super) first: u16,
    pub(super) last: u16,
    pub(super) reserved: Vec<(u16, u16)>,
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

impl PortRange {
    pub(super) fn read(view: &View) -> Result<Self, Unread> {
        let text = view.sysctl("net/ipv4/ip_local_port_range")?;
        let range = parse_range(&text);
        let (first, last) = range.ok_or_else(|| Unread::new(format!("ip_local_port_range holds `{text}`"), ""))?;
        let reserved = view.sysctl("net/ipv4/ip_local_reserved_ports")?;
        Ok(Self { first, last, reserved: parse_ranges(&reserved) })
    }

    /// Whether connect() may take this port.
    pub(super) fn holds(&self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
            && !self.reserved.iter().any(|(from, to)| (*from..=*to).contains(&port))
    }

    /// Whether the port has the parity of the lower bound. connect() takes the ports of the other parity only when a
    /// destination has used up these (`__inet_hash_connect`).
    pub(super) fn prefers(&self, port: u16) -> bool {
        self.holds(port) && port % 2 == self.first % 2
    }

    /// How many ports connect() can use for each destination.
    pub(super) fn len(&self) -> usize {
        (self.first..=self.last).filter(|port| self.holds(*port)).count()
    }

    /// How many ports have the parity that connect() takes first.
    pub(super) fn preferred(&self) -> usize {
        port_ranges::preferred((self.first, self.last), &self.reserved) as usize
    }

    /// How many ports from `from` to `to` connect() may take.
    pub(super) fn overlap(&self, (from, to): (u16, u16)) -> usize {
        (from..=to).filter(|port| self.holds(*port)).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_with_the_parity_of_the_lower_bound_are_preferred() {
        let range = PortRange { first: 1024, last: 1033, reserved: vec![(1026, 1027)] };
        assert_eq!((range.len(), range.preferred()), (8, 4));
        assert!(range.prefers(1024) && !range.prefers(1025) && range.holds(1025) && !range.holds(1026));
        assert_eq!(range.overlap((1000, 1028)), 3);
    }
}
