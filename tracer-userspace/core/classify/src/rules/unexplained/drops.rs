//! What a dropped packet means that no cause stands for, and what to do about it.

use super::super::*;
use tracer_case::drop_reason::{forwarding_setting, is_blackhole, is_nameless, is_out_of_window};
use tracer_case::links::{is_at_other_end, is_wrong_bridge, node_end, show_other_end};
use tracer_case::netfilter;
use tracer_case::programs::ovs_reason;
use tracer_model::event::{Inspection, PacketDrop};

/// Why the kernel dropped a packet, in words that follow its name. `fix` and the commands that show more may be empty.
#[derive(Default)]
struct Explanation {
    meaning: &'static str,
    fix: &'static str,
    show: Vec<String>,
}

impl Explanation {
    fn of(meaning: &'static str) -> Self {
        Self { meaning, ..Self::default() }
    }

    fn fix(self, fix: &'static str, show: impl IntoIterator<Item = String>) -> Self {
        Self { fix, show: show.into_iter().collect(), ..self }
    }
}

pub(super) fn describe(case: &Case<'_>, drop: &PacketDrop) -> String {
    let why = match (drop.reason.as_deref(), drop.location.as_deref()) {
        (Some(reason), Some(place)) => format!(" ({reason}, in {place})"),
        (Some(one), None) | (None, Some(one)) => format!(" ({one})"),
        (None, None) => String::new(),
    };
    let on = drop.device.as_ref().map(|device| format!(" on {}", device.name)).unwrap_or_default();
    let (flags, flow, place) = (drop.flags.name(), drop.flow, in_namespace(case, drop.netns));
    format!("the kernel dropped its {flags} {flow}{on}{place}{why}{}", explain(case, drop).meaning)
}

/// How to fix it, and the commands that show more.
pub(super) fn fix(case: &Case<'_>, drop: &PacketDrop) -> Option<Remediation> {
    let Explanation { fix, show, .. } = explain(case, drop);
    // What sent the packet back is in the pod.
    let pod = inspected(case).filter(|_| came_back(case, drop)).and_then(|(_, reading)| reading.netns);
    let mut show: Vec<Command> = show.into_iter().map(|command| run_in(case, pod.or(drop.netns), command)).collect();
    if is_at_other_end(case, drop) {
        show.extend(show_other_end(case, drop));
    }
    (!fix.is_empty()).then(|| Remediation::from(fix).run(show))
}

/// By what the packets and the namespaces of this attempt show, else by the drop alone.
fn explain(case: &Case<'_>, drop: &PacketDrop) -> Explanation {
    let (src, dst) = (drop.flow.src.ip(), drop.flow.dst.ip());
    if may_be_rerouted(case, drop) {
        if is_sent_elsewhere(case, drop) {
            return translated(drop);
        }
        if netfilter::may_be_by_ipvs(case, drop) {
            return by_ipvs();
        }
        let show = ["ip rule", "ip route show table all", "nft list ruleset", "iptables-save -t mangle"];
        return Explanation::of(" at OUTPUT, but no rule that was read there fits; if a rule sets a mark, the kernel looks up the route again, and that route may refuse the packet (ip rule); a program or module at that hook may also drop it").fix(
            "Find a rule that sets a mark for this packet (meta mark set, MARK), and the routing table that `ip rule` gives packets with that mark",
            show.map(str::to_owned),
        );
    }
    if netfilter::dropped(case).is_some_and(|blocked| blocked.is_by_source_nat(case)) {
        return Explanation::of(" at POSTROUTING, where no rule that was read fits; most likely the source NAT had no free port for it, or another packet took that port first (insert_failed)").fix(
            "Compare insert_failed of two listings (the first command). If it rises, let the masquerade use more ports or --random-fully, or end connections that hold them",
            ["conntrack -S".to_owned(), "nft list ruleset".to_owned(), "iptables-save -t nat".to_owned()],
        );
    }
    let explained = if is_early_demux(case, drop) {
        forwarded(case, drop)
    } else if is_on_wrong_bridge(case, drop) {
        // A VXLAN device without an entry for the link-layer address gives the same reason (`vxlan_xmit`).
        Explanation::of(
            "; that device has other addresses and no port for it: a route or a mark led the SYN to a wrong device, or the FDB of a VXLAN lacks the node that has the pod",
        )
        .fix(
            "Find the route or the mark that leads there, and correct it. If a VXLAN of the CNI is right, restart the agent that writes its FDB",
            [format!("ip route get {dst} from {src}"), format!("bridge fdb show dev {}", device(drop))],
        )
    } else if is_second_syn(case, drop) && case.attempt.established.is_some() {
        Explanation::of("; the target had taken an earlier SYN, and its SYN-ACK was lost or came late")
    } else if is_out_of_window(drop) || is_of_open_connection(case, drop) {
        Explanation::of(
            "; the target still has an earlier connection from this port, and its answers do not arrive or are not taken",
        )
    } else if is_taken_by_another(case, drop) {
        Explanation::of("; that namespace has the prober's address, too, and took the answer for its own").fix(
            "Find which of the two should have the prober's address, and remove it from the other. Never remove the node's own address",
            [format!("ip addr show to {dst}")],
        )
    } else if is_in_wrong_namespace(case, drop) {
        Explanation::of(
            "; another namespace has that address, and this one does not forward (its forwarding is off, or a stale neighbour entry led it here)",
        )
        .fix(
            "Correct the route or the neighbour entry that led it there. Only if it should pass through that namespace, switch forwarding on there",
            [format!("sysctl {}", forwarding_setting(drop)), format!("ip route get {dst}")],
        )
    } else if has_prober_address(case, drop) {
        Explanation::of("; that namespace has the sender's address, too, and takes no packet from it").fix(
            "Find which of the two should have that address, and remove it from the other. Never remove the node's own address",
            [format!("ip addr show to {src}")],
        )
    } else {
        by_reason(case, drop)
    };
    // Without a device, or without a reason in most functions, the meaning is a guess: no command shows more.
    // A packet of this namespace has no device yet where its route discards it.
    let has_place = drop.device.is_some() || dropped_in(drop) == Some("dst_discard_out");
    let is_known = (drop.reason.is_some() || is_telling(case, drop)) && has_place;
    if is_known { explained } else { Explanation::of(explained.meaning) }
}

