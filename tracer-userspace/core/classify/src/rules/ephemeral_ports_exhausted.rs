//! Every source port for this destination is in use.

use super::*;
use tracer_model::event::{PortPressure, PortUser};

/// Waits until the case is settled: tracer queries the users of the ports when the connect fails, and the answer comes
/// a moment later.
pub(super) fn find(case: &Case<'_>) -> Option<Finding> {
    let (evidence, confidence) = by_connect(case.attempt).or_else(|| by_state(case))?;
    if !case.settled {
        return None;
    }
    let (dst, place) = (case.attempt.flow.dst, in_namespace(case, case.attempt.netns));
    let (summary, fix, show) = match reserved_range(case) {
        Some((low, high)) => (
            format!(
                "no source port is free{place} for connections to {dst}: net.ipv4.ip_local_reserved_ports reserves all ports of {low} to {high}"
            ),
            "Remove ports from net.ipv4.ip_local_reserved_ports that no NodePort or listener needs, or widen net.ipv4.ip_local_port_range outside the NodePort range",
            "sysctl net.ipv4.ip_local_port_range net.ipv4.ip_local_reserved_ports".to_owned(),
        ),
        None => {
            let range = range_here(case).map(|(a, b)| format!(" of {a} to {b}")).unwrap_or_default();
            (
                format!("no source port{range} is free{place} for connections to {dst}{}", busiest_users(case)),
                "Find the process that uses the ports, and let it reuse its connections. Or widen net.ipv4.ip_local_port_range outside the NodePort range",
                format!("ss -tanp state all dst '{dst}'"),
            )
        }
    };
    let fix = Remediation::from(fix).run([run_in(case, case.attempt.netns, show)]);
    let found = Finding::failure(Cause::EphemeralPortsExhausted, vec![evidence], summary, fix);
    Some(found.with_confidence(confidence))
}

/// The range of source ports, if all of them are reserved.
fn reserved_range(case: &Case<'_>) -> Option<(u16, u16)> {
    let (low, high) = range_here(case)?;
    (low..=high).all(|port| case.node.settings.is_reserved(port)).then_some((low, high))
}

/// The range of source ports of the attempt's namespace. tracer reads the settings of the node's namespace only.
pub(super) fn range_here(case: &Case<'_>) -> Option<(u16, u16)> {
    let here = case.attempt.netns.is_some() && case.node.netns() == case.attempt.netns;
    case.node.settings.local_port_range.filter(|_| here)
}

/// `connect(2)` failed for a socket that had reached SYN_SENT. It had an address and a route, so it lacked only a port.
/// A socket that has a port was bound to it: an older connection of that port to this destination is in the way.
fn by_connect(attempt: &Attempt) -> Option<(Evidence, Confidence)> {
    let (time, failed) = attempt.connect_failed_at()?;
    let is_bound = attempt.last.as_ref().is_some_and(|state| state.flow.src.port() != 0);
    let exhausted = failed.errno == libc::EADDRNOTAVAIL && failed.conn.is_some() && !is_bound;
    let text = format!("connect({}) found no free source port: EADDRNOTAVAIL", failed.dst);
    let evidence = || evidence_of(Hook::SysConnect.name(), time, text, json!({ "errno": failed.errno }));
    exhausted.then(|| (evidence(), Confidence::Proven))
}

/// Without that hook: the socket closed and never had a port. The hook's event may be lost, or late: on a busy node the
/// process may not run between the two.
fn by_state(case: &Case<'_>) -> Option<(Evidence, Confidence)> {
    let lacks_hook = case.lacks(&[Hook::SysConnect]);
    let confidence = if lacks_hook { Confidence::Proven } else { Confidence::Likely };
    let is_unseen = lacks_hook || case.attempt.connect_failed_at().is_none();
    let (ended, _) = case.attempt.ended?;
    let state = case.attempt.last.as_ref()?;
    (is_unseen && case.attempt.without_port()).then(|| (of_state(ended, state), confidence))
}

/// The processes of the same namespace that connect most often.
pub(super) fn busiest_users(case: &Case<'_>) -> String {
    let Some(pressure) = &case.node.ports else { return String::new() };
    let here = |user: &&PortUser| user.netns.is_none() || user.netns == case.attempt.netns;
    let users: Vec<String> = pressure.users.iter().filter(here).take(2).map(|user| describe(user, pressure)).collect();
    if users.is_empty() { String::new() } else { format!("; most connects: {}", users.join("; ")) }
}

fn describe(user: &PortUser, pressure: &PortPressure) -> String {
    format!(
        "{} (pid {}) {} in {} to {}, {} in TIME_WAIT",
        user.comm,
        user.pid,
        user.connects,
        window(pressure.window_ns),
        counted(user.destinations, "destination"),
        user.time_wait_left
    )
}

