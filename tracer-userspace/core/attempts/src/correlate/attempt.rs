//! One attempt: a connection from the prober's connect to its end, with all that was seen of it.

use std::net::SocketAddr;

use tracer_model::event::{
    Actor, Answer, AnswerKind, ConnId, ConnectFailed, Flow, Icmp, Ipvs, KubeletProbe, ListenQueue, Netns, Observation,
    ObservationKind, PacketDrop, QueueFull, ResetReceived, ResetSent, Retransmit, State, TcpState, Via,
};

/// Observations kept of one attempt; later ones of a kind that was seen before are dropped first.
const MAX_OBSERVATIONS: usize = 48;
/// A bridge has a copy for each of its ports.
const MAX_COPIES: usize = 16;

/// How long after its end a look at its target, asked for while it waited, may come.
pub(super) const LATE_NS: u64 = 100_000_000;

/// How the prober's socket ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Closed while connecting: never established.
    NotEstablished,
    /// A RST ended the established connection.
    Reset,
    /// The prober closed first.
    ClosedByProber,
    /// The server closed first.
    ClosedByServer,
}

/// One attempt.
#[derive(Clone, Debug)]
pub struct Attempt {
    /// Identity.
    pub conn: ConnId,
    /// From the prober's side; the source port is filled in when it is seen.
    pub flow: Flow,
    /// Who dialled.
    pub actor: Actor,
    /// The socket's namespace; absent if the dial failed before there was a connection.
    pub netns: Option<Netns>,
    /// The process carries a prober's name.
    pub prober: bool,
    /// When connect began.
    pub started: u64,
    /// When the handshake was finished.
    pub established: Option<u64>,
    /// When and how it ended.
    pub ended: Option<(u64, End)>,
    /// The socket's numbers at the last state change.
    pub last: Option<State>,
    /// What was seen of it, in order.
    pub observations: Vec<Observation>,
    /// Frames of it that came to a link-layer address which their receiver does not have: to other hosts, or to the right one.
    pub for_other_hosts: Vec<(u64, PacketDrop)>,
    /// Segments sent again while connecting / afterwards.
    pub retransmits: (u32, u32),
    /// When the last of the latter was sent.
    pub sent_again: Option<u64>,
    /// When its target is to be looked at, if it still waits then.
    pub inspect_at: u64,
    /// Not forgotten before, whenever it ended.
    pub kept_until: u64,
    /// When its probe is over at the latest, while that is waited for.
    pub over_at: Option<u64>,
    /// What it follows, if the answer before it was a redirect.
    pub redirected: Option<Redirected>,
    /// It ended for whoever waited for it, and its socket dials on.
    given_up: bool,
}

/// Redirects that led to a connection, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Redirected {
    /// What was dialled first.
    pub first: SocketAddr,
    /// When that connect began.
    pub began: u64,
    /// When the last of the redirects came.
    pub at: u64,
    /// How many answers were redirects.
    pub answers: u32,
    /// Status of the last of them.
    pub status: u16,
}

/// What was seen of one kind, and when.
macro_rules! seen {
    ($attempt:ident, $kind:ident) => {
        $attempt.observations.iter().filter_map(|it| match &it.kind {
            ObservationKind::$kind(seen) => Some((it.time_boot_ns, seen)),
            _ => None,
        })
    };
}

impl Attempt {
    /// An attempt that begins now.
    pub fn new(conn: ConnId, flow: Flow, actor: Actor, netns: Option<Netns>, prober: bool, started: u64) -> Self {
        Self {
            conn,
            flow,
            actor,
            netns,
            prober,
            started,
            established: None,
            ended: None,
            last: None,
            observations: Vec::new(),
            for_other_hosts: Vec::new(),
            retransmits: (0, 0),
            sent_again: None,
            inspect_at: 0,
            kept_until: 0,
            over_at: None,
            redirected: None,
            given_up: false,
        }
    }

    /// It still dials, and nobody waits for it any more: it is over, and what comes of it later is no part of it.
    pub fn give_up(&mut self, time: u64) -> bool {
        self.given_up = self.ended.is_none() && self.established.is_none();
        if self.given_up {
            self.ended = Some((time, End::NotEstablished));
        }
        self.given_up
    }

