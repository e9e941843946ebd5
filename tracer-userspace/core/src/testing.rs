//! Streams of observations made by hand, for the unit tests of the rules. They test properties of the rules; the
//! scenarios prove on real kernels that a kernel shows such a stream.
//!
//! This module also exports the events and records of the model, so that a test needs one import.
#![expect(clippy::new_without_default, reason = "for tests, which name what they make")]

mod kubelet;
mod node;
mod parts;
mod probes;

use std::net::SocketAddr;

use crate::core::Core;
pub use parts::{
    device, firewall, firewall_with, http_probe, link, link_change, listener, lo, neighbour, prober, redirect, rule,
    served, server_process, start, stray, tls_hello,
};
pub use tracer_common::names::Hook;
use tracer_model::decision::Decision;
pub use tracer_model::event::*;
use tracer_model::query::{Awaited, Query, TargetQuery};
pub use tracer_model::record::*;
pub use tracer_testing::{address, assert_ends, assert_has, assert_lacks, assert_starts};

pub const NODE: Netns = Netns(1);
pub const POD: Netns = Netns(2);
pub const SYN: TcpFlags = TcpFlags(0x02);
pub const SYN_ACK: TcpFlags = TcpFlags(0x12);

/// One attempt from 10.88.0.1:40000 to 10.88.0.2:8080, with observations a microsecond apart. Each step returns the
/// stream; `clone` ends a chain of steps.
#[derive(Clone)]
pub struct Stream {
    pub observations: Vec<Observation>,
    now: u64,
    flow: Flow,
    conn: ConnId,
    unread: bool,
}

/// Access to the last observation, to change it.
macro_rules! last {
    ($($name:ident: $kind:ident($of:ty),)*) => {
        impl Stream {
            $(pub fn $name(&mut self) -> &mut $of {
                match &mut self.observations.last_mut().expect("an observation").kind {
                    ObservationKind::$kind(last) => last,
                    other => panic!("the last observation is {other:?}"),
                }
            })*
        }
    };
}

last! {
    last_answer: Answer(Answer),
    last_connect: Connect(Connect),
    last_connect_failed: ConnectFailed(ConnectFailed),
    last_drop: Drop(PacketDrop),
    last_icmp: Icmp(Icmp),
    last_ipvs: Ipvs(Ipvs),
    last_kubelet_probe: KubeletProbe(KubeletProbe),
    last_node_ports: NodePorts(NodePorts),
    last_pods: Pods(Pods),
    last_queue_full: QueueFull(QueueFull),
    last_reset_received: ResetReceived(ResetReceived),
    last_reset_sent: ResetSent(ResetSent),
    last_state: State(State),
}

impl Stream {
    pub fn new() -> Self {
        Self::to("10.88.0.2:8080")
    }

    pub fn to(dst: &str) -> Self {
        let (src, dst): (SocketAddr, SocketAddr) = (address("10.88.0.1:40000"), address(dst));
        let src = if dst.ip().is_loopback() { SocketAddr::new(dst.ip(), src.port()) } else { src };
        let flow = Flow { src, dst };
        let mut stream = Self { observations: Vec::new(), now: 1_000_000_000, flow, conn: ConnId(7), unread: false };
        stream.push(ObservationKind::Start(Box::new(start())));
        stream
    }

    /// The attempt numbered `conn`, from a port of its own, at an offset in time.
    pub fn numbered(conn: u64, offset_ns: u64) -> Self {
        let mut stream = Self::new();
        stream.conn = ConnId(conn);
        stream.flow.src.set_port(40_000 + u16::try_from(conn % 10_000).unwrap_or_default());
        stream.now += offset_ns;
        stream
    }

    pub fn push(&mut self, kind: ObservationKind) -> &mut Self {
        self.now += 1_000;
        self.observations.push(Observation { time_boot_ns: self.now, kind });
        self
    }

    /// From the prober to the target.
    pub const fn flow(&self) -> Flow {
        self.flow
    }

    pub fn tick(&mut self) -> &mut Self {
        self.push(ObservationKind::Tick)
    }

    /// The time of what comes next, CLOCK_BOOTTIME nanoseconds.
    pub const fn now(&self) -> u64 {
        self.now
    }

    pub fn wait_ms(&mut self, ms: u64) -> &mut Self {
        self.now += ms * 1_000_000;
        self
    }

    /// The companions of the last observation have had their time.
    pub fn settles(&mut self) -> &mut Self {
        self.wait_ms(5).tick()
    }