/// IPVS drops as netfilter does, or the route of a mark refused the packet.
fn by_ipvs() -> Explanation {
    let rules = ["ip rule", "nft list ruleset", "iptables-save -t mangle"];
    Explanation::of(" at OUTPUT, but no rule that was read there fits; IPVS may have dropped it: for a connection to a backend that is gone (expire_nodest_conn is 0), for an old conntrack entry, or by its defence (drop_packet); or a rule sets a mark, and the route of that mark refuses the packet (ip rule)").fix(
        netfilter::ASK_IPVS,
        netfilter::SHOW_BY_IPVS.into_iter().chain(rules).map(str::to_owned),
    )
}

/// It is for a socket of this namespace, and was forwarded.
fn forwarded(case: &Case<'_>, drop: &PacketDrop) -> Explanation {
    if !has_address(case, drop) {
        return Explanation::of("; it is for a socket of this namespace, which no longer has the address, so that the packet was forwarded instead").fix(
            "Restore the address, and find what removed it",
            address(drop),
        );
    }
    let (src, dst) = (drop.flow.src.ip(), drop.flow.dst.ip());
    Explanation::of("; it is for a socket of this namespace, but was forwarded; most likely an `ip rule` for that device sends it into another table (or table local has lost its address), and net.ipv4.tcp_early_demux had found the socket before").fix(
        "If that is a CNI's rule, set net.ipv4.tcp_early_demux to 0. Else fix the rule. The AWS VPC CNI with security groups for pods needs DISABLE_TCP_EARLY_DEMUX=true on the init container of aws-node",
        ["ip rule".to_owned(), format!("ip route get {dst} from {src} iif {}", device(drop))],
    )
}

/// After an address translation the kernel looks up the route again. It refuses a loopback source on another link than
/// `lo`, unless that is allowed (`__mkroute_output`, net/ipv4/route.c).
fn translated(drop: &PacketDrop) -> Explanation {
    let (src, dst) = (drop.flow.src.ip(), drop.flow.dst.ip());
    let route = format!("ip route get {dst} from {src}");
    if src.is_loopback() && src.is_ipv4() && !dst.is_loopback() {
        return Explanation::of(" at OUTPUT, where an address translation had sent it; the kernel sends nothing from 127.0.0.1 out of another link than lo while net.ipv4.conf.*.route_localnet is 0").fix(
            "Connect to an address of the node instead of 127.0.0.1, or find what set route_localnet to 0: kube-proxy (iptables mode, --iptables-localhost-nodeports) and the portmap plugin set it to 1",
            ["sysctl net.ipv4.conf.all.route_localnet".to_owned(), route],
        );
    }
    Explanation::of(" at OUTPUT, where an address translation had sent it; no rule that was read there fits, and the route to that address may refuse the packet; a program or module at that hook may also drop it").fix(
        "Correct the route to the translated address (the first command), or the endpoint of the Service",
        [route, "ip rule".to_owned()],
    )
}

