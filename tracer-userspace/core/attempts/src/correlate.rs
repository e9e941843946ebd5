//! Joins observations into attempts by the number of the connection, never by port, pid or inode alone.

pub mod attempt;
pub mod endpoints;
pub mod firewalls;
pub mod flushes;
pub mod links;
pub mod listeners;
pub mod losses;
pub mod namespaces;
pub mod node;
pub mod node_ports;
pub mod pod_connects;
pub mod pods;
pub mod recent_connects;
mod redirects;
pub mod targets;
pub mod tls_ports;
mod translation;

use std::collections::BTreeMap;
use std::net::SocketAddr;

use attempt::Attempt;
use redirects::Redirects;
use tracer_model::event::{ConnId, Connect, Flow, Loss, Netns, Observation, ObservationKind};

const MAX_ATTEMPTS: usize = 8192;
/// How many ended attempts are dropped together when the table is full.
const MAX_ENDED_GONE: usize = MAX_ATTEMPTS / 8;
/// How many attempts must begin between two searches for ended attempts.
const SWEEP_EVERY: usize = 256;
/// How long an attempt is kept after its end for evidence that comes late.
pub const KEEP_AFTER_END_NS: u64 = 2_000_000_000;
/// How long an attempt without an end is kept.
const KEEP_OPEN_NS: u64 = 900_000_000_000;

/// The attempts that are open or ended a short time ago.
#[derive(Debug, Default)]
pub struct Correlator {
    attempts: BTreeMap<ConnId, Attempt>,
    last_sweep: u64,
    /// When the open attempt began that was dropped for lack of room.
    forgotten: Option<u64>,
    /// How many attempts must still begin before the next search for ended ones.
    attempts_until_sweep: usize,
    redirects: Redirects,
}

impl Correlator {
    /// Joins an observation to its attempt, and returns that attempt's number.
    pub fn push(&mut self, observation: &Observation) -> Option<ConnId> {
        self.sweep(observation.time_boot_ns);
        let conn = conn_of(observation)?;
        if let Some(mut begun) = self.begin(conn, observation) {
            if begun.prober {
                begun.redirected = self.redirects.follow(begun.actor.pid, begun.flow.dst, begun.started);
            }
            self.insert(begun);
        }
        let attempt = self.attempts.get_mut(&conn)?;
        attempt.observe(observation);
        match observation.kind {
            ObservationKind::Answer(_) => self.redirects.answered(attempt, observation.time_boot_ns),
            ObservationKind::State(_) => self.redirects.ended(attempt, observation.time_boot_ns),
            _ => {}
        }
        Some(conn)
    }

    /// The attempt that an observation is about.
    pub fn attempt_of(&self, observation: &Observation) -> Option<&Attempt> {
        self.attempts.get(&conn_of(observation)?)
    }

    /// The new attempt, if this observation begins one.
    fn begin(&self, conn: ConnId, observation: &Observation) -> Option<Attempt> {
        if self.attempts.contains_key(&conn) {
            return None;
        }
        let at = observation.time_boot_ns;
        match &observation.kind {
            ObservationKind::Connect(Connect { flow, actor, netns, prober, .. }) => {
                Some(Attempt::new(conn, *flow, actor.clone(), Some(*netns), *prober, at))
            }
            ObservationKind::ConnectFailed(failed) => {
                let any = SocketAddr::new(unspecified_like(failed.dst), 0);
                let flow = Flow { src: any, dst: failed.dst };
                Some(Attempt::new(conn, flow, failed.actor.clone(), failed.actor.netns, failed.prober, at))
            }
            _ => None,
        }
    }

    fn insert(&mut self, attempt: Attempt) {
        if self.attempts.len() >= MAX_ATTEMPTS {
            self.make_room();
        }
        self.attempts.insert(attempt.conn, attempt);
    }