    /// What tracer reports at its start, to change it.
    pub fn start(&mut self) -> &mut Start {
        let ObservationKind::Start(start) = &mut self.observations[0].kind else { unreachable!("a stream begins so") };
        start
    }

    pub fn missing(&mut self, hook: Hook) -> &mut Self {
        let missing = MissingHook { hook: hook.name().to_owned(), reason: String::new(), lost: String::new() };
        self.start().missing_hooks.push(missing);
        self
    }

    /// The hook waits for its kernel module.
    pub fn awaits(&mut self, hook: Hook) -> &mut Self {
        self.start().awaited_hooks.push(hook.name().to_owned());
        self
    }

    pub fn connect(&mut self) -> &mut Self {
        let actor = prober();
        let (flow, hook) = (self.flow, Hook::TcpConnect);
        self.push(ObservationKind::Connect(Connect { conn: self.conn, flow, actor, netns: NODE, prober: true, hook }))
    }

    pub fn state(&mut self, old: TcpState, new: TcpState, errno: i32, bytes: (u64, u64, u64)) -> &mut Self {
        let (sent, acked, received) = bytes;
        self.push(ObservationKind::State(State {
            conn: self.conn,
            flow: self.flow,
            old,
            new,
            errno: Some(errno),
            bytes_received: Some(received),
            bytes_sent: Some(sent),
            bytes_acked: Some(acked),
            own_context: false,
            unsent: false,
            quiet_ns: None,
        }))
    }

    pub fn established(&mut self) -> &mut Self {
        self.state(TcpState::SynSent, TcpState::Established, 0, (0, 1, 0))
    }

    /// The prober closes the established connection. `bytes`: how many were sent, acknowledged and received.
    pub fn closes(&mut self, bytes: (u64, u64, u64)) -> &mut Self {
        self.state(TcpState::Established, TcpState::FinWait1, 0, bytes)
    }

    /// The prober closes the established connection, this long after the last segment.
    pub fn closes_quiet(&mut self, bytes: (u64, u64, u64), ns: u64) -> &mut Self {
        self.closes(bytes).last_state().quiet_ns = Some(ns);
        self
    }

    /// The target acknowledges the prober's FIN.
    pub fn close_acknowledged(&mut self) -> &mut Self {
        self.state(TcpState::FinWait1, TcpState::FinWait2, 0, (100, 102, 0))
    }

    /// The server closes the established connection, with the same counts; its FIN counts as received.
    pub fn server_closes(&mut self, bytes: (u64, u64, u64)) -> &mut Self {
        self.state(TcpState::Established, TcpState::CloseWait, 0, bytes);
        self.state(TcpState::CloseWait, TcpState::LastAck, 0, bytes)
    }

    /// The established connection is reset before the first byte of an answer, with the same counts.
    pub fn resets(&mut self, bytes: (u64, u64, u64)) -> &mut Self {
        self.reset_received(TcpState::Established, 0);
        self.state(TcpState::Established, TcpState::Close, libc::ECONNRESET, bytes)
    }

    /// Nobody listens: the target's stack answers the SYN with a RST.
    pub fn refused(&mut self) -> &mut Self {
        self.reset_sent(SYN, true, None).reset_received(TcpState::SynSent, 0);
        self.state(TcpState::SynSent, TcpState::Close, libc::ECONNREFUSED, (0, 0, 0))
    }

    /// The same by the stack of this namespace.
    pub fn refused_in(&mut self, netns: Netns) -> &mut Self {
        self.refused();
        let sent = self.observations.iter_mut().rev().find_map(|it| match &mut it.kind {
            ObservationKind::ResetSent(reset) => Some(reset),
            _ => None,
        });
        sent.expect("a RST").netns = Some(netns);
        self
    }

    /// The established connection is answered with this HTTP status.
    pub fn answers(&mut self, status: u16) -> &mut Self {
        self.answer(AnswerKind::Http, Some(status)).closes((100, 101, 200))
    }

    /// The state change that this pushes happens in the context of the prober.
    pub fn own(&mut self, push: impl FnOnce(&mut Self)) -> &mut Self {
        push(self);
        self.last_state().own_context = true;
        self
    }

    /// The connect was made by a process that is no prober.
    pub fn by_other_process(&mut self) -> &mut Self {
        self.last_connect().prober = false;
        self
    }

    /// The connect was made by a prober of this name.
    pub fn prober_named(&mut self, comm: &str) -> &mut Self {
        comm.clone_into(&mut self.last_connect().actor.comm);
        self
    }

    /// The connect was made by a prober of this process.
    pub fn prober_with_pid(&mut self, pid: u32) -> &mut Self {
        self.last_connect().actor.pid = pid;
        self
    }

