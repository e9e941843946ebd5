//! The input of the rules, and what most of them ask first: which packets decide, and how far the attempt got.

use crate::blocked::Blocks;
use crate::drop_reason::{dropped_in, is_unresolved, may_be_at_socket, netfilter_hook};
use crate::{SETTLE_NS, flooded};
use tracer_attempts::correlate::attempt::{Attempt, End};
use tracer_attempts::correlate::node::Node;
use tracer_attempts::enrich::Matched;
use tracer_common::names::Hook;
use tracer_model::event::{
    Inspection, Netns, NodePorts, Observation, ObservationKind, PacketDrop, ProbeType, ProxyMode, ResetSent, Runs,
    TcpState,
};
use tracer_model::record::Cause;

/// How long after a drop a RST or ICMP error still answers the dropped SYN. A rule that rejects answers in the run in
/// which it drops. The next SYN, with an answer of its own, comes a second later at the earliest (`TCP_TIMEOUT_INIT`).
pub const ANSWER_NS: u64 = 500_000_000;

/// The input of a rule.
#[derive(Debug)]
pub struct Case<'a> {
    pub attempt: &'a Attempt,
    /// What was observed of the node until now.
    pub node: &'a Node,
    /// The probes that the attempt can be.
    pub matched: Matched<'a>,
    /// Enough time has passed since the last ambiguous event for its companions to have arrived:
    /// conclusions from what was *not* seen are allowed.
    pub settled: bool,
    /// Failures in a row of the same target before this attempt ends, this one included.
    pub streak: Option<Streak>,
    /// Failures in a row of this probe, whatever the answer.
    pub failing: Option<Failing>,
    /// The probe for which the kubelet ended the last run of the container.
    pub ended_by: Option<EndedByProbe>,
    /// How netfilter stopped the attempt, kept after the first question.
    pub blocks: Blocks<'a>,
}

impl<'a> Case<'a> {
    /// The case of an attempt before any failure is known; `settled` and `streak` are those of the fields.
    pub fn new(attempt: &'a Attempt, node: &'a Node, settled: bool, streak: Option<Streak>) -> Self {
        Self {
            attempt,
            node,
            matched: Matched::new(attempt, node),
            settled,
            streak,
            failing: None,
            ended_by: None,
            blocks: Blocks::default(),
        }
    }

    /// The same after these failures.
    #[must_use]
    pub const fn after(mut self, failing: Option<Failing>, ended_by: Option<EndedByProbe>) -> Self {
        (self.failing, self.ended_by) = (failing, ended_by);
        self
    }

    /// Which of these hooks are missing. A hook that shows only the other address family does not count, nor does one that
    /// shows only handshakes if this one was completed.
    pub fn missing(&self, hooks: &[Hook]) -> Vec<Hook> {
        let is_ipv4 = self.attempt.flow.dst.is_ipv4();
        let shows = |hook: &Hook| match hook {
            Hook::TcpV4SendReset | Hook::IcmpSend | Hook::IpvsNatXmit => is_ipv4,
            Hook::TcpV6SendReset | Hook::Icmp6Send | Hook::IpvsNatXmitV6 => !is_ipv4,
            Hook::TcpConnRequest | Hook::SysConnect => self.attempt.established.is_none(),
            _ => true,
        };
        // The other hooks that wait for a module are of IPv6: an attempt of IPv6 shows that it is loaded.
        let is_of_ipvs = |hook| matches!(hook, Hook::IpvsNatXmit | Hook::IpvsNatXmitV6 | Hook::IpvsLeave);
        let in_use = |hook| !is_of_ipvs(hook) || runs_ipvs(self);
        self.node.missing_at(hooks, self.attempt.started, in_use).into_iter().filter(shows).collect()
    }

    /// Whether one of these hooks is missing.
    pub fn lacks(&self, hooks: &[Hook]) -> bool {
        !self.missing(hooks).is_empty()
    }
}

/// Failures in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Streak {
    /// When the first of them began, CLOCK_BOOTTIME nanoseconds.
    pub since: u64,
    /// When the last of them began.
    pub last: u64,
    /// How many, this one included.
    pub count: u32,
    /// The container had one id throughout: it was not restarted in between.
    pub one_run: bool,
    /// All of them can only be attempts of a probe.
    pub of_probes: bool,
}

