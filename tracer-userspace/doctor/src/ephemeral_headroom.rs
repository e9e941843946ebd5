//! How many ephemeral ports are left for the busiest destination.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::Check;
use super::finding::{Finding, Fix, Remediation};
use super::listener_overlap::listeners;
use super::port_range::PortRange;
use super::reserved::of_ipvs;
use super::sockets::{self, Socket};
use super::view::View;

pub(super) const CHECK: Check = Check {
    name: "ephemeral_headroom",
    why: "each connection holds a port for its destination until one minute after its end (TIME_WAIT). When no port is left, connect() fails with EADDRNOTAVAIL",
    expected: || format!("{NARROW} ports at least, fewer than {WARN} % of them in use for one destination"),
    run: |view| {
        let range = PortRange::read(view)?;
        let lists = sockets::read(view)?;
        Ok(vec![judge(&range, &Sockets::of(&lists, &range), || in_default_range(view, &range, &lists))])
    },
};

/// Fewer ports than this for each destination are a warning by themselves.
const NARROW: usize = 4096;
/// Shares of the range that one destination uses, in percent.
const WARN: usize = 50;
const FAIL: usize = 90;
/// `TCP_TIME_WAIT`, include/net/tcp_states.h
const TIME_WAIT: u8 = 6;

/// Sockets of the node's network namespace with a local port in the range.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Sockets {
    /// Local ports in use, by destination.
    by_destination: HashMap<String, HashSet<u16>>,
    total: usize,
    time_wait: usize,
}

impl Sockets {
    fn of(lists: &[String], range: &PortRange) -> Self {
        let mut found = Self::default();
        for Socket { port, remote, state } in sockets::parse(lists) {
            if state == sockets::LISTEN || !range.holds(port) {
                continue;
            }
            found.total += 1;
            found.time_wait += usize::from(state == TIME_WAIT);
            found.by_destination.entry(unmapped(remote)).or_default().insert(port);
        }
        found
    }

    /// The destination with most ports, and how many.
    fn busiest(&self) -> Option<(String, usize)> {
        let most = self.by_destination.iter().max_by_key(|(_, ports)| ports.len())?;
        Some((readable(most.0), most.1.len()))
    }
}

/// An IPv4-mapped IPv6 address is the same destination as its IPv4 address.
fn unmapped(remote: &str) -> String {
    remote.strip_prefix("0000000000000000FFFF0000").unwrap_or(remote).to_owned()
}

/// Makes `10.0.0.1:80` of `0100000A:0050`; keeps IPv6 as the kernel prints it.
fn readable(remote: &str) -> String {
    let parse = || {
        let (addr, port) = remote.split_once(':').filter(|(addr, _)| addr.len() == 8)?;
        let addr = std::net::Ipv4Addr::from(u32::from_str_radix(addr, 16).ok()?.to_ne_bytes());
        Some(format!("{addr}:{}", u16::from_str_radix(port, 16).ok()?))
    };
    parse().unwrap_or_else(|| remote.to_owned())
}

/// `used_there`: see [`in_default_range`].
fn judge(range: &PortRange, sockets: &Sockets, used_there: impl FnOnce() -> BTreeSet<u16>) -> Finding {
    let ports = range.len();
    let busiest = sockets.busiest();
    let used = busiest.as_ref().map_or(0, |(_, used)| *used);
    let share = used * 100 / ports.max(1);
    let mut draft =
        CHECK.draft().with("ports", ports).with("in_use", sockets.total).with("time_wait", sockets.time_wait);
    let mut observed = format!(
        "{ports} ports for each destination ({}-{}), {} sockets on them, {} in TIME_WAIT",
        range.first, range.last, sockets.total, sockets.time_wait
    );
    if let Some((destination, used)) = busiest {
        draft = draft.with("busiest_destination_ports", used);
        observed.push_str(&format!("; {used} ({share} %) for {destination}"));
    }
    if share >= FAIL || ports == 0 {
        draft.fail(observed, widen(range, &used_there()))
    } else if share >= WARN || ports < NARROW {
        draft.warn(observed, widen(range, &used_there()))
    } else {
        draft.ok(observed)
    }
}

/// The kernel's default range (`inet_init_net`, net/ipv4/af_inet.c). It holds no default NodePort.
const DEFAULT: (u16, u16) = (32768, 60999);