/// By the drop's reason, if its name says little (include/net/dropreason-core.h).
fn by_reason(case: &Case<'_>, drop: &PacketDrop) -> Explanation {
    let dst = drop.flow.dst.ip();
    let device = device(drop);
    match drop.reason.as_deref() {
        Some("NOT_SPECIFIED") | None => by_place(case, drop),
        Some(reason) if reason.starts_with("XFRM_") => Explanation::of(
            "; an IPsec policy of that namespace blocks it, or takes it only encrypted (ip xfrm policy)",
        )
        .fix("Correct the IPsec policy, or what makes it", ["ip xfrm policy".to_owned()]),
        Some(place @ ("NO_TX_TARGET" | "BRIDGE_INGRESS_STP_STATE")) => by_bridge(drop, place),
        Some("IP_OUTNOROUTES") => Explanation::of("; that namespace has no route for it"),
        // An `ip rule` may come before that of the local table.
        Some("IP_INADDRERRORS") if holds_address(case, drop) => refused_by_rule(drop),
        Some("IP_INADDRERRORS") => Explanation::of(NO_ADDRESS).fix(LOST_ADDRESS, address(drop)),
        // `ip_route_input_slow` and `ip_route_output_key_hash_rcu`, net/ipv4/route.c
        Some("IP_INVALID_SOURCE") if drop.flow.src.ip().is_unspecified() => Explanation::of(
            "; it has no source address: no link of the sender's namespace has an address that the kernel may use",
        ),
        Some("IPV6DISABLED") => Explanation::of(
            "; IPv6 is switched off there (net.ipv6.conf.*.disable_ipv6), and the address with it",
        )
        .fix(
            "Set disable_ipv6 of that device and of `all` to 0 there. A pod gets its address back when it is deleted and made again",
            [format!("sysctl net.ipv6.conf.all.disable_ipv6 net.ipv6.conf.{device}.disable_ipv6")],
        ),
        Some("TCP_MD5NOTFOUND" | "TCP_AONOTFOUND" | "TCP_AOREQUIRED") => Explanation::of(
            "; the listener there takes only signed segments from that address (TCP-MD5 or TCP-AO, as BGP uses it), and a probe signs none",
        )
        .fix(PEERS_ONLY, []),
        // IP_MINTTL, as GTSM (RFC 5082) uses it
        Some("TCP_MINTTL") => Explanation::of(
            "; the listener there takes only packets with a higher TTL (IP_MINTTL, as BGP uses it), and a probe does not send them",
        )
        .fix(PEERS_ONLY, []),
        // `tcp_validate_incoming`, net/ipv4/tcp_input.c
        Some("TCP_INVALID_SYN") if drop.flags.is_syn_ack() => Explanation::of(
            "; it is a second SYN-ACK, so that what the prober sent after the first one did not reach the target",
        ),
        Some("TCP_CSUM") => Explanation::of(
            "; its checksum is wrong; something on the way changed it, or a device claims a checksum offload that does not work",
        )
        .fix(
            "Find the device that sends it with a wrong checksum, such as a VXLAN device. Switch its offload off, and see if the attempts succeed (ethtool -K LINK tx-checksum-ip-generic off)",
            ["nstat -az TcpInCsumErrors".to_owned()],
        ),
        Some("IP_LOCAL_SOURCE") => {
            Explanation::of("; it came back to its sender: the next hop's route to the target leads here again")
                .fix("Correct the next hop's route to the target", [format!("ip route get {dst}")])
        }
        Some("IP_INNOROUTES") if dst.is_ipv6() => Explanation::of(
            "; that namespace has no route for it, or refuses it; if it is the pod's, its address is gone (IPv6 addresses go with a link that is set down)",
        )
        .fix(ADDRESS, address(drop)),
        Some("IP_INNOROUTES") => {
            Explanation::of("; that namespace has no route for it, and does not have that address itself")
                .fix(ADDRESS, address(drop))
        }
        Some("NO_SOCKET") if came_through_vrf(case, drop) => by_vrf(device),
        Some(reason) if reason.starts_with("QDISC") => by_queue(drop, reason),
        Some(_) if ovs_reason(drop).is_some() => Explanation::of(
            "; it is an error or a limit of Open vSwitch, not a flow that drops on purpose (its number: enum ovs_drop_reason, net/openvswitch/drop.h; ovs-appctl dpctl/dump-flows and the log of ovs-vswitchd on this node)",
        ),
        _ => Explanation::default(),
    }
}

/// The lookup of the prober's socket compares the VRF (`inet_lookup_established`, `inet_sk_bound_dev_eq`).
fn by_vrf(device: &str) -> Explanation {
    Explanation::of(
        "; it came through a VRF, where the prober's socket outside of it does not get it (net.ipv4.tcp_l3mdev_accept is 0)",
    )
    .fix(
        "Let the answers come back outside of the VRF (the devices and routes in it), or run the prober in it (ip vrf exec). net.ipv4.tcp_l3mdev_accept=1 helps listeners only",
        ["ip -d link show type vrf", "ip route show vrf DEVICE", "sysctl net.ipv4.tcp_l3mdev_accept"]
            .map(|command| command.replace("DEVICE", shell::link(device))),
    )
}

/// The SYN-ACK came to the prober's own namespace.
fn came_through_vrf(case: &Case<'_>, drop: &PacketDrop) -> bool {
    let link = drop.netns.zip(drop.device.as_ref()).and_then(|(netns, it)| case.node.links.by_index(netns, it.ifindex));
    let is_vrf = link.is_some_and(|link| link.kind.as_deref() == Some("vrf"));
    is_vrf && drop.flags.is_syn_ack() && drop.netns == case.attempt.netns
}

/// What a bridge refuses, by the drop's reason or the function.
fn by_bridge(drop: &PacketDrop, reason: &str) -> Explanation {
    match reason {
        "NO_TX_TARGET" => Explanation::of(
            "; the bridge has no port for it: it was sent to a link-layer address that nobody has (check the sender's ip neigh)",
        ),
        // `br_handle_frame`, net/bridge/br_input.c
        "BRIDGE_INGRESS_STP_STATE" => Explanation::of(
            "; the bridge takes nothing from that port: it does not forward (blocked by spanning tree, or disabled)",
        )
        .fix(
            "Find what blocks the port, such as a loop that spanning tree has found or a CNI agent. Only if there is no loop: set its state to 3, so that it forwards (bridge link set dev PORT state 3)",
            [format!("bridge -d link show dev {}", device(drop))],
        ),
        // `br_handle_frame_finish`, net/bridge/br_input.c
        "br_handle_frame_finish" => Explanation::of(
            "; the bridge does not pass it on: a port of it is locked (802.1X), isolated, or does not forward",
        )
        .fix(
            "Find the port that is locked, isolated or not forwarding (the command), and what made it so",
            ["bridge -d link".to_owned()],
        ),
        // `br_forward`, net/bridge/br_forward.c
        _ => Explanation::of(
            "; the bridge may not send it through its port (disabled, blocked by spanning tree, or of another VLAN)",
        )
        .fix(
            "Let the port forward (its state, and its VLANs), or find what blocks it",
            ["bridge -d link show", "bridge vlan show"].map(str::to_owned),
        ),
    }
}

/// A SYN met an established socket, which answered with an ACK (`tcp_validate_incoming`, net/ipv4/tcp_input.c).
fn is_of_open_connection(case: &Case<'_>, drop: &PacketDrop) -> bool {
    let is_invalid = drop.flags.is_syn() && drop.reason.as_deref() == Some("TCP_INVALID_SYN");
    is_invalid && case.attempt.established.is_none()
}

