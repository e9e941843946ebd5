//! The fix: connect() picks no port that is reserved.

use std::collections::BTreeSet;

use super::super::{Case, Command, Remediation, run_in};
use tracer_model::event::port_ranges::{DEFAULT_ONLY, NODE_PORTS, merged};

/// Up to this many ports are named one by one; of more, the span is named.
const MAX_NAMED: usize = 16;

/// Reserves the NodePort range, the NodePorts outside of the default one, and all ports that are reserved now: a write
/// replaces the old value. A NodePort outside of the default range shows that the API server has another one, which
/// tracer does not know.
pub(super) fn remediation(case: &Case<'_>) -> Remediation {
    let ports = node_ports(case);
    let outside = outside_default(&ports);
    let known = match ports.as_slice() {
        [one] => format!("NodePort {one} is in use"),
        all => format!("NodePorts {} are in use", merged(all.iter().map(|port| (*port, *port)))),
    };
    let keeps = "and write the same setting to /etc/sysctl.d. The command keeps what was reserved before";
    if outside.is_empty() {
        let text = format!("Reserve the NodePorts, {keeps}. {known} on this node. {DEFAULT_ONLY}");
        return Remediation::from(text).run([reserve(case, [NODE_PORTS].into_iter(), "")]);
    }
    let (first, last) = NODE_PORTS;
    let text = format!(
        "Look up the NodePort range of the API server (--service-node-port-range): {} is outside of the default, {first}-{last}. Then reserve that range ({RANGE} in the command), {keeps}. {known} on this node",
        merged(outside.iter().copied())
    );
    let set = reserve(case, outside.into_iter(), RANGE);
    Remediation::from(text).run([Command::in_cluster(LOOK_UP), set])
}

/// The place of the range in the command.
const RANGE: &str = "NODEPORT-RANGE";
const LOOK_UP: &str =
    "kubectl get pods -n kube-system -l component=kube-apiserver -o yaml | grep service-node-port-range";

/// Reserves the source port of the attempt.
pub(super) fn reserve_port(case: &Case<'_>) -> Remediation {
    let port = case.attempt.flow.src.port();
    Remediation::from(format!(
        "Reserve port {port}, so that no connection gets it as its source port, and write the same setting to /etc/sysctl.d. The command keeps what was reserved before"
    ))
    .run([reserve(case, [(port, port)].into_iter(), "")])
}

/// The command that reserves these ports and those that are reserved now. `more`: what the reader fills in.
fn reserve(case: &Case<'_>, wanted: impl Iterator<Item = (u16, u16)>, more: &str) -> Command {
    let more = if more.is_empty() { String::new() } else { format!(",{more}") };
    let set = match reserved(case) {
        Some(now) => format!("sysctl -w {RESERVED}={}{more}", merged(wanted.chain(now.iter().copied()))),
        // The reserved ports were not read, so the command reads them.
        None => {
            let wanted = merged(wanted);
            format!("sh -c 'now=$(sysctl -n {RESERVED}); sysctl -w {RESERVED}=${{now:+$now,}}{wanted}{more}'")
        }
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

    fn fix(port: u16, reserved: Option<&[(u16, u16)]>) -> String {
        let mut stream = Stream::new();
        if let Some(reserved) = reserved {
            stream.push(ObservationKind::NodeSettings(NodeSettings {
                local_port_range: Some((1024, 65000)),
                reserved_ports: reserved.to_vec(),
                ..NodeSettings::default()
            }));
        }
        stream.node_port(ProxyMode::Ipvs, port, &["10.88.0.9:80"]).connect();
        stream.last_connect().flow.src.set_port(port);
        let back = stream.last_connect().flow.reversed();
        stream.ipvs(SYN_ACK, IpvsOp::Translate);
        stream.last_ipvs().flow = back;
        stream.verdict().remediation.to_string()
    }

    #[test]
    fn reserved_ports_stay_reserved() {
        let words = fix(31_080, Some(&[(8080, 8080), (31000, 33000)]));
        assert_ends(&words, ": sysctl -w net.ipv4.ip_local_reserved_ports=8080,30000-33000");
        assert_has(&words, &["NodePort 31080 is in use on this node. 30000-32767 is"]);
        let none = fix(31_080, Some(&[]));
        assert_ends(&none, ": sysctl -w net.ipv4.ip_local_reserved_ports=30000-32767");
    }

    #[test]
    fn the_command_reads_reserved_ports_that_were_not_read() {
        let words = fix(31_080, None);
        let command = "sh -c 'now=$(sysctl -n net.ipv4.ip_local_reserved_ports); sysctl -w net.ipv4.ip_local_reserved_ports=${now:+$now,}30000-32767'";
        assert_ends(&words, command);
    }

    /// The API server runs with `--service-node-port-range=20000-40000`.
    #[test]
    fn a_port_outside_the_default_range_asks_for_the_range_first() {
        let words = fix(36_704, Some(&[(8080, 8080)]));
        assert_starts(
            &words,
            "Look up the NodePort range of the API server (--service-node-port-range): 36704 is outside",
        );
        assert_ends(&words, "; sysctl -w net.ipv4.ip_local_reserved_ports=8080,36704,NODEPORT-RANGE");
        assert_lacks(&words, &["30000-32767 is the default range"]);
        assert_ends(&fix(36_704, None), "{now:+$now,}36704,NODEPORT-RANGE'");
    }

    #[test]
    fn many_ports_outside_the_default_range_are_named_as_a_span() {
        assert_eq!(super::outside_default(&[31000, 36704, 40000]), [(36704, 36704), (40000, 40000)]);
        let many: Vec<u16> = (40000..40100).step_by(2).collect();
        assert_eq!(super::outside_default(&many), [(40000, 40098)]);
    }
}
