//! The causes: one row each, from which `tracer explain`, the cause pages and the JSON Schema are made.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What an operator is told about a cause.
#[derive(Clone, Copy, Debug)]
pub struct Page {
    /// One line.
    pub title: &'static str,
    /// What happened.
    pub meaning: &'static str,
    /// What decides it, and what each confidence rests on.
    pub evidence: &'static str,
    /// What looks the same from outside and gets another cause.
    pub lookalikes: &'static str,
    /// What fixes it.
    pub fix: &'static str,
}

/// Declares the causes: variant, name, page.
macro_rules! causes {
    ($($(#[$doc:meta])* $variant:ident = $name:literal { title: $title:expr, meaning: $meaning:expr, evidence: $evidence:expr, lookalikes: $look:expr, fix: $fix:expr $(,)? })*) => {
        /// The cause of a failed (or misleading) attempt. Once released, a name is never reused.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
        #[serde(rename_all = "snake_case")]
        pub enum Cause { $($(#[$doc])* $variant,)* }

        impl Cause {
            /// Every cause, in the order of decision.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The name in records.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The cause of this name.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                match name { $($name => Some(Self::$variant),)* _ => None }
            }

            /// What an operator is told about it.
            #[must_use]
            pub const fn page(self) -> &'static Page {
                match self {
                    $(Self::$variant => &Page { title: $title, meaning: $meaning, evidence: $evidence, lookalikes: $look, fix: $fix },)*
                }
            }
        }
    };
}

causes! {
    /// The attempt's source port is a NodePort and IPVS took its SYN-ACK.
    NodeportEphemeralCollision = "nodeport_ephemeral_collision" {
        title: "the probe's source port is also a NodePort, and IPVS took the answer",
        meaning: "The kernel gave the probe a source port that is also a NodePort of this node. kube-proxy in IPVS mode has a \
            virtual service on every address of the node for it, so the pod's SYN-ACK, which is addressed to that port, was taken for \
            new traffic to the Service and sent to one of its backends. The prober never sees an answer: it retransmits its SYN and \
            times out. A capture in the pod shows a RST that seems to come from the kubelet; it comes from the backend, whose listener \
            does not know the SYN-ACK, and IPVS translates it back.",
        evidence: "proven: `ip_vs_nat_xmit`, or `ip_vs_leave` for a Service without backends, on a SYN-ACK addressed to the attempt's own \
            source address and port. likely (no function probes on this kernel): the source port is a virtual service of /proc/net/ip_vs \
            and a backend of it answered the same pod's SYN-ACK with a RST from a listening socket. possible: the source port is in that table and the handshake \
            stayed without an answer.",
        lookalikes: "The same coincidence under kube-proxy's iptables or nftables mode is harmless (the SYN-ACK belongs to a known conntrack \
            entry) and gets no cause. A SYN-ACK dropped by a rule is `firewall_drop`. A client that dials the NodePort on purpose sends a SYN, not a SYN-ACK.",
        fix: "Add the NodePort range to net.ipv4.ip_local_reserved_ports, keeping what it holds: now=$(sysctl -n net.ipv4.ip_local_reserved_ports); sysctl -w net.ipv4.ip_local_reserved_ports=${now:+$now,}30000-32767 (the range of an API server without --service-node-port-range). Or move net.ipv4.ip_local_port_range off it. Make it permanent in /etc/sysctl.d.",
    }
    /// `lo` of the attempt's namespace is down and its route goes over it.
    LoopbackDown = "loopback_down" {
        title: "the loopback device of the node is down",
        meaning: "The kubelet dialled an address of its own node (127.0.0.1, or the node's address, which Linux delivers over `lo` too), and \
            `lo` in that network namespace is down. Every such probe times out although the process is healthy. It is typically set down by a CNI \
            plugin's DEL that ran in the wrong network namespace: a recorded /proc/PID/ns/net whose PID has meanwhile been given to a host process.",
        evidence: "proven: a SYN of this attempt was dropped on a loopback device whose IFF_UP is clear, in the attempt's own namespace. likely: \
            the node's link table says `lo` is down and the attempt, to an address of the node, had no answer. The culprit is the process in \
            whose context `lo` was set down (`__dev_notify_flags` or `qdisc_reset`), with its ancestors and the namespace path it had opened.",
        lookalikes: "`lo` down in a pod's namespace does not concern probes of that pod. A rule that drops on `lo` is `firewall_drop`. Nobody listening is `connection_refused`.",
        fix: "ip link set lo up (in the namespace named in the verdict); then look at the culprit: a container runtime or network plugin that came by a stale namespace path is to be updated; of anybody else, an administrator say, find out why it was done.",
    }
    /// The pod's link, or the one that leads to it, is down, or its namespace is gone.
    PodLinkDown = "pod_link_down" {
        title: "the link to the pod is down, or its network namespace is gone",
        meaning: "The device that holds the pod's address, the node's end of its veth pair or the bridge in between is down, or the pod's network namespace no longer exists. Every probe of that pod times out, or fails at once when the route went with the link, although the process may be healthy.",
        evidence: "proven: a packet of this attempt was dropped on a device that is down (`kfree_skb`, the device's own flags). likely: the attempt had no answer and the state of the target's namespace, read while it waited, has the link that holds its address (of IPv6, which an address leaves with its link: that held it when it was read before, or that was seen being set down) down or without carrier; or a link of the node that holds the target's subnet is down and there is no route; or no network namespace of this node has the address of a pod that is said to run here, and none that still is there is known to be that pod's. The culprit is the process in whose context the link was set down, where that was seen.",
        lookalikes: "`lo` of the node down is `loopback_down`. `lo` down inside the pod does not concern its probes. An address of the node itself, or of the pod that dials, is reached over `lo` whatever the state of the device that holds it (`kube-ipvs0` is never up). An address that nobody answers for although all links are up is `neighbour_failure`. Of a pod that is being deleted it is likely at most: its network is taken down while the kubelet still asks its readiness probe.",
        fix: "Find who set the link down (culprit in the verdict); set it up (ip link set DEVICE up in the namespace named), or delete the pod so that its sandbox is made again.",
    }
    /// The Service that was dialled has no endpoint that is ready.
    ServiceNoEndpoints = "service_no_endpoints" {
        title: "the Service that was dialled has no ready endpoint",
        meaning: "The attempt went to a ClusterIP or NodePort of a Service that has no ready endpoint, or none on this node where its internalTrafficPolicy (ClusterIP) or \
            externalTrafficPolicy (NodePort, external addresses) is Local: the verdict says which. kube-proxy has nothing to send it to: it answers with an ICMP error (connection refused), or \
            drops it; for want of endpoints on this node it drops it. If the pod that dials is itself an endpoint that is not ready, its readiness waits for its own Service: that never ends.",
        evidence: "proven: netfilter stopped this attempt's SYN and the only rule that can have done it is kube-proxy's for a Service without endpoints (the comment \"has no endpoints\" or \
            \"has no local endpoints\" in its iptables chains, its nftables map no-endpoint-services or no-endpoint-nodeports, whose elements reject for want of any endpoint and drop for want \
            of one on this node), or IPVS found no backend for the SYN (`ip_vs_leave`). likely: the same by IPVS where the EndpointSlices given with --services have ready endpoints and none of \
            them on this node; the Service's address or NodePort has no backend in the table of IPVS, `ip_vs_leave` cannot be hooked, and the SYN was answered with port unreachable, or dropped where no hook tells of ICMP errors, by no rule that was read; the SYN was rejected or dropped, by netfilter or by a program at tc or XDP, or connect() refused, and those EndpointSlices have no ready endpoint. possible: those EndpointSlices and a SYN without any answer.",
        lookalikes: "A Service whose backend refuses is `connection_refused`: the SYN reached the backend. Any other rule is `firewall_reject` or `firewall_drop`.",
        fix: "Make an endpoint ready: look at the readiness of the Service's pods. Where other nodes have ready ones, run one on this node or set the traffic policy to Cluster. Where a pod's \
            readiness needs its own Service, do not gate readiness on it, or set publishNotReadyAddresses.",
    }
    /// The connection table of the namespace is full.
    ConntrackTableFull = "conntrack_table_full" {
        title: "the connection table of the kernel is full",
        meaning: "Connection tracking had no room for this attempt's SYN (nf_conntrack_count at nf_conntrack_max, and nothing could be thrown out early), so it dropped it. Connections that \
            exist go on; new ones fail, whoever makes them.",
        evidence: "proven: netfilter itself dropped a SYN of this attempt where connection tracking begins (`nf_hook_slow` in PREROUTING or OUTPUT), the table of that namespace was at its maximum, \
            and its `drop` counter rose between two readings. likely: the same with one reading only, in which every rule was read and none fits; or rules fit of which none surely took the SYN, and the SYN has no entry (`skb->_nfct` is 0), as it has with room for one by the time that it comes to those rules.",
        lookalikes: "A rule that drops is `firewall_drop`: it surely did where it counted the packet, or where the packet has an entry. Rules that fit and did not surely take the SYN are named as less likely.",
        fix: "sysctl -w net.netfilter.nf_conntrack_max=<twice as much>, and look at what fills it: conntrack -L | awk '{print $5, $6}' | sort | uniq -c | sort -rn | head.",
    }
    /// Dropped or rejected as INVALID.
    ConntrackInvalid = "conntrack_invalid" {
        title: "a rule took the packet because connection tracking found it invalid",
        meaning: "Connection tracking could not tie the packet to a connection (it never saw the SYN, saw it on another path, or found it out of window), and a rule drops or rejects such packets \
            (`ct state invalid`, `-m conntrack --ctstate INVALID`; kube-proxy has one).",
        evidence: "proven: the dropped packet had no connection entry (`skb->_nfct` is 0) and the only rule of that hook that fits asks for invalid packets. likely: there are several such rules; or netfilter freed the packet where it also frees what connection tracking drops (`nf_hook_slow`: before 6.7, and with ip_tables), and the rule asks for more than is understood or the connection table was full.",
        lookalikes: "A packet that has an entry was dropped by another rule: `firewall_drop`. A full table drops new connections only: `conntrack_table_full`.",
        fix: "Let both directions pass the same connection tracking (no asymmetric route, no notrack for one direction), or sysctl -w net.netfilter.nf_conntrack_tcp_be_liberal=1 for packets out of window.",
    }
    /// Stopped by the CNI's policy enforcement, or by a tc, XDP or cgroup program.
    NetworkPolicyDrop = "network_policy_drop" {
        title: "a network policy stopped the packets",
        meaning: "The packet was stopped by what enforces network policies: a chain of the CNI in netfilter, a program at tc, XDP or the cgroup, or flows of Open vSwitch.",
        evidence: "proven: the kernel dropped a packet of this attempt's own flow with the reason TC_INGRESS, TC_EGRESS, XDP or BPF_CGROUP_EGRESS; or netfilter stopped it and the \
            only rule that fits is in a chain of calico, cilium, kube-router, weave, antrea or azure-npm. likely: several such chains fit; the packet was freed in `nf_hook_slow`, where connection tracking and IPVS drop, too (before 6.7, and with ip_tables), and the rule asks for more than is understood (a mark, a set) and was not seen to count it; the reason is SOCKET_FILTER, which a cgroup's program gives, and on many kernels a security module and want of memory (`TcpExtPFMemallocDrop`), too; or connect() was refused with EPERM, \
            which a program at cgroup/connect does (a security module or seccomp could, too); or, on 5.10, which gives no reasons, the packet was freed where tc begins; or the reason is one that flows of Open vSwitch give (6.7 and later), by which Antrea, OVN-Kubernetes and kube-ovn do all that they do. No NetworkPolicy applies to what a prober sends to a pod of its own node. If a program drops that, the verdict is only likely: it may be a policy of another kind, or an error of the dataplane itself (an entry of the pod that is missing or stale). Of a chain that drops what such a pod answers it is likely only, too, since a NetworkPolicy lets answers pass: the verdict begins with the rule, and says if the answer had been taken out of connection tracking (notrack).",
        lookalikes: "A program that drops the SYN to a Service of which the EndpointSlices say that it has no ready endpoint is `service_no_endpoints`. A rule of anybody else is `firewall_drop` or `firewall_reject`, whatever the table is called; so is a rule of the CNI that checks the way back (`fib saddr . iif oif missing`, `-m rpfilter --invert`). Of a pod that is being deleted a program's drop is likely at most: its network is taken down while the kubelet still asks its readiness probe.",
        fix: "kubectl get networkpolicy -n <namespace>: allow the node (probes come from its address), or the client, on that port.",
    }
    /// A netfilter rule answered for this flow with a RST or an ICMP error.
    FirewallReject = "firewall_reject" {
        title: "a firewall rule rejected the connection",
        meaning: "A netfilter rule (iptables REJECT, nftables reject) in the node's or the pod's network namespace answered the SYN with a RST or an \
            ICMP error and dropped it. To the prober this looks exactly like nobody listening: connection refused.",
        evidence: "proven: netfilter dropped this attempt's SYN (`kfree_skb` NETFILTER_DROP; on 5.10 its location) and the prober received a RST for it, or \
            the kernel sent an ICMP port-unreachable error for it (the TCP stack itself never sends that one for a SYN). likely: so it was, and all rules of that namespace were read after the drop and none that rejects fits (IPVS, a program or kernel module at a hook, a rule that is gone); possible where IPVS is in use and `ip_vs_leave` cannot be hooked.",
        lookalikes: "Nobody listening gives a RST by the target's own stack: `connection_refused`. A dropped SYN without any answer is `firewall_drop`.",
        fix: "Find the rule in the namespace named in the verdict (nft list ruleset; iptables-save), and allow the node's address in that chain.",
    }
    /// A netfilter rule dropped a packet of this flow.
    FirewallDrop = "firewall_drop" {
        title: "a firewall rule dropped the probe's packets",
        meaning: "A netfilter rule in the node's or the pod's network namespace dropped a packet that this attempt needs: its SYN, the SYN-ACK, or data. The prober times out.",
        evidence: "proven: `kfree_skb` with reason NETFILTER_DROP (on 5.10: at `nf_hook_slow` or `nft_do_chain`) for a packet of this attempt's own flow, and no answer made by netfilter for it. Which rule: those of the namespace that fit the hook, the backend, the flow and the verdict; one is named as fact, several as candidates. likely: the packet was freed in `nf_hook_slow`, where connection tracking and IPVS drop, too (before 6.7, and with ip_tables), and every rule that fits asks for more than is understood (a mark, a set, a device) and was not seen to count it, or the connection table was full; or all rules of that namespace were read after the drop and none fits: netfilter dropped it, and what of it is not known (connection tracking, IPVS, a program or kernel module at a hook, a rule that is gone); possible where IPVS is in use and `ip_vs_leave` cannot be hooked.",
        lookalikes: "With an answer it is `firewall_reject`. A drop by reverse-path filter, queue or routing has another reason and is not this cause; a rule that checks the way back itself is, and the verdict says so.",
        fix: "Allow the node's address in the chain of the namespace named in the verdict (nft list ruleset; iptables-save -c shows which counter rises). A rule that checks the way back: fix the route (ip route get the packet's source).",
    }
    /// The node lacks a setting that pods' traffic needs.
    MissingNodePrerequisite = "missing_node_prerequisite" {
        title: "the node lacks a setting that pods' traffic needs",
        meaning: "A packet of the handshake was for another host (a pod's way to a Service, to another node or to the world), and the node does not forward packets: net.ipv4.ip_forward, net.ipv6.conf.all.forwarding or the setting of the device it came in on is 0. It is dropped without an answer, so that the connection times out. Beside another cause, in `also`: the last check of the node (`tracer doctor`, and every five minutes in `tracer run`) found that a base chain drops what no rule accepted, and that policy took the packet.",
        evidence: "proven: `kfree_skb` with reason IP_INADDRERRORS for a packet of this attempt's own handshake in the node's network namespace: the kernel gives it in `ip_error` and `ip6_forward` when the device does not forward. likely (a kernel without that reason): it was dropped there, no ICMP error was sent and the setting was not read to be 1; possible: where no hook tells of ICMP errors, and forwarding was read to be off. In `also`: netfilter dropped it in the node's network namespace, at the hook of the base chain in the finding, and the only rule that can have done it is a policy.",
        lookalikes: "No route, or one that refuses, is `route_unreachable`: the kernel then sends an ICMP error. A blackhole, or a packet for which early demux found a socket, is dropped in the same functions without one: where the node forwards and the kernel gives no reason, that is `unexplained`. A drop by netfilter is `firewall_drop`, also where it is a policy's. A pod need not forward: a virtual machine or a stack of its own in a pod answers packets that the pod's kernel drops for this very reason. A missing br_netfilter leaves no trace on a probe's path: `tracer doctor --check br_netfilter` tells it.",
        fix: "sysctl -w net.ipv4.ip_forward=1, for IPv6 net.ipv6.conf.all.forwarding=1, permanently in /etc/sysctl.d. A node whose IPv6 default route is by router advertisements (ip -6 route show default proto ra) loses it by that, unless net.ipv6.conf.LINK.accept_ra of its link, if it is 1, is set to 2 first; `tracer doctor` names what else is missing and the command for each.",
    }
    /// The reverse-path filter dropped a packet of this attempt.
    RpFilterDrop = "rp_filter_drop" {
        title: "the reverse-path filter dropped the answer",
        meaning: "The SYN-ACK (or the SYN) arrived on a device over which the kernel would not route back to its sender, and reverse-path filtering dropped it: strict (rp_filter=1), or loose (2) on a device without an IPv4 address of its own, where it drops as strict does (the node's end of a routed veth: lxc*, cali*, eni*). The prober times out.",
        evidence: "proven: a packet of this attempt's own flow was dropped with reason IP_RPFILTER (6.1 and later). likely (5.10 gives no reason): it was dropped in `ip_rcv_finish_core` and net.ipv4.conf.all.rp_filter is 1, or is 2 and the device has no IPv4 address.",
        lookalikes: "A netfilter rule (`fib saddr . iif oif missing drop`, xt_rpfilter) drops with NETFILTER_DROP: `firewall_drop`.",
        fix: "Fix the asymmetric route, or set the filter of the device named in the verdict: sysctl -w net.ipv4.conf.DEVICE.rp_filter=2 (loose) where it has an IPv4 address of its own; without one only 0 helps, in net.ipv4.conf.DEVICE and in net.ipv4.conf.all (the greater of the two counts).",
    }
    /// The link-layer address of the target (or of the gateway) could not be resolved.
    NeighbourFailure = "neighbour_failure" {
        title: "the target's link-layer address could not be resolved",
        meaning: "The node had to ask who has the target's (or the gateway's) address (ARP, IPv6 neighbour discovery) and got no answer, or its neighbour table was full and could not take the entry; or the entry is wrong. The first is a pod that is gone, a stale address, or a route that leads over another link than the pod's (docker0, whose subnet overlaps the pods'); the second concerns every new address on the node; the third comes of a link whose address was changed after the CNI had written entries (systemd's MACAddressPolicy).",
        evidence: "proven: a packet of this attempt was dropped with NEIGH_FAILED (no answer) or NEIGH_CREATEFAIL (table full), or, where the kernel gives no reason, in the function that does so (`neigh_invalidate`, `arp_error_report`, `ndisc_error_report`). likely: the same of a pod of this node that was not looked at while the attempt waited (its link may be down); or the neighbour entry of the target on the device that its route leads over, read while the attempt waited, was incomplete or failed; or a packet of the handshake arrived in the namespace that it was for, in a frame for another link-layer address (OTHERHOST; since 5.17).",
        lookalikes: "A link that is down is `pod_link_down`. No route at all is `route_unreachable`. An ICMP host unreachable by another router is `route_unreachable`, too. Of a pod that is being deleted it is likely at most: its network is taken down while the kubelet still asks its readiness probe.",
        fix: "No answer: see whether the route leads over the link that the pod is behind (ip route get ADDRESS), and fix it or the subnets that overlap if not; else the pod is gone or its address moved (ip neigh; delete the stale pod or entry). Wrong entry: ip neigh against ip link; MACAddressPolicy=none for the CNI's links. Table full: raise net.ipv4.neigh.default.gc_thresh1..3 (net.ipv6 likewise).",
    }
    /// There is no route to the target, or one that refuses.
    RouteUnreachable = "route_unreachable" {
        title: "there is no route to the target",
        meaning: "The kernel has no route for the destination, or a route that says unreachable, prohibit, blackhole or throw; or a router on the way answered with an ICMP unreachable error; or the target has no route back, and its kernel drops the SYN without a trace.",
        evidence: "proven: `connect(2)` of this attempt returned, before any SYN, ENETUNREACH, EINVAL (blackhole) or EADDRNOTAVAIL (no source address); or the ICMP unreachable error for its SYN was seen. likely: it returned EHOSTUNREACH, which a program at cgroup/connect returns, too (Cilium, for a Service without a backend), or EACCES (prohibit), which a security module returns, too (SELinux, Landlock); its socket ended with ENETUNREACH without an ICMP error having been seen on this node (possible: with EHOSTUNREACH, which is also what a firewall elsewhere makes of it that answers with host prohibited, as firewalld does); or the target's namespace, read while the attempt waited, has no route back to the prober.",
        lookalikes: "ICMP port unreachable, or an ICMP error after a netfilter drop, is `firewall_reject`. No free source port is `ephemeral_ports_exhausted`. EHOSTUNREACH after the address could not be resolved is `neighbour_failure`. A refusal by a cgroup program (EPERM) is `network_policy_drop`. Of a pod that is being deleted it is likely at most: its network is taken down while the kubelet still asks its readiness probe.",
        fix: "ip route get ADDRESS (in the namespace named in the verdict) shows the route; add or correct it, or restart the CNI agent that should have.",
    }
    /// No source port is free.
    EphemeralPortsExhausted = "ephemeral_ports_exhausted" {
        title: "no source port is free for this destination",
        meaning: "connect() found every ephemeral port in use for the pair of its source address and this destination: by connections that live, or that were closed less than a minute ago and wait in TIME_WAIT. No SYN was sent. It is a process of the same network namespace that holds them, rarely the prober.",
        evidence: "proven: `connect(2)` of this attempt's own socket returned EADDRNOTAVAIL after it had reached SYN_SENT; where that hook is missing, the socket went from SYN_SENT to CLOSE without ever having had a source port. Who connects most, and leaves most ports in TIME_WAIT, is counted in the kernel.",
        lookalikes: "EADDRNOTAVAIL before SYN_SENT is a missing source address: `route_unreachable`. A source port that is also a NodePort is `nodeport_ephemeral_collision`. Ports that listeners hold are not counted as ephemeral, but take the place of one.",
        fix: "Have the process that churns keep its connections open (or let the server close first); widen net.ipv4.ip_local_port_range outside the NodePort range (the port of a listener and those of ip_local_reserved_ports stay out of it); net.ipv4.tcp_tw_reuse=1 for connections between hosts.",
    }
    /// The listener's accept queue is full.
    AcceptQueueOverflow = "accept_queue_overflow" {
        title: "the listener's accept queue is full",
        meaning: "The process listens, but does not accept as fast as connections come: its accept queue is full, and the kernel drops further SYNs without a trace. The prober retransmits and times out.",
        evidence: "proven: this attempt's own SYN met a listener with more connections waiting than its backlog allows (`tcp_conn_request`). likely: the attempt had no answer and the listener of its target, read while it waited, has a full accept queue.",
        lookalikes: "A full queue of half-open connections is `syn_backlog_overflow`. A connection that was established and never accepted gets no answer: `slow_response`. Where the queue fills up after the SYN and net.ipv4.tcp_abort_on_overflow is 1, the listener resets what the prober takes for established: `mid_stream_rst`, which says so.",
        fix: "Let the process accept faster (more workers, no blocking in the accept loop), raise its listen backlog and net.core.somaxconn in the pod.",
    }
    /// The listener's queue of half-open connections is full.
    SynBacklogOverflow = "syn_backlog_overflow" {
        title: "the listener's queue of half-open connections is full",
        meaning: "The listener has as many half-open connections (SYN received, ACK still missing) as it may, and SYN cookies are off: the kernel drops further SYNs. Typically a flood of SYNs, or clients whose packets get through in one direction only.",
        evidence: "proven: this attempt's own SYN met such a listener (`tcp_conn_request`). likely: the attempt had no answer and the listener of its target, read while it waited, has a full half-open queue with net.ipv4.tcp_syncookies=0.",
        lookalikes: "A full accept queue is `accept_queue_overflow`.",
        fix: "sysctl -w net.ipv4.tcp_syncookies=1 in the pod's namespace, raise net.ipv4.tcp_max_syn_backlog, and find who opens connections without finishing them.",
    }
    /// The liveness or startup budget ended before the container listened.
    StartupBudgetExceeded = "startup_budget_exceeded" {
        title: "the container was not listening yet when its liveness budget ended",
        meaning: "The container takes longer to start than its liveness (or startup) probe allows: initialDelaySeconds + periodSeconds x failureThreshold ended before it listened, so the kubelet kills and restarts it, forever.",
        evidence: "proven: this liveness or startup attempt was refused because nobody listens, it is the one that makes the failureThreshold full (refusals that other probes of the port can have met are not counted), and no process of the namespace listened since the container was started (`container_status`, from the pod's status: each run has a budget of its own), or since the namespace was made and the status says that this is the first run, or the node that its container is the same throughout. likely: the same where none of these is known (the container may have crashed and been started again in between), where the start was before the tracer began, where another container of the pod listens on another port, or where the pod is on the host's network (anybody may listen there).",
        lookalikes: "Before the threshold it is `not_listening_yet`. A process that listened and ceased, or listens on another port, is `connection_refused`; so is one whose container was started longer before the first refusal than its budget and the grace period allow: it had listened before the tracer began. Where events were lost since the start, the listener may be among them: it is less sure then, and where a ring that was full leaves nothing else to rest on, `connection_refused`. How the run before ended is in the row `container_status`, if that was lately: OOMKilled, or a crash with an exit code of its own, is no probe's doing, even at about the same time.",
        fix: "Add a startupProbe whose failureThreshold x periodSeconds covers the slowest start (the verdict has the numbers; headers, a query or a gRPC service are to be copied from the probe), or raise initialDelaySeconds. If the last run was OOMKilled, its memory limit first.",
    }
    /// Refused, and the process began to listen later, or has not yet in its start.
    NotListeningYet = "not_listening_yet" {
        title: "the process had not begun to listen yet",
        meaning: "The probe came before the process listened on its port: nobody listened, and nobody had since the pod's network namespace was made; or somebody began to listen there a little later.",
        evidence: "proven: refused for want of a listener (see `connection_refused`) and a process of the same namespace began to listen on that port afterwards, without anybody having listened there before, and that was its start: refused within two minutes after its container was started or its namespace was made, by a startup probe, or, where none of these is known, within two minutes before it listened. likely: refused within two minutes after its namespace was made, or its container was started (`container_status`, from the pod's status), and nobody has listened on that port since.",
        lookalikes: "A process that had listened in this run of its container and ceased, or a wrong port, is `connection_refused`; so is a replica that begins to listen long after its start, when it becomes the leader. When the failures use up the liveness budget it is `startup_budget_exceeded`.",
        fix: "Give the container a startupProbe (or a longer initialDelaySeconds) that covers the time it takes to listen.",
    }
    /// A field of the probe is to be changed, not the application.
    ProbeMisconfigured = "probe_misconfigured" {
        title: "a field of the probe does not fit what the application serves",
        meaning: "The application was reached and works; the probe asks it in a way that it does not serve. The verdict names the field to change. The probe asks plain HTTP of a port that speaks TLS (`httpGet.scheme`). It asks for a host that the server does not serve (`httpGet.httpHeaders`). Its path is redirected in a circle, or to a port where nobody listens (`httpGet.path`). It asks gRPC without TLS of a port that speaks TLS.",
        evidence: "proven: the first bytes of the answer, seen on their way into the prober's own socket, have status 421; or ten answers in a row were redirects and the kubelet says that it stopped after 10; or an answer was a redirect, the connection that followed it was refused, and the kubelet names that target. likely: ten redirects in a row, or a redirect and the refused connection after it, without the kubelet's word; or status 400 with words of Go's, nginx's, Apache's or Tomcat's that the port speaks TLS, which an application may write, too; or status 421 by the kubelet's word alone; or the server closed the connection of a gRPC probe without a byte, and TLS was spoken on that port (a ClientHello of somebody else, an answered HTTPS probe).",
        lookalikes: "Another status is `app_status_failure`, and so is the first byte of another protocol. A refused port that a probe asks itself is `connection_refused`. A gRPC probe that is closed without a byte on a port of which no TLS is known is `closed_without_answer`, with the same hint. Redirects that end at another host are a success to the kubelet.",
        fix: "Change the field that the verdict names: httpGet.scheme, httpGet.httpHeaders (Host), httpGet.path, or the port. For gRPC over TLS: grpc.mode: TLS (Kubernetes 1.37), a port without TLS, tcpSocket, or exec with a client that speaks TLS.",
    }
    /// The target's kernel has nobody listening on that address and port.
    ConnectionRefused = "connection_refused" {
        title: "nobody listens on that address and port",
        meaning: "The SYN reached the target's network namespace and its TCP stack found no socket for it, so it answered with a RST.",
        evidence: "proven: a RST without a socket (`tcp_send_reset` NO_SOCKET, or `tcp_v4_send_reset`/`tcp_v6_send_reset` with a null socket), or the SYN freed with \
            reason NO_SOCKET, for this attempt's own flow. likely: the same with another source address, behind a source NAT of this node (Istio ambient, a masquerade); before 5.17, where drops have no reasons and if no hook tells of that RST, the SYN freed in `tcp_v4_rcv` or `tcp_v6_rcv`, a RST that came back at that moment, and nobody who is known to listen there; or it was the node's own stack that answered for the address of a pod with a network of its own, since the node has that address, too: the pod was not asked, and the verdict says so; or another network namespace than the listed pod's refused it, which has the address, too.",
        lookalikes: "A REJECT rule gives the same error to the prober: `firewall_reject`. A RST made by a middlebox: `handshake_rst`. A gRPC probe dials again until its timeout: \
            once a later dial is answered the refusal is `noise`, and its dials count as one failure. A sandbox that is left over of a pod that was deleted by force refuses at the address of the next pod: where a process listens in that pod's own namespace the verdict says that it was not asked.",
        fix: "Let the process listen on that port and on the pod's address (not only 127.0.0.1), correct the probe's port, or give a slow start a startupProbe. The node has the pod's address, too: ip route get ADDRESS, and take it away from the node; is it the node's own, delete the pod and take it out of the CNI's range instead. A leftover has it, too: remove that (lsns -t net, crictl pods), and look at the CNI's address management.",
    }
    /// Any other RST before ESTABLISHED.
    HandshakeRst = "handshake_rst" {
        title: "the handshake was reset, and not by the target's own stack for want of a listener",
        meaning: "The prober received a RST in SYN_SENT. No stack of this node is seen to have sent it under that address for want of a socket, and no netfilter rule of this node made it: it came from a \
            middlebox, from a user-space network stack, from another node, from a backend behind an address translation (a Service, a hostPort, a sidecar's redirect), or from a socket of the target for a reason the kernel names.",
        evidence: "proven: `tcp_send_reset` with a socket and the kernel's reason. likely: `tcp_receive_reset` on this attempt's own socket in SYN_SENT while the hooks that see RSTs of this node's sockets and its drops were in force and silent, and no stack of this node is seen to have refused it \
            (a RST that was translated on its way has other addresses where it is sent). possible: one of those hooks is missing. Where none that is left would have told of a refusal by a stack of this node it is `unexplained`.",
        lookalikes: "`connection_refused` (RST without a socket by the target's stack), `firewall_reject` (RST made by netfilter). A backend of a Service, or a process behind a redirect, that does not listen shows here: its RST is not tied to the attempt.",
        fix: "Follow the path to the target: a proxy, virtual machine, load balancer or security appliance between prober and process answers for it.",
    }
    /// A RST after ESTABLISHED, before the answer.
    MidStreamRst = "mid_stream_rst" {
        title: "the connection was reset after it was established and before any answer",
        meaning: "The handshake went through; then a RST came before a single byte of an answer. Usually the application closed the socket with unread data, with SO_LINGER 0, or was killed. A listener whose accept queue filled up during the handshake resets it, too, where net.ipv4.tcp_abort_on_overflow is 1.",
        evidence: "proven: `tcp_receive_reset` on this attempt's own socket after ESTABLISHED with no byte received; the sender, where it is on this node, by `tcp_send_reset` in its own context. likely: it came after part of an answer, and the kubelet's own outcome is an error of the network.",
        lookalikes: "A RST after an answer is no failure of the probe, nor is one after the dial of a tcpSocket probe, which sends nothing: unless the kubelet says that it failed. A RST during the handshake is `handshake_rst`. A late answer that meets the prober's closed socket is a consequence of `slow_response`.",
        fix: "Look at the process named in the verdict, and at how it closed: with unread data, with SO_LINGER 0, or because it ended; or at the proxy in between.",
    }
    /// Full-size segments do not get through.
    MtuBlackhole = "mtu_blackhole" {
        title: "full-size segments do not get through (MTU)",
        meaning: "The handshake and small segments get through, full-size ones do not: a device on the way has a smaller MTU than the ends assume, and the ICMP error that should say so is lost. Short answers work, long ones hang.",
        evidence: "proven: a packet of this attempt was dropped because it is too big (PKT_TOO_BIG), or the ICMP fragmentation-needed (ICMPv6 packet-too-big) error about it was seen, and nothing of the answer arrived; of a request, that it was not acknowledged. likely: the same segments, large ones, were sent again and again without an acknowledgement after a good handshake.",
        lookalikes: "A firewall that drops data has its own event: `firewall_drop`. A single retransmission is loss, not this. A request that got through in smaller segments and is not answered is `slow_response`.",
        fix: "Set the CNI's MTU to that of the smallest link less the encapsulation (VXLAN 50, WireGuard 60/80, IPIP 20), and let ICMP type 3 code 4 (ICMPv6 type 2) pass.",
    }
    /// The kubelet sent its request, or read the answer, too late.
    KubeletDelayed = "kubelet_delayed" {
        title: "the kubelet asked, or read the answer, too late",
        meaning: "The network and the application were in time, and the kubelet was not. The answer lay in the prober's socket before the probe's timeout, and the kubelet says that it timed out, so it did not get to read it; or its request went out when most of its time was over. It had no CPU, or was stopped, or had too much to do at once.",
        evidence: "likely: the kubelet's own outcome of this attempt is a timeout while it waited for the answer's headers, the probe speaks plain HTTP, and the status line of the answer (no redirect) had reached the attempt's socket more than 0.2 s before timeoutSeconds had passed since the connect (`cgroup_skb`). The outcome is tied to the attempt by pod, container, kind of probe and time. likely: nothing was answered, nothing was sent again, and the last segment of the connection, which acknowledged the request, had passed (`tcp_mstamp` of the socket when it was closed) later than half-way between handshake and close; not from 15 s on, where a keepalive segment of the kubelet can have been the last. possible: when the bytes came was not seen, but they lay unread in the socket when the kubelet closed it, 0.2 s or more after its own timeout.",
        lookalikes: "An answer after the timeout, or none to a request that was sent at once, is `slow_response`; a server that hangs may have been asked late, too: then the next attempts say so. A server that hangs and sends TCP keepalive segments more often than the probe times out looks the same. An answer whose body never ends is one that the application did not finish, and gets no such cause. With TLS or gRPC the first bytes are a handshake's: that is `slow_response`. A server that sends a status line and stops before the end of its headers looks the same.",
        fix: "Give the kubelet CPU: reserve it (--system-reserved, --kube-reserved, a cgroup of its own), look at the node's load and at /proc/pressure/cpu at that moment; or raise timeoutSeconds.",
    }
    /// Established, and TLS was not finished before the timeout.
    TlsHandshakeSlow = "tls_handshake_slow" {
        title: "the TLS handshake was not finished in time",
        meaning: "The connection was established at once and the ClientHello was taken, but not a byte of the server's part of the TLS handshake came before the prober's timeout.",
        evidence: "proven: the attempt is an HTTPS probe (or was seen to send a ClientHello), its socket left ESTABLISHED by its own close with the ClientHello sent and acknowledged, and no byte received, and an HTTPS probe of that port was answered before. likely: no such answer was seen since the tracer began (the port may not speak TLS at all, and wait for the end of a line); most of the time had gone into the handshake of TCP; or the prober itself closed 0.2 s or more after its timeout, or more than a tenth before it.",
        lookalikes: "A plain HTTP request without an answer is `slow_response`. When the handshake was answered and the HTTP response is late it is `slow_response`, too. A ClientHello that the kubelet sent when most of its time was over is `kubelet_delayed`.",
        fix: "Raise timeoutSeconds, give the container CPU (TLS handshakes are its most expensive moment), look for an entropy, certificate or OCSP look-up in the handshake.",
    }
    /// Request taken, no byte of an answer before the prober gave up.
    SlowResponse = "slow_response" {
        title: "the process took the request and gave no byte of an answer in time",
        meaning: "The connection was established at once and the request was acknowledged by the target's stack, but not a byte came back before the prober closed the connection at its timeout.",
        evidence: "proven: the prober's own socket left ESTABLISHED by its own close with its request sent and acknowledged and no byte received. likely: the same, and most of the time had gone into the handshake, or the prober itself closed 0.2 s or more after its timeout (it may have sent its request late, too), or more than a tenth before it (a busy kubelet dials late); or bytes of a TLS or HTTP/2 handshake, or of a body, were received, and the kubelet's own outcome is that the answer did not come, or did not end, in time; or, without its word, every probe that the attempt can be is HTTPS or gRPC, bytes were received, and the prober closed at its timeout (0.01 s before to 0.2 s after it): one that had its answer would have closed long before.",
        lookalikes: "An unacknowledged, retransmitted request, or an answer that is sent again and again, is lost on the way and not this cause. A RST is `mid_stream_rst`. A request that the kubelet sent when most of its time was over is `kubelet_delayed`. A prober that closes long before its timeout (by 0.25 s, or by a tenth of a longer one; where it says itself that it timed out, by half of it) was stopped itself, or had no time left for this connection: it gets no verdict, or `unexplained`. A connection that is no probe gets none either: what it sent may need no answer.",
        fix: "Raise timeoutSeconds above the handler's real latency, give the container more CPU, or make the health handler independent of slow work.",
    }
    /// The target's container was held back for want of CPU quota. In `also` only.
    CpuThrottled = "cpu_throttled" {
        title: "the container was throttled: it had used up its CPU quota",
        meaning: "While the attempt waited for an answer, the kernel held the container's processes back because they had used up their CPU limit. It stands in `also`, beside `slow_response` or \
            `tls_handshake_slow`: it is why the answer was late.",
        evidence: "likely: two readings of the `cpu.stat` of the cgroups of the target's namespace, both while the attempt waited, differ in `nr_throttled`.",
        lookalikes: "A slow handler without a rise of that counter waits for something else: a lock, a database, a disk.",
        fix: "Raise the container's CPU limit or drop it; then timeoutSeconds.",
    }
    /// The server closed the connection without a byte.
    ClosedWithoutAnswer = "closed_without_answer" {
        title: "the server took the request and closed without a byte",
        meaning: "The connection was established and the request was taken; then the server's side closed (FIN) without a single byte of an answer: a handler that gives up, a proxy without upstream, a crash or a shutdown.",
        evidence: "proven: the server's FIN arrived at the prober's own socket with the request sent and no byte received. likely: nothing was sent, and every probe that the attempt can be sends a request (none is a tcpSocket): where a sockmap program redirects payload between sockets of the node, a healthy probe looks the same. Where the listener ended at the same time, the verdict says so.",
        lookalikes: "A close by RST is `mid_stream_rst`. A tcpSocket probe that sends nothing and is closed by the server succeeded. Where the pod has a proxy (istio-proxy, linkerd-proxy, queue-proxy) that may have closed in the application's place, the verdict says so.",
        fix: "Look at the process's own log at that moment: it closed the connection on purpose, crashed, or was shutting down.",
    }
    /// The application answered, and said no.
    AppStatusFailure = "app_status_failure" {
        title: "the application answered, and said no",
        meaning: "The way from the kubelet to the pod is fine, which is all that is known of the network: the application was reached, took the request and answered with an HTTP status that the kubelet counts as a failure (below 200 or from 400 on), or in another protocol than the probe's: TLS on a port that is probed in plain, plain HTTP on one that is probed by HTTPS or gRPC; or refused the TLS handshake by a fatal alert (its versions, ciphers or names fit not, or it wants a client certificate, which the kubelet has not); or, over gRPC, with a state other than SERVING, or that it has no health service.",
        evidence: "proven: the first bytes of the answer, seen on their way into the prober's own socket, have that status (only the number is kept), or are of another protocol than that of every probe that it can be, or are a fatal TLS alert and every probe that it can be is an HTTPS one. likely: the same where a proxy in the pod may have given the answer, or in plain HTTP where the port has answered TLS, too (a redirect to http://). A status of 200 to 399 in plain HTTP on the port of an HTTPS or gRPC probe is no failure: a server that answers yes in plain HTTP was asked in plain HTTP.",
        lookalikes: "No answer at all is `slow_response`, `closed_without_answer` or `mid_stream_rst`. A proxy in the pod may answer in the application's place without having reached it, and the verdict says so: Istio's pilot-agent whatever a probe at /app-health/ asks (500 if it could not dial the application), istio-proxy, linkerd-proxy or queue-proxy with 403 (a policy of the mesh denies it), 502, 503 or 504. The status of an HTTPS or gRPC probe is not seen (what is seen is whether the first bytes are TLS or a fatal alert, and whether they are HTTP/1; in TLS 1.3 an alert for want of a client certificate is encrypted): there it is likely, by the kubelet's own outcome of the attempt (without a connection where several can be the one), or goes unsaid. A lifecycle hook (httpGet) takes any status: of an attempt that may be a hook's, a status alone is no failure. What else the prober asks (a cloud's metadata, a registry) is none either, where the pods' probes are known and none dials there.",
        fix: "Look at what the handler checks. Another protocol: correct the probe's scheme or port (the verdict says which of the two speaks what). TLS refused: let the server take what the kubelet offers (TLS 1.2 and 1.3, Go's ciphers, no client certificate), or probe another port, or use tcpSocket or exec. No gRPC health service: register grpc.health.v1.Health in the server, or use tcpSocket.",
    }
    /// The command of an exec probe did not end in time.
    ExecTimeout = "exec_timeout" {
        title: "the command of an exec probe did not end in time",
        meaning: "The probe runs a command in the container; it had not ended when timeoutSeconds were over. No connection of the kubelet is involved. Before Kubernetes 1.20 such a timeout was not counted at all: a probe that begins to fail with an upgrade was too slow before.",
        evidence: "likely: the kubelet's own outcome says that the command timed out. Never proven: no event of the kernel carries it.",
        lookalikes: "A command that ends in time and says no is `exec_failed`. A command that itself dials somewhere shows that connection's own verdict only with --all-connections.",
        fix: "Raise timeoutSeconds (it is 1 s unless set), make the command cheaper (starting an interpreter takes most of a second of a throttled CPU), or use an httpGet, tcpSocket or grpc probe.",
    }
    /// The command of an exec probe said no, or could not be run.
    ExecFailed = "exec_failed" {
        title: "the command of an exec probe said no, or could not be run",
        meaning: "The probe runs a command in the container; it ended with a status other than 0, or the runtime could not run it. The network is not involved. What could not be run (\"Probe errored\": the container lacks the program, or is being stopped) the kubelet ignores: it counts neither as a failure nor as a success, and readiness stays as it was; the verdict says so.",
        evidence: "likely: the kubelet's own outcome of a probe whose spec is exec. Never proven: no event of the kernel carries it. What the command printed is not repeated here: it is the pod's. Outcome noise: the command was not run because its container does not run or its pod ends, by the runtime's words, or the kubelet called it off.",
        lookalikes: "A command that does not end in time is `exec_timeout`. A kubelet before 1.24 says nothing of a timeout, as of a command that prints nothing: that is `unexplained`, and both are named.",
        fix: "Run the command by hand: kubectl exec -n NAMESPACE POD -c CONTAINER -- COMMAND; echo $?. Its output is in the event Unhealthy of the pod (kubectl describe pod). Could not be run: put the program into the image, or correct the command; until then the probe decides nothing. Where the runtime's words name AppArmor, a cgroup, open files, processes or a permission, it is that limit or guard, and not the image: the verdict says what to do about each.",
    }
    /// A pod's sandbox waits for the network.
    CniNotReady = "cni_not_ready" {
        title: "the pod's sandbox has no network: the CNI is not ready",
        meaning: "The kubelet could not make the pod's sandbox because the CNI plugin said no or is not set up: no container of it runs, and none of its probes is made. After a node's start that is an order: the network's agent has not written its configuration yet.",
        evidence: "likely: the kubelet's log says that the sandbox failed in the setup of its network, or that the network is not ready, and names the pod. Never proven: no event of the kernel carries it.",
        lookalikes: "A pod whose image cannot be pulled has a network. A pod that runs and cannot be reached has another cause.",
        fix: "See whether the CNI's agent runs on this node (kubectl get pods -n kube-system -o wide), and what lies in /etc/cni/net.d and /opt/cni/bin; a pod that must outlive this at start needs a startupProbe.",
    }
    /// A tcpSocket attempt that succeeded at a TLS listener.
    TlsEofNoise = "tls_eof_noise" {
        title: "a tcpSocket probe of a TLS port: the EOF in the server's log is this probe",
        meaning: "The attempt succeeded. It connected, sent no byte and closed, which is what a tcpSocket probe does; the server expects TLS and logs an EOF during the handshake. Nothing is wrong.",
        evidence: "likely: this attempt sent and received no byte, and a TLS ClientHello of another connection arrived at the same listener, or an HTTPS probe was answered by it. possible: another probe of the pod is to speak HTTPS to that port, and was not answered yet. None of them where the last answer to an HTTPS probe there was not TLS. In each case only if the attempt can be a tcpSocket probe, or no probe of the port is known, and the kubelet has not said that it failed.",
        lookalikes: "A tcpSocket probe of a plain port leaves no such line and gets no cause. A TLS handshake that began and was cut is a failure. An HTTPS probe that was connected too late to send anything looks the same to the kernel: it is no success, and `unexplained` once the kubelet says that it failed.",
        fix: "Use an httpGet probe with scheme HTTPS (or a gRPC probe), or filter that line from the server's log.",
    }
    /// None of these.
    Unexplained = "unexplained" {
        title: "the attempt failed and no evidence decides why",
        meaning: "The attempt failed and nothing that was seen decides the cause. That is an answer: the causes that the hooks in force would have shown are excluded. A probe that failed before it made a connection is told here, too, in the kubelet's words: it could not make a socket (no file descriptor left), or the name in its `host` is not known to the node.",
        evidence: "What was seen is listed, and so are the hooks that are missing on this kernel and the events that were lost. Of a probe that made no connection there is the kubelet's own outcome (its log or Events), where a list of pods tells that it is no command.",
        lookalikes: "Every other cause needs evidence that decides it; without it, it is this one.",
        fix: "Start from the evidence in the verdict. `tracer record FILE` keeps the observations: a report with that file can be replayed.",
    }
}

impl std::fmt::Display for Cause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::Cause;

    #[test]
    fn names_round_trip_and_agree_with_serde() {
        for &cause in Cause::ALL {
            assert_eq!(Cause::from_name(cause.name()), Some(cause));
            assert_eq!(serde_json::to_value(cause).ok(), Some(serde_json::Value::from(cause.name())));
        }
        assert_eq!(Cause::from_name("no_such_cause"), None);
    }

    #[test]
    fn no_page_has_holes_in_its_text() {
        for cause in Cause::ALL {
            let page = cause.page();
            let all = [page.title, page.meaning, page.evidence, page.lookalikes, page.fix];
            let hole = all.iter().find(|text| text.contains("  ") || text.contains('\n') || text.trim() != **text);
            assert_eq!(hole, None, "{cause}");
        }
    }
}
