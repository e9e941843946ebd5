//! What a dropped packet shows by itself: why and where the kernel dropped it.

use tracer_model::event::{PacketDrop, ProgramPlace};

/// The function that dropped the packet.
pub fn dropped_in(drop: &PacketDrop) -> Option<&str> {
    drop.location.as_deref().map(plain)
}

/// A function's name without what the compiler appended (`.constprop.0`, `.isra.0`).
fn plain(function: &str) -> &str {
    function.split('.').next().unwrap_or_default()
}

/// " at INPUT"; nothing if the stack does not show the hook.
pub fn at_hook(drop: &PacketDrop) -> String {
    match netfilter_hook(drop) {
        Some(BRIDGE) => " in the bridge family".to_owned(),
        hook => hook.map(|hook| format!(" at {hook}")).unwrap_or_default(),
    }
}

/// Stands for all hooks of the bridge family.
pub const BRIDGE: &str = "BRIDGE";

/// The netfilter hook a packet was dropped in, by the function that called into netfilter.
pub fn netfilter_hook(drop: &PacketDrop) -> Option<&'static str> {
    drop.stack.iter().find_map(|frame| match plain(frame) {
        "ip_local_deliver" | "ip6_input" => Some("INPUT"),
        "__ip_local_out" | "ip_local_out" | "__ip6_local_out" | "ip6_local_out" | "ip6_xmit" => Some("OUTPUT"),
        "ip_forward" | "ip6_forward" => Some("FORWARD"),
        "ip_rcv" | "ipv6_rcv" | "ip_sublist_rcv" | "ip6_sublist_rcv" => Some("PREROUTING"),
        "ip_output" | "ip6_output" | "ip_mc_output" => Some("POSTROUTING"),
        // br_netfilter shows bridged packets to the hooks of IP.
        "br_nf_pre_routing" | "br_nf_pre_routing_ipv6" => Some("PREROUTING"),
        "br_nf_forward_ip" | "br_nf_forward" => Some("FORWARD"),
        "br_nf_post_routing" => Some("POSTROUTING"),
        "__netif_receive_skb_core" => Some("INGRESS"),
        "__dev_queue_xmit" => Some("EGRESS"),
        frame if frame.starts_with("br_") => Some(BRIDGE),
        _ => None,
    })
}

/// Functions that free a packet only because netfilter decided so. 5.10 gives no reason, but its place is
/// unambiguous (`net/netfilter/core.c` `nf_hook_slow`; from 6.1 nftables frees inside the chain).
const NETFILTER_FUNCTIONS: [&str; 2] = ["nf_hook_slow", "nft_do_chain"];

/// Netfilter dropped it. 5.17 has reasons, but none for netfilter.
pub fn is_netfilter(drop: &PacketDrop) -> bool {
    match (drop.reason.as_deref(), dropped_in(drop)) {
        (Some("NOT_SPECIFIED"), Some(function)) => function == NETFILTER_FUNCTIONS[0],
        (Some(reason), _) => reason == "NETFILTER_DROP",
        (None, Some(function)) => NETFILTER_FUNCTIONS.contains(&function),
        (None, None) => false,
    }
}

/// The packet was freed in the receive function of TCP, and the kernel gives no reason. That function frees packets
/// without a socket, and others (`tcp_v4_rcv`, net/ipv4/tcp_ipv4.c, v5.10).
pub fn is_at_socket(drop: &PacketDrop) -> bool {
    matches!(drop.reason.as_deref(), None | Some("NOT_SPECIFIED"))
        && matches!(dropped_in(drop), Some("tcp_v4_rcv" | "tcp_v6_rcv"))
}

/// The same, also if the kernel hides the function.
pub(crate) fn may_be_at_socket(drop: &PacketDrop) -> bool {
    is_at_socket(drop) || (is_nameless(drop) && drop.reason.as_deref() == Some("NOT_SPECIFIED"))
}

/// The kernel hides its functions (`kernel.kptr_restrict`): none in the stack has a name.
pub fn is_nameless(drop: &PacketDrop) -> bool {
    drop.location.is_none() && !drop.stack.is_empty() && drop.stack.iter().all(|function| function == "?")
}

/// A blackhole route of IPv6 (`ip6_rt_init_dst_reject`, net/ipv6/route.c). The same function drops what the namespace
/// itself sends, and then no device is known yet.
pub fn is_blackhole(drop: &PacketDrop) -> bool {
    let place = dropped_in(drop);
    drop.flow.dst.is_ipv6() && place == Some("dst_discard_out") && drop.device.is_some()
}

/// The routing code dropped the packet, along with its ICMP error. The drop reason shows that. Without one, the function
/// does: tunnels (`ip_tunnel_xmit`) also answer with host unreachable, for a peer that is down.
pub fn is_routing(drop: &PacketDrop) -> bool {
    let place = dropped_in(drop);
    let by_reason = match drop.reason.as_deref() {
        // IP_INHDR: the time to live expired (`ip_forward`).
        Some("IP_INNOROUTES" | "IP_OUTNOROUTES" | "IP_INADDRERRORS" | "IP_INHDR") => true,
        Some("NOT_SPECIFIED") => {
            matches!(place, None | Some("ip_error" | "ip6_pkt_drop" | "ip_forward" | "ip6_forward"))
        }
        Some(_) => false,
        None => matches!(place, Some("ip_error" | "ip6_pkt_drop")),
    };
    is_blackhole(drop) || by_reason && !is_netfilter(drop) && !is_unresolved(drop)
}