/// NodePorts of IPVS and listeners that the present range keeps from connect(), and the default range would not.
fn in_default_range(view: &View, range: &PortRange, lists: &[String]) -> BTreeSet<u16> {
    let default = PortRange { first: DEFAULT.0, last: DEFAULT.1, reserved: range.reserved.clone() };
    let mut ports = of_ipvs(&view.node_ports().unwrap_or_default(), |_| true);
    ports.extend(listeners(lists));
    ports.retain(|port| default.holds(*port) && !range.holds(*port));
    ports
}

/// The fix sets the kernel's default range. Clients have to reuse connections instead, if the range is as large already,
/// or if it leaves out ports of the default range that are in use.
fn widen(range: &PortRange, used_there: &BTreeSet<u16>) -> Fix {
    const REUSE: &str = "Find the process that connects so often (the summary of `tracer attach` names it), and make it reuse connections";
    let reuse = |text: String| Fix::lasting(Remediation::on_node(text, "ss -tan state time-wait"));
    if range.last.saturating_sub(range.first) >= DEFAULT.1 - DEFAULT.0 {
        return reuse(REUSE.to_owned());
    }
    if let Some(port) = used_there.first() {
        let (first, last) = DEFAULT;
        return reuse(format!(
            "{REUSE}. Do not set the default range {first}-{last} here: it holds ports of NodePorts or listeners ({port} for one). Widen net.ipv4.ip_local_port_range only where no such port is"
        ));
    }
    Fix::sysctl(&[("net.ipv4.ip_local_port_range", &format!("{} {}", DEFAULT.0, DEFAULT.1))])
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Tree, fix};
    use super::*;
    use crate::Status;
    use tracer_testing::assert_ends;

    fn sockets(count: u16, range: &PortRange) -> Sockets {
        let rows: String =
            (0..count).map(|at| format!("{at}: 0200000A:{:04X} 0100000A:0050 06 0:0\n", range.first + at)).collect();
        Sockets::of(&[format!("head\n9: 00000000:9C40 00000000:0000 0A 0:0\n{rows}")], range)
    }

    #[test]
    fn the_share_of_the_busiest_destination_decides() {
        let range = PortRange { first: 40000, last: 44999, reserved: Vec::new() };
        let of = |count| judge(&range, &sockets(count, &range), BTreeSet::new);
        assert_eq!((of(10).status, of(2500).status, of(4500).status), (Status::Ok, Status::Warn, Status::Fail));
        assert_ends(&of(10).observed, "10 sockets on them, 10 in TIME_WAIT; 10 (0 %) for 10.0.0.1:80");
    }

    #[test]
    fn a_narrow_range_is_a_warning_without_any_socket() {
        let range = PortRange { first: 40000, last: 40999, reserved: Vec::new() };
        let finding = judge(&range, &Sockets::default(), BTreeSet::new);
        assert_eq!(finding.status, Status::Warn);
        assert!(fix(&finding).contains("32768 60999"));
    }

    #[test]
    fn a_wide_range_is_not_made_narrower() {
        let range = PortRange { first: 1024, last: 60000, reserved: Vec::new() };
        assert_eq!(fix(&judge(&range, &sockets(30_000, &range), BTreeSet::new)), "ss -tan state time-wait");
    }

    /// Where IPVS has NodePorts above 32767, its page of causes advises to move the range out of theirs.
    #[test]
    fn a_port_that_the_range_leaves_out_on_purpose_stays_out() {
        let fix_with = |listener: &str, reserved: &str| {
            let list = format!("head\n 0: 00000000:{listener} 00000000:0000 0A 0:0\n");
            let tree = Tree::new(&[
                ("proc/sys/net/core/somaxconn", "4096\n"),
                ("proc/sys/net/ipv4/ip_local_port_range", "50000\t50999\n"),
                ("proc/sys/net/ipv4/ip_local_reserved_ports", reserved),
                ("proc/net/tcp", &list),
            ]);
            fix(&tree.finding(&CHECK)).to_owned()
        };
        assert_eq!(fix_with("9C40", "\n"), "ss -tan state time-wait", "port 40000");
        for (listener, reserved) in [("9C40", "40000\n"), ("C350", "\n"), ("280A", "\n")] {
            let default = "sysctl -w net.ipv4.ip_local_port_range='32768 60999'";
            assert_eq!(fix_with(listener, reserved), default, "{listener}");
        }
    }

    #[test]
    fn an_ipv4_mapped_address_is_the_same_destination() {
        assert_eq!(unmapped("0000000000000000FFFF00000100000A:0050"), "0100000A:0050");
    }
}