/// A second SYN came, though the target had most likely taken the first one.
fn unanswered(drop: &PacketDrop) -> Explanation {
    Explanation::of(
        "; most likely the target had taken an earlier SYN, and its SYN-ACK does not arrive (check the way back, and the pod's neighbour entry for the node)",
    )
    .fix(
        "Compare the pod's neighbour entry for the prober, or for its gateway, with the link-layer address of the node's link. Delete the entry if they differ. If not, look at the tc filters and queues of both ends of the pod's link: a filter may redirect the answer, and a queue may hold it",
        [
            "ip neigh".to_owned(),
            queue(device(drop)),
            format!("tc filter show dev {} ingress", device(drop)),
            format!("tc filter show dev {} egress", device(drop)),
        ],
    )
}

/// Of the device, or of its queueing discipline (net/sched).
fn by_queue(drop: &PacketDrop, reason: &str) -> Explanation {
    let device = device(drop);
    match reason {
        // `noop_enqueue`, net/sched/sch_generic.c: a device that is down has no other queue.
        "QDISC_DROP" if drop.device.as_ref().is_some_and(|device| !device.up) => {
            Explanation::of("; that device is down")
                .fix("Set the device up, and find what set it down", [format!("ip link show dev {device}")])
        }
        "QDISC_DROP" | "QDISC_OVERLIMIT" => {
            Explanation::of("; the device's queue is full, limited, or made to lose packets")
                .fix(QUEUE, [queue(device)])
        }
        _ => Explanation::default().fix(QUEUE, [queue(device)]),
    }
}

const PEERS_ONLY: &str = "That listener serves its peers only. Let the probe ask another port, such as the health port of the routing daemon, or run a command";

/// By the function that dropped it without a reason.
fn by_place(case: &Case<'_>, drop: &PacketDrop) -> Explanation {
    let (src, dst) = (drop.flow.src.ip(), drop.flow.dst.ip());
    match dropped_in(drop) {
        _ if is_second_syn(case, drop) => unanswered(drop),
        _ if is_nameless(drop) => {
            Explanation::of("; the kernel hides the function that did it (kernel.kptr_restrict, see tracer doctor)")
        }
        // Kernels before 5.17 give no reason for any drop, so most functions alone say too little.
        _ if drop.reason.is_none() && !is_telling(case, drop) => Explanation::default(),
        Some("tcp_v4_rcv" | "tcp_v6_rcv") if drop.reason.is_none() => Explanation::of(
            "; an IPsec policy, a socket filter, a program at the pod's cgroup, or a listener that takes only signed segments drops it there",
        )
        .fix(
            "Find which of them does it: a policy that blocks (the first command), a filter of the listener (bpf in the second one), or a program (the third one)",
            ["ip xfrm policy", "ss -tlnpb", "bpftool cgroup tree"].map(str::to_owned),
        ),
        Some("ip_error" | "ip6_pkt_drop") if drop.reason.is_none() => {
            Explanation::of("; that namespace has no route for it, refuses it by a rule, or does not have that address itself")
                .fix(ADDRESS, address(drop))
        }
        Some(place @ "br_dev_xmit") => by_bridge(drop, place),
        Some("br_handle_frame_finish") if came_back(case, drop) => Explanation::of(
            "; it came back from the pod's link: most likely a program or filter there sends packets back (XDP_TX, a redirect of tc)",
        )
        .fix(
            "Find the program or filter on the pod's link that sends packets back, and what attached it",
            ["bpftool net", "tc -s qdisc", "ip -d link"].map(str::to_owned),
        ),
        Some(place @ "br_handle_frame_finish") if src != dst => by_bridge(drop, place),
        // `is_skb_forwardable`, include/linux/netdevice.h
        _ if is_at_other_end(case, drop) => Explanation::of(
            "; the other end of that link does not take it: it is down, or its MTU is smaller than the packet",
        )
        .fix(
            "Compare the MTU of the two ends of that link, and set both to the same value. If the other end is down, set it up",
            [format!("ip -d link show dev {}", device(drop))],
        ),
        // `ip6_rcv_core`, net/ipv6/ip6_input.c: the device has no `inet6_dev`.
        Some("ip6_rcv_core") => Explanation::of(
            "; that device has no IPv6, and lost its IPv6 addresses: most likely its MTU is below 1280",
        )
        .fix(
            "Set the MTU of that device to 1280 or more. A pod gets its addresses back when it is deleted and made again",
            [format!("ip link show dev {}", device(drop))],
        ),
        // `ip_error`, net/ipv4/route.c
        Some("ip_error") => refused_by_rule(drop),
        // `nf_reinject`, net/netfilter/nf_queue.c; net/netfilter/nfnetlink_queue.c. Where a process refused it, a rule says
        // so.
        Some("nf_reinject" | "nfqnl_reinject") => Explanation::of(
            "; it waited in a queue for a process (NFQUEUE) that was emptied: the process ended, or rules were changed",
        ),
        Some("dst_discard_out") if is_blackhole(drop) => Explanation::of(
            "; the route to it there, or an `ip rule`, is `blackhole`",
        )
        .fix(
            "Remove that route or rule, or correct what made it",
            [format!("ip route show table all match {dst}"), "ip rule".to_owned()],
        ),
        // `make_blackhole` and bundles without a state, net/xfrm/xfrm_policy.c
        Some("dst_discard_out") => {
            Explanation::of("; its route was going away, or an IPsec policy waits for keys (ip xfrm policy)").fix(
                "If a policy fits these addresses and there is no state for it, correct the policy, or what makes the keys",
                ["ip xfrm policy", "ip xfrm state"].map(str::to_owned),
            )
        }
        _ => Explanation::default(),
    }
}

