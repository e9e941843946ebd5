//! `connect(2)` failed before any SYN.

use std::net::SocketAddr;

use super::*;
use tracer_case::router::{REMOVE, fix, refusing};
use tracer_model::event::{ConnectFailed, LinkState, Prefix, is_kubelet_name};

/// `connect(2)` failed before any SYN. The rule waits until the case is settled: the observation that a link went down,
/// and the route with it, may come a moment later.
pub(super) fn by_connect(case: &Case<'_>) -> Option<Finding> {
    let (time, failed) = case.attempt.connect_failed_at().filter(|_| case.settled)?;
    let meaning = meaning(case, failed)?;
    let dst = failed.dst.ip();
    let error = errno_text(failed.errno);
    let text = format!("connect({}) failed at once: {error}", failed.dst);
    let evidence = evidence_of(Hook::SysConnect.name(), time, text, json!({ "errno": failed.errno }));
    let (route, place) = (meaning.route, in_namespace(case, case.attempt.netns));
    let found = |summary, fix: Remediation| Finding::failure(Cause::RouteUnreachable, vec![evidence], summary, fix);
    if let Some(link) = link_with_broadcast(case, dst).filter(|_| failed.errno == libc::ENETUNREACH) {
        let summary =
            format!("{dst} is a broadcast address of {}{place}: the kernel connects to no such address", link.name);
        return Some(found(summary, other_address(case, link)));
    }
    let may_be_rule = !dst.is_loopback() && !is_link_local(dst) && failed.errno != libc::EADDRNOTAVAIL;
    let by_rule = refusing_rule(failed.errno).filter(|_| may_be_rule);
    let rule = by_rule.map(|action| format!(", or an `ip rule` there is `{action}`")).unwrap_or_default();
    let fix = match refusing_route(failed.errno).filter(|_| may_be_rule) {
        Some(_) => {
            let text = if case.node.has_pod(dst) { OWN_ROUTE_MISSING } else { REMOVE };
            fix(case).reword(|_| text.to_owned()).run(refusing(case, case.attempt.netns, dst))
        }
        None if by_rule.is_some() => {
            fix(case).reword(|text| format!("{text}. If `ip rule` shows a rule that refuses, correct what made it"))
        }
        None if failed.errno == libc::EADDRNOTAVAIL => add_address(case),
        None => fix(case),
    };
    let fix = fix.run(may_be_rule.then(|| run_in(case, case.attempt.netns, "ip rule".to_owned())));
    let Some(other) = meaning.other else { return Some(found(format!("{route}{place} for {dst}{rule}"), fix)) };
    let summary = format!("{route}{place} for {dst}{rule}, or {other}; the error came before a SYN was sent: {error}");
    let (check, command) = meaning.check;
    let command = command.replace("PID", &case.attempt.actor.pid.to_string());
    let fix = fix.reword(|text| format!("{text}. If the route is good, {check}")).run([Command::on_node(command)]);
    Some(found(summary, fix).with_confidence(Confidence::Likely))
}

/// The route for the node's block of addresses refuses packets to a pod of this node only if the pod's own is gone.
const OWN_ROUTE_MISSING: &str = "If the route that refuses is for a whole subnet (Calico has one for its block), leave it: the pod's own route is missing. Restart the CNI's agent, which makes it again, or delete the pod. Otherwise remove the route or `ip rule` that refuses";

/// What an error of connect() means.
struct Meaning {
    /// What the error says about the route.
    route: &'static str,
    /// What else returns the same error. Absent if nothing does.
    other: Option<&'static str>,
    /// How to check that, and the command for it. PID stands for the client's process.
    check: (&'static str, &'static str),
}

const PROGRAMS: (&str, &str) = (
    "find the program at cgroup/connect: Cilium refuses a connect to a Service without a backend",
    "bpftool cgroup tree",
);

const MODULES: (&str, &str) = ("find what the security module denied (the audit log)", "ausearch -m avc -ts recent");

const CALLS: (&str, &str) =
    ("see how the client binds and connects its socket", "strace -f -e trace=bind,connect -p PID");

