//! How likely it is that connect() picks a NodePort.

use std::collections::BTreeSet;

use super::super::{Case, counted};
use crate::rules::ephemeral_ports_exhausted::{busiest_users, range_here};
use tracer_model::event::port_ranges::preferred;

/// How many NodePorts lie in the range of source ports, which share of connects picks one of them, and who connects most.
pub(super) fn describe_overlap(case: &Case<'_>) -> String {
    let settings = &case.node.settings;
    let Some((low, high)) = range_here(case) else { return String::new() };
    let own = case.attempt.flow.src.port();
    if !(low..=high).contains(&own) {
        return format!(
            ". ip_local_port_range is {low}-{high} now: it was changed since, or the prober bound the port"
        );
    }
    let live = case.node.node_ports.all().map(|(_, it)| it).filter(|it| !it.listened).map(|it| it.port);
    let ports: BTreeSet<u16> = live.chain([own]).filter(|port| settings.is_preferred(*port)).collect();
    let all = preferred((low, high), &settings.reserved_ports).max(1);
    format!(
        "; ip_local_port_range {low}-{high} holds {} that connect() can pick: {:.2} % of connects{}",
        counted(ports.len() as u64, "live NodePort"),
        ports.len() as f64 * 100.0 / f64::from(all),
        busiest_users(case)
    )
}

#[cfg(test)]
mod tests {
    use tracer_core::testing::*;

    #[test]
    fn a_range_without_the_port_has_no_odds() {
        let summary = |netns| {
            let mut stream = Stream::new();
            let range = NodeSettings { local_port_range: Some((50000, 50019)), ..NodeSettings::default() };
            stream.push(ObservationKind::NodeSettings(range)).node_port(ProxyMode::Ipvs, 40000, &["10.88.0.9:80"]);
            stream.connect().last_connect().netns = netns;
            stream.ipvs(SYN_ACK, IpvsOp::Translate).verdict().summary
        };
        assert_ends(
            &summary(NODE),
            ". ip_local_port_range is 50000-50019 now: it was changed since, or the prober bound the port",
        );
        assert_lacks(&summary(POD), &["ip_local_port_range"]);
    }

    /// NodeLocal DNSCache connects to its own health endpoint each second.
    #[test]
    fn the_processes_that_use_up_ports_are_named() {
        let mut stream = Stream::new();
        let range = NodeSettings { local_port_range: Some((1024, 65000)), ..NodeSettings::default() };
        let user = PortUser {
            pid: 812,
            comm: "node-cache".into(),
            processes: 1,
            pod_uid: None,
            netns: Some(NODE),
            connects: 60,
            destinations: 1,
            to_itself: 60,
            time_wait_left: 60,
        };
        let pressure = PortPressure { window_ns: 60_000_000_000, users: vec![user], ..PortPressure::default() };
        stream.push(ObservationKind::NodeSettings(range)).push(ObservationKind::PortPressure(Box::new(pressure)));
        stream.node_port(ProxyMode::Ipvs, 40000, &["10.88.0.9:80"]).connect().ipvs(SYN_ACK, IpvsOp::Translate);
        assert_has(
            &stream.verdict().summary,
            &["% of connects; most connects: node-cache (pid 812) 60 in 60.0 s to 1"],
        );
    }

    #[test]
    fn the_odds_leave_out_ports_that_somebody_listens_on() {
        let odds = |listened| {
            let mut stream = Stream::new();
            let range = NodeSettings { local_port_range: Some((40000, 40019)), ..NodeSettings::default() };
            stream.push(ObservationKind::NodeSettings(range)).node_port(ProxyMode::Ipvs, 40000, &["10.88.0.9:80"]);
            stream.last_node_ports().ports.push(NodePort { port: 40002, listened, ..NodePort::default() });
            stream.connect().ipvs(SYN_ACK, IpvsOp::Translate).verdict().summary
        };
        assert_ends(&odds(false), "holds 2 live NodePorts that connect() can pick: 20.00 % of connects");
        assert_ends(&odds(true), "holds 1 live NodePort that connect() can pick: 10.00 % of connects");
    }
}