/// The reverse path filter (rp_filter) may have dropped the packet. Before 5.17 only the function is known.
pub fn may_be_rp_filter(drop: &PacketDrop) -> bool {
    match (drop.reason.as_deref(), drop.location.as_deref()) {
        (Some(reason), _) => reason == "IP_RPFILTER",
        (None, place) => place.is_some_and(|place| place.starts_with("ip_rcv_finish_core")),
    }
}

/// Of a SYN: the target still has another connection from its port. From 6.15 on `tcp_check_req` gives these reasons.
pub fn is_out_of_window(drop: &PacketDrop) -> bool {
    matches!(drop.reason.as_deref(), Some("TCP_OVERWINDOW" | "TCP_RFC7323_PAWS")) && drop.flags.is_syn()
}

/// Why the neighbour entry is missing.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum MissingEntry {
    NoAnswer,
    TableFull,
}

/// Kernels since 6.0 give these drop reasons. Older ones show the function that freed the packet: these free it for
/// this only. IPv6 names no reason up to 6.18 at least (`ndisc_error_report`, net/ipv6/ndisc.c).
pub fn missing_entry(drop: &PacketDrop) -> Option<MissingEntry> {
    match (drop.reason.as_deref(), dropped_in(drop)) {
        (Some("NEIGH_FAILED" | "NEIGH_DEAD"), _) => Some(MissingEntry::NoAnswer),
        (Some("NEIGH_CREATEFAIL"), _) => Some(MissingEntry::TableFull),
        (None | Some("NOT_SPECIFIED"), Some("neigh_invalidate" | "arp_error_report" | "ndisc_error_report")) => {
            Some(MissingEntry::NoAnswer)
        }
        (None, Some("ip_finish_output2" | "ip6_finish_output2")) => Some(MissingEntry::TableFull),
        _ => None,
    }
}

/// Nobody answered for the link-layer address that this packet needs.
pub fn is_unresolved(drop: &PacketDrop) -> bool {
    missing_entry(drop) == Some(MissingEntry::NoAnswer)
}

/// The setting without which a namespace does not forward packets of this family.
pub const fn forwarding_setting(drop: &PacketDrop) -> &'static str {
    if drop.flow.dst.is_ipv4() { "net.ipv4.ip_forward" } else { "net.ipv6.conf.all.forwarding" }
}

/// drivers/net/veth.c (`veth_xdp_rcv_skb`) and net/core/dev.c: free only packets that a program refused, or for which
/// they find no memory. The compiler may make a function part of its caller.
const XDP: [&str; 5] = ["veth_xdp_rcv_skb", "veth_xdp_rcv", "veth_poll", "netif_receive_generic_xdp", "do_xdp_generic"];

/// Where on its device the program runs that dropped the packet. The kernel's drop reason decides. On kernels without
/// reasons the function that freed the packet does, if it frees little else.
///
/// 5.10: `sch_handle_ingress` is part of `__netif_receive_skb_core`, which otherwise frees only packets that no
/// protocol takes. `sch_handle_egress` is part of `__dev_queue_xmit`, which frees no other packet itself.
pub fn place_of(drop: &PacketDrop) -> Option<ProgramPlace> {
    match (drop.reason.as_deref(), dropped_in(drop)) {
        (Some("TC_INGRESS"), _) | (None, Some("__netif_receive_skb_core")) => Some(ProgramPlace::TcIngress),
        (Some("TC_EGRESS"), _) | (None, Some("__dev_queue_xmit")) => Some(ProgramPlace::TcEgress),
        (Some("XDP"), _) => Some(ProgramPlace::Xdp),
        // These free a packet that a program refused without a reason.
        (None | Some("NOT_SPECIFIED"), Some(function)) if XDP.contains(&function) => Some(ProgramPlace::Xdp),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracer_core::testing::*;

    #[test]
    fn the_place_shows_netfilter_where_the_reason_does_not() {
        let netfilter = |reason: Option<&str>, place: &str| {
            let mut stream = Stream::new().connect().clone();
            stream.drop_with(SYN, NODE, |it| {
                (it.reason, it.location) = (reason.map(str::to_owned), Some(place.to_owned()));
            });
            stream.observations.iter().any(|it| matches!(&it.kind, ObservationKind::Drop(drop) if is_netfilter(drop)))
        };
        assert!(netfilter(None, "nf_hook_slow") && netfilter(None, "nft_do_chain"), "5.10");
        assert!(netfilter(Some("NOT_SPECIFIED"), "nf_hook_slow"), "5.17");
        assert!(!netfilter(Some("NOT_SPECIFIED"), "tcp_v4_rcv") && !netfilter(Some("NO_SOCKET"), "nf_hook_slow"));
    }
}