    /// Takes in an observation that belongs to it.
    pub fn observe(&mut self, observation: &Observation) {
        if self.given_up && !matches!(observation.kind, ObservationKind::KubeletProbe(_))
            || self.is_of_other_connection(&observation.kind)
        {
            return;
        }
        match &observation.kind {
            ObservationKind::Connect(c) => self.learn_flow(c.flow),
            ObservationKind::State(s) => self.observe_state(observation.time_boot_ns, s),
            ObservationKind::Retransmit(r) if r.by_target => {}
            ObservationKind::Retransmit(r) if r.state == TcpState::SynSent => self.retransmits.0 += 1,
            ObservationKind::Retransmit(_) => {
                self.retransmits.1 += 1;
                self.sent_again = Some(observation.time_boot_ns);
            }
            ObservationKind::ResetReceived(r) => self.learn_flow(r.flow),
            ObservationKind::Drop(d) => self.learn_direction(d.flow, d.via),
            ObservationKind::ResetSent(r) => self.learn_direction(r.flow, r.via),
            ObservationKind::Icmp(i) => self.learn_direction(i.flow, Via::Flow),
            ObservationKind::Ipvs(i) => self.learn_direction(i.flow, i.via),
            // Before SYN_SENT there is no state change that could end it.
            ObservationKind::ConnectFailed(f) if f.conn.is_none() => {
                self.ended.get_or_insert((observation.time_boot_ns, End::NotEstablished));
            }
            _ => {}
        }
        match &observation.kind {
            ObservationKind::Drop(drop) if drop.is_copy() => self.keep_copy(observation.time_boot_ns, drop),
            _ => self.keep(observation),
        }
    }

    /// Of another connection, on a socket that was this one's: its end and the other's begin were missed.
    fn is_of_other_connection(&self, kind: &ObservationKind) -> bool {
        let flow = match kind {
            ObservationKind::State(s) => s.flow,
            ObservationKind::ResetReceived(r) => r.flow,
            _ => return false,
        };
        let (own, its) = (self.flow.src.port(), flow.src.port());
        own != 0 && its != 0 && own != its
    }

    fn keep(&mut self, observation: &Observation) {
        let is_last = matches!(observation.kind, ObservationKind::KubeletProbe(_));
        if self.observations.len() < MAX_OBSERVATIONS || is_last {
            self.observations.push(observation.clone());
        }
    }

    /// One of each direction and namespace.
    fn keep_copy(&mut self, time: u64, drop: &PacketDrop) {
        let is_known = |it: &(u64, PacketDrop)| (it.1.netns, it.1.flow) == (drop.netns, drop.flow);
        if self.for_other_hosts.len() < MAX_COPIES && !self.for_other_hosts.iter().any(is_known) {
            self.for_other_hosts.push((time, PacketDrop { stack: Vec::new(), ..drop.clone() }));
        }
    }

    /// The source port and address, once somebody knows them.
    fn learn_flow(&mut self, flow: Flow) {
        if self.flow.src.port() == 0 && flow.src.port() != 0 {
            self.flow.src = flow.src;
        }
    }

    /// The same from a packet of either direction. One that was tied by the destination only is
    /// somebody else's flow.
    fn learn_direction(&mut self, flow: Flow, via: Via) {
        if via == Via::Destination {
            return;
        }
        if let Some(client) = self.translated(flow) {
            // What was found by its socket may have been given another port, too.
            if self.flow.src.port() == 0 && via != Via::Socket {
                self.flow.src.set_port(client.port());
            }
        } else if flow.dst == self.flow.dst {
            self.learn_flow(flow);
        } else if flow.src == self.flow.dst {
            self.learn_flow(flow.reversed());
        }
    }

    fn observe_state(&mut self, time: u64, state: &State) {
        self.learn_flow(state.flow);
        // The kernel may have skipped the program at the change to ESTABLISHED: what leaves it was there.
        if [state.old, state.new].contains(&TcpState::Established) && self.established.is_none() {
            self.established = Some(time);
        }
        if self.ended.is_none()
            && let Some(end) = end_of(state)
        {
            self.ended = Some((time, end));
        }
        // A closing socket keeps counting (the peer's FIN, a late answer): the numbers that tell the
        // outcome are those at the first step out of ESTABLISHED.
        if self.last.as_ref().is_none_or(|last| end_of(last).is_none()) {
            self.last = Some(state.clone());
        }
    }