    /// The prober gives up in SYN_SENT.
    pub fn gives_up(&mut self) -> &mut Self {
        self.wait_ms(1000).state(TcpState::SynSent, TcpState::Close, 0, (0, 0, 0))
    }

    pub fn drop(&mut self, flags: TcpFlags, reason: &str, netns: Netns) -> &mut Self {
        self.drop_on(flags, reason, netns, None)
    }

    /// Netfilter drops a packet.
    pub fn filtered(&mut self, flags: TcpFlags, netns: Netns) -> &mut Self {
        self.drop(flags, "NETFILTER_DROP", netns)
    }

    pub fn drop_on(&mut self, flags: TcpFlags, reason: &str, netns: Netns, device: Option<Device>) -> &mut Self {
        self.drop_with(flags, netns, |drop| {
            drop.reason = Some(reason.to_owned());
            drop.device = device;
        })
    }

    /// A packet of the target is dropped in the prober's namespace.
    pub fn drop_back(&mut self, flags: TcpFlags, reason: &str) -> &mut Self {
        let flow = self.flow.reversed();
        self.drop_with(flags, NODE, |drop| {
            drop.reason = Some(reason.to_owned());
            drop.flow = flow;
        })
    }

    pub fn drop_with(&mut self, flags: TcpFlags, netns: Netns, fill: impl FnOnce(&mut PacketDrop)) -> &mut Self {
        let flow = if flags.is_syn_ack() { self.flow.reversed() } else { self.flow };
        let mut drop = PacketDrop {
            conn: self.conn,
            flow,
            flags,
            reason: None,
            location: None,
            stack: Vec::new(),
            netns: Some(netns),
            device: None,
            tracked: None,
            via: Via::Flow,
            refused_by: None,
        };
        fill(&mut drop);
        self.push(ObservationKind::Drop(drop))
    }

    /// This function frees a packet.
    pub fn drop_in(&mut self, flags: TcpFlags, reason: &str, netns: Netns, function: &str) -> &mut Self {
        self.drop(flags, reason, netns).last_drop().location = Some(function.to_owned());
        self
    }

    /// Netfilter drops a packet at the hook that this function calls.
    pub fn filtered_at(&mut self, flags: TcpFlags, netns: Netns, function: &str) -> &mut Self {
        self.filtered(flags, netns).last_drop().stack = vec![function.to_owned()];
        self
    }

    /// The target's side sends a RST.
    pub fn reset_sent(&mut self, answered: TcpFlags, no_socket: bool, actor: Option<&str>) -> &mut Self {
        let flow = self.flow.reversed();
        self.reset_sent_on(flow, answered, no_socket, actor)
    }

    pub fn reset_sent_on(&mut self, flow: Flow, answered: TcpFlags, no_socket: bool, actor: Option<&str>) -> &mut Self {
        let actor = actor.map(|comm| Actor { pid: 99, tid: 99, comm: comm.to_owned(), netns: Some(POD), ..prober() });
        let state = if actor.is_some() { TcpState::Close } else { TcpState::Listen };
        let state = (!no_socket).then_some(state);
        let hook = Hook::TcpSendReset;
        self.push(ObservationKind::ResetSent(ResetSent {
            conn: self.conn,
            flow,
            actor,
            reason: None,
            netns: Some(if flow.src.ip().is_loopback() { NODE } else { POD }),
            answered,
            state,
            no_socket,
            unread: None,
            via: Via::Flow,
            hook,
        }))
    }

    pub fn reset_received(&mut self, state: TcpState, bytes_received: u64) -> &mut Self {
        self.push(ObservationKind::ResetReceived(ResetReceived {
            conn: self.conn,
            flow: self.flow,
            state,
            bytes_received: Some(bytes_received),
            unread: None,
        }))
    }

    pub fn icmp(&mut self, icmp_type: u8, code: u8) -> &mut Self {
        self.icmp_in(POD, icmp_type, code)
    }

    pub fn icmp_in(&mut self, netns: Netns, icmp_type: u8, code: u8) -> &mut Self {
        self.push(ObservationKind::Icmp(Icmp {
            conn: self.conn,
            flow: self.flow,
            flags: SYN,
            v6: false,
            icmp_type,
            code,
            netns: Some(netns),
        }))
    }

    pub fn ipvs(&mut self, flags: TcpFlags, op: IpvsOp) -> &mut Self {
        let flow = if flags.is_syn_ack() { self.flow.reversed() } else { self.flow };
        self.push(ObservationKind::Ipvs(Ipvs { conn: self.conn, flow, flags, op, via: Via::Flow, netns: Some(NODE) }))
    }

