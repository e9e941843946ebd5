//! The queries to the node, and when they are due.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use super::{Core, first_due, take_due};
use tracer_attempts::correlate::attempt::Attempt;
use tracer_attempts::correlate::firewalls::{Firewalls, Next};
use tracer_attempts::correlate::node::Node;
use tracer_attempts::enrich::Matched;
use tracer_case::drop_reason::{is_netfilter, place_of};
use tracer_case::halt::is_halted;
use tracer_case::pod_sockets::REDIRECT_NS;
use tracer_case::programs::PROGRAMS_NS;
use tracer_model::event::{ConnId, Netns, Observation, ObservationKind, PacketDrop, Pod, ServiceName, TcpState};
use tracer_model::query::{Awaited, Query, TargetQuery};
use tracer_model::recent::Recent;

/// A handshake on a node takes less than a millisecond. After this time, tracer inspects the target.
pub(super) const PATIENCE_NS: u64 = 200_000_000;
/// The first interval between inspections of a pod that has not answered. They stop after the longest usual timeout, as
/// the kubelet's own connections stay open for hours.
const INSPECT_EVERY_NS: u64 = 300_000_000;
const INSPECT_UNTIL_NS: u64 = 60_000_000_000;

/// The same query is not issued again within this time.
const REQUERY_NS: u64 = 1_000_000_000;
/// The same for the answers of a prober, which may have been moved to another cgroup, and for the connects of a pod.
const REQUERY_ANSWERS_NS: u64 = 10_000_000_000;
/// The same for the state of a target, which changes fast. Shorter than [`PATIENCE_NS`], so that each waiting attempt
/// gets an inspection.
const REINSPECT_NS: u64 = 100_000_000;
/// The same for the holders of a port that refuses.
const REQUERY_HOLDERS_NS: u64 = 5_000_000_000;
const MAX_QUERIES: usize = 1024;

/// The queries that are due, that wait, and that were issued.
#[derive(Debug, Default)]
pub(super) struct Queries {
    /// To be issued now.
    wanted: BTreeSet<Query>,
    /// To be issued later, each with its time.
    later: BTreeSet<(u64, Query)>,
    /// When to inspect targets that have not answered.
    patience: BTreeSet<(u64, ConnId)>,
    /// To be issued when the answer to an earlier query has come, with the time since when they wait.
    after_answer: BTreeMap<Netns, (u64, Query)>,
    /// When the sockets of a pod were queried that are not read yet.
    pods_queried: Recent<(Netns, SocketAddr), u64, MAX_QUERIES>,
    /// When each query was last issued.
    last_issued: Recent<Query, u64, MAX_QUERIES>,
}

impl Queries {
    /// Issues a query, unless the same one was issued a short time ago.
    fn query(&mut self, query: Query, now: u64, firewalls: &mut Firewalls) {
        let interval = match query {
            Query::Firewall(netns, _) => return self.query_firewall(netns, query, now, firewalls),
            Query::Target(ref target) if target.awaited != Awaited::Nothing => REINSPECT_NS,
            Query::Limits(..) => REINSPECT_NS,
            Query::Answers(_) | Query::PodConnects(_) => REQUERY_ANSWERS_NS,
            Query::PortHolders(..) => REQUERY_HOLDERS_NS,
            Query::DevicePrograms(..) => PROGRAMS_NS,
            _ => REQUERY_NS,
        };
        let key = query_key(&query);
        if self.last_issued.get(&key).is_some_and(|at| now < at.saturating_add(interval)) {
            return;
        }
        if let Query::Target(TargetQuery { from, target, awaited: Awaited::Nothing, .. }) = query {
            self.pods_queried.insert((from, target), now);
        }
        self.last_issued.insert(key, now);
        self.issue(query);
    }

    /// When the sockets of this target's pod were queried; `None` if they were read since then.
    pub(super) fn pod_queried(&self, from: Netns, target: SocketAddr) -> Option<u64> {
        self.pods_queried.get(&(from, target)).copied()
    }

    pub(super) fn pod_answered(&mut self, from: Netns, target: SocketAddr) {
        self.pods_queried.remove(&(from, target));
    }