    /// When it was established; absent, too, where its end alone shows that it was.
    pub fn established_at(&self) -> Option<u64> {
        self.established.filter(|at| self.ended.is_none_or(|(end, _)| end != *at))
    }

    /// Payload bytes received when it ended (or so far).
    pub fn received(&self) -> Option<u64> {
        self.last.as_ref()?.received()
    }

    /// Payload bytes sent.
    pub fn sent(&self) -> Option<u64> {
        self.last.as_ref().and_then(|s| s.bytes_sent)
    }

    /// Its connect failed because no source port was free, or may have: it reached SYN_SENT and ended
    /// there, by itself, without a port.
    pub fn without_port(&self) -> bool {
        let gave_up = |s: &State| {
            s.old == TcpState::SynSent && s.new == TcpState::Close && s.flow.src.port() == 0 && s.errno == Some(0)
        };
        self.last.as_ref().is_some_and(gave_up)
    }

    /// All that was sent has been acknowledged by the target's stack, at the second try perhaps.
    pub fn request_acknowledged(&self) -> bool {
        let Some(last) = &self.last else { return false };
        // What was sent again counts twice in bytes_sent (net/ipv4/tcp_output.c, __tcp_transmit_skb); after the end it is sent
        // again still.
        let in_time = |time: u64| self.ended.is_none_or(|(end, _)| time <= end);
        let again = self.retransmitted().filter(|(time, r)| !r.by_target && in_time(*time));
        let again: u64 = again.filter_map(|(_, r)| r.payload).map(u64::from).sum();
        match (last.bytes_sent, last.bytes_acked) {
            // The SYN counts one in bytes_acked (net/ipv4/tcp_input.c, tcp_snd_una_update).
            (Some(sent), Some(acked)) => sent > 0 && acked > sent.saturating_sub(again).max(1),
            _ => false,
        }
    }

    /// The target sent data that did not arrive: a segment with it was dropped, or sent again.
    pub fn answer_lost(&self) -> bool {
        let dropped = |d: &PacketDrop| d.flow.src == self.flow.dst && d.flags.has_data() && !d.flags.is_rst();
        self.drops().any(|(_, d)| dropped(d)) || self.retransmitted().any(|(_, r)| r.by_target)
    }

    /// `sk_err` when it ended, if not zero.
    pub fn errno(&self) -> Option<i32> {
        self.last.as_ref().and_then(|s| s.errno).filter(|&e| e != 0).or_else(|| self.connect_failed().map(|f| f.errno))
    }

    /// It is over and it failed, whatever it was for; see [`Matched::failed`](crate::enrich::Matched::failed).
    pub fn failed_by_itself(&self) -> bool {
        match self.ended {
            None => false,
            Some((_, End::NotEstablished)) => true,
            Some((_, End::Reset)) => self.received().is_none_or(|n| n == 0),
            Some((_, End::ClosedByProber | End::ClosedByServer)) => {
                self.sent().is_some_and(|n| n > 0) && self.received() == Some(0) && !self.needs_no_answer()
            }
        }
    }

    /// A probe waits for an answer. What others send may need none (syslog, metrics): that it was taken is enough.
    pub fn needs_no_answer(&self) -> bool {
        !self.prober && self.request_acknowledged() && !self.answer_lost()
    }

    /// It is over, nothing was sent or received, and nothing went wrong: what a tcpSocket probe does.
    pub fn touched_only(&self) -> bool {
        self.sent_nothing() && self.received() == Some(0)
    }

    /// It is over, the prober sent nothing, and nothing went wrong; a server that speaks first may have sent something.
    pub fn sent_nothing(&self) -> bool {
        matches!(self.ended, Some((_, End::ClosedByProber | End::ClosedByServer))) && self.sent() == Some(0)
    }

    /// Nanoseconds from connect to the end; `None` while it is open.
    pub fn lasted(&self) -> Option<u64> {
        self.ended.map(|(time, _)| time.saturating_sub(self.started))
    }