/// The prober's SYN came to the node's bridge by the port that leads to the target: it had been there.
fn came_back(case: &Case<'_>, drop: &PacketDrop) -> bool {
    let port = drop.device.as_ref().filter(|_| drop.netns == case.attempt.netns).map(|device| device.ifindex);
    let in_bridge = dropped_in(drop) == Some("br_handle_frame_finish");
    in_bridge && drop.flags.is_syn() && port.is_some() && port == node_end(case)
}

/// The function says why it dropped the packet, also on a kernel that gives no reason.
fn is_telling(case: &Case<'_>, drop: &PacketDrop) -> bool {
    if is_at_other_end(case, drop) {
        return true;
    }
    let place = dropped_in(drop);
    let at_socket = matches!(place, Some("tcp_v4_rcv" | "tcp_v6_rcv")) && drop.flags.is_syn();
    at_socket || matches!(place, Some("ip_error" | "ip6_pkt_drop" | "br_dev_xmit" | "dst_discard_out"))
}

/// A link of the pod has the address, by a reading after the drop.
fn holds_address(case: &Case<'_>, drop: &PacketDrop) -> bool {
    let holds = |reading: &Inspection| reading.netns == drop.netns && reading.link_with(drop.flow.dst.ip()).is_some();
    let dropped = case.attempt.drops().find(|(_, it)| std::ptr::eq(*it, drop)).map(|(at, _)| at);
    let after = inspected(case).filter(|(time, _)| dropped.is_some_and(|at| at <= *time));
    drop.netns.is_some() && after.is_some_and(|(_, reading)| holds(reading))
}

fn refused_by_rule(drop: &PacketDrop) -> Explanation {
    let (src, dst) = (drop.flow.src.ip(), drop.flow.dst.ip());
    Explanation::of("; a rule or route of that namespace refuses what comes in by that device (ip rule, ip route)").fix(
        "Find the rule or route that refuses it, and correct it",
        [format!("ip route get {dst} from {src} iif {}", device(drop))],
    )
}

const ADDRESS: &str = "If that namespace should have the address, restore it, or delete the pod, so that its sandbox is made again. If not, add the route that is missing there";

const NO_ADDRESS: &str = "; the kernel there does not have the address it was sent to (it was taken away, or the pod's own network stack holds it)";

const LOST_ADDRESS: &str = "If that namespace should have the address, restore it and find what took it, or delete the pod, so that its sandbox is made again. If not, correct the route or the neighbour entry that led it there";

fn address(drop: &PacketDrop) -> [String; 2] {
    let (src, dst) = (drop.flow.src.ip(), drop.flow.dst.ip());
    [format!("ip addr show to {dst}"), format!("ip route get {dst} from {src} iif {}", device(drop))]
}

const QUEUE: &str =
    "Find the queue that counts drops: a rate limit (the CNI's bandwidth plugin), a full queue or netem";

fn device(drop: &PacketDrop) -> &str {
    drop.device.as_ref().map(|device| shell::link(&device.name)).unwrap_or_default()
}

fn queue(device: &str) -> String {
    format!("tc -s qdisc show dev {device}")
}

/// `ip_forward` drops a packet that has a socket already, and gives no reason (net/ipv4/ip_forward.c). Early demux had
/// found the socket by the addresses, and the table of a rule then sent the packet on. The AWS VPC CNI routes pods with
/// security groups of their own like that.
fn is_early_demux(case: &Case<'_>, drop: &PacketDrop) -> bool {
    let forwarded = dropped_in(drop) == Some("ip_forward");
    let own = drop.flow.dst == case.attempt.flow.src && drop.netns == case.attempt.netns;
    forwarded && own && drop.netns.is_some() && drop.reason.as_deref() == Some("NOT_SPECIFIED")
}

/// A link of that namespace has the address that the packet was sent to, or the links were not read.
fn has_address(case: &Case<'_>, drop: &PacketDrop) -> bool {
    let dst = drop.flow.dst.ip();
    drop.netns.is_none_or(|netns| case.node.links.get(&netns).is_none() || case.node.owns(netns, dst))
}

/// The SYN to a pod came to a bridge or a VXLAN with other addresses, which has no port for it.
fn is_on_wrong_bridge(case: &Case<'_>, drop: &PacketDrop) -> bool {
    let is_here = case.node.has_pod(drop.flow.dst.ip()) && outbound(case, drop);
    is_here && drop.reason.as_deref() == Some("NO_TX_TARGET") && is_wrong_bridge(case, drop)
}

/// The packet came to a namespace that does not have its address, while another is known to have it.
fn is_in_wrong_namespace(case: &Case<'_>, drop: &PacketDrop) -> bool {
    let holder = inspected(case).and_then(|(_, reading)| reading.netns).filter(|_| outbound(case, drop));
    drop.reason.as_deref() == Some("IP_INADDRERRORS") && holder.is_some() && drop.netns != holder
}

/// The SYN-ACK came to another namespace than the prober's. The kernel there found no socket for it.
fn is_taken_by_another(case: &Case<'_>, drop: &PacketDrop) -> bool {
    let elsewhere = drop.netns.is_some() && case.attempt.netns.is_some() && drop.netns != case.attempt.netns;
    let answer = drop.flags.is_syn_ack() && drop.flow.dst == case.attempt.flow.src;
    elsewhere && answer && drop.reason.as_deref() == Some("NO_SOCKET")
}

/// The SYN came to another namespace than the prober's. That one has the prober's address as well
/// (`ip_route_input_slow`, net/ipv4/route.c).
fn has_prober_address(case: &Case<'_>, drop: &PacketDrop) -> bool {
    let elsewhere = drop.netns.is_none_or(|netns| case.attempt.netns != Some(netns));
    elsewhere && outbound(case, drop) && drop.reason.as_deref() == Some("IP_LOCAL_SOURCE")
}