/// The time window of a count as text, never "0 s".
fn window(ns: u64) -> String {
    match ns {
        0..1_000_000 => "less than 1 ms".to_owned(),
        1_000_000..1_000_000_000 => format!("{} ms", ns / 1_000_000),
        _ => format!("{:.1} s", ns as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracer_core::testing::*;

    fn pressure() -> ObservationKind {
        let user = PortUser {
            pid: 4711,
            comm: "churner".into(),
            processes: 1,
            netns: None,
            pod_uid: None,
            connects: 28_000,
            destinations: 1,
            to_itself: 0,
            time_wait_left: 27_000,
        };
        ObservationKind::PortPressure(Box::new(PortPressure {
            window_ns: 60_000_000_000,
            users: vec![user],
            ..PortPressure::default()
        }))
    }

    /// The client chose a port with bind(), and its last connection to this destination still holds it.
    #[test]
    fn a_port_that_the_client_chose_does_not_use_up_the_range() {
        let mut stream = Stream::new().connect().no_port(libc::EADDRNOTAVAIL).settles().clone();
        for observation in &mut stream.observations {
            if let ObservationKind::State(state) = &mut observation.kind {
                state.flow.src.set_port(40_000);
            }
        }
        assert_eq!(stream.causes(), ["unexplained"]);
    }

    /// Nobody holds the ports: to look for a process leads nowhere.
    #[test]
    fn a_range_that_is_reserved_as_a_whole_is_named() {
        let fix = |reserved| {
            let settings = NodeSettings {
                local_port_range: Some((40_000, 40_100)),
                reserved_ports: vec![(30_000, 40_050), reserved],
                ..NodeSettings::default()
            };
            let mut stream = Stream::new();
            stream.push(ObservationKind::NodeSettings(settings)).connect().no_port(libc::EADDRNOTAVAIL);
            let verdict = stream.push(pressure()).verdict();
            format!("{} {}", verdict.summary, verdict.remediation)
        };
        assert_has(&fix((40_051, 40_100)), &["reserves all ports of 40000 to 40100", "Remove ports from"]);
        assert_has(&fix((40_052, 40_100)), &["Find the process that uses the ports"]);
    }

    /// The connect is of a prober in a pod.
    #[test]
    fn the_range_of_the_node_is_not_that_of_another_namespace() {
        let summary = |netns| {
            let range = NodeSettings { local_port_range: Some((40_000, 40_100)), ..NodeSettings::default() };
            let mut stream = Stream::new();
            stream.push(ObservationKind::NodeSettings(range)).connect().last_connect().netns = netns;
            stream.no_port(libc::EADDRNOTAVAIL).push(pressure()).verdict().summary
        };
        assert_has(&summary(NODE), &["no source port of 40000 to 40100 is free"]);
        assert_has(&summary(POD), &["no source port is free in "]);
    }

    /// ss reads the part after the last colon as the port.
    #[test]
    fn the_ss_filter_has_the_address_in_the_syntax_of_ss() {
        let fix =
            |dst: &str| Stream::to(dst).connect().no_port(libc::EADDRNOTAVAIL).push(pressure()).verdict().remediation;
        for dst in ["[fd00::2]:8080", "10.88.0.2:8080"] {
            assert_ends(&fix(dst), &format!("ss -tanp state all dst '{dst}'"));
        }
    }

    #[test]
    fn a_short_window_is_not_printed_as_zero() {
        assert_eq!(window(60_000_000_000), "60.0 s");
        assert_eq!(window(412_345_678), "412 ms");
        assert_eq!(window(999), "less than 1 ms");
    }

    #[test]
    fn another_error_or_a_missing_source_address_is_not_this() {
        assert_ne!(Stream::new().connect().no_port(libc::EPERM).causes(), ["ephemeral_ports_exhausted"]);
        assert_eq!(Stream::new().connect_failed(libc::EADDRNOTAVAIL).causes(), ["route_unreachable"]);
    }

    #[test]
    fn without_the_return_of_connect_it_is_likely() {
        let mut stream = Stream::new().connect().no_port(libc::EADDRNOTAVAIL).clone();
        stream.observations.pop();
        assert_eq!(stream.settles().decided(), ("ephemeral_ports_exhausted", Confidence::Likely));
    }

    /// tracer reads the settings every few seconds, and the range again with the users of the ports.
    #[test]
    fn the_range_is_that_of_the_moment() {
        let range = NodeSettings { local_port_range: Some((32_768, 60_999)), ..NodeSettings::default() };
        let mut stream = Stream::new();
        stream.push(ObservationKind::NodeSettings(range)).connect().no_port(libc::EADDRNOTAVAIL);
        let ObservationKind::PortPressure(mut pressure) = pressure() else { panic!("the users of the ports") };
        pressure.local_port_range = Some((40_000, 40_003));
        let summary = stream.push(ObservationKind::PortPressure(pressure)).verdict().summary;
        assert_has(&summary, &["no source port of 40000 to 40003 is free"]);
    }
}
