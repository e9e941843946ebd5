//! One attempt: a connection from connect() to its end, with its observations.

use std::net::SocketAddr;

use tracer_model::event::{
    Actor, Answer, AnswerKind, ConnId, ConnectFailed, Flow, Icmp, Ipvs, KubeletProbe, ListenQueue, Netns, Observation,
    ObservationKind, PacketDrop, QueueFull, ResetReceived, ResetSent, Retransmit, State, TcpState, Via,
};

/// Observations kept of one attempt. Later ones are dropped, unless they show something new.
const MAX_OBSERVATIONS: usize = 48;
/// Kept at most, of those that show something new.
const MAX_NEW: usize = 96;
/// Copies of frames kept: a bridge makes one for each of its ports.
const MAX_COPIES: usize = 16;

/// A prober closes at once when it has its answer. This long after the last segment, it still waited for the rest.
pub(crate) const WAITED_NS: u64 = 10_000_000;

/// TCP sends the first segment again after 200 ms (`TCP_RTO_MIN`) and the round trip, which is short within a node.
const FIRST_RETRANSMISSION_NS: u64 = 250_000_000;
/// The kernel drops a retransmission within this time, before or after it reports it.
const AT_ONCE_NS: u64 = 10_000_000;

/// How long after the end of an attempt the inspection of its target may come.
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

#[derive(Clone, Debug)]
pub struct Attempt {
    /// The number of the connection.
    pub conn: ConnId,
    /// Source and target, as the prober sees them; the source port is 0 until it is known.
    pub flow: Flow,
    /// The process that connects.
    pub actor: Actor,
    /// The socket's namespace; absent if connect() failed before there was a connection.
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
    /// The observations, in order.
    pub observations: Vec<Observation>,
    /// Dropped frames of this connection with a link-layer address that is not the receiver's.
    pub for_other_hosts: Vec<(u64, PacketDrop)>,
    /// Segments retransmitted while connecting / afterwards.
    pub retransmits: (u32, u32),
    /// When the last segment after the handshake was retransmitted.
    pub sent_again: Option<u64>,
    /// Events like some that were seen are held back: the connection has too many.
    pub is_held: bool,
    /// When to inspect the target, if the attempt still waits then.
    pub inspect_at: u64,
    /// The attempt is kept at least until this time.
    pub kept_until: u64,
    /// When the probe has timed out; absent if that is not known or no longer needed.
    pub over_at: Option<u64>,
    /// The redirects that led to this connection.
    pub redirected: Option<Redirected>,
    /// The prober has given up, but its socket still connects.
    given_up: bool,
}

/// Redirects that led to a connection, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Redirected {
    /// The target of the first connection.
    pub first: SocketAddr,
    /// When the first connect began.
    pub began: u64,
    /// When the last redirect came.
    pub at: u64,
    /// How many answers were redirects.
    pub answers: u32,
    /// Status of the last redirect.
    pub status: u16,
}