/// Netfilter dropped it at OUTPUT, and no rule can have done it.
fn may_be_rerouted(case: &Case<'_>, drop: &PacketDrop) -> bool {
    let blocked = netfilter::dropped(case).filter(|blocked| blocked.may_be_rerouted(case));
    blocked.and_then(|blocked| blocked.drop).is_some_and(|(_, dropped)| std::ptr::eq(dropped, drop))
}

#[cfg(test)]
mod tests {
    use tracer_core::testing::*;

    /// Seen on 6.12 with net.ipv4.vs.drop_packet=3. The rules had been read.
    #[test]
    fn a_syn_to_a_service_that_no_rule_dropped_may_be_dropped_by_ipvs() {
        let verdict = |loaded: bool| {
            let mut stream = Stream::to("10.96.0.9:80");
            let hooks = if loaded { vec![Hook::IpvsLeave.name().to_owned()] } else { Vec::new() };
            stream.push(ObservationKind::HooksAttached(HooksAttached { hooks })).connect();
            stream.filtered_at(SYN, NODE, "__ip_local_out").last_drop().location = Some("nf_hook_slow".into());
            stream.push(firewall(NODE, vec![])).gives_up().last_verdict()
        };
        let (ipvs, other) = (verdict(true), verdict(false));
        assert_eq!([ipvs.cause.name(), other.cause.name()], ["unexplained"; 2]);
        assert_has(&ipvs.summary, &["IPVS may have dropped it", "by its defence (drop_packet)"]);
        assert_has(&ipvs.remediation, &["ipvsadm -Ln --stats", "ipvsadm -Lnc", "net.ipv4.vs.drop_packet"]);
        assert_lacks(&other.summary, &["IPVS"]);
        assert_starts(&other.remediation, "Find a rule that sets a mark");
    }

    #[test]
    fn a_packet_without_a_device_and_one_at_a_bridge_port_have_a_fix() {
        let fix = |place: &str, port: Option<Device>| {
            let mut stream = Stream::new().connect().drop_in(SYN, "NOT_SPECIFIED", NODE, place).clone();
            stream.last_drop().device = port;
            stream.gives_up().verdict().remediation
        };
        assert_has(&fix("dst_discard_out", None), &["ip xfrm state"]);
        assert_has(&fix("ip6_rcv_core", Some(device(2, "eth0"))), &["1280", ": ip link show dev eth0"]);
        assert_has(&fix("br_handle_frame_finish", Some(device(4, "v2"))), &["locked", ": bridge -d link"]);
    }

    /// Seen on 6.18: an XDP program in the pod returned XDP_TX.
    #[test]
    fn a_packet_that_comes_back_from_the_pod_met_no_locked_port() {
        let verdict = |port: u32| {
            let place = "br_handle_frame_finish";
            let mut stream = Stream::new().connect().drop_in(SYN, "NOT_SPECIFIED", NODE, place).clone();
            stream.last_drop().device = Some(device(port, "v2"));
            let own = LinkState { peer_ifindex: Some(4), ..link(2, "eth0", &["10.88.0.2"]) };
            stream.wait_ms(200).inspection(|it| it.links = vec![own]).gives_up().verdict()
        };
        let back = verdict(4);
        assert_has(&back.summary, &["; it came back from the pod's link: "]);
        assert_has(&back.remediation, &["inum 2 -print -quit) bpftool net"]);
        for text in [back.summary, back.remediation.to_string()] {
            assert_lacks(&text, &["locked"]);
        }
        assert_has(&verdict(5).summary, &["a port of it is locked"]);
    }

    /// Security groups for pods on AWS: amazon-vpc-cni-k8s#1212.
    #[test]
    fn a_forwarded_answer_with_a_socket_of_early_demux_is_explained() {
        let noted = |netns, reason: &str| {
            let mut stream = Stream::new();
            stream.links(true, &["10.88.0.1"]).connect().drop_in(SYN_ACK, reason, netns, "ip_forward");
            stream.last_drop().device = Some(device(7, "vlaneni1"));
            stream.gives_up().verdict()
        };
        let (own, other, reason) =
            (noted(NODE, "NOT_SPECIFIED"), noted(POD, "NOT_SPECIFIED"), noted(NODE, "XFRM_POLICY"));
        assert!(own.cause.name() == "unexplained" && own.summary.contains("tcp_early_demux"), "{}", own.summary);
        let commands = ": ip rule; ip route get 10.88.0.1 from 10.88.0.2 iif vlaneni1";
        assert_ends(&own.remediation, commands);
        assert!(!other.summary.contains("early_demux") && !reason.summary.contains("early_demux"));
    }

    #[test]
    fn a_forwarded_answer_to_an_address_that_is_gone_is_explained() {
        let noted = |addrs: &[&str]| {
            let mut stream = Stream::new();
            stream.links(true, addrs).connect().established().drop_back(TcpFlags(0x18), "NOT_SPECIFIED");
            let drop = stream.last_drop();
            (drop.location, drop.device) = (Some("ip_forward".into()), Some(device(3, "cni0")));
            stream.wait_ms(1_000).closes((100, 101, 0)).settles().verdict()
        };
        let gone = noted(&["10.99.0.1"]);
        assert_has(&gone.summary, &["no longer has the address"]);
        assert_has(&gone.remediation, &["ip addr show to 10.88.0.1"]);
        assert_has(&noted(&["10.88.0.1"]).summary, &["tcp_early_demux"]);
    }

