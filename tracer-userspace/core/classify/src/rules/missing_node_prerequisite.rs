//! A setting of the node stops the traffic of pods: the node does not forward, or a base chain drops packets that no
//! rule accepted. In the second case the cause is `firewall_drop`, and this cause stands in `also`.

use super::*;
use tracer_case::drop_reason::forwarding_setting;
use tracer_case::netfilter::dropped;
use tracer_model::event::PacketDrop;
use tracer_model::record::Status;

pub(super) fn find(case: &Case<'_>) -> Option<Finding> {
    if case.attempt.established.is_some() {
        return None;
    }
    not_forwarded(case).or_else(|| by_base_policy(case))
}

/// A packet of the handshake was for another host, and the node does not forward. In a pod such a
/// drop is normal: a virtual machine or a packet socket there has its own stack, which answers the dropped packets.
fn not_forwarded(case: &Case<'_>) -> Option<Finding> {
    let handshake = |d: &PacketDrop| d.flags.is_syn() || d.flags.is_syn_ack();
    let on_node = |d: &PacketDrop| d.netns.is_some_and(|netns| case.node.is_a_node(netns));
    // An answer to its own namespace was for no other host: the address is gone.
    let is_own = |d: &PacketDrop| d.netns == case.attempt.netns && d.flow.dst.ip() == case.attempt.flow.src.ip();
    let mut dropped = drops(case).filter(|(_, d)| handshake(d) && on_node(d) && !is_own(d));
    let (time, drop, reason) = dropped.find_map(|(time, d)| Some((time, d, reason_of(d)?)))?;
    // An answer shows that the packet arrived all the same. Without a kernel reason a missing route is possible, too:
    // the same function drops then, and sends an ICMP error.
    // IPv6 packets with a link-local source get the same kernel reason on a node that forwards (`ip6_forward`).
    let otherwise = match reason {
        Reason::Function => no_route(case, drop) || forwards(case, drop),
        Reason::Kernel => drop.flow.dst.is_ipv6() && forwards(case, drop),
    };
    if !case.settled || case.attempt.reset_received().is_some() || otherwise {
        return None;
    }
    let device = drop.device.as_ref().map_or("the device it came in on", |d| d.name.as_str());
    let summary = format!(
        "the {} {} that came in on {device}{} was dropped: packets for other hosts are not forwarded there{}",
        drop.flags.name(),
        drop.flow,
        in_namespace(case, drop.netns),
        setting_clause(case, drop)
    );
    let (evidence, fix) = (vec![of_drop(time, drop)], forwarding_fix(case, drop));
    let found = Finding::failure(Cause::MissingNodePrerequisite, evidence, summary, fix);
    Some(match reason {
        Reason::Kernel => found,
        Reason::Function => found.with_confidence(Confidence::Likely).resting_on(ICMP_HOOKS),
    })
}

/// The packet was dropped for want of a route, or may have been. An ICMP error was sent or arrived. Or no hook shows
/// that error, and the setting is not known to be 0. (`ip6_forward` never drops for that: `ip6_pkt_drop` does.)
fn no_route(case: &Case<'_>, drop: &PacketDrop) -> bool {
    let came =
        case.attempt.errno().is_some_and(|it| matches!(it, libc::EHOSTUNREACH | libc::ENETUNREACH | libc::EACCES));
    let lacks_hook = drop.flow.dst.is_ipv4() && case.lacks(ICMP_HOOKS);
    case.attempt.icmp().next().is_some() || came || (lacks_hook && value(case, drop) != Some("0"))
}

/// The setting is on. Then `ip6_forward` drops a packet that an xfrm policy forbids, or for which early demux found a
/// socket. `ip_error` may drop for the device's own setting. It drops in the same way for a blackhole route, which CNIs
/// add for their blocks of addresses. So it does for an unreachable route, if the limit of ICMP errors for that source
/// is used up (`ip_rt_error_burst`).
fn forwards(case: &Case<'_>, drop: &PacketDrop) -> bool {
    value(case, drop).is_some_and(|value| value != "0")
}

/// What shows that a device does not forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    /// The kernel's own reason. `ip_error` (net/ipv4/route.c) and `ip6_forward` (net/ipv6/ip6_output.c) give it to a
    /// packet with a valid address only if they do not forward.
    Kernel,
    /// The function, on kernels that give no reason.
    Function,
}