    /// Drops attempts that ended: first those of other processes, last those with a verdict that waits. If nearly all are
    /// open, drops the oldest one, without a verdict.
    fn make_room(&mut self) {
        if self.attempts_until_sweep == 0 {
            let gone = self.forget_ended();
            self.attempts_until_sweep = SWEEP_EVERY.saturating_sub(gone);
        } else {
            self.attempts_until_sweep -= 1;
        }
        if self.attempts.len() >= MAX_ATTEMPTS
            && let Some((_, gone)) = self.attempts.pop_first()
        {
            self.forgotten = gone.ended.is_none().then_some(gone.started);
        }
    }

    fn forget_ended(&mut self) -> usize {
        let ended = |a: &Attempt| a.ended.map(|(end, _)| (a.prober, a.kept_until.max(end), a.conn));
        let mut ended: Vec<(bool, u64, ConnId)> = self.attempts.values().filter_map(ended).collect();
        ended.sort_unstable();
        ended.truncate(MAX_ENDED_GONE);
        for (.., conn) in &ended {
            self.attempts.remove(conn);
        }
        ended.len()
    }

    /// The loss of an open attempt that was dropped for lack of room: it gets no verdict.
    pub fn take_forgotten(&mut self, now: u64) -> Option<Loss> {
        let since = self.forgotten.take()?;
        Some(Loss { where_: Loss::ATTEMPTS.to_owned(), count: 1, from_boot_ns: since, to_boot_ns: now })
    }

    /// Drops attempts that are too old; at most once a second.
    fn sweep(&mut self, now: u64) {
        if now < self.last_sweep.saturating_add(1_000_000_000) {
            return;
        }
        self.last_sweep = now;
        self.attempts.retain(|_, a| match a.ended {
            Some((end, _)) => now < a.kept_until.max(end.saturating_add(KEEP_AFTER_END_NS)),
            None => now < a.started.saturating_add(KEEP_OPEN_NS),
        });
    }

    /// The attempt with this number.
    pub fn get(&self, conn: ConnId) -> Option<&Attempt> {
        self.attempts.get(&conn)
    }

    /// Keeps an attempt at least until this time, for late evidence.
    pub fn keep(&mut self, conn: ConnId, until: u64) {
        if let Some(attempt) = self.attempts.get_mut(&conn) {
            attempt.kept_until = attempt.kept_until.max(until);
        }
    }

    /// Sets when the probe has timed out; returns the time that was set before.
    pub fn over_at(&mut self, conn: ConnId, time: Option<u64>) -> Option<u64> {
        self.attempts.get_mut(&conn).and_then(|attempt| std::mem::replace(&mut attempt.over_at, time))
    }

    /// The prober has given up: ends the attempt if it still connects. Returns whether it does.
    pub fn give_up(&mut self, conn: ConnId, time: u64) -> bool {
        self.attempts.get_mut(&conn).is_some_and(|attempt| attempt.give_up(time))
    }

    /// Sets when to inspect the target; returns the time that was set before.
    pub fn inspect_at(&mut self, conn: ConnId, time: u64) -> Option<u64> {
        self.attempts.get_mut(&conn).map(|attempt| std::mem::replace(&mut attempt.inspect_at, time))
    }

    /// Attempts to this target without a handshake, for which an inspection of that time is evidence.
    pub fn waiting_for(&self, from: Netns, target: SocketAddr, time: u64) -> impl Iterator<Item = ConnId> {
        let to_it = move |a: &Attempt| a.flow.dst == target && a.netns == Some(from);
        let waits = move |a: &&Attempt| to_it(a) && a.established.is_none() && a.overlaps(time);
        self.attempts.values().filter(waits).map(|a| a.conn)
    }

    /// Adds a kubelet outcome to an attempt.
    pub fn join(&mut self, conn: ConnId, observation: &Observation) {
        if let Some(attempt) = self.attempts.get_mut(&conn) {
            attempt.observe(observation);
        }
    }

