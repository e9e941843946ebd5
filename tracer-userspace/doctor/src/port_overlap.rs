//! NodePorts in the range of ephemeral ports.

use std::collections::BTreeSet;
use std::time::Duration;

use super::finding::{Finding, Fix, Unread};
use super::port_range::{NODE_PORTS, PortRange};
use super::reserved::{for_node_ports, of_ipvs, reserve};
use super::view::View;
use super::{Check, Draft, listener_overlap};
use tracer_model::event::{NodePort, NodePorts, ProxyMode};
use tracer_model::plural::duration;
use tracer_node::inspect::counters;

pub(super) const CHECK: Check = Check {
    name: "port_overlap",
    why: "under IPVS a connect from a port that is also a NodePort never gets its SYN-ACK: IPVS sends it to that Service's backend",
    expected: || "no NodePort in net.ipv4.ip_local_port_range less ip_local_reserved_ports".into(),
    run: |view| Ok(vec![check(view)?]),
};

fn check(view: &View) -> Result<Finding, Unread> {
    let range = PortRange::read(view)?;
    let live = view.node_ports();
    let hit = live.as_ref().is_ok_and(|live| !of_ipvs(live, |port| is_taken(&range, port)).is_empty());
    let rate = if hit { view.growth(active_opens).ok() } else { None };
    let unreserved = for_node_ports(&range, live.as_ref().map(Vec::as_slice).map_err(drop));
    // `listener_overlap` gives a command for the same setting.
    let listeners = if unreserved.is_empty() { Vec::new() } else { listener_overlap::to_reserve(view, &range) };
    let fix = reserve(&range, &[unreserved, listeners].concat());
    Ok(judge(&range, live, rate, fix))
}

/// How many connects the network namespace has made since its creation.
fn active_opens(view: &View) -> Result<u64, Unread> {
    let text = view.net("snmp")?;
    let found = counters(&text, "Tcp:", &["ActiveOpens"]).into_values().next();
    found.ok_or_else(|| Unread::new("/proc/net/snmp has no TcpActiveOpens", ""))
}

/// `rate`: how many connects were made in how many seconds.
fn judge(range: &PortRange, live: Result<Vec<NodePorts>, Unread>, rate: Option<(u64, f64)>, fix: Fix) -> Finding {
    let overlap = range.overlap(NODE_PORTS);
    let draft = CHECK.draft().with("range", vec![range.first, range.last]).with("default_node_ports_in_range", overlap);
    let live = match live {
        Ok(live) => live,
        Err(unread) => return by_range_alone(draft, range, unread, fix),
    };
    let all: BTreeSet<u16> = live.iter().flat_map(|table| &table.ports).map(|port| port.port).collect();
    let draft = draft.with("live_node_ports", all.len());
    let hit = of_ipvs(&live, |port| is_taken(range, port));
    let others = of_ipvs(&live, |port| range.holds(port.port) && !port.listened);
    let listened = of_ipvs(&live, |port| range.holds(port.port) && port.listened);
    let is_ipvs = live.iter().any(|table| table.mode == ProxyMode::Ipvs);
    if !hit.is_empty() {
        colliding(draft, range, &hit, rate, fix)
    } else if !others.is_empty() {
        let observed = format!(
            "{} live NodePorts of IPVS in {range}, all with the other parity than {}: connect() takes them only after it has used all {} ports of its parity for a destination",
            others.len(),
            range.first,
            range.preferred()
        );
        draft.warn(observed, fix)
    } else if !listened.is_empty() {
        let observed = format!(
            "{} live NodePorts of IPVS in {range}, each held by a listening socket, so connect() skips them: \
             kube-proxy keeps such sockets only before 1.24 (kubernetes#108496)",
            listened.len()
        );
        draft.warn(observed, fix)
    } else if overlap > 0 && (is_ipvs || live.is_empty()) {
        let but = if is_ipvs {
            "no live NodePort of IPVS is among them yet"
        } else {
            "no NodePort is in use on this node now"
        };
        draft.warn(format!("{range} holds {overlap} ports of the default NodePort range; {but}"), fix)
    } else {
        harmless(draft, range, &all)
    }
}