/// The observations of one kind, each with its time.
macro_rules! observations_of {
    ($attempt:ident, $kind:ident) => {
        $attempt.observations.iter().filter_map(|it| match &it.kind {
            ObservationKind::$kind(observed) => Some((it.time_boot_ns, observed)),
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
            is_held: false,
            inspect_at: 0,
            kept_until: 0,
            over_at: None,
            redirected: None,
            given_up: false,
        }
    }

    /// A packet of this flow goes from the prober to the target.
    pub fn leads_out(&self, packet: Flow) -> bool {
        // The destination may have been translated by then; the source has not.
        packet.dst == self.flow.dst || (packet.src == self.flow.src && packet.src != self.flow.dst)
    }

    /// The flow of this packet with port 0 (any) for the client: attempts to one target differ only in that port. If both
    /// addresses were translated, the client is taken to be the end with the higher port.
    pub fn any_client(&self, mut packet: Flow) -> Flow {
        let is_higher = packet.src.port() > packet.dst.port();
        let is_out = self.leads_out(packet) || is_higher && !self.leads_out(packet.reversed());
        if is_out {
            packet.src.set_port(0)
        } else {
            packet.dst.set_port(0)
        }
        packet
    }

    /// Ends the attempt if it still connects: the prober has given up. Later observations of the socket do not count.
    /// Returns whether it still did.
    pub fn give_up(&mut self, time: u64) -> bool {
        self.given_up = self.ended.is_none() && self.established.is_none();
        if self.given_up {
            self.ended = Some((time, End::NotEstablished));
        }
        self.given_up
    }

    /// Takes in an observation of this attempt.
    pub fn observe(&mut self, observation: &Observation) {
        if self.given_up && !matches!(observation.kind, ObservationKind::KubeletProbe(_))
            || self.is_of_late_packet(observation)
            || self.is_of_other_connection(&observation.kind)
            || self.is_in_other_namespace(&observation.kind)
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
            ObservationKind::Held(_) => self.is_held = true,
            ObservationKind::Ipvs(i) => self.learn_direction(i.flow, i.via),
            // A connect() that failed before SYN_SENT has no state change that ends the attempt.
            ObservationKind::ConnectFailed(f) if f.conn.is_none() => {
                self.ended.get_or_insert((observation.time_boot_ns, End::NotEstablished));
            }
            _ => {}
        }
        match &observation.kind {
            ObservationKind::Drop(drop) if drop.is_of_capture() => {}
            ObservationKind::Drop(drop) if drop.is_copy() => self.keep_copy(observation.time_boot_ns, drop),
            _ => self.keep(observation),
        }
    }

    /// The prober gave up before its SYN got to the target. The SYN had waited on the way, as for a link-layer address.
    /// How the target takes it later says nothing about the attempt.
    fn is_of_late_packet(&self, observation: &Observation) -> bool {
        let is_at_target = match &observation.kind {
            ObservationKind::ResetSent(reset) => reset.answered.is_syn() && reset.flow.src == self.flow.dst,
            ObservationKind::QueueFull(_) => true,
            _ => false,
        };
        is_at_target && self.gave_up_connecting(observation.time_boot_ns)
    }

    /// By that time, the prober had closed its socket without a connection and without an error.
    pub fn gave_up_connecting(&self, by: u64) -> bool {
        let is_before = |end: u64| end.saturating_add(AT_ONCE_NS) < by;
        matches!(self.ended, Some((end, End::NotEstablished)) if is_before(end)) && self.errno().is_none()
    }

    /// The observation is of another connection on the same socket: the end of this one and the begin of that were
    /// missed.
    fn is_of_other_connection(&self, kind: &ObservationKind) -> bool {
        let flow = match kind {
            ObservationKind::State(s) => s.flow,
            ObservationKind::ResetReceived(r) => r.flow,
            _ => return false,
        };
        let (own, its) = (self.flow.src.port(), flow.src.port());
        own != 0 && its != 0 && own != its
    }

    /// A packet between loopback addresses, or from an address to itself, stays in its network namespace. Another
    /// namespace may have the same addresses and ports.
    fn is_in_other_namespace(&self, kind: &ObservationKind) -> bool {
        let (netns, [src, dst]) = match kind {
            ObservationKind::Drop(it) => (it.netns, [it.flow.src, it.flow.dst]),
            ObservationKind::ResetSent(it) => (it.netns, [it.flow.src, it.flow.dst]),
            ObservationKind::Icmp(it) => (it.netns, [it.flow.src, it.flow.dst]),
            ObservationKind::QueueFull(it) => (it.netns, [self.flow.dst; 2]),
            _ => return false,
        };
        let to_itself = |[src, dst]: [SocketAddr; 2]| src.ip() == dst.ip();
        let stays = src.ip().is_loopback() && dst.ip().is_loopback()
            || to_itself([src, dst]) && to_itself([self.flow.src, self.flow.dst]);
        stays && netns.zip(self.netns).is_some_and(|(at, own)| at != own)
    }

    /// Hundreds of retransmissions and their drops must not keep out the RST that decides.
    fn keep(&mut self, observation: &Observation) {
        let is_last = matches!(observation.kind, ObservationKind::KubeletProbe(_));
        let (kept, kind) = (self.observations.len(), &observation.kind);
        let is_new = || {
            let counted = matches!(kind, ObservationKind::State(_) | ObservationKind::Retransmit(_));
            kept < MAX_NEW && !counted && !self.observations.iter().any(|it| is_same_drop(&it.kind, kind))
        };
        if is_last || kept < MAX_OBSERVATIONS || is_new() {
            self.observations.push(observation.clone());
        }
    }

    /// Keeps one copy for each direction and namespace.
    fn keep_copy(&mut self, time: u64, drop: &PacketDrop) {
        let is_known = |it: &(u64, PacketDrop)| (it.1.netns, it.1.flow) == (drop.netns, drop.flow);
        if self.for_other_hosts.len() < MAX_COPIES && !self.for_other_hosts.iter().any(is_known) {
            self.for_other_hosts.push((time, PacketDrop { stack: Vec::new(), ..drop.clone() }));
        }
    }

    /// Takes the source port and address from the first observation that has them.
    fn learn_flow(&mut self, flow: Flow) {
        if self.flow.src.port() == 0 && flow.src.port() != 0 {
            self.flow.src = flow.src;
        }
    }

    /// Takes them from a packet of either direction. A packet that was found by its destination only may be of another
    /// flow.
    fn learn_direction(&mut self, flow: Flow, via: Via) {
        if via == Via::Destination {
            return;
        }
        if let Some(client) = self.translated(flow) {
            // A packet that was found in another way, as by conntrack, may have a translated port, too.
            if self.flow.src.port() == 0 && via == Via::Translated {
                self.flow.src.set_port(client.port());
            }
        } else if let Some(own) = self.seen_by_client(flow, via) {
            self.learn_flow(own);
        }
    }

    fn observe_state(&mut self, time: u64, state: &State) {
        self.learn_flow(state.flow);
        // The kernel may have skipped the program at the change to ESTABLISHED. A socket that leaves ESTABLISHED was in
        // it.
        if [state.old, state.new].contains(&TcpState::Established) && self.established.is_none() {
            self.established = Some(time);
        }
        if self.ended.is_none()
            && let Some(end) = end_of(state)
        {
            self.ended = Some((time, end));
        }
        // A closing socket keeps counting (the peer's FIN, a late answer). So the outcome needs the numbers at the
        // first step out of ESTABLISHED.
        if self.last.as_ref().is_none_or(|last| end_of(last).is_none()) {
            self.last = Some(state.clone());
        }
    }

    /// When the handshake was finished; `None`, too, if only the end shows that there was a handshake.
    pub fn established_at(&self) -> Option<u64> {
        self.established.filter(|at| self.ended.is_none_or(|(end, _)| end != *at))
    }

    /// The handshake was completed, and what came after it fails the attempt. The target ended the connection, or the
    /// prober has waited longer since the handshake than before. A fault that had stopped an earlier SYN is over.
    pub fn is_past_handshake(&self, now: u64) -> bool {
        let Some(connected) = self.established_at() else { return false };
        let (until, end) = self.ended.map_or((now, None), |(ended, end)| (ended, Some(end)));
        let by_target = matches!(end, Some(End::ClosedByServer | End::Reset));
        by_target || until.saturating_sub(connected) >= connected.saturating_sub(self.started)
    }

    /// Payload bytes received when it ended (or so far).
    pub fn received(&self) -> Option<u64> {
        self.last.as_ref()?.received()
    }

    /// Payload bytes sent.
    pub fn sent(&self) -> Option<u64> {
        self.last.as_ref().and_then(|s| s.bytes_sent)
    }

    /// The connect may have failed because no source port was free: the socket ended in SYN_SENT, without an error and
    /// without a source port.
    pub fn without_port(&self) -> bool {
        let gave_up = |s: &State| {
            s.old == TcpState::SynSent && s.new == TcpState::Close && s.flow.src.port() == 0 && s.errno == Some(0)
        };
        self.last.as_ref().is_some_and(gave_up)
    }

    /// The target's stack has acknowledged all that was sent, perhaps after a retransmission.
    pub fn request_acknowledged(&self) -> bool {
        let Some(last) = &self.last else { return false };
        // bytes_sent counts a retransmission again (net/ipv4/tcp_output.c, __tcp_transmit_skb). Retransmissions after
        // the end are not in the numbers of the end.
        let in_time = |time: u64| self.ended.is_none_or(|(end, _)| time <= end);
        let again = self.retransmitted().filter(|(time, r)| !r.by_target && in_time(*time));
        let again: u64 = again.filter_map(|(_, r)| r.payload).map(u64::from).sum();
        match (last.bytes_sent, last.bytes_acked) {
            // The SYN counts one in bytes_acked (net/ipv4/tcp_input.c, tcp_snd_una_update).
            (Some(sent), Some(acked)) => sent > 0 && acked > sent.saturating_sub(again).max(1),
            _ => false,
        }
    }

    /// The target has taken the request: it acknowledged or answered it. A client of TLS or HTTP/2 closes with a segment
    /// that nothing acknowledges in time.
    pub fn request_taken(&self) -> bool {
        self.request_acknowledged() || self.received().is_some_and(|n| n > 0)
    }

    /// The target sent data that did not arrive: a segment with data was dropped or retransmitted.
    pub fn answer_lost(&self) -> bool {
        self.answer_losses().next().is_some()
    }

    /// When the target acknowledged the prober's FIN, or refused it with a RST, as it does after its own close: segments
    /// without payload arrive from it.
    pub fn close_acknowledged(&self) -> Option<(u64, &State)> {
        let refused = self.reset_received().is_some_and(|(_, reset)| reset.state == TcpState::FinWait1);
        let is_it = |state: &State| {
            state.old == TcpState::FinWait1
                && (state.new == TcpState::FinWait2 || refused && state.new == TcpState::Close)
        };
        observations_of!(self, State).find(|(_, state)| is_it(state))
    }

    /// When a segment with data of the target was dropped or retransmitted. After its end the prober's own kernel drops a
    /// late answer.
    fn answer_losses(&self) -> impl Iterator<Item = u64> {
        let dropped = |d: &PacketDrop| d.flow.src == self.flow.dst && d.flags.has_data() && !d.flags.is_rst();
        let in_time = |time: u64| self.ended.is_none_or(|(end, _)| time <= end);
        let is_loss = move |it: &&Observation| match &it.kind {
            ObservationKind::Drop(d) => dropped(d) && in_time(it.time_boot_ns),
            ObservationKind::Retransmit(r) => r.by_target,
            _ => false,
        };
        self.observations.iter().filter(is_loss).map(|it| it.time_boot_ns)
    }

    /// How long no segment came or went before the end, if that was so long that the prober still waited.
    fn quiet_ns(&self) -> Option<u64> {
        self.last.as_ref().and_then(|last| last.quiet_ns).filter(|quiet| *quiet >= WAITED_NS)
    }

    /// The prober still waited when it ended the attempt.
    pub fn was_quiet(&self) -> bool {
        self.quiet_ns().is_some()
    }

    /// The prober closed with data in its socket that it had not read. The kernel then ends the connection at once, with
    /// a RST (`__tcp_close`, net/ipv4/tcp.c). How long the data had been there, if that is known.
    pub fn closed_unread(&self) -> Option<Option<u64>> {
        let last = self.last.as_ref().filter(|last| last.errno == Some(0) && last.received().is_some_and(|n| n > 0))?;
        let is_at_once = last.new == TcpState::Close && matches!(last.old, TcpState::Established | TcpState::CloseWait);
        is_at_once.then_some(last.quiet_ns)
    }

    /// Since when nothing of the target's data arrived, although it sent some, until this attempt ended.
    pub fn answer_lost_since(&self) -> Option<u64> {
        let (ended, _) = self.ended?;
        let lost = |since: u64| self.answer_losses().any(|at| (since..=ended).contains(&at));
        let since = match self.quiet_ns() {
            Some(quiet) => ended.saturating_sub(quiet),
            // A client of TLS or HTTP/2 sends a last segment before it closes (close_notify, GOAWAY), or it is not known.
            None => self.lost_at_the_end(ended)?,
        };
        lost(since).then_some(since)
    }

    /// When a packet of the target was lost, if all of its retransmissions were lost, too. TCP doubles the time between
    /// them (RFC 6298 5.5), so one that is missing, or was not dropped as the others, got through.
    fn lost_at_the_end(&self, ended: u64) -> Option<u64> {
        let dropped = self.drops().filter(|(_, d)| !self.leads_out(d.flow) && !d.flags.is_rst());
        let dropped: Vec<u64> = dropped.map(|(at, _)| at).filter(|at| *at <= ended).collect();
        let sent_again = self.retransmitted().filter(|(_, r)| r.by_target);
        let sent_again: Vec<u64> = sent_again.map(|(at, _)| at).filter(|at| *at <= ended).collect();
        if let (Some(dropped), Some(again)) = (dropped.last(), sent_again.last())
            && *again > dropped.saturating_add(AT_ONCE_NS)
        {
            return None;
        }
        let lost = if dropped.is_empty() { sent_again } else { dropped };
        let (mut since, mut next_by) = (0, 0);
        for at in lost {
            since = if at > next_by { at } else { since };
            next_by = at.saturating_add(at.saturating_sub(since)).saturating_add(FIRST_RETRANSMISSION_NS);
        }
        (ended <= next_by).then_some(since)
    }

    /// `sk_err` when it ended, if not zero.
    pub fn errno(&self) -> Option<i32> {
        self.last.as_ref().and_then(|s| s.errno).filter(|&e| e != 0).or_else(|| self.connect_failed().map(|f| f.errno))
    }

    /// The connection ended as a failure for any kind of probe; see
    /// [`Matched::failed`](crate::enrich::Matched::failed).
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

    /// The connection is of no prober, and the target took all data. Other clients may need no answer (syslog,
    /// metrics).
    pub fn needs_no_answer(&self) -> bool {
        !self.prober && self.request_acknowledged() && !self.answer_lost()
    }

    /// The connection was closed without data in either direction and without an error, as a tcpSocket probe does.
    pub fn carried_no_data(&self) -> bool {
        self.sent_nothing() && self.received() == Some(0)
    }

    /// The connection was closed without an error, and the prober sent nothing. A server that speaks first may have
    /// sent data.
    pub fn sent_nothing(&self) -> bool {
        matches!(self.ended, Some((_, End::ClosedByProber | End::ClosedByServer))) && self.sent() == Some(0)
    }

    /// It ended with bytes of a request that the prober had written, and that were never sent.
    pub fn request_unsent(&self) -> bool {
        self.sent_nothing() && self.last.as_ref().is_some_and(|last| last.unsent)
    }

    /// Its end, if it is over. What happens later says nothing about it.
    pub fn until(&self) -> u64 {
        self.ended.map_or(u64::MAX, |(end, _)| end)
    }

    /// Nanoseconds from connect to the end; `None` while it is open.
    pub fn lasted(&self) -> Option<u64> {
        self.ended.map(|(time, _)| time.saturating_sub(self.started))
    }

    /// The state of the target at that time can explain this attempt: not from before its start, nor from long after
    /// its end.
    pub fn overlaps(&self, time: u64) -> bool {
        time >= self.started && self.ended.is_none_or(|(end, _)| time <= end.saturating_add(LATE_NS))
    }

    /// Dropped packets of this connection.
    pub fn drops(&self) -> impl Iterator<Item = (u64, &PacketDrop)> {
        observations_of!(self, Drop)
    }

    /// RSTs that a network stack of this node sent.
    pub fn resets_sent(&self) -> impl Iterator<Item = (u64, &ResetSent)> {
        observations_of!(self, ResetSent)
    }

    /// The RST that its socket received.
    pub fn reset_received(&self) -> Option<(u64, &ResetReceived)> {
        observations_of!(self, ResetReceived).next()
    }

    /// ICMP errors that this node sent about its packets.
    pub fn icmp(&self) -> impl Iterator<Item = (u64, &Icmp)> {
        observations_of!(self, Icmp)
    }

    /// What IPVS did with its packets.
    pub fn ipvs(&self) -> impl Iterator<Item = (u64, &Ipvs)> {
        observations_of!(self, Ipvs)
    }

    /// The failed `connect()` call, if there was one.
    pub fn connect_failed(&self) -> Option<&ConnectFailed> {
        self.connect_failed_at().map(|(_, failed)| failed)
    }

    /// The failed `connect()` call and its time.
    pub fn connect_failed_at(&self) -> Option<(u64, &ConnectFailed)> {
        observations_of!(self, ConnectFailed).next()
    }

    /// When the prober sent its SYN again.
    pub fn syns_sent_again(&self) -> impl Iterator<Item = u64> {
        let is_syn = |segment: &Retransmit| !segment.by_target && segment.state == TcpState::SynSent;
        self.retransmitted().filter(move |(_, segment)| is_syn(segment)).map(|(time, _)| time)
    }

    /// It keeps no more observations that resemble earlier ones.
    pub fn is_full(&self) -> bool {
        self.observations.len() >= MAX_OBSERVATIONS
    }

    /// When a packet of this connection was last observed by that time.
    pub fn last_packet(&self, by: u64) -> Option<u64> {
        use ObservationKind::{Drop, Icmp, Ipvs, QueueFull, ResetSent, Retransmit};
        let is_packet =
            |kind: &_| matches!(kind, Drop(_) | Icmp(_) | Ipvs(_) | QueueFull(_) | ResetSent(_) | Retransmit(_));
        let packets = self.observations.iter().filter(|it| it.time_boot_ns <= by && is_packet(&it.kind));
        packets.map(|it| it.time_boot_ns).max()
    }

    /// Segments that either side retransmitted.
    pub fn retransmitted(&self) -> impl Iterator<Item = (u64, &Retransmit)> {
        observations_of!(self, Retransmit)
    }

    /// The first payload. tracer reads each one that arrives while the socket has counted none: if segments arrive out of
    /// order, several, and one of them is the first. A status line goes first, then a TLS record or a frame of HTTP/2.
    /// Bytes that can begin no protocol decide only if no other payload may be the first.
    pub fn answer(&self) -> Option<(u64, &Answer)> {
        // `min_by_key` returns the first of equal answers.
        self.answers().min_by_key(|(_, answer)| match answer.kind {
            AnswerKind::Http => 0,
            AnswerKind::Tls | AnswerKind::Http2 => 1,
            // An alert may arrive before the TLS server's first flight.
            AnswerKind::Other | AnswerKind::Short | AnswerKind::Alert if !answer.is_no_frame() => 2,
            _ => 3,
        })
    }

    /// The first payloads that arrived, in their order.
    pub fn answers(&self) -> impl Iterator<Item = (u64, &Answer)> {
        observations_of!(self, Answer)
    }

    /// An answer came to the prober, and no hook read it. The program that reads answers is attached to a prober's
    /// cgroup when the prober first connects, and that answer may come before. Or its event was lost.
    pub fn is_unread(&self) -> bool {
        self.prober && self.ended.is_some() && self.received().is_some_and(|n| n > 0) && self.answer().is_none()
    }

    /// Only an interim answer was read: the final one decides.
    pub fn is_interim(&self) -> bool {
        self.answer().is_some_and(|(_, answer)| answer.is_interim())
    }

    /// The status of the answer, if it is the final one.
    pub fn status(&self) -> Option<u16> {
        self.answer().filter(|(_, answer)| !answer.is_interim()).and_then(|(_, answer)| answer.status)
    }

    /// The status of the answer, if it is a redirect that Go's client follows (net/http, `redirectBehavior`).
    pub fn redirect_status(&self) -> Option<u16> {
        self.status().filter(|status| matches!(status, 301 | 302 | 303 | 307 | 308))
    }

    /// A status of HTTP was read that a probe takes for a failure.
    pub fn is_refused_by_status(&self) -> bool {
        self.answer().and_then(|(_, answer)| answer.status).is_some_and(|status| status >= 400)
    }

    /// The kubelet outcome, if one was joined: the last one counts.
    pub fn kubelet(&self) -> Option<(u64, &KubeletProbe)> {
        observations_of!(self, KubeletProbe).last().map(|(time, probe)| (time, &**probe))
    }

    /// The SYN reached a listener with a full queue.
    pub fn queue_full(&self, queue: ListenQueue) -> Option<(u64, &QueueFull)> {
        observations_of!(self, QueueFull).find(|(_, full)| full.queue == queue)
    }

    /// A SYN reached a listener with a full queue after this time.
    pub fn met_full_queue_after(&self, time: u64) -> bool {
        observations_of!(self, QueueFull).any(|(at, _)| at > time)
    }
}

