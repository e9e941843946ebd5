//! Routes and routing rules.

use std::net::IpAddr;

use anyhow::{Context, Result};
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
pub use netlink_packet_route::route::RouteType;
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteProtocol, RouteScope,
};
use netlink_packet_route::{AddressFamily, IpProtocol};

pub use netlink_packet_route::rule::{RuleAction, RuleMessage};
use netlink_packet_route::rule::{RuleAttribute, RulePortRange};

use super::{Ip, index};

#[derive(Clone, Debug)]
pub struct Route {
    to: IpAddr,
    prefix: u8,
    kind: Option<RouteType>,
    device: Option<String>,
    via: Option<IpAddr>,
    source: Option<IpAddr>,
    onlink: bool,
    kernel: bool,
    table: u8,
}

impl Route {
    /// To a subnet.
    pub fn to(address: impl Into<IpAddr>, prefix: u8) -> Self {
        let to = address.into();
        Self {
            to,
            prefix,
            kind: None,
            device: None,
            via: None,
            source: None,
            onlink: false,
            kernel: false,
            table: RouteHeader::RT_TABLE_MAIN,
        }
    }

    pub fn to_host(address: impl Into<IpAddr>) -> Self {
        let address = address.into();
        Self::to(address, host_prefix(address))
    }

    /// The default route, through this router.
    pub fn default_via(router: impl Into<IpAddr>) -> Self {
        let router = router.into();
        let all: IpAddr = if router.is_ipv4() { [0; 4].into() } else { [0_u16; 8].into() };
        Self::to(all, 0).via(router)
    }

    /// Makes it unreachable, prohibit, blackhole, or local: packets to it are for this host.
    #[must_use]
    pub const fn kind(mut self, kind: RouteType) -> Self {
        self.kind = Some(kind);
        self
    }

    #[must_use]
    pub fn over(mut self, device: &str) -> Self {
        self.device = Some(device.to_owned());
        self
    }

    #[must_use]
    pub fn via(mut self, router: impl Into<IpAddr>) -> Self {
        self.via = Some(router.into());
        self
    }

    #[must_use]
    pub fn source(mut self, address: impl Into<IpAddr>) -> Self {
        self.source = Some(address.into());
        self
    }

    #[must_use]
    pub const fn in_table(mut self, table: u8) -> Self {
        self.table = table;
        self
    }

    /// The router is on the link, even if its address is not in a subnet of the link.
    #[must_use]
    pub const fn onlink(mut self) -> Self {
        self.onlink = true;
        self
    }

    /// With the protocol `kernel`, as routes that the kernel adds for an address.
    #[must_use]
    pub const fn made_by_kernel(mut self) -> Self {
        self.kernel = true;
        self
    }

    /// The fields that identify the route, enough to remove it.
    fn key(&self) -> Result<RouteMessage> {
        let mut route = RouteMessage::default();
        route.header.address_family = family(self.to);
        route.header.destination_prefix_length = self.prefix;
        route.header.table = self.table;
        route.header.scope = RouteScope::NoWhere;
        route.header.kind = self.kind.unwrap_or_default();
        if self.prefix > 0 {
            route.attributes.push(RouteAttribute::Destination(self.to.into()));
        }
        if let Some(device) = &self.device {
            route.attributes.push(RouteAttribute::Oif(index(device)?));
        }
        let gateway = |via: IpAddr| RouteAttribute::Gateway(RouteAddress::from(via));
        route.attributes.extend(self.via.map(gateway));
        Ok(route)
    }

    fn message(&self) -> Result<RouteMessage> {
        let mut route = self.key()?;
        route.header.kind = self.kind.unwrap_or(RouteType::Unicast);
        route.header.protocol = if self.kernel { RouteProtocol::Kernel } else { RouteProtocol::Boot };
        let direct = self.kind.is_none() && self.via.is_none() && self.to.is_ipv4();
        route.header.scope = match self.kind {
            Some(RouteType::Local) => RouteScope::Host,
            _ if direct => RouteScope::Link,
            _ => RouteScope::Universe,
        };
        if self.onlink {
            route.header.flags = RouteFlags::Onlink;
        }
        route.attributes.extend(self.source.map(|it| RouteAttribute::PrefSource(it.into())));
        Ok(route)
    }
}

impl Ip {
    pub fn add(&mut self, route: &Route) -> Result<()> {
        let message = route.message()?;
        self.send(libc::RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL, &message).with_context(|| format!("add {route:?}"))
    }

    /// Adds a route, or replaces the one to the same subnet.
    pub fn replace(&mut self, route: &Route) -> Result<()> {
        let message = route.message()?;
        self.send(libc::RTM_NEWROUTE, NLM_F_CREATE | NLM_F_REPLACE, &message)
            .with_context(|| format!("replace {route:?}"))
    }

    pub fn add_rule(&mut self, rule: &RuleMessage) -> Result<()> {
        self.send(libc::RTM_NEWRULE, NLM_F_CREATE | NLM_F_EXCL, rule).with_context(|| format!("add {rule:?}"))
    }

    pub fn remove_rule(&mut self, rule: &RuleMessage) -> Result<()> {
        self.send(libc::RTM_DELRULE, 0, rule).with_context(|| format!("remove {rule:?}"))
    }

    pub fn remove(&mut self, route: &Route) -> Result<()> {
        self.send(libc::RTM_DELROUTE, 0, &route.key()?).with_context(|| format!("remove {route:?}"))
    }
}

/// A rule: packets from this address use the table.
pub fn rule_from(address: IpAddr, table: u8, priority: u32) -> RuleMessage {
    let mut rule = rule(RuleAttribute::Source(address), address, table, priority);
    rule.header.src_len = host_prefix(address);
    rule
}

/// A rule: packets to this address use the table.
pub fn rule_to(address: IpAddr, table: u8, priority: u32) -> RuleMessage {
    let mut rule = rule(RuleAttribute::Destination(address), address, table, priority);
    rule.header.dst_len = host_prefix(address);
    rule
}

/// A rule: packets to this address are refused.
pub fn rule_refusing(address: IpAddr, action: RuleAction, priority: u32) -> RuleMessage {
    let mut rule = rule_to(address, 0, priority);
    rule.header.action = action;
    rule
}

/// A rule: TCP packets to this port, of the family of `address`, use the table.
pub fn rule_port(port: u16, address: IpAddr, table: u8, priority: u32) -> RuleMessage {
    let range = RulePortRange { start: port, end: port };
    let mut rule = rule(RuleAttribute::DestinationPortRange(range), address, table, priority);
    rule.attributes.push(RuleAttribute::IpProtocol(IpProtocol::Tcp));
    rule
}

/// A rule: packets with this mark, of the family of `address`, use the table.
pub fn rule_mark(mark: u32, address: IpAddr, table: u8, priority: u32) -> RuleMessage {
    rule(RuleAttribute::FwMark(mark), address, table, priority)
}

fn rule(condition: RuleAttribute, address: IpAddr, table: u8, priority: u32) -> RuleMessage {
    let mut rule = RuleMessage::default();
    rule.header.family = family(address);
    rule.header.table = table;
    rule.header.action = RuleAction::ToTable;
    rule.attributes = vec![condition, RuleAttribute::Priority(priority)];
    rule
}

/// The prefix length of a single address.
const fn host_prefix(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

pub(super) const fn family(address: IpAddr) -> AddressFamily {
    match address {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    }
}