/// Whether connect() takes this port while other ports are free, too.
fn is_taken(range: &PortRange, port: &NodePort) -> bool {
    range.prefers(port.port) && !port.listened
}

/// The finding where the NodePorts cannot be read.
fn by_range_alone(draft: Draft, range: &PortRange, unread: Unread, fix: Fix) -> Finding {
    let overlap = range.overlap(NODE_PORTS);
    if overlap == 0 {
        return draft.unknown(unread);
    }
    let (first, last) = NODE_PORTS;
    let observed = format!(
        "{range} holds {overlap} of the {} ports of the default NodePort range {first}-{last}; tracer does not know which are in use: {}",
        last - first + 1,
        unread.reason
    );
    Finding { needs: unread.needs.map(str::to_owned), ..draft.warn(observed, fix) }
}

fn harmless(draft: Draft, range: &PortRange, all: &BTreeSet<u16>) -> Finding {
    let inside = all.iter().filter(|port| range.holds(**port)).count();
    let in_range = match inside {
        0 => String::new(),
        inside => format!(", {inside} of them in the range: harmless with this proxy, but not with IPVS"),
    };
    let overlap = range.overlap(NODE_PORTS);
    draft.ok(format!(
        "{} live NodePorts{in_range}; ephemeral range {range}, {overlap} ports of the default NodePort range in it",
        all.len()
    ))
}