    #[test]
    fn a_packet_without_a_source_address_is_explained() {
        let mut nowhere = Stream::new().connect().clone();
        nowhere.drop_with(SYN, POD, |drop| {
            (drop.reason, drop.flow.src) = (Some("IP_INVALID_SOURCE".into()), address("0.0.0.0:40000"));
        });
        let nowhere = nowhere.gives_up().verdict();
        assert_has(&nowhere.summary, &["it has no source address"]);
    }

    #[test]
    fn a_packet_that_its_own_namespace_refuses_is_refused_by_a_rule() {
        let mut held = Stream::new().connect().drop(SYN, "IP_INADDRERRORS", POD).wait_ms(200).clone();
        held.inspection(|reading| reading.links = vec![link(2, "eth0", &["10.88.0.2"])]);
        assert_has(&held.gives_up().verdict().summary, &["a rule or route of that namespace refuses"]);
    }

    #[test]
    fn the_meaning_of_a_reason_is_explained() {
        let noted = |reason: &str, place: &str| {
            let mut stream = Stream::new();
            stream.connect().wait_ms(200).inspection(|_| ());
            stream.drop_in(SYN, reason, POD, place).last_drop().device = Some(device(7, "eth0"));
            let noted = stream.gives_up().verdict();
            assert_eq!(noted.cause.name(), "unexplained");
            format!("{} {}", noted.summary, noted.remediation)
        };
        assert_has(
            &noted("IPV6DISABLED", "ip6_rcv_core"),
            &["IPv6 is switched off there", "net.ipv6.conf.eth0.disable_ipv6"],
        );
        let signed = noted("TCP_MD5NOTFOUND", "tcp_v4_rcv");
        assert_has(&signed, &["takes only signed segments"]);
        assert_lacks(&signed, &["a single lost packet"]);
        for reason in ["TCP_MD5NOTFOUND", "TCP_MINTTL"] {
            assert_has(&noted(reason, "tcp_v4_rcv"), &["as BGP uses it", "serves its peers only"]);
        }
        assert_has(
            &noted("IP_INNOROUTES", "ip_route_input_slow"),
            &["has no route for it", "ip addr show to 10.88.0.2"],
        );
        assert_has(
            &noted("IP_LOCAL_SOURCE", "ip_rcv_finish_core"),
            &["has the sender's address, too", "ip addr show to 10.88.0.1"],
        );
        assert_has(&noted("NOT_SPECIFIED", "br_dev_xmit"), &["blocked by spanning tree"]);
        assert_lacks(&noted("NOT_SPECIFIED", "tcp_v4_rcv"), &["SYN-ACK"]);
        let mut again = Stream::new().connect().wait_ms(200).inspection(|_| ()).wait_ms(800).syn_again().clone();
        again.drop_in(SYN, "NOT_SPECIFIED", POD, "tcp_v4_rcv").last_drop().device = Some(device(7, "eth0"));
        let again = again.gives_up().verdict();
        assert_has(&again.summary, &["its SYN-ACK does not arrive"]);
        assert_has(&again.remediation, &["ip neigh; ", "tc -s qdisc show dev eth0"]);
        let port = noted("BRIDGE_INGRESS_STP_STATE", "br_handle_frame");
        assert_has(&port, &["the bridge takes nothing from that port", "bridge -d link show dev eth0"]);
        assert_has(&port, &["Only if there is no loop: set its state to 3"]);
        assert_has(&noted("TCP_CSUM", "tcp_v4_rcv"), &["its checksum is wrong", "tx-checksum-ip-generic off"]);
        assert_has(&noted("NOT_SPECIFIED", "ip_error"), &["refuses what comes in by that device", "iif eth0"]);
        assert_has(&noted("XFRM_POLICY", "xfrm4_policy_check"), &["an IPsec policy of that namespace blocks it"]);
        assert_has(&noted("NOT_SPECIFIED", "nfqnl_reinject"), &["a queue for a process (NFQUEUE) that was emptied"]);
        assert_has(&noted("NOT_SPECIFIED", "dst_discard_out"), &["an IPsec policy waits for keys"]);
        assert_has(&noted("TCP_OVERWINDOW", "tcp_v4_rcv"), &["still has an earlier connection from this port"]);
        let on_its_way = |holder| {
            let mut stream = Stream::new();
            stream.connect().drop(SYN, "IP_INADDRERRORS", Netns(7)).wait_ms(200);
            stream.inspection(|reading| reading.netns = holder).gives_up().verdict().summary
        };
        assert_has(&on_its_way(Some(POD)), &["another namespace has that address, and this one does not forward"]);
        let mut slow = Stream::new();
        slow.http_readiness().connect().wait_ms(900).syn_again().drop_in(SYN, "NOT_SPECIFIED", POD, "tcp_v4_rcv");
        slow.wait_ms(125).established().closes((0, 1, 0)).wait_ms(50).tick();
        assert_has(&slow.verdict().summary, &["its SYN-ACK was lost or came late"]);
        let again = Stream::new().connect().drop(SYN_ACK, "TCP_INVALID_SYN", NODE).gives_up().verdict();
        assert_has(&again.summary, &["it is a second SYN-ACK"]);
        assert_has(
            &noted("TCP_INVALID_SYN", "tcp_rcv_established"),
            &["still has an earlier connection from this port"],
        );
        assert_has(&on_its_way(None), &["the kernel there does not have the address"]);
    }