    /// The SYN is sent again.
    pub fn syn_again(&mut self) -> &mut Self {
        self.retransmitted(TcpState::SynSent, 0, false)
    }

    /// A segment of the established connection is sent again.
    pub fn sent_again(&mut self, payload: u32, by_target: bool) -> &mut Self {
        self.retransmitted(TcpState::Established, payload, by_target)
    }

    fn retransmitted(&mut self, state: TcpState, payload: u32, by_target: bool) -> &mut Self {
        let conn = self.conn;
        self.push(ObservationKind::Retransmit(Retransmit { conn, state, payload: Some(payload), by_target }))
    }

    /// `connect` itself fails, before any SYN.
    pub fn connect_failed(&mut self, errno: i32) -> &mut Self {
        self.push_connect_failed(None, errno)
    }

    /// `connect` reaches SYN_SENT and finds no source port.
    pub fn no_port(&mut self, errno: i32) -> &mut Self {
        let (port, conn) = (self.flow.src.port(), Some(self.conn));
        self.flow.src.set_port(0);
        self.state(TcpState::SynSent, TcpState::Close, 0, (0, 0, 0));
        self.flow.src.set_port(port);
        self.push_connect_failed(conn, errno)
    }

    fn push_connect_failed(&mut self, conn: Option<ConnId>, errno: i32) -> &mut Self {
        let (dst, actor) = (self.flow.dst, prober());
        self.push(ObservationKind::ConnectFailed(ConnectFailed { conn, dst, actor, errno, prober: true }))
    }

    pub fn queue_full(&mut self, queue: ListenQueue) -> &mut Self {
        let (waiting, half_open) = if queue == ListenQueue::Accept { (2, 0) } else { (0, 8) };
        self.push(ObservationKind::QueueFull(QueueFull {
            conn: self.conn,
            queue,
            waiting,
            backlog: 1,
            half_open,
            netns: Some(POD),
        }))
    }

    pub fn answer(&mut self, kind: AnswerKind, status: Option<u16>) -> &mut Self {
        let conn = self.conn;
        self.push(ObservationKind::Answer(Answer { conn, kind, status, asked: None, len: None, says_tls: false }))
    }

    /// An answer with more fields.
    pub fn answer_with(&mut self, kind: AnswerKind, status: Option<u16>, fill: impl FnOnce(&mut Answer)) -> &mut Self {
        self.answer(kind, status);
        fill(self.last_answer());
        self
    }

    /// The next attempt to the same target, from the next port.
    pub fn again(&mut self, conn: u64) -> &mut Self {
        self.conn = ConnId(conn);
        self.flow.src.set_port(self.flow.src.port() + 1);
        self
    }

    /// Back to the attempt before the last [`again`](Self::again).
    pub fn back_to(&mut self, conn: u64) -> &mut Self {
        self.conn = ConnId(conn);
        self.flow.src.set_port(self.flow.src.port() - 1);
        self
    }

    /// The next attempt, to another target.
    pub fn again_to(&mut self, conn: u64, dst: &str) -> &mut Self {
        self.flow.dst = address(dst);
        self.again(conn)
    }

    /// Later events of the connection are held back.
    pub fn held(&mut self) -> &mut Self {
        let conn = self.conn;
        self.push(ObservationKind::Held(Held { conn }))
    }

    pub fn lost(&mut self, count: u64) -> &mut Self {
        self.lost_in("ring", count)
    }

    pub fn lost_in(&mut self, place: &str, count: u64) -> &mut Self {
        let (from_boot_ns, to_boot_ns) = (self.now - 1_000_000, self.now);
        self.push(ObservationKind::Loss(Loss { where_: place.into(), count, from_boot_ns, to_boot_ns }))
    }

    pub fn decisions(&self) -> Vec<Decision> {
        decide(&self.with_readings())
    }

    /// A stream without a reading of sockets gets those that the core asks for: the pod itself accepted.
    pub(crate) fn with_readings(&self) -> Vec<Observation> {
        let is_reading = |it: &Observation| matches!(it.kind, ObservationKind::PodSockets(_));
        if self.unread || self.observations.iter().any(is_reading) {
            return self.observations.clone();
        }
        let mut core = Core::default();
        let mut all = Vec::new();
        for observation in &self.observations {
            core.push(observation, &mut Vec::new());
            all.push(observation.clone());
            for query in core.take_queries() {
                let Query::Target(TargetQuery { from, target, reported, awaited: Awaited::Nothing, peer, .. }) = query
                else {
                    continue;
                };
                let is_own = peer.is_some_and(|peer| peer.ip() == target.ip());
                let netns = if is_own { from } else { reported.unwrap_or(POD) };
                let acceptor = Some(Acceptor { to: None, netns, processes: Vec::new() });
                let reading = PodSockets { peer, acceptor, ..PodSockets::nothing(from, target, Some(netns)) };
                let kind = ObservationKind::PodSockets(Box::new(reading));
                let answer = Observation { time_boot_ns: observation.time_boot_ns, kind };
                core.push(&answer, &mut Vec::new());
                all.push(answer);
            }
        }
        all
    }