/// What the errno says about the route (`fib_props`, net/ipv4/fib_semantics.c; the same in net/ipv6/route.c). A program
/// at cgroup/connect returns EHOSTUNREACH for a Service without a backend, too (Cilium, `bpf_set_retval` of 5.18). A
/// security module returns EACCES, too (SELinux; Landlock's rules of TCP ports, 6.7). EINVAL is that of a blackhole
/// route, and of many other things: it counts only where no SYN was sent.
///
/// The socket of a kubelet is not bound, and its calls are right. Another client gets ENETUNREACH if it is bound to an
/// address that the namespace lacks, and EINVAL for an address of a wrong length (`ip_route_output_key_hash_rcu`,
/// net/ipv4/route.c; `tcp_v4_connect`, net/ipv4/tcp_ipv4.c).
fn meaning(case: &Case<'_>, failed: &ConnectFailed) -> Option<Meaning> {
    let only = |route| Meaning { route, other: None, check: ("", "") };
    let is_kubelet = is_kubelet_name(&case.attempt.actor.comm);
    let of_client = |route, other| match is_kubelet {
        true => only(route),
        false => Meaning { route, other: Some(other), check: CALLS },
    };
    let meaning = match failed.errno {
        // A SYN was sent: a blocking connect() returns what came back.
        _ if failed.conn.is_some() => return None,
        libc::ENETUNREACH => {
            of_client("there is no route", "the client had bound its socket to an address that is not there")
        }
        libc::EHOSTUNREACH => {
            let other = Some("a program at cgroup/connect refused the connect");
            Meaning { route: "the route is `unreachable`", other, check: PROGRAMS }
        }
        libc::EACCES => {
            let other = Some("a security module (SELinux, Landlock) refused the connect");
            Meaning { route: "the route is `prohibit`", other, check: MODULES }
        }
        // `tcp_v6_connect`: "connect to link-local address requires an interface".
        libc::EINVAL if is_link_local(failed.dst.ip()) => {
            only("no interface was named, without which there is no route")
        }
        libc::EINVAL => of_client("the route is `blackhole`", "the client's call was wrong"),
        libc::EADDRNOTAVAIL => only("there is no source address"),
        _ => return None,
    };
    Some(meaning)
}

/// A link of the prober's namespace that has this address as a broadcast address: the last one of its subnet, and before
/// 5.14 also the first. `tcp_v4_connect` returns ENETUNREACH for it.
fn link_with_broadcast<'a>(case: &Case<'a>, dst: IpAddr) -> Option<&'a LinkState> {
    let IpAddr::V4(dst) = dst else { return None };
    let is_broadcast = |(own, len): (&IpAddr, &u8)| {
        let all = u32::MAX.checked_shr((*len).into()).unwrap_or(0);
        let host = all & u32::from(dst);
        *len < 31 && Prefix { addr: *own, len: *len }.holds(dst.into()) && (host == 0 || host == all)
    };
    let mut links = case.node.links.get(&case.attempt.netns?).into_iter().flatten();
    links.find(|link| link.addrs.iter().zip(&link.prefixes).any(is_broadcast))
}

fn other_address(case: &Case<'_>, link: &LinkState) -> Remediation {
    let text = format!(
        "Correct the prefix length of {}, or delete the pod and take the address out of the CNI's range",
        link.name
    );
    let show = format!("ip addr show dev {}", shell::link(&link.name));
    Remediation::from(text).run(
        [show, format!("ip route get {}", case.attempt.flow.dst.ip())]
            .map(|command| run_in(case, case.attempt.netns, command)),
    )
}

/// There is a route, and no address of its family that the kernel may use as the source.
fn add_address(case: &Case<'_>) -> Remediation {
    let (version, show): (_, &[&str]) = match case.attempt.flow.dst {
        SocketAddr::V4(_) => ("IPv4", &["ip addr"]),
        SocketAddr::V6(_) => ("IPv6", &["ip -6 addr", "sysctl net.ipv6.conf.all.disable_ipv6"]),
    };
    let why = if version == "IPv6" {
        ": look for disable_ipv6, and for addresses that are tentative or dadfailed"
    } else {
        ""
    };
    let place = in_namespace(case, case.attempt.netns);
    Remediation::from(format!("Give a link{place} an {version} address{why}"))
        .run(show.iter().map(|command| run_in(case, case.attempt.netns, command)))
}

fn is_link_local(addr: IpAddr) -> bool {
    matches!(addr, IpAddr::V6(addr) if addr.is_unicast_link_local())
}

#[cfg(test)]
mod tests {
    use tracer_core::testing::*;

    #[test]
    fn an_error_of_connect_itself_decides() {
        for errno in [libc::ENETUNREACH, libc::EHOSTUNREACH, libc::EACCES, libc::EINVAL, libc::EADDRNOTAVAIL] {
            assert_eq!(Stream::new().connect_failed(errno).causes(), ["route_unreachable"], "errno {errno}");
        }
        assert_eq!(Stream::new().connect_failed(libc::ENOMEM).causes(), ["unexplained"]);
        let mut v6 = Stream::to("[fd00::2]:8080");
        let without_source = v6.connect_failed(libc::EADDRNOTAVAIL).verdict().remediation;
        assert_has(&without_source, &["an IPv6 address", "ip -6 addr", "disable_ipv6"]);
        assert_lacks(&without_source, &["rule"]);
        let blocking = Stream::new().connect().wait_ms(3000).no_port(libc::EHOSTUNREACH).clone();
        assert_ne!(blocking.causes(), ["route_unreachable"], "a SYN was sent");
    }