    /// The route came while the prober waited for the answer.
    #[test]
    fn a_blackhole_route_of_ipv6_is_explained_after_the_handshake() {
        let noted = |dst: &str| {
            let mut stream = Stream::to(dst).connect().established().clone();
            stream.drop_in(TcpFlags(0x18), "NOT_SPECIFIED", Netns(900), "dst_discard_out");
            stream.last_drop().device = Some(device(7, "eth0"));
            let noted = stream.wait_ms(1_000).closes((100, 1, 0)).settles().verdict();
            format!("{} {}", noted.summary, noted.remediation)
        };
        assert_has(&noted("[fd00::2]:8080"), &["is `blackhole`", "ip -6 route show table all match fd00::2"]);
        assert_has(&noted("10.88.0.2:8080"), &["an IPsec policy waits for keys"]);
    }

    /// Seen on 6.12: a leaked route leads to pods behind a bridge in a VRF.
    #[test]
    fn an_answer_that_came_through_a_vrf_is_explained() {
        let noted = |kind: Option<&str>| {
            let vrf = LinkState { kind: kind.map(Into::into), ..link(5, "vrf1", &[]) };
            let mut stream = Stream::new().node_links(vec![vrf]).connect().clone();
            stream.drop_on(SYN_ACK, "NO_SOCKET", NODE, Some(device(5, "vrf1"))).gives_up().verdict()
        };
        let named = noted(Some("vrf"));
        assert_eq!(named.cause.name(), "unexplained");
        assert_has(&named.summary, &["; it came through a VRF, where the prober's socket"]);
        assert_has(&named.remediation, &["ip vrf exec", "ip route show vrf vrf1", "tcp_l3mdev_accept"]);
        assert_lacks(&noted(Some("bridge")).summary, &["VRF"]);
    }

    #[test]
    fn a_kernel_without_reasons_shows_the_function() {
        let noted = |place: &str, again: bool| {
            let mut stream = Stream::new().connect().clone();
            if again {
                stream.wait_ms(1_000).syn_again();
            }
            stream.drop_with(SYN, POD, |drop| {
                (drop.location, drop.device) = (Some(place.into()), Some(device(7, "eth0")))
            });
            let noted = stream.gives_up().verdict();
            format!("{} {}", noted.summary, noted.remediation)
        };
        let policy = noted("tcp_v4_rcv", false);
        assert_has(
            &policy,
            &["an IPsec policy, a socket filter", "ip xfrm policy", "ss -tlnpb", "bpftool cgroup tree"],
        );
        assert_lacks(&policy, &["an earlier SYN"]);
        assert_has(&noted("tcp_v4_rcv", true), &["had taken an earlier SYN"]);
        let lost = noted("ip_error", false);
        assert_has(&lost, &["does not have that address itself", "ip addr show to 10.88.0.2"]);
        assert_has(&noted("br_dev_xmit", false), &["blocked by spanning tree", "bridge -d link show"]);
        assert_has(&noted("ip_rcv_core", false), &["Start from the evidence"]);
    }

    /// The packet that was captured goes on.
    #[test]
    fn a_copy_for_a_packet_capture_with_a_full_buffer_is_no_drop() {
        let summary = |reason: Option<&str>, place: &str| {
            let mut stream = Stream::new();
            stream.connect().drop_with(SYN, NODE, |drop| {
                (drop.reason, drop.location) = (reason.map(str::to_owned), Some(place.into()));
            });
            stream.gives_up().verdict().summary
        };
        assert_has(&summary(None, "ip_rcv_finish"), &["the kernel dropped its SYN"]);
        for (reason, place) in [
            (None, "packet_rcv"),
            (Some("NOT_SPECIFIED"), "tpacket_rcv"),
            (Some("NOT_SPECIFIED"), "packet_rcv"),
            (Some("PACKET_SOCK_ERROR"), "packet_rcv"),
        ] {
            assert_lacks(&summary(reason, place), &["dropped"]);
        }
    }

    #[test]
    fn a_syn_that_comes_back_to_the_node_is_reported() {
        let vethr = Some(device(7, "vethr"));
        let stream = Stream::new().connect().drop_on(SYN, "IP_LOCAL_SOURCE", NODE, vethr).gives_up().clone();
        let verdict = stream.verdict();
        assert_has(&verdict.summary, &["came back to its sender"]);
        assert_ends(&verdict.remediation, ": ip route get 10.88.0.2");
    }

    /// A pod has the node's address, too, and another pod's neighbour entry leads there.
    #[test]
    fn an_answer_that_another_namespace_took_is_reported() {
        let noted = |netns| {
            let eth0 = device(7, "eth0");
            let stream = Stream::new().connect().drop_on(SYN_ACK, "NO_SOCKET", netns, Some(eth0)).gives_up().clone();
            let verdict = stream.verdict();
            format!("{} {}", verdict.summary, verdict.remediation)
        };
        assert_has(&noted(Netns(7)), &["has the prober's address, too", "ip addr show to 10.88.0.1"]);
        assert!(!noted(NODE).contains("has the prober's address"));
    }

    #[test]
    fn a_drop_that_no_cause_stands_for_is_named() {
        let mut stream = Stream::new();
        stream.links(true, &["10.88.0.1"]).connect().drop_on(SYN, "QDISC_DROP", NODE, Some(device(7, "v7"))).gives_up();
        let verdict = stream.verdict();
        let named = "the kernel dropped its SYN 10.88.0.1:40000 -> 10.88.0.2:8080 on v7 on the node (QDISC_DROP)";
        assert!(verdict.cause.name() == "unexplained" && verdict.summary.contains(named), "{}", verdict.summary);
        assert_ends(&verdict.remediation, ": tc -s qdisc show dev v7");
        // `lo` of a pod: neither the prober's own nor the pod's link.
        let lo = Stream::new().connect().drop_on(SYN, "QDISC_DROP", POD, lo(false)).gives_up().verdict();
        assert_has(&lo.summary, &["that device is down"]);
        assert_has(&lo.remediation, &["Set the device up", "ip link show dev lo"]);
    }
}