    /// Nothing reads the sockets of the pod.
    pub const fn unread(&mut self) -> &mut Self {
        self.unread = true;
        self
    }

    /// The kubelet outcomes that were joined to attempts.
    pub fn joined(&self) -> Vec<(u64, ProbeOutput)> {
        push_all(&self.observations).0.joined()
    }

    /// The bodies of one kind, in order.
    fn bodies<T>(&self, of_kind: impl FnMut(Body) -> Option<T>) -> Vec<T> {
        self.decisions().into_iter().map(|decision| decision.body).filter_map(of_kind).collect()
    }

    pub fn verdicts(&self) -> Vec<VerdictBody> {
        self.bodies(verdict_of)
    }

    /// The verdicts that are emitted while the stream goes on.
    pub fn verdicts_before_the_end(&self) -> Vec<VerdictBody> {
        let (_, decisions) = push_all(&self.with_readings());
        decisions.into_iter().filter_map(|decision| verdict_of(decision.body)).collect()
    }

    pub fn node_events(&self) -> Vec<NodeBody> {
        self.bodies(|body| if let Body::Node(event) = body { Some(*event) } else { None })
    }

    /// The first of the verdicts.
    pub fn verdict(&self) -> Verdict {
        self.verdicts().remove(0).verdict
    }

    pub fn last_verdict(&self) -> Verdict {
        self.verdicts().pop().expect("a verdict").verdict
    }

    /// Cause and confidence of each verdict, in order.
    pub fn all_decided(&self) -> Vec<(&'static str, Confidence)> {
        self.verdicts().iter().map(|it| (it.verdict.cause.name(), it.verdict.confidence)).collect()
    }

    /// Cause and confidence of the first verdict.
    pub fn decided(&self) -> (&'static str, Confidence) {
        self.all_decided().remove(0)
    }

    pub fn last_decided(&self) -> (&'static str, Confidence) {
        self.all_decided().pop().expect("a verdict")
    }

    /// The cause of each verdict, and whether it has a kubelet outcome.
    pub fn quoted(&self) -> Vec<(&'static str, bool)> {
        self.verdicts().iter().map(|it| (it.verdict.cause.name(), it.kubelet.is_some())).collect()
    }

    /// Failures in a row of the probe, in each verdict.
    pub fn in_a_row(&self) -> Vec<Option<u32>> {
        self.verdicts().iter().map(|it| it.probe.as_ref()?.consecutive_failures).collect()
    }

    /// The outcome of each verdict, in order.
    pub fn outcomes(&self) -> Vec<Outcome> {
        self.verdicts().iter().map(|it| it.verdict.outcome).collect()
    }

    /// The outcome of each attempt that ended, in order.
    pub fn attempt_outcomes(&self) -> Vec<Option<Outcome>> {
        self.bodies(|body| if let Body::Attempt(attempt) = body { Some(attempt.outcome) } else { None })
    }

    pub fn findings(&self) -> Vec<FindingBody> {
        self.bodies(|body| if let Body::Finding(finding) = body { Some(*finding) } else { None })
    }

    /// Causes of all verdicts, in order.
    pub fn causes(&self) -> Vec<&'static str> {
        self.verdicts().iter().map(|v| v.verdict.cause.name()).collect()
    }
}

fn verdict_of(body: Body) -> Option<VerdictBody> {
    if let Body::Verdict(verdict) = body { Some(*verdict) } else { None }
}

/// All decisions of a stream of observations.
pub fn decide(observations: &[Observation]) -> Vec<Decision> {
    let (mut core, mut out) = push_all(observations);
    core.finish(observations.last().map_or(0, |o| o.time_boot_ns) + 1_000_000_000, &mut out);
    out
}

/// What they decide while the run goes on.
pub(crate) fn push_all(observations: &[Observation]) -> (Core, Vec<Decision>) {
    let (mut core, mut out) = (Core::default(), Vec::new());
    observations.iter().for_each(|observation| core.push(observation, &mut out));
    (core, out)
}
