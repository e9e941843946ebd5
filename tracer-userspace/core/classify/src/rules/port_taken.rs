//! The target refused, because the port is the local port of a client connection: no server can bind it. `acceptor.rs`
//! has the other way to it: a process that listens on the port answered instead of the server.

use super::*;
use tracer_case::other_stack::refused;
use tracer_case::refusal::Refused;
use tracer_model::event::{Netns, PortHolder, PortHolders};

/// How long a reading of the holders of a port counts for later attempts: more than the usual period of a probe.
const RECENT_NS: u64 = 60_000_000_000;

pub(super) fn find(case: &Case<'_>) -> Option<Finding> {
    let Refused { mut evidence, netns, confidence } = refused(case)?;
    let (netns, at) = (netns?, evidence.iter().map(|it| it.time_boot_ns).max()?);
    let dst = case.attempt.flow.dst;
    let (time, read, holder) = held(case, netns, at, |it| it.local.ip() == dst.ip())?;
    let PortHolder { remote, pid, comm, .. } = holder;
    let (first, last) = read.range;
    let summary = format!(
        "nobody listens on {dst}{}; bind() would fail, as the port is the source of a connection of {comm} (pid {pid}) to {remote} (ip_local_port_range {first}-{last})",
        in_namespace(case, Some(netns))
    );
    evidence.push(of_holder(time, read, holder));
    let end = format!("ss -K src '{}' dst '{remote}'", holder.local);
    let show = [end, "sysctl net.ipv4.ip_local_reserved_ports".to_owned()];
    let of_pod = if case.node.is_a_node(netns) { "" } else { OF_POD };
    let text = format!(
        "End that connection (pid {pid}; the first command) and start the server again. Then keep the port from clients: add {} to net.ipv4.ip_local_reserved_ports{of_pod}, in addition to its value, or use a port outside {first}-{last}",
        dst.port()
    );
    let fix = with_log(case, Remediation::from(text).run(show.map(|command| run_in(case, Some(netns), command))));
    Some(Finding::likely(Cause::PortTaken, evidence, summary, fix).at_most(confidence))
}

/// The setting of a pod is gone with its sandbox.
const OF_POD: &str = " in the pod's securityContext.sysctls";

/// A connection of the port at another address keeps only a server from it that binds all addresses. Whether the target's
/// does is not known. A clause, the evidence, and what to do in that case.
pub(super) fn held_at_other_address(case: &Case<'_>, netns: Netns, at: u64) -> Option<(String, Evidence, String)> {
    let dst = case.attempt.flow.dst;
    // 0.0.0.0 is free while a connection over IPv6 has the port. [::] stands for both families.
    let is_other = |it: &PortHolder| it.local.ip() != dst.ip() && (dst.is_ipv6() || it.local.is_ipv4());
    let (time, read, holder) = held(case, netns, at, is_other)?;
    let (PortHolder { local, remote, pid, comm }, port) = (holder, dst.port());
    let clause = format!(
        "; bind() to all addresses would fail, as {local} is the source of a connection of {comm} (pid {pid}) to {remote}"
    );
    let fix = format!(
        "If the server binds to all addresses: end that connection (pid {pid}), start the server again, and add {port} to net.ipv4.ip_local_reserved_ports{}",
        if case.node.is_a_node(netns) { "" } else { OF_POD }
    );
    Some((clause, of_holder(time, read, holder), fix))
}

/// The last reading of the holders of the port, and one of them that keeps a server from binding it.
fn held<'a>(
    case: &Case<'a>,
    netns: Netns,
    at: u64,
    is_there: impl Fn(&PortHolder) -> bool,
) -> Option<(u64, &'a PortHolders, &'a PortHolder)> {
    let dst = case.attempt.flow.dst;
    let (time, read) = case.node.port_holders(netns, dst.port())?;
    let is_recent = time.saturating_add(RECENT_NS) >= case.attempt.started;
    // A process that listened there since then has found the port free.
    let was_free = case.node.listeners.changed_since(netns, dst, time.min(at));
    let holder = read.holders.iter().find(|it| is_there(it) && blocks(case, netns, read, it))?;
    (is_recent && !was_free).then_some((time, read, holder))
}

/// A connection that a server accepted keeps no server from the port (SO_REUSEADDR). It may be left over from a server
/// that listens no more.
fn blocks(case: &Case<'_>, netns: Netns, read: &PortHolders, holder: &PortHolder) -> bool {
    let last = case.node.listeners.last(netns, read.port);
    let served = last.is_some_and(|(_, listen)| listen.actor.pid == holder.pid);
    read.is_client(holder) && !served
}

fn of_holder(time: u64, read: &PortHolders, holder: &PortHolder) -> Evidence {
    let PortHolder { local, remote, pid, comm } = holder;
    let text = format!("{local} is the source of a connection of {comm} (pid {pid}) to {remote}");
    let (first, last) = read.range;
    let fields = json!({ "pid": pid, "local": local, "remote": remote, "range": [first, last], "netns": read.netns });
    evidence_of("sock_diag", time, text, fields)
}