fn reason_of(drop: &PacketDrop) -> Option<Reason> {
    match (drop.reason.as_deref(), dropped_in(drop)) {
        (Some("IP_INADDRERRORS"), _) => Some(Reason::Kernel),
        (None | Some("NOT_SPECIFIED"), Some("ip_error" | "ip6_forward")) => Some(Reason::Function),
        _ => None,
    }
}

/// The value of the setting. Tracer reads it only in the namespace of the last prober.
fn value<'a>(case: &Case<'a>, drop: &PacketDrop) -> Option<&'a str> {
    let read = case.node.settings.sysctls.get(forwarding_setting(drop)).map(String::as_str);
    read.filter(|_| drop.netns == case.node.netns())
}

/// The setting as a clause. For IPv4 only the device's own setting decides. The kernel copies a change of the node's
/// setting to all devices.
fn setting_clause(case: &Case<'_>, drop: &PacketDrop) -> String {
    let own = if drop.flow.dst.is_ipv4() && forwards(case, drop) { ": it is the device's own setting" } else { "" };
    value(case, drop).map(|value| format!(" ({} = {value}{own})", forwarding_setting(drop))).unwrap_or_default()
}

/// When forwarding is switched on, the kernel drops the default routes that came from router advertisements
/// (`rt6_purge_dflt_routers`). It accepts no new ones unless `accept_ra` is 2.
const KEEP_THE_ROUTE: &str = " Forwarding removes an IPv6 default route that came from router advertisements, unless accept_ra of its link is 2. The first command sets it for such a link: make that permanent, too.";

/// Sets `accept_ra` where it is 1 and the link has such a route. A link that refuses advertisements (0) has its route from
/// a program, and keeps it.
const ACCEPT_RA: &str = r#"sh -c 'for l in $(ip -6 route show default proto ra | grep -o "dev [^ ]*" | cut -c5-); do ! grep -qx 1 /proc/sys/net/ipv6/conf/$l/accept_ra || sysctl -w net/ipv6/conf/$l/accept_ra=2; done'"#;

/// A write that does not change `ip_forward` changes no device (`devinet_sysctl_forward`): then only the device's own
/// setting helps.
fn forwarding_fix(case: &Case<'_>, drop: &PacketDrop) -> Remediation {
    let name = forwarding_setting(drop);
    let set = |name: &str| format!("sysctl -w {name}=1");
    let device = drop.device.as_ref().map_or_else(|| "DEVICE".to_owned(), |d| shell::link_setting(&d.name));
    let own = format!("net.ipv4.conf.{device}.forwarding");
    let usual =
        |names: &str| format!("Set {names} to 1, make it permanent in /etc/sysctl.d, and find what set it to 0.");
    let (text, commands) = match value(case, drop) {
        _ if drop.flow.dst.is_ipv6() => (usual(name) + KEEP_THE_ROUTE, vec![ACCEPT_RA.to_owned(), set(name)]),
        Some("0") => (usual(name), vec![set(name)]),
        Some(_) => (
            format!("Set {own} to 1: {name} was 1 when tracer read it, and then writing it changes nothing. {FIND}"),
            vec![set(&own)],
        ),
        None => (format!("{} {FIND}", usual(&format!("{name} and {own}"))), vec![set(name), set(&own)]),
    };
    Remediation::from(text)
        .run(commands.into_iter().map(|command| run_in(case, drop.netns, command)))
        .run([Command::on_node("tracer doctor --check ip_forward")])
}

/// What sets the setting of single devices to 0.
const FIND: &str = "What sets it to 0 for a device: net.ipv4.conf.default.forwarding in /etc/sysctl.d, or IPv4Forwarding= of systemd-networkd.";