impl Streak {
    /// One failure.
    pub const fn of_one(began: u64) -> Self {
        Self { since: began, last: began, count: 1, one_run: true, of_probes: true }
    }

    /// The part that belongs to the run of the container that began then. If the first failure came before that, only
    /// the last one is known to belong to the run.
    pub fn in_run(self, began: Option<u64>) -> Option<Self> {
        match began {
            Some(began) if self.since < began => {
                (self.last >= began).then(|| Self { of_probes: self.of_probes, ..Self::of_one(self.last) })
            }
            _ => Some(self),
        }
    }
}

/// Failures in a row of one probe, this one included.
#[derive(Clone, Copy, Debug)]
pub struct Failing {
    pub count: u32,
    /// When the first of them began.
    pub since: u64,
    /// When its last attempt that succeeded began.
    pub succeeded: Option<u64>,
}

/// The failures in a row for which the kubelet ended a container.
#[derive(Clone, Copy, Debug)]
pub struct EndedByProbe {
    pub probe_type: ProbeType,
    pub failures: u32,
    /// Why the last one failed.
    pub cause: Cause,
    /// When the last one began.
    pub at: u64,
}

/// The attempt never got past its handshake.
pub fn in_handshake(case: &Case<'_>) -> bool {
    let ended = case.attempt.ended.is_none_or(|(_, end)| end == End::NotEstablished);
    case.attempt.established.is_none() && ended
}

/// When the last SYN was sent of which it is known how it fared: something stopped it, or the prober waited in vain.
fn last_syn(attempt: &Attempt) -> u64 {
    use ObservationKind::{Drop, Icmp, QueueFull, ResetReceived};
    let blocks = |it: &Observation| matches!(it.kind, Drop(_) | Icmp(_) | QueueFull(_) | ResetReceived(_));
    let is_known = |sent: u64| {
        let waited = attempt.ended.is_some_and(|(ended, _)| sent.saturating_add(SILENCE_NS) <= ended);
        waited || attempt.observations.iter().any(|it| blocks(it) && is_since(it.time_boot_ns, sent))
    };
    attempt.syns_sent_again().filter(|sent| is_known(*sent)).last().unwrap_or(attempt.started)
}

/// How long no answer to a SYN has to come, until the silence counts.
const SILENCE_NS: u64 = 100_000_000;