#[cfg(test)]
mod tests {
    use tracer_core::testing::*;

    /// A connection between these ends has the port, and then the target refuses.
    fn held(local: &str, remote: &str) -> Stream {
        let mut stream = Stream::new();
        hold(&mut stream, local, remote);
        stream.wait_ms(10_000).connect().reset_sent(SYN, true, None);
        stream
    }

    fn hold(stream: &mut Stream, local: &str, remote: &str) {
        let [local, remote] = [local, remote].map(address);
        let holders = vec![PortHolder { local, remote, pid: 812, comm: "agent".into() }];
        let reading = PortHolders { netns: POD, port: 8080, range: (1024, 9000), holders };
        stream.push(ObservationKind::PortHolders(Box::new(reading)));
    }

    const OWN: &str = "10.88.0.2:8080";
    const SERVER: &str = "10.96.0.1:443";

    #[test]
    fn the_source_port_of_a_client_cannot_be_bound() {
        let stream = held(OWN, SERVER);
        assert_eq!(stream.causes(), ["port_taken"]);
        let verdict = stream.verdicts().remove(0).verdict;
        let words = "the source of a connection of agent (pid 812) to 10.96.0.1:443";
        assert_has(&verdict.summary, &[words]);
        assert_eq!(verdict.confidence, Confidence::Likely);
        assert_has(&verdict.remediation, &["ss -K src '10.88.0.2:8080' dst '10.96.0.1:443'"]);
        assert_has(
            &verdict.remediation.text,
            &["add 8080 to net.ipv4.ip_local_reserved_ports in the pod's securityContext.sysctls"],
        );
    }

    #[test]
    fn the_first_refusal_is_revised_when_the_holder_was_read() {
        let mut stream = Stream::new().connect().refused().wait_ms(3).clone();
        hold(&mut stream, OWN, SERVER);
        assert_eq!(stream.causes(), ["connection_refused", "port_taken"]);
    }

    #[test]
    fn an_accepted_connection_or_one_of_another_address_does_not_take_the_port() {
        assert_eq!(held(OWN, "10.88.0.1:5000").causes(), ["connection_refused"], "a client's port");
    }

    /// As the API server's connections to etcd. A server can bind 10.88.0.2, but most bind all addresses.
    #[test]
    fn a_connection_of_another_address_is_named_and_its_fix_comes_first() {
        let verdict = held("127.0.0.1:8080", "127.0.0.1:443").verdict();
        assert_eq!((verdict.cause.name(), verdict.confidence), ("connection_refused", Confidence::Proven));
        let words = "; bind() to all addresses would fail, as 127.0.0.1:8080 is the source of a connection of agent (pid 812) to 127.0.0.1:443";
        assert_ends(&verdict.summary, words);
        assert_starts(&verdict.remediation, "If the server binds to all addresses: end that connection (pid 812)");
        assert_has(&verdict.remediation, &[". Otherwise: let the process listen on 8080"]);
        let accepted = held("127.0.0.1:8080", "127.0.0.1:5000").verdict();
        assert_lacks(&accepted.summary, &["bind()"]);
        assert_lacks(&held("[::1]:8080", "[::1]:443").verdict().summary, &["bind()"]);
    }

    /// A server stopped listening, and a connection of a client with a low port is left.
    #[test]
    fn a_connection_of_the_former_listener_does_not_take_the_port() {
        let mut stream = Stream::new().listens(POD, 8080, true).listens(POD, 8080, false).clone();
        let pid = stream.observations.iter().find_map(|it| match &it.kind {
            ObservationKind::Listen(listen) => Some(listen.actor.pid),
            _ => None,
        });
        hold(&mut stream, OWN, SERVER);
        if let Some(ObservationKind::PortHolders(reading)) = stream.observations.last_mut().map(|it| &mut it.kind) {
            reading.holders[0].pid = pid.expect("who listened");
        }
        stream.wait_ms(1_000).connect().reset_sent(SYN, true, None);
        assert_eq!(stream.causes(), ["connection_refused"]);
    }

    #[test]
    fn an_old_reading_or_one_before_a_listener_does_not_count() {
        let mut old = Stream::new();
        hold(&mut old, OWN, SERVER);
        old.wait_ms(61_000).connect().reset_sent(SYN, true, None);
        assert_eq!(old.causes(), ["connection_refused"]);
        let mut free = Stream::new();
        hold(&mut free, OWN, SERVER);
        free.listens(POD, 8080, true).listens(POD, 8080, false).wait_ms(1_000).connect().reset_sent(SYN, true, None);
        assert_eq!(free.causes(), ["connection_refused"]);
    }
}