    /// A rule that refuses gives the errors of routes. It never gives that of an unreachable route.
    #[test]
    fn a_rule_that_refuses_may_be_the_reason() {
        for (errno, action) in
            [(libc::ENETUNREACH, "unreachable"), (libc::EACCES, "prohibit"), (libc::EINVAL, "blackhole")]
        {
            let verdict = Stream::new().connect_failed(errno).verdict();
            assert_has(&verdict.summary, &[&format!("or an `ip rule` there is `{action}`")]);
            assert_has(&verdict.remediation, &["rule that refuses", "ip rule"]);
            let refuses = errno != libc::ENETUNREACH;
            let begins = if refuses { "Remove the route or rule that refuses" } else { "Add or correct the route" };
            assert_starts(&verdict.remediation, begins);
            let shown = verdict.remediation.to_string().contains("ip route show table all match 10.88.0.2");
            assert_eq!(shown, refuses, "`ip route get` repeats the error only");
        }
        assert_lacks(&Stream::new().connect_failed(libc::EHOSTUNREACH).verdict().summary, &["ip rule"]);
    }

    /// Calico refuses the rest of its block of addresses. Its kubelet reports "connect: invalid argument".
    #[test]
    fn the_route_of_a_block_stays_where_a_pods_own_is_missing() {
        let fix = |host: bool| {
            let mut stream = Stream::new().http_readiness().clone();
            if host {
                stream.on_host_network();
            }
            stream.connect_failed(libc::EINVAL).verdict().remediation
        };
        let missing = fix(false);
        assert_starts(
            &missing,
            "If the route that refuses is for a whole subnet (Calico has one for its block), leave it: the pod's own route is missing",
        );
        assert!(missing.text.len() < 250, "{missing}");
        assert_starts(&fix(true), "Remove the route or rule that refuses");
    }

    #[test]
    fn a_link_local_address_without_its_interface_is_no_blackhole() {
        let reported = |target: &str| Stream::to(target).connect_failed(libc::EINVAL).verdict().summary;
        assert_starts(&reported("[fe80::1]:80"), "no interface was named");
        assert_starts(&reported("[fd00::1]:80"), "the route is `blackhole`");
    }

    /// Seen on 6.18: a client that is bound to a foreign address gets ENETUNREACH although there is a route.
    #[test]
    fn an_error_that_the_client_can_have_caused_itself_is_less_sure() {
        let reported = |errno, comm: &str| {
            let mut stream = Stream::new().connect_failed(errno).clone();
            comm.clone_into(&mut stream.last_connect_failed().actor.comm);
            stream.verdict()
        };
        for (errno, other) in [(libc::ENETUNREACH, "bound its socket"), (libc::EINVAL, "the client's call was wrong")] {
            assert_eq!(reported(errno, "kubelet").confidence, Confidence::Proven);
            let verdict = reported(errno, "prober");
            assert_eq!((verdict.cause.name(), verdict.confidence), ("route_unreachable", Confidence::Likely));
            assert_has(&verdict.summary, &[other]);
            assert_ends(&verdict.remediation, "; strace -f -e trace=bind,connect -p 10");
        }
    }

    /// Seen on 6.18: connect() to the last address of a subnet of the node.
    #[test]
    fn a_broadcast_address_does_not_lack_a_route() {
        let reported = |dst: &str, len: u8| {
            let bridge = LinkState { prefixes: vec![len], ..link(3, "cni0", &["10.88.0.1"]) };
            Stream::to(dst).node_links(vec![bridge]).connect_failed(libc::ENETUNREACH).verdict()
        };
        let broadcast = reported("10.88.0.255:80", 24);
        assert_starts(&broadcast.summary, "10.88.0.255 is a broadcast address of cni0 on the node");
        assert_lacks(&broadcast.remediation, &["Add or correct the route"]);
        for (dst, len) in [("10.88.0.255:80", 16), ("10.88.0.7:80", 24), ("10.88.1.255:80", 24), ("10.88.0.1:80", 31)] {
            assert_starts(&reported(dst, len).summary, "there is no route");
        }
    }

    /// Programs of Cilium at cgroup/connect and security modules return the errors of some routes, too.
    #[test]
    fn an_ambiguous_error_names_its_other_source_and_is_less_sure() {
        let reported = |errno| Stream::new().connect_failed(errno).verdict();
        for (errno, other) in [(libc::EHOSTUNREACH, "a program at cgroup/connect"), (libc::EACCES, "a security module")]
        {
            let verdict = reported(errno);
            assert_eq!(verdict.confidence, Confidence::Likely, "errno {errno}");
            assert_has(&verdict.summary, &[other, "the route is"]);
        }
        assert_eq!(reported(libc::ENETUNREACH).confidence, Confidence::Proven);
    }
}