/// connect() takes live NodePorts.
fn colliding(draft: Draft, range: &PortRange, hit: &BTreeSet<u16>, rate: Option<(u64, f64)>, fix: Fix) -> Finding {
    let usable = range.preferred();
    let share = hit.len() as f64 / usable.max(1) as f64;
    let ports: Vec<u16> = hit.iter().copied().collect();
    let shown: Vec<String> = ports.iter().take(5).map(u16::to_string).collect();
    let more = if ports.len() > 5 { ", …" } else { "" };
    let mut observed = format!(
        "{} live NodePorts of IPVS ({}{more}) among the {usable} ports that connect() takes of {range}: one connect in {:.0}",
        ports.len(),
        shown.join(", "),
        1.0 / share
    );
    let mut draft = draft
        .with("colliding_node_ports", ports.clone())
        .with("usable_ports", usable)
        .with("share", (share * 1e6).round() / 1e6);
    if let Some((connects, seconds)) = rate {
        let per_s = connects as f64 / seconds.max(0.001);
        draft = draft.with("connects_per_s", (per_s * 100.0).round() / 100.0);
        if connects > 0 {
            let next = (1.0 / (share * per_s)).round();
            draft = draft.with("next_collision_s", next);
            observed.push_str(&format!(
                "; at {per_s:.1} connects a second now, one every {}",
                duration(Duration::from_secs(next as u64))
            ));
        } else {
            observed.push_str(&format!("; no connect was made in {seconds:.1} s"));
        }
    }
    draft.fail(observed, fix)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Tree, fix};
    use super::*;
    use crate::Status;
    use tracer_model::event::Netns;

    /// Judges with the fix of a node where no known daemon listens.
    fn judge(range: &PortRange, live: Result<Vec<NodePorts>, Unread>, rate: Option<(u64, f64)>) -> Finding {
        let unreserved = for_node_ports(range, live.as_deref().map_err(drop));
        super::judge(range, live, rate, reserve(range, &unreserved))
    }

    fn range(reserved: &[(u16, u16)]) -> PortRange {
        PortRange { first: 1024, last: 65000, reserved: reserved.to_vec() }
    }

    fn table(mode: ProxyMode, ports: &[u16]) -> Vec<NodePorts> {
        let port = |port: &u16| NodePort { port: *port, ..NodePort::default() };
        vec![NodePorts::new(Netns(1), mode, ports.iter().map(port).collect())]
    }

    #[test]
    fn a_live_node_port_of_ipvs_is_a_failure_with_the_time_to_the_next_collision() {
        let finding = judge(&range(&[]), Ok(table(ProxyMode::Ipvs, &[36704, 36705])), Some((32, 1.0)));
        assert_eq!(finding.status, Status::Fail);
        let observed = "1 live NodePorts of IPVS (36704) among the 31989 ports that connect() takes of 1024-65000: one connect in 31989; at 32.0 connects a second now, one every 16 min 40 s";
        assert_eq!(finding.observed, observed);
        assert_eq!(fix(&finding), "sysctl -w net.ipv4.ip_local_reserved_ports=30000-32767,36704-36705");
        let text = finding.remediation.expect("a fix").text;
        assert!(text.contains("if your API server has --service-node-port-range"), "{text}");
    }

    #[test]
    fn a_node_port_of_another_proxy_or_a_reserved_one_is_harmless() {
        let finding = judge(&range(&[]), Ok(table(ProxyMode::Iptables, &[36704])), None);
        assert_eq!(finding.status, Status::Ok);
        assert!(finding.observed.contains("harmless with this proxy"), "{}", finding.observed);
        let reserved = range(&[(30000, 40000)]);
        assert_eq!(judge(&reserved, Ok(table(ProxyMode::Ipvs, &[36704])), None).status, Status::Ok);
    }

    #[test]
    fn a_node_port_of_the_other_parity_is_a_warning() {
        let finding = judge(&range(&[(30000, 32767)]), Ok(table(ProxyMode::Ipvs, &[36705])), None);
        assert_eq!(finding.status, Status::Warn);
    }

    /// kube-proxy 1.20 keeps a socket open on each NodePort: 246 attempts among thirty of them had no collision.
    #[test]
    fn a_node_port_with_a_listener_does_not_collide() {
        let mut live = table(ProxyMode::Ipvs, &[36704, 36706]);
        live[0].ports[0].listened = true;
        let one = judge(&range(&[]), Ok(live.clone()), None);
        assert!(one.observed.starts_with("1 live NodePorts of IPVS (36706) among"), "{}", one.observed);
        live[0].ports[1].listened = true;
        let none = judge(&range(&[]), Ok(live), None);
        assert_eq!(none.status, Status::Warn);
        assert!(none.observed.starts_with("2 live NodePorts of IPVS in 1024-65000, each held by"), "{}", none.observed);
    }

    #[test]
    fn a_range_that_holds_the_default_node_ports_is_a_warning_even_without_live_ones() {
        assert_eq!(judge(&range(&[]), Ok(Vec::new()), None).status, Status::Warn);
        let usual = PortRange { first: 32768, last: 60999, reserved: Vec::new() };
        assert_eq!(judge(&usual, Ok(Vec::new()), None).status, Status::Ok);
    }

    #[test]
    fn unreadable_tables_are_never_ok() {
        let usual = PortRange { first: 32768, last: 60999, reserved: Vec::new() };
        let denied = || Err(Unread::lacks("denied", "CAP_NET_ADMIN"));
        assert_eq!(judge(&usual, denied(), None).status, Status::Unknown);
        let finding = judge(&range(&[]), denied(), None);
        assert_eq!((finding.status, finding.needs.as_deref()), (Status::Warn, Some("CAP_NET_ADMIN")));
    }

    /// The commands of both checks write one setting, so neither may undo the other.
    #[test]
    fn either_command_reserves_what_both_checks_want() {
        let tree = Tree::new(&[
            ("proc/sys/net/core/somaxconn", "4096\n"),
            ("proc/sys/net/ipv4/ip_local_port_range", "1024\t65000\n"),
            ("proc/sys/net/ipv4/ip_local_reserved_ports", "8080\n"),
            ("proc/net/tcp", "head\n 0: 00000000:280A 00000000:0000 0A 0:0\n"),
        ]);
        let findings = [tree.finding(&CHECK), tree.finding(&listener_overlap::CHECK)];
        let all = "sysctl -w net.ipv4.ip_local_reserved_ports=8080,10250,30000-32767";
        assert_eq!(findings.each_ref().map(fix), [all; 2]);
    }
}