    fn query_firewall(&mut self, netns: Netns, query: Query, now: u64, firewalls: &mut Firewalls) {
        match firewalls.query(netns, now) {
            Next::Now => self.issue(query),
            Next::At(later) if self.later.len() < MAX_QUERIES => _ = self.later.insert((later, query)),
            Next::AfterAnswer if self.after_answer.len() < MAX_QUERIES => {
                _ = self.after_answer.insert(netns, (now, query))
            }
            Next::At(_) | Next::AfterAnswer | Next::Due => {}
        }
    }

    /// In a replay nobody takes the queries, so their number is limited.
    fn issue(&mut self, query: Query) {
        if self.wanted.len() < MAX_QUERIES {
            self.wanted.insert(query);
        }
    }

    /// Takes the queries that are due now.
    pub(super) fn take(&mut self) -> Vec<Query> {
        std::mem::take(&mut self.wanted).into_iter().collect()
    }

    /// When the first waiting query is due.
    pub(super) fn due(&self) -> Option<u64> {
        first_due(&self.later).into_iter().chain(first_due(&self.patience)).min()
    }
}

impl Core {
    /// Issues a query, unless the same one was issued a short time ago.
    pub(super) fn query(&mut self, query: Query, now: u64) {
        self.queries.query(query, now, &mut self.node.firewalls);
    }

    /// Issues a query at this time.
    pub(super) fn query_at(&mut self, due: u64, query: Query) {
        if self.queries.later.len() < MAX_QUERIES {
            self.queries.later.insert((due, query));
        }
    }

    /// Issues the query for the endpoints of a Service, if it is due. Returns until when a verdict waits for its answer.
    pub(super) fn query_endpoints(&mut self, service: &ServiceName, now: u64) -> Option<u64> {
        if self.node.endpoints.query(service, now) {
            self.queries.issue(Query::Endpoints(service.clone()));
        }
        self.node.endpoints.pending_until(service).filter(|until| now < *until)
    }

    /// A process entered the namespace: to start a container again, perhaps, or to run a command in one. Queries whether
    /// the containers that refuse there still run. The query waits as long as it is not issued again, so that it follows
    /// each entry.
    pub(super) fn query_refusing(&mut self, netns: Netns, now: u64) {
        if !self.node.is_a_node(netns) {
            for id in self.failures.refusals.refusing_in(netns) {
                self.query_at(now.saturating_add(REINSPECT_NS), Query::Limits(netns, id));
            }
        }
    }

    /// A firewall was read: queries it again for drops that came during the reading.
    pub(super) fn query_after_answer(&mut self, netns: Netns, now: u64) {
        if let Some((last_issued, query)) = self.queries.after_answer.remove(&netns)
            && !self.node.firewalls.covers(netns, last_issued)
        {
            self.query(query, now);
        }
    }

    /// Issues the queries that are due.
    pub(super) fn issue_due(&mut self, now: u64) {
        while let Some((_, query)) = take_due(&mut self.queries.later, now) {
            self.query(query, now);
        }
        while let Some((time, conn)) = take_due(&mut self.queries.patience, now) {
            self.query_target(conn, time);
        }
    }

    /// Sets when to inspect the target of an attempt; `None`: not any more.
    pub(super) fn schedule_inspection(&mut self, conn: ConnId, due: Option<u64>) {
        if let Some(before) = self.correlator.inspect_at(conn, due.unwrap_or_default()) {
            self.queries.patience.remove(&(before, conn));
        }
        self.queries.patience.extend(due.map(|due| (due, conn)));
    }

    /// Inspects the target of an attempt without a handshake again, as one reading of a halted or blocked server proves nothing.
    pub(super) fn inspect_again(&mut self, conn: ConnId, now: u64) {
        let open = self.correlator.get(conn).filter(|a| a.ended.is_none()).map(|a| a.started);
        if let Some(due) = open.and_then(|since| next_inspection(since, now)) {
            self.schedule_inspection(conn, Some(due));
        }
    }