/// The dropped packets that decide, see [`may_decide`]. After the handshake: all but those of [`is_deferred`] and
/// [`is_at_other_link`].
pub fn drops<'a>(case: &Case<'a>) -> impl Iterator<Item = (u64, &'a PacketDrop)> + use<'a> {
    let (attempt, node) = (case.attempt, case.node);
    let since = last_syn(attempt);
    attempt.drops().filter(move |(time, drop)| {
        decides(attempt, since, *time, drop) && !flooded::is_at_other_link(attempt, node, drop)
    })
}

/// While it connects: the last SYN, or its answer, was dropped in the same way. What dropped only an earlier one is gone.
pub(crate) fn may_decide(case: &Case<'_>, time: u64, drop: &PacketDrop) -> bool {
    decides(case.attempt, last_syn(case.attempt), time, drop) && !is_at_other_link(case, drop)
}

/// A bridge flooded the packet, and this copy of it was not for the target.
pub fn is_at_other_link(case: &Case<'_>, drop: &PacketDrop) -> bool {
    flooded::is_at_other_link(case.attempt, case.node, drop)
}

/// Once the handshake is over, none of its packets does. Nor does an answer that the prober's kernel drops since the
/// prober has given up.
fn decides(attempt: &Attempt, since: u64, time: u64, drop: &PacketDrop) -> bool {
    let is_home = drop.flags.is_syn_ack() && drop.netns == attempt.netns;
    let is_late = is_home && attempt.ended.is_some_and(|(ended, _)| time > ended);
    let of_handshake = drop.flags.is_syn() || drop.flags.is_syn_ack();
    // A SYN that waited for a link-layer address is sent after the end. A process may refuse one late (NFQUEUE).
    let is_after = || attempt.gave_up_connecting(time) && !is_unresolved(drop) && drop.refused_by.is_none();
    if is_late || is_after() || is_deferred(attempt, drop) {
        return false;
    }
    let way = |it: &PacketDrop| (it.netns, it.flow, it.flags, it.reason.clone(), netfilter_hook(it));
    let again = || attempt.drops().any(|(at, it)| is_since(at, since) && way(it) == way(drop));
    if attempt.established.is_some() { !of_handshake } else { is_since(time, since) || again() }
}

/// Before the attempt ended, or at that moment. What comes later shows only that the way is free then.
pub fn in_time(case: &Case<'_>, time: u64) -> bool {
    case.attempt.ended.is_none_or(|(ended, _)| time <= ended.saturating_add(SETTLE_NS))
}

/// What dropped an earlier SYN, or the answer to it, is gone: the last SYN was not dropped there.
pub fn earlier_drop_is_gone(case: &Case<'_>) -> bool {
    let attempt = case.attempt;
    let in_time = |time: u64| attempt.ended.is_none_or(|(ended, _)| time <= ended);
    let counts = |drop: &PacketDrop| !drop.flags.is_rst() && !is_at_other_link(case, drop);
    let first = attempt.drops().find(|(time, drop)| in_time(*time) && counts(drop));
    attempt.established.is_none() && first.is_some_and(|(time, drop)| !may_decide(case, time, drop))
}

/// A listener with TCP_DEFER_ACCEPT waits for the request: it drops the bare acknowledgement that ends the handshake
/// (`tcp_check_req`, net/ipv4/tcp_minisocks.c). Then the request got through, and nothing was lost.
pub fn is_deferred(attempt: &Attempt, drop: &PacketDrop) -> bool {
    may_be_at_socket(drop) && drop.flags.may_be_bare() && attempt.leads_out(drop.flow) && attempt.request_acknowledged()
}

/// The event of a SYN that is sent again may come after those of what became of it.
const fn is_since(time: u64, syn: u64) -> bool {
    time.saturating_add(ANSWER_NS) > syn
}

/// The network shows nothing: no dropped packet, no ICMP error and no RST.
pub fn silent(case: &Case<'_>) -> bool {
    let attempt = case.attempt;
    drops(case).next().is_none() && attempt.icmp().next().is_none() && attempt.reset_received().is_none()
}

/// The bytes of the target began with the handshake of TLS or HTTP/2: the probe does not use plain HTTP.
pub fn has_handshake(case: &Case<'_>) -> bool {
    // A redirect may have led to a port that no probe asks.
    let by_outcome = || case.attempt.kubelet().and_then(|(_, it)| it.scheme()) == Some("https");
    case.matched.expects_http().map_or_else(by_outcome, |plain| !plain)
}

/// A SYN that is sent again while the handshake is half done (`tcp_check_req`, net/ipv4/tcp_minisocks.c). It is one only
/// if the SYN before it was not dropped there: an IPsec policy and a socket in TIME_WAIT drop all of them.
pub fn is_second_syn(case: &Case<'_>, drop: &PacketDrop) -> bool {
    let at_socket = |it: &PacketDrop| it.flags.is_syn() && matches!(dropped_in(it), Some("tcp_v4_rcv" | "tcp_v6_rcv"));
    let is_later = || {
        let first = case.attempt.drops().find(|(_, it)| at_socket(it) && it.netns == drop.netns);
        let again = case.attempt.syns_sent_again().next();
        first.zip(again).is_some_and(|((time, _), again)| is_since(time, again))
    };
    at_socket(drop) && (is_later() || drop.reason.is_some() && case.lacks(&[Hook::TcpRetransmit]))
}

/// Hooks that show a RST of a stack that has no socket for the packet, where `tcp_send_reset` does not (before 6.12).
pub const REFUSAL_HOOKS: &[Hook] = &[Hook::TcpV4SendReset, Hook::TcpV6SendReset];

/// Hooks that show ICMP errors.
pub const ICMP_HOOKS: &[Hook] = &[Hook::IcmpSend, Hook::Icmp6Send];

/// The state of the target as it was last read while this attempt waited.
pub fn inspected<'a>(case: &Case<'a>) -> Option<(u64, &'a Inspection)> {
    inspections(case).next()
}