    /// All attempts that are kept.
    pub fn all(&self) -> impl Iterator<Item = &Attempt> {
        self.attempts.values()
    }

    /// Attempts that have not ended.
    pub fn open(&self) -> impl Iterator<Item = &Attempt> {
        self.attempts.values().filter(|a| a.ended.is_none())
    }
}

/// The connection that an observation is about. A connect() that failed before SYN_SENT is an attempt of its own, and
/// its time is its number.
fn conn_of(observation: &Observation) -> Option<ConnId> {
    let failed = matches!(observation.kind, ObservationKind::ConnectFailed(_));
    observation.kind.conn().or_else(|| failed.then_some(ConnId(observation.time_boot_ns)))
}

fn unspecified_like(addr: SocketAddr) -> std::net::IpAddr {
    match addr {
        SocketAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::attempt::LATE_NS;
    use super::*;
    use tracer_core::testing::*;

    /// A correlator after `attempts` attempts, of which the first `ended` end.
    fn after(attempts: usize, ended: usize) -> Correlator {
        let mut stream = Stream::new();
        for n in 0..attempts {
            stream.again(100 + n as u64).connect();
            if n < ended {
                stream.state(TcpState::SynSent, TcpState::Close, 111, (0, 0, 0));
            }
        }
        let mut correlator = Correlator::default();
        stream.observations.iter().for_each(|observation| _ = correlator.push(observation));
        correlator
    }

    #[test]
    fn a_full_table_drops_ended_attempts_before_open_ones() {
        let mut correlator = after(MAX_ATTEMPTS + 9, 9);
        assert_eq!(correlator.open().count(), MAX_ATTEMPTS);
        assert_eq!((correlator.all().count(), correlator.take_forgotten(u64::MAX)), (MAX_ATTEMPTS, None));
    }

    /// The first one ended before all others, and its verdict waits for an answer.
    #[test]
    fn attempts_of_other_processes_push_out_no_probe() {
        let mut stream = Stream::new();
        for n in 0..MAX_ATTEMPTS as u64 + 9 {
            stream.again(100 + n).connect();
            if n > 0 {
                stream.by_other_process();
            }
            stream.state(TcpState::SynSent, TcpState::Close, 111, (0, 0, 0));
        }
        let mut correlator = Correlator::default();
        stream.observations.iter().for_each(|observation| _ = correlator.push(observation));
        assert!(correlator.get(ConnId(100)).is_some() && correlator.get(ConnId(101)).is_none());
    }

    /// Each inspection makes the rules classify these attempts. Hundreds of ended ones are kept for seconds.
    #[test]
    fn an_inspection_concerns_open_attempts_and_those_that_ended_just_before() {
        let correlator = after(3, 2);
        let [ended, _, open] = correlator.all().collect::<Vec<_>>()[..] else { panic!("three attempts") };
        let (end, _) = ended.ended.expect("an end");
        let at = |time| {
            let reported = correlator.waiting_for(open.netns.expect("a namespace"), open.flow.dst, time);
            reported.map(|conn| conn.0).collect::<Vec<_>>()
        };
        assert_eq!(at(open.started), [100, 101, 102]);
        assert_eq!(at(end + LATE_NS), [100, 101, 102]);
        assert_eq!(at(end + LATE_NS + 1_000_000_000), [102]);
        assert_eq!(at(open.started - 1), [100, 101], "it is older than the attempt");
    }

    #[test]
    fn an_open_attempt_that_is_dropped_is_reported_as_a_loss() {
        let mut correlator = after(MAX_ATTEMPTS + 9, 0);
        assert_eq!(correlator.all().count(), MAX_ATTEMPTS);
        let reported = correlator.take_forgotten(u64::MAX).expect("a loss");
        assert_eq!((reported.where_.as_str(), reported.count), (Loss::ATTEMPTS, 1));
        assert_eq!(correlator.take_forgotten(u64::MAX), None, "once");
    }
}