/// The same kind of packet was dropped at the same place before, or the two observations are equal.
fn is_same_drop(kept: &ObservationKind, new: &ObservationKind) -> bool {
    let (ObservationKind::Drop(kept), ObservationKind::Drop(new)) = (kept, new) else { return kept == new };
    let place = |drop: &PacketDrop| (drop.netns, drop.flow, drop.flags);
    place(kept) == place(new) && (&kept.reason, &kept.location) == (&new.reason, &new.location)
}

/// Whether, and how, this change of the prober's socket ends the attempt.
fn end_of(state: &State) -> Option<End> {
    use TcpState::{Close, CloseWait, Closing, Established, FinWait1, FinWait2, LastAck, SynSent};
    match (state.old, state.new) {
        (SynSent, Close) => Some(End::NotEstablished),
        // ESTABLISHED -> CLOSE_WAIT does not end it. The bytes that the prober sends after the server's FIN distinguish
        // a probe with a request from one that only connects.
        (CloseWait, _) => Some(End::ClosedByServer),
        (Established, FinWait1) => Some(End::ClosedByProber),
        (Established, Close) if state.errno.is_some_and(|e| e != 0) => Some(End::Reset),
        (Established, Close) => Some(End::ClosedByProber),
        // tracer missed the step out of ESTABLISHED.
        (FinWait1 | FinWait2 | Closing | LastAck, Close) => Some(End::ClosedByProber),
        _ => None,
    }
}