/// Netfilter dropped the packet at a hook of the node. `doctor` found a base chain at that hook that drops all packets
/// that no rule accepts.
fn by_base_policy(case: &Case<'_>) -> Option<Finding> {
    let blocked = dropped(case)?;
    let (_, drop) = blocked.drop?;
    let hook = netfilter_hook(drop)?;
    if drop.netns.is_none() || drop.netns != case.node.netns() || !blocked.blame.as_ref()?.all(|rule| rule.policy) {
        return None;
    }
    let (time, found) = case.node.finding("base_policy", |f| {
        f.status >= Status::Warn && f.fields.get("hook").and_then(|it| it.as_str()) == Some(hook)
    })?;
    let text = format!("doctor, base_policy: {}", found.observed);
    let evidence = evidence_of("doctor", time, text.clone(), json!({ "check": found.check, "status": found.status }));
    let by_check = |fix: &Remediation| {
        Remediation::from("Do what `tracer doctor --check base_policy` says").run(fix.commands.clone())
    };
    let fix = found.remediation.as_ref().map_or_else(|| Cause::MissingNodePrerequisite.fix(), by_check);
    Some(Finding::likely(Cause::MissingNodePrerequisite, vec![evidence], text, fix))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use tracer_core::testing::*;

    #[test]
    fn the_kernels_own_reason_decides() {
        let mut stream = Stream::new();
        assert_eq!(stream.connect().drop(SYN, "IP_INADDRERRORS", NODE).causes(), ["missing_node_prerequisite"]);
        let verdict = stream.verdict();
        assert_eq!(verdict.confidence, Confidence::Proven);
        let commands: Vec<_> = verdict.remediation.commands.iter().map(|command| command.run.as_str()).collect();
        let both = ["sysctl -w net.ipv4.ip_forward=1", "sysctl -w net.ipv4.conf.DEVICE.forwarding=1"];
        assert_eq!(commands[..2], both, "the setting was not read");
    }

    #[test]
    fn an_answer_to_an_address_that_its_own_namespace_has_lost_was_for_no_other_host() {
        let mut lost = Stream::new();
        lost.sysctl("net.ipv4.ip_forward", "0").connect().drop(SYN_ACK, "IP_INADDRERRORS", NODE);
        assert_eq!(lost.gives_up().causes(), ["unexplained"]);
    }

    #[test]
    fn a_devices_own_setting_is_reported_from_the_nodes() {
        let decided = |forwards: &str| {
            let mut stream = Stream::new();
            stream.sysctl("net.ipv4.ip_forward", forwards).connect();
            stream.drop_on(SYN, "IP_INADDRERRORS", NODE, Some(device(2, "eth0.100")));
            let verdict = stream.verdict();
            (verdict.summary, verdict.remediation.to_string())
        };
        let (summary, fix) = decided("0");
        assert_ends(&summary, "(net.ipv4.ip_forward = 0)");
        assert_has(&fix, &["sysctl -w net.ipv4.ip_forward=1; tracer doctor"]);
        let (summary, fix) = decided("1");
        assert_ends(&summary, "(net.ipv4.ip_forward = 1: it is the device's own setting)");
        assert_has(&fix, &[": sysctl -w net.ipv4.conf.eth0/100.forwarding=1; tracer doctor"]);
        assert_lacks(&fix, &["sysctl -w net.ipv4.ip_forward=1"]);
    }

    /// Observed: the route disappeared, and the kernel ignored the next advertisement.
    #[test]
    fn the_fix_for_ipv6_keeps_the_default_route() {
        let fix = Stream::to("[fd00::2]:8080").connect().drop(SYN, "IP_INADDRERRORS", NODE).verdict().remediation;
        assert_has(&fix.text, &["unless accept_ra of its link is 2"]);
        let commands: Vec<_> = fix.commands.iter().map(|command| command.run.as_str()).collect();
        assert_has(&commands[0], &["show default proto ra |", "accept_ra=2"]);
        assert_eq!(commands[1], "sysctl -w net.ipv6.conf.all.forwarding=1", "{fix}");
    }

    /// For IPv6 only the setting of the node decides. The kernel gives this reason also to a link-local source.
    #[test]
    fn a_node_that_forwards_ipv6_dropped_the_packet_for_another_reason() {
        let cause = |value: &str| {
            let mut stream = Stream::to("[fd00::2]:8080");
            stream.sysctl("net.ipv6.conf.all.forwarding", value).connect().drop(SYN, "IP_INADDRERRORS", NODE);
            stream.gives_up().verdict().cause
        };
        assert_eq!(["0", "1"].map(cause), [Cause::MissingNodePrerequisite, Cause::Unexplained]);
    }

    #[test]
    fn a_dropped_packet_that_was_answered_is_not_the_cause() {
        let mut reset = Stream::new();
        reset.connect().drop(SYN, "IP_INADDRERRORS", NODE).reset_received(TcpState::SynSent, 0).gives_up();
        assert_eq!(reset.causes(), ["handshake_rst"]);
        let without_route = Stream::new().connect().drop(SYN, "IP_INNOROUTES", NODE).icmp(3, 1).gives_up().clone();
        assert_eq!(without_route.causes(), ["route_unreachable"]);
    }

    /// The kernel reuses inode numbers: the number of a prober's namespace can become a pod's.
    #[test]
    fn a_pod_with_the_reused_number_of_a_node_need_not_forward() {
        let mut stream = Stream::new();
        stream
            .push(ObservationKind::Links(Links { netns: POD, cookie: None, links: Vec::new() }))
            .links(true, &["10.88.0.1"])
            .netns_made(POD);
        stream.connect().drop(SYN, "IP_INADDRERRORS", POD).gives_up();
        assert_eq!(stream.causes(), ["unexplained"]);
    }

    /// A kernel without drop reasons (5.10).
    #[test]
    fn where_the_kernel_gives_no_reason_the_missing_icmp_error_decides() {
        let mut dropped = Stream::new();
        dropped.connect().drop_with(SYN, NODE, |drop| drop.location = Some("ip_error".into()));
        let found = dropped.clone().settles().all_decided();
        assert_eq!(found, [("missing_node_prerequisite", Confidence::Likely)]);
        assert_eq!(dropped.icmp(3, 1).settles().all_decided(), [("route_unreachable", Confidence::Proven)]);
    }

    /// On a 5.10 kernel where no program can attach to a function, no hook shows the ICMP error for a missing route.
    #[test]
    fn without_the_hook_for_icmp_errors_the_setting_decides() {
        let decided = |forwards: &str| {
            let mut stream = Stream::new();
            stream.missing(Hook::IcmpSend).sysctl("net.ipv4.ip_forward", forwards).connect();
            stream.drop_with(SYN, NODE, |drop| drop.location = Some("ip_error".into())).gives_up().decided()
        };
        assert_eq!(decided("0"), ("missing_node_prerequisite", Confidence::Possible));
        let mut v6 = Stream::to("[fd00::2]:8080");
        v6.missing(Hook::Icmp6Send).connect().drop_with(SYN, NODE, |drop| drop.location = Some("ip6_forward".into()));
        assert_eq!(v6.gives_up().causes(), ["missing_node_prerequisite"]);
        assert_eq!(decided("1").0, "unexplained");
    }

    /// Early demux found a socket (amazon-vpc-cni-k8s#1269), or a blackhole route dropped the packet.
    #[test]
    fn a_drop_on_a_node_that_forwards_has_another_cause() {
        let decided = |dst: &str, place: &str, setting: &str, value: Option<&str>| {
            let mut stream = Stream::to(dst);
            value.into_iter().for_each(|value| _ = stream.sysctl(setting, value));
            stream.connect().drop_with(SYN, NODE, |drop| drop.location = Some(place.to_owned())).gives_up().decided()
        };
        let v6 = ("[fd00::2]:8080", "ip6_forward", "net.ipv6.conf.all.forwarding");
        let v4 = ("10.88.0.2:8080", "ip_error", "net.ipv4.ip_forward");
        for (dst, place, setting) in [v6, v4] {
            let of = |value| decided(dst, place, setting, value);
            assert_eq!(of(Some("1")).0, "unexplained");
            assert_eq!(of(Some("0")), ("missing_node_prerequisite", Confidence::Likely));
            assert_eq!(of(None), ("missing_node_prerequisite", Confidence::Likely), "not read");
        }
    }

    fn base_policy(hook: &str) -> ObservationKind {
        let fields = BTreeMap::from([("hook".to_owned(), hook.into())]);
        let observed = format!("policy drop on {hook}");
        let found = FindingBody { observed, fields, ..FindingBody::new("base_policy", Status::Fail) };
        ObservationKind::Findings(Box::new(Findings { findings: vec![found] }))
    }

    fn reported(netns: Netns, hook: &str, policy: bool) -> Verdict {
        let mut stream = Stream::new().links(true, &["10.88.0.1"]).push(base_policy(hook)).connect().clone();
        let dropping = tracer_model::event::FirewallRule { policy, ..rule("INPUT", RuleVerdict::Drop) };
        stream.filtered_at(SYN, netns, "ip_local_deliver").push(firewall(netns, vec![dropping])).settles();
        assert_eq!(stream.causes(), ["firewall_drop"]);
        stream.verdict()
    }

    #[test]
    fn a_policy_that_doctor_found_is_reported_beside_the_drop() {
        let also = |netns, hook, policy| reported(netns, hook, policy).also;
        assert_eq!(also(NODE, "INPUT", true), [Cause::MissingNodePrerequisite]);
        assert!(also(NODE, "FORWARD", true).is_empty(), "another hook's");
        assert!(also(NODE, "INPUT", false).is_empty(), "a rule's, not the policy's");
        assert!(also(POD, "INPUT", true).is_empty(), "a pod's");
        let rows = reported(NODE, "INPUT", true).evidence;
        assert_eq!(rows[0].text, "doctor, base_policy: policy drop on INPUT", "{rows:?}");
    }
}