    /// Queries the state of the target if the attempt still waits, and schedules the next inspection.
    fn query_target(&mut self, conn: ConnId, now: u64) {
        let again = self.correlator.get(conn).and_then(|a| waits_for_answer(a, &self.node));
        if let Some(due) = again.and_then(|since| next_inspection(since, now)) {
            self.schedule_inspection(conn, Some(due));
        }
        let waits = |a: &&Attempt| a.ended.is_none() && (a.established.is_none() || again.is_some());
        let waiting = self.correlator.get(conn).filter(waits);
        let is_urgent = again.is_none() || waiting.is_some_and(|attempt| is_halted_once(attempt, &self.node));
        let awaited = if is_urgent { Awaited::Handshake } else { Awaited::Answer };
        let query = waiting.and_then(|a| Some(target(a.netns?, a.flow.dst, &self.node, awaited, Some(a.flow.src))));
        if let Some(query) = query {
            self.query(Query::Target(query), now);
        }
    }
}

/// The last reading found the target's server halted, and the one before it did not. One reading proves nothing, and
/// beside many targets that wait the next one would come too late.
fn is_halted_once(attempt: &Attempt, node: &Node) -> bool {
    let readings = attempt.netns.into_iter().flat_map(|from| node.targets.servings(from, attempt.flow.dst).rev());
    let mut halted = readings.map(|(_, it)| is_halted(it.redirect.as_deref().map_or(it, |to| &to.serving)));
    halted.next() == Some(true) && halted.next() != Some(true)
}

/// The key under which a query counts as the same. After the end of an attempt the pod is read, whatever the peer was.
fn query_key(query: &Query) -> Query {
    match query {
        Query::Target(target) if target.awaited == Awaited::Nothing => {
            Query::Target(TargetQuery { peer: None, ..target.clone() })
        }
        query => query.clone(),
    }
}

/// When to inspect a pod next that has not answered since `since`. The interval grows with the time. So a long attempt
/// needs few inspections, and the last one is near its end.
fn next_inspection(since: u64, now: u64) -> Option<u64> {
    let waited = now.saturating_sub(since);
    (waited < INSPECT_UNTIL_NS).then(|| now.saturating_add(INSPECT_EVERY_NS.max(waited / 4)))
}

/// Since when a prober waits for an answer from the pod that it reached.
pub(super) fn waits_for_answer(attempt: &Attempt, node: &Node) -> Option<u64> {
    let waits = attempt.ended.is_none() && attempt.prober && node.is_at_pod(attempt);
    attempt.established.filter(|_| waits)
}

/// The queries that follow from this observation of an attempt.
pub(super) fn wanted(attempt: &Attempt, node: &Node, observation: &Observation) -> Vec<Query> {
    let matched = Matched::new(attempt, node);
    let unanswered = || matched.failed() && matched.expects_grpc() && attempt.established.is_some();
    let tls = (attempt.carried_no_data() || unanswered()).then(|| Query::Tls(attempt.flow.dst.port()));
    let rules_for = |netns, packet| Query::Firewall(netns, attempt.any_client(packet));
    let stopped_by = match &observation.kind {
        ObservationKind::Drop(drop) if is_netfilter(drop) => drop.netns.map(|netns| rules_for(netns, drop.flow)),
        ObservationKind::Drop(drop) => programs(drop),
        ObservationKind::Icmp(icmp) if icmp.flags.is_syn() => icmp.netns.map(|netns| rules_for(netns, icmp.flow)),
        _ => None,
    };
    // Once for each healthy pod: which namespace it has, and the state of its sockets.
    let dst = attempt.flow.dst;
    let well = observation_establishes(observation) && attempt.prober && node.has_pod(dst.ip());
    let target = attempt.netns.filter(|from| well && node.netns_of_addr(*from, dst.ip()).is_none());
    let target = target.map(|from| Query::Target(self::target(from, dst, node, Awaited::Answer, None)));
    let over = attempt.netns.filter(|from| {
        is_worth_reading(attempt, node, observation, *from) || is_failure_on_node(attempt, node, observation)
    });
    let over = over.map(|from| {
        let query = self::target(from, dst, node, Awaited::Nothing, Some(attempt.flow.src));
        let pod = matched.only_pod_on_node().filter(|_| attempt.established.is_none());
        Query::Target(TargetQuery { pod: pod.and_then(Pod::cgroup_uid).map(str::to_owned), ..query })
    });
    let connects = attempt.netns.filter(|_| is_failure(attempt, node, observation));
    let connects = connects.and_then(|from| node.netns_of_addr(from, dst.ip()).filter(|of| *of != from));
    let connects = connects.map(Query::PodConnects);
    let answers = (attempt.is_unread() || is_prober_connect(observation)).then_some(Query::Answers(attempt.actor.pid));
    let ports = attempt.without_port().then_some(Query::Ports);
    let holders =
        refused_in(attempt, observation).filter(|_| attempt.prober).map(|netns| Query::PortHolders(netns, dst.port()));
    let of_pod = target.into_iter().chain(over).chain(connects);
    tls.into_iter().chain(stopped_by).chain(answers).chain(of_pod).chain(ports).chain(holders).collect()
}