    /// What its target was like at that time may say something of it: what was read for a later attempt does not.
    pub fn was_there(&self, time: u64) -> bool {
        time >= self.started && self.ended.is_none_or(|(end, _)| time <= end.saturating_add(LATE_NS))
    }

    /// Packets of it that were dropped.
    pub fn drops(&self) -> impl Iterator<Item = (u64, &PacketDrop)> {
        seen!(self, Drop)
    }

    /// RSTs that a stack of this node sent for it.
    pub fn resets_sent(&self) -> impl Iterator<Item = (u64, &ResetSent)> {
        seen!(self, ResetSent)
    }

    /// The RST that its socket received.
    pub fn reset_received(&self) -> Option<(u64, &ResetReceived)> {
        seen!(self, ResetReceived).next()
    }

    /// ICMP errors that this node sent about its packets.
    pub fn icmp(&self) -> impl Iterator<Item = (u64, &Icmp)> {
        seen!(self, Icmp)
    }

    /// What IPVS did with its packets.
    pub fn ipvs(&self) -> impl Iterator<Item = (u64, &Ipvs)> {
        seen!(self, Ipvs)
    }

    /// What `connect()` itself returned, if it failed.
    pub fn connect_failed(&self) -> Option<&ConnectFailed> {
        self.connect_failed_at().map(|(_, failed)| failed)
    }

    /// The same, and when.
    pub fn connect_failed_at(&self) -> Option<(u64, &ConnectFailed)> {
        seen!(self, ConnectFailed).next()
    }

    /// Segments that were sent again, by either side.
    pub fn retransmitted(&self) -> impl Iterator<Item = (u64, &Retransmit)> {
        seen!(self, Retransmit)
    }

    /// The first payload that arrived. A segment that overtakes the first one is read, too, and then the first one: the
    /// status line goes before what is none, and so does a TLS record.
    pub fn answer(&self) -> Option<(u64, &Answer)> {
        let answers = seen!(self, Answer);
        // Of equal ones the first.
        answers.min_by_key(|(_, answer)| match answer.kind {
            AnswerKind::Http => 0,
            AnswerKind::Tls => 1,
            // A TLS server's first flight may follow an alert that overtook it.
            AnswerKind::Other | AnswerKind::Short | AnswerKind::Alert => 2,
        })
    }

    /// The status of its answer, if Go's client follows that (net/http, `redirectBehavior`).
    pub fn redirect_status(&self) -> Option<u16> {
        let status = self.answer().and_then(|(_, answer)| answer.status);
        status.filter(|status| matches!(status, 301 | 302 | 303 | 307 | 308))
    }

    /// What the kubelet made of it.
    pub fn kubelet(&self) -> Option<(u64, &KubeletProbe)> {
        // The last of all that is kept of an attempt.
        seen!(self, KubeletProbe).last().map(|(time, probe)| (time, &**probe))
    }

    /// Its SYN met a listener without room.
    pub fn queue_full(&self, queue: ListenQueue) -> Option<(u64, &QueueFull)> {
        seen!(self, QueueFull).find(|(_, full)| full.queue == queue)
    }
}

/// Whether, and how, this change of the prober's socket ends the attempt.
fn end_of(state: &State) -> Option<End> {
    use TcpState::{Close, CloseWait, Closing, Established, FinWait1, FinWait2, LastAck, SynSent};
    match (state.old, state.new) {
        (SynSent, Close) => Some(End::NotEstablished),
        // Not at ESTABLISHED -> CLOSE_WAIT: what the prober still sends after the server's FIN tells
        // a probe that had a request from one that only touched the port.
        (CloseWait, _) => Some(End::ClosedByServer),
        (Established, FinWait1) => Some(End::ClosedByProber),
        (Established, Close) if state.errno.is_some_and(|e| e != 0) => Some(End::Reset),
        (Established, Close) => Some(End::ClosedByProber),
        // The step out of ESTABLISHED was missed.
        (FinWait1 | FinWait2 | Closing | LastAck, Close) => Some(End::ClosedByProber),
        _ => None,
    }
}