/// The readings of the target's state while this attempt waited, latest first. For a handshake each of them counts: one
/// that decides would have decided at once, had nothing ambiguous come just before it. Later, only the last one shows
/// why the attempt ends without an answer.
pub fn inspections<'a>(case: &Case<'a>) -> impl Iterator<Item = (u64, &'a Inspection)> + use<'a> {
    let (attempt, node) = (case.attempt, case.node);
    let all = node.targets.inspections(attempt);
    let most = if attempt.established.is_none() { usize::MAX } else { 1 };
    all.filter(move |(time, _)| attempt.overlaps(*time)).take(most)
}

/// No RST answered a later SYN than the one at this time. A RST right after the drop is of whatever dropped that SYN.
pub fn is_unanswered(case: &Case<'_>, time: u64) -> bool {
    let reset = case.attempt.reset_received().filter(|(_, reset)| reset.state == TcpState::SynSent);
    reset.is_none_or(|(at, _)| at < time.saturating_add(ANSWER_NS))
}

/// The packet belongs to the last SYN of a handshake that was neither completed nor answered otherwise.
pub fn is_of_handshake(case: &Case<'_>, time: u64, drop: &PacketDrop) -> bool {
    let is_last = case.attempt.established.is_none() && is_unanswered(case, time) && may_decide(case, time, drop);
    is_last && (drop.flags.is_syn() || drop.flags.is_syn_ack())
}

/// The dropped packet went from the prober to the target. Behind a masquerade and a Service, both addresses of a SYN
/// are others.
pub fn outbound(case: &Case<'_>, drop: &PacketDrop) -> bool {
    drop.flags.is_syn() || case.attempt.leads_out(drop.flow)
}

/// An address translation had sent the prober's packet to another address.
pub fn is_sent_elsewhere(case: &Case<'_>, drop: &PacketDrop) -> bool {
    outbound(case, drop) && drop.flow.dst.ip() != case.attempt.flow.dst.ip()
}

/// The probed pod is on the host's network: a listener on another port of its namespace may be any process of the node.
pub fn shares_node(case: &Case<'_>) -> bool {
    case.matched.probed_pod().is_some_and(|pod| pod.host_network)
}

/// What is known of the runs of the probed container.
pub fn runs<'a>(case: &Case<'a>) -> Option<&'a Runs> {
    case.matched.probed_container()?.1.runs.as_ref()
}

/// This namespace has the target's address: its addresses were read, or its stack took packets to that address for
/// itself. A list of pods names no namespaces; tracer finds them on the node a moment later.
pub fn holds_target(case: &Case<'_>, netns: Netns) -> bool {
    let dst = case.attempt.flow.dst;
    let read = || case.attempt.netns.and_then(|from| case.node.netns_of_addr(from, dst.ip())) == Some(netns);
    let local = |d: &PacketDrop| netfilter_hook(d) == Some("INPUT") || d.reason.as_deref() == Some("NO_SOCKET");
    let delivered = |d: &PacketDrop| d.netns == Some(netns) && d.flow.dst == dst && local(d);
    let refused = |r: &ResetSent| r.netns == Some(netns) && r.no_socket && r.flow.src == dst;
    read() || case.attempt.drops().any(|(_, d)| delivered(d)) || case.attempt.resets_sent().any(|(_, r)| refused(r))
}

/// The link to which kube-proxy gives the addresses of all Services (pkg/proxy/ipvs, `defaultDummyDevice`).
pub const IPVS_LINK: &str = "kube-ipvs0";

/// kube-proxy keeps Services of this node in IPVS.
pub(crate) fn runs_ipvs(case: &Case<'_>) -> bool {
    let device = |netns| case.node.links.get(&netns).is_some_and(|links| links.iter().any(|l| l.name == IPVS_LINK));
    let has_some = |table: &NodePorts| !table.ports.is_empty() || !table.without_backend.is_empty();
    case.node.node_ports.of(ProxyMode::Ipvs).is_some_and(has_some) || case.node.netns().is_some_and(device)
}