/// The observation shows that the probe of a pod fails.
fn is_failure(attempt: &Attempt, node: &Node, observation: &Observation) -> bool {
    fails(attempt, node, observation) && node.has_pod(attempt.flow.dst.ip())
}

/// The same of a pod on the node's network. Any process of the node may have accepted the connection. If it was
/// refused, the pod may listen elsewhere.
fn is_failure_on_node(attempt: &Attempt, node: &Node, observation: &Observation) -> bool {
    let is_answered = attempt.established.is_some() || attempt.reset_received().is_some();
    is_answered && fails(attempt, node, observation) && accepted_on_node(attempt, node)
}

fn fails(attempt: &Attempt, node: &Node, observation: &Observation) -> bool {
    let fails = match &observation.kind {
        ObservationKind::Answer(answer) => answer.status.is_some_and(|status| status >= 400),
        _ => attempt.ended.is_some() && Matched::new(attempt, node).failed(),
    };
    fails && attempt.prober
}

/// The attempt can be a probe of a pod on the node's network, at an address of the node.
pub(super) fn accepted_on_node(attempt: &Attempt, node: &Node) -> bool {
    Matched::new(attempt, node).may_be_on_node()
}

/// The sockets of the pod may show why this attempt failed, or which process answered it.
fn is_worth_reading(attempt: &Attempt, node: &Node, observation: &Observation, from: Netns) -> bool {
    let unknown = || match node.pod_sockets(from, attempt.flow.dst) {
        Some((time, reading)) => {
            reading.redirect.is_some() && observation.time_boot_ns > time.saturating_add(REDIRECT_NS / 2)
        }
        None => true,
    };
    let touched = || attempt.prober && node.has_pod(attempt.flow.dst.ip()) && attempt.carried_no_data() && unknown();
    is_failure(attempt, node, observation) || touched()
}

/// The programs of the device at which one dropped the packet. The verdict does not wait for them: a SYN that was
/// dropped is sent again, and the verdict waits for that.
fn programs(drop: &PacketDrop) -> Option<Query> {
    place_of(drop)?;
    Some(Query::DevicePrograms(drop.netns?, drop.device.as_ref()?.ifindex))
}

pub(super) fn target(
    from: Netns,
    target: SocketAddr,
    node: &Node,
    awaited: Awaited,
    peer: Option<SocketAddr>,
) -> TargetQuery {
    let reported = node.pods.netns_at(target.ip()).filter(|netns| !node.has_ended(*netns));
    TargetQuery { from, target, reported, awaited, peer, pod: None }
}

/// The namespace in which no socket was found for a SYN. Before 5.17 a dropped SYN has no reason: the RST that follows
/// shows that it was refused.
fn refused_in(attempt: &Attempt, observation: &Observation) -> Option<Netns> {
    match &observation.kind {
        ObservationKind::ResetReceived(reset) if reset.state == TcpState::SynSent => {
            attempt.drops().filter(|(_, drop)| drop.flags.is_syn() && drop.reason.is_none()).last()?.1.netns
        }
        ObservationKind::ResetSent(reset) if reset.no_socket && reset.answered.is_syn() => reset.netns,
        ObservationKind::Drop(drop) if drop.flags.is_syn() && drop.reason.as_deref() == Some("NO_SOCKET") => drop.netns,
        _ => None,
    }
}

fn is_prober_connect(observation: &Observation) -> bool {
    matches!(&observation.kind, ObservationKind::Connect(connect) if connect.prober)
}

