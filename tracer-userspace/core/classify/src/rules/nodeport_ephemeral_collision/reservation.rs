//! The fix: connect() picks no port that is reserved.

use std::collections::BTreeSet;

use super::super::{Case, Command, Remediation, run_in};
use tracer_model::event::port_ranges::{DEFAULT_ONLY, NODE_PORTS, merged};

/// Up to this many ports are named one by one; of more, the span is named.
const MAX_NAMED: usize = 16;

/// Reserves the default NodePort range, the NodePorts outside it, and all ports that are reserved now: a write replaces
/// the old value.
pub(super) fn remediation(case: &Case<'_>) -> Remediation {
    let ports = node_ports(case);
    let set = reserve(case, outside_default(&ports).into_iter().chain([NODE_PORTS]));
    let known = match ports.as_slice() {
        [one] => format!("NodePort {one} is in use"),
        all => format!("NodePorts {} are in use", merged(all.iter().map(|port| (*port, *port)))),
    };
    Remediation::from(format!(
        "Reserve the NodePorts, and write the same setting to /etc/sysctl.d. The command keeps what was reserved before. {known} on this node. {DEFAULT_ONLY}"
    ))
    .run([set])
}

/// Reserves the source port of the attempt.
pub(super) fn reserve_port(case: &Case<'_>) -> Remediation {
    let port = case.attempt.flow.src.port();
    Remediation::from(format!(
        "Reserve port {port}, so that no connection gets it as its source port, and write the same setting to /etc/sysctl.d. The command keeps what was reserved before"
    ))
    .run([reserve(case, [(port, port)].into_iter())])
}

/// The command that reserves these ports and those that are reserved now.
fn reserve(case: &Case<'_>, wanted: impl Iterator<Item = (u16, u16)>) -> Command {
    let set = match reserved(case) {
        Some(now) => format!("sysctl -w {RESERVED}={}", merged(wanted.chain(now.iter().copied()))),
        // The reserved ports were not read, so the command reads them.
        None => format!("sh -c 'now=$(sysctl -n {RESERVED}); sysctl -w {RESERVED}=${{now:+$now,}}{}'", merged(wanted)),
    };
    run_in(case, case.attempt.netns, set)
}

const RESERVED: &str = "net.ipv4.ip_local_reserved_ports";

/// All known NodePorts and the attempt's source port, in order.
fn node_ports(case: &Case<'_>) -> Vec<u16> {
    let live = case.node.node_ports.all().map(|(_, port)| port.port);
    let ports: BTreeSet<u16> = live.chain([case.attempt.flow.src.port()]).collect();
    ports.into_iter().collect()
}

fn outside_default(ports: &[u16]) -> Vec<(u16, u16)> {
    let (first, last) = NODE_PORTS;
    let outside: Vec<u16> = ports.iter().copied().filter(|port| !(first..=last).contains(port)).collect();
    match outside.as_slice() {
        [low, .., high] if outside.len() > MAX_NAMED => vec![(*low, *high)],
        few => few.iter().map(|port| (*port, *port)).collect(),
    }
}

/// The ports that are reserved now. Absent if the settings of the attempt's namespace were not read; both port settings
/// are read together.
fn reserved<'a>(case: &Case<'a>) -> Option<&'a [(u16, u16)]> {
    let here = case.attempt.netns.is_none_or(|netns| case.node.netns() == Some(netns));
    let settings = &case.node.settings;
    settings.local_port_range.filter(|_| here).map(|_| settings.reserved_ports.as_slice())
}

#[cfg(test)]
mod tests {
    use tracer_core::testing::*;

    fn fix(reserved: Option<&[(u16, u16)]>) -> String {
        let mut stream = Stream::new();
        if let Some(reserved) = reserved {
            stream.push(ObservationKind::NodeSettings(NodeSettings {
                local_port_range: Some((1024, 65000)),
                reserved_ports: reserved.to_vec(),
                ..NodeSettings::default()
            }));
        }
        stream.node_port(ProxyMode::Ipvs, 40000, &["10.88.0.9:80"]).connect().ipvs(SYN_ACK, IpvsOp::Translate);
        stream.verdict().remediation.to_string()
    }

    #[test]
    fn reserved_ports_stay_reserved() {
        let words = fix(Some(&[(8080, 8080), (31000, 33000)]));
        assert_ends(&words, ": sysctl -w net.ipv4.ip_local_reserved_ports=8080,30000-33000,40000");
        assert_has(&words, &["NodePort 40000 is in use on this node. 30000-32767 is"]);
        let none = fix(Some(&[]));
        assert_ends(&none, ": sysctl -w net.ipv4.ip_local_reserved_ports=30000-32767,40000");
    }

    #[test]
    fn the_command_reads_reserved_ports_that_were_not_read() {
        let words = fix(None);
        let command = "sh -c 'now=$(sysctl -n net.ipv4.ip_local_reserved_ports); sysctl -w net.ipv4.ip_local_reserved_ports=${now:+$now,}30000-32767,40000'";
        assert_ends(&words, command);
    }

    #[test]
    fn many_ports_outside_the_default_range_are_named_as_a_span() {
        assert_eq!(super::outside_default(&[31000, 36704, 40000]), [(36704, 36704), (40000, 40000)]);
        let many: Vec<u16> = (40000..40100).step_by(2).collect();
        assert_eq!(super::outside_default(&many), [(40000, 40098)]);
    }
}