fn observation_establishes(observation: &Observation) -> bool {
    matches!(&observation.kind, ObservationKind::State(s) if s.new == TcpState::Established)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::*;

    /// On 5.10 without kprobes, where a dropped SYN has no reason and no hook shows the RST of a stack without a socket.
    #[test]
    fn a_refusal_without_a_drop_reason_asks_who_holds_the_port() {
        let asks = |fill: fn(&mut Stream)| {
            let mut stream = Stream::new();
            fill(stream.connect().drop_with(SYN, POD, |drop| drop.reason = None));
            push_all(&stream.observations).0.take_queries().contains(&Query::PortHolders(POD, 8080))
        };
        assert!(asks(|stream| _ = stream.reset_received(TcpState::SynSent, 0)));
        assert!(!asks(|stream| _ = stream.wait_ms(5)), "a firewall dropped it");
    }

    /// Which process of the node is the pod's shows only by its cgroup. That of a static pod has the uid of the kubelet.
    #[test]
    fn a_refusal_on_the_nodes_network_asks_where_the_pod_listens() {
        let asks = |fill: fn(&mut Stream)| {
            let mut stream = Stream::new().links(true, &["10.88.0.2"]).http_readiness().on_host_network().clone();
            stream.last_pods().pods[0].uid = Some("api".into());
            fill(&mut stream);
            let asked = push_all(&stream.observations).0.take_queries();
            asked.into_iter().find_map(|query| match query {
                Query::Target(query) if query.awaited == Awaited::Nothing => Some(query.pod),
                _ => None,
            })
        };
        assert_eq!(asks(|stream| _ = stream.connect().refused()), Some(Some("api".into())));
        assert_eq!(asks(|stream| _ = stream.connect().established().answers(503)), Some(None));
        let of_static = |stream: &mut Stream| {
            stream.last_pods().pods[0].kubelet_uid = Some("hash".into());
            stream.connect().refused();
        };
        assert_eq!(asks(of_static), Some(Some("hash".into())));
        assert_eq!(asks(|stream| _ = stream.connect().gives_up()), None);
    }

    #[test]
    fn the_programs_of_a_device_are_queried_if_one_dropped_a_packet() {
        let asks = |reason| {
            let stream = Stream::new().connect().drop_on(SYN, reason, POD, Some(device(7, "eth0"))).clone();
            push_all(&stream.observations).0.take_queries().contains(&Query::DevicePrograms(POD, 7))
        };
        assert_eq!(["TC_INGRESS", "XDP", "NETFILTER_DROP", "NEIGH_FAILED"].map(asks), [true, true, false, false]);
    }

    /// The server's port is above the source port, as with gRPC's usual 50051.
    #[test]
    fn a_query_for_rules_keeps_the_port_of_the_target() {
        for (packet, client_sends) in [(SYN, true), (SYN_ACK, false)] {
            let mut stream = Stream::to("10.88.0.2:50051");
            stream.connect().filtered(packet, POD);
            let any = Flow { src: address("10.88.0.1:0"), dst: address("10.88.0.2:50051") };
            let asked = if client_sends { any } else { any.reversed() };
            assert!(push_all(&stream.observations).0.take_queries().contains(&Query::Firewall(POD, asked)));
        }
    }

    #[test]
    fn a_syn_that_is_sent_again_is_inspected_again() {
        let asks = |fill: fn(&mut Stream)| {
            let mut stream = Stream::new();
            fill(stream.connect().wait_ms(300).tick().wait_ms(700));
            let mut core = Core::default();
            let mut asked = 0;
            for it in &stream.wait_ms(300).tick().observations {
                core.push(it, &mut Vec::new());
                asked += core.take_queries().iter().filter(|query| matches!(query, Query::Target(..))).count();
            }
            asked
        };
        assert_eq!((asks(|_| ()), asks(|stream| _ = stream.syn_again())), (1, 2));
    }

    /// Beside many targets that wait for an answer, the second reading of a server would come after the attempt.
    #[test]
    fn the_second_reading_of_a_halted_server_is_urgent() {
        let asked = |stopped: [u32; 3]| {
            let mut stream = Stream::new().http_readiness().pod_in(POD).connect().established().clone();
            for stopped in stopped {
                let mut server = server_process(7, 2);
                server.tasks.stopped = stopped;
                stream.wait_ms(299).tick().serving(Serving { processes: vec![server], ..Serving::default() });
            }
            let mut core = Core::default();
            let mut asked = Vec::new();
            for it in &stream.observations {
                core.push(it, &mut Vec::new());
                asked.extend(core.take_queries().into_iter().filter_map(|query| match query {
                    Query::Target(query) if query.awaited != Awaited::Nothing => Some(query.awaited),
                    _ => None,
                }));
            }
            asked
        };
        assert_eq!(asked([0; 3]), [Awaited::Answer; 3]);
        assert_eq!(asked([2; 3]), [Awaited::Answer, Awaited::Handshake, Awaited::Answer]);
    }

    #[test]
    fn the_last_inspection_is_near_the_end_of_a_long_attempt() {
        let ms = |ns: u64| ns / 1_000_000;
        let since = 7_000_000_000;
        let times = std::iter::successors(Some(since + PATIENCE_NS), |now| next_inspection(since, *now));
        let times: Vec<u64> = times.map(|it| it - since).collect();
        assert_eq!(times.iter().take(5).map(|it| ms(*it)).collect::<Vec<_>>(), [200, 500, 800, 1_100, 1_400]);
        for timeout_s in [2, 5, 10, 30, 60] {
            let end = timeout_s * 1_000_000_000;
            let last = times.iter().copied().filter(|it| *it < end).max().unwrap_or_default();
            assert!(end - last <= 300_000_000.max(end / 5), "{timeout_s} s: {} ms", ms(last));
        }
        assert!(times.len() < 30, "{}", times.len());
    }

    /// Two exec probes run at nearly the same time.
    #[test]
    fn a_container_that_refuses_is_read_after_each_entry_into_its_namespace() {
        let read_after_of = |probed: &Stream, refuses: bool, netns: Netns| {
            let mut stream = probed.clone().container_id("id").clone();
            if refuses {
                stream.connect().refused();
            }
            stream.wait_ms(500).netns_entered(netns).wait_ms(30).netns_entered(netns);
            let (last, mut core) = (stream.now(), push_all(&stream.observations).0);
            (0..6).for_each(|_| {
                core.push(stream.wait_ms(50).tick().observations.last().expect("a tick"), &mut Vec::new())
            });
            let key = Query::Limits(netns, "id".into());
            core.queries.last_issued.get(&key).map(|at| *at >= last)
        };
        let liveness = Stream::new().liveness(1, 3).clone();
        let read_after = |refuses, netns| read_after_of(&liveness, refuses, netns);
        assert_eq!(read_after(true, POD), Some(true));
        assert_eq!(read_after_of(Stream::new().http_readiness(), true, POD), None, "no probe ends its start");
    }

    #[test]
    fn a_container_is_read_at_the_failure_of_its_command_and_before_the_next_attempt() {
        const SETNS: &str =
            "exec failed: unable to start container process: error executing setns process: exit status 1";
        let due = |reason: ProbeOutput, words: &str| {
            let mut stream = Stream::new().exec_readiness().clone();
            let pod = &mut stream.last_pods().pods[0];
            (pod.netns, pod.containers[0].id) = (Some(POD), Some("id".into()));
            stream.wait_ms(2_000).kubelet_with(reason, |it| it.output = Some(words.into()));
            let (failed, mut core) = (stream.now(), push_all(&stream.observations).0);
            let asked = core.take_queries().contains(&Query::Limits(POD, "id".into()));
            core.push(stream.wait_ms(600).tick().observations.last().expect("a tick"), &mut Vec::new());
            (asked, core.queries.due().map(|at| (at - failed).div_ceil(1_000_000)))
        };
        assert_eq!(due(ProbeOutput::CommandTimeout, "command timed out"), (true, Some(8_700)), "after 9 s of pause");
        assert_eq!(due(ProbeOutput::CommandNotRun, SETNS), (true, None));
        assert_eq!(due(ProbeOutput::Other, "no such file"), (true, None), "it may have been killed");
    }
}
