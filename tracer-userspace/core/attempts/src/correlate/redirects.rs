//! Finds the connections that follow a redirect.
//!
//! The kubelet makes a connection for each request (`DisableKeepAlives`, pkg/probe/http). It follows a redirect only
//! within the same host (`RedirectChecker`). tracer does not read the target of a redirect: the next connection shows
//! it.

use std::net::{IpAddr, SocketAddr};

use super::attempt::{Attempt, Redirected};
use tracer_model::recent::Recent;

/// How long after the first bytes of a redirect the client connects: less than a millisecond, but more on a busy node.
const FOLLOWS_NS: u64 = 100_000_000;
/// A busy prober connects so late at most.
const LATE_NS: u64 = 1_000_000_000;
/// How long a target counts as one that the prober connects to by itself, for another probe. Longer than most periods.
const KNOWN_NS: u64 = 300_000_000_000;
const MAX: usize = 1024;

/// A redirect that no connection has followed yet.
#[derive(Clone, Copy, Debug)]
struct Open {
    /// Another redirect of the same prober and address came just before, so a connection may follow either.
    several: bool,
    /// The target that answered with it.
    last: SocketAddr,
    redirected: Redirected,
}

impl Open {
    /// A target of this chain of redirects.
    fn leads_to(&self, dst: SocketAddr) -> bool {
        [self.last, self.redirected.first].contains(&dst)
    }
}

#[derive(Debug, Default)]
pub(super) struct Redirects {
    /// The last redirect of each prober and address.
    open: Recent<(u32, IpAddr), Open, MAX>,
    /// When a prober last connected to a target without a redirect.
    direct: Recent<(u32, SocketAddr), u64, MAX>,
    /// When an attempt of each prober and address last ended with an answer that was not read: it may have been a
    /// redirect.
    unread: Recent<(u32, IpAddr), u64, MAX>,
}

impl Redirects {
    pub(super) fn answered(&mut self, attempt: &Attempt, time: u64) {
        let Some(status) = attempt.redirect_status().filter(|_| attempt.prober) else { return };
        let before = attempt.redirected;
        let redirected = Redirected {
            first: before.map_or(attempt.flow.dst, |it| it.first),
            began: before.map_or(attempt.started, |it| it.began),
            at: time,
            answers: before.map_or(0, |it| it.answers) + 1,
            status,
        };
        let key = key(attempt.actor.pid, attempt.flow.dst);
        let several = self.open.get(&key).is_some_and(|open| time.saturating_sub(open.redirected.at) < FOLLOWS_NS);
        self.open.insert(key, Open { several, last: attempt.flow.dst, redirected });
    }

    /// Takes the end of an attempt. If its answer was not read, the next connection may follow a redirect. The prober may
    /// make that one before it closes the first.
    pub(super) fn ended(&mut self, attempt: &Attempt, time: u64) {
        if !attempt.is_unread() || attempt.ended.is_none_or(|(end, _)| end != time) {
            return;
        }
        let dst = attempt.flow.dst;
        let (pid, addr) = key(attempt.actor.pid, dst);
        self.unread.insert((pid, addr), time);
        let is_just_made = |at: u64| time.saturating_sub(at) < FOLLOWS_NS;
        self.direct.retain(|(by, to), at| *by != pid || to.ip() != addr || *to == dst || !is_just_made(*at));
    }

    /// A prober connects: takes the redirect that this connection follows. Another probe may connect just then. To a
    /// target that the prober connects to by itself, only a redirect of that target leads.
    pub(super) fn follow(&mut self, pid: u32, dst: SocketAddr, time: u64) -> Option<Redirected> {
        let is_known = self.direct.get(&(pid, dst)).is_some_and(|last| time.saturating_sub(*last) < KNOWN_NS);
        let open = self.open.get(&key(pid, dst)).map(|open| (*open, time.saturating_sub(open.redirected.at)));
        match open {
            Some((open, after)) if after < FOLLOWS_NS && (!is_known || open.leads_to(dst)) => {
                self.open.remove(&key(pid, dst));
                return (!open.several).then_some(open.redirected);
            }
            // A busy prober may follow it only now.
            Some((_, after)) if after < LATE_NS => {}
            // An answer that was not read may have been a redirect to here.
            _ if self.unread.get(&key(pid, dst)).is_some_and(|at| time.saturating_sub(*at) < FOLLOWS_NS) => {}
            _ => self.direct.insert((pid, dst), time),
        }
        None
    }
}

const fn key(pid: u32, dst: SocketAddr) -> (u32, IpAddr) {
    (pid, dst.ip())
}

#[cfg(test)]
mod tests {
    use crate::correlate::Correlator;
    use crate::correlate::attempt::Redirected;
    use tracer_core::testing::*;

    /// The redirects that led to this connection.
    fn followed(stream: &Stream, conn: u64) -> Option<Redirected> {
        let mut correlator = Correlator::default();
        stream.observations.iter().for_each(|it| _ = correlator.push(it));
        correlator.get(ConnId(conn)).expect("an attempt").redirected
    }

    fn answered(stream: &mut Stream, status: u16) -> &mut Stream {
        stream.connect().established().answers(status)
    }

    #[test]
    fn the_next_connection_follows_a_redirect() {
        let mut stream = Stream::new();
        answered(&mut stream, 302).again_to(8, "10.88.0.2:9");
        let one = followed(stream.connect(), 8).expect("a redirect");
        assert_eq!((one.first.port(), one.answers, one.status), (8080, 1, 302));
        let mut two = Stream::new();
        answered(answered(&mut two, 302).again(8), 307).again(9).connect();
        let two = followed(&two, 9).expect("a redirect");
        assert_eq!((two.answers, two.status), (2, 307));
    }

    #[test]
    fn a_later_connection_or_one_to_another_host_follows_no_redirect() {
        let after = |status: u16, wait_ms: u64, dst: &str| {
            let mut stream = Stream::new();
            answered(&mut stream, status).wait_ms(wait_ms).again_to(8, dst).connect();
            followed(&stream, 8).is_some()
        };
        assert!(after(301, 50, "10.88.0.2:9"));
        assert!(!after(200, 0, "10.88.0.2:9") && !after(304, 0, "10.88.0.2:9"), "no redirect");
        assert!(!after(302, 200, "10.88.0.2:9"), "too late");
        assert!(!after(302, 0, "10.88.0.3:9"), "the kubelet does not leave the host");
        // Two probes of the pod are redirected at once.
        let mut both = Stream::new();
        both.connect().established().again(8).connect().established().answer(AnswerKind::Http, Some(302));
        both.back_to(7).answer(AnswerKind::Http, Some(302)).again(8).again_to(9, "10.88.0.2:9").connect();
        assert_eq!(followed(&both, 9), None);
    }

    /// The liveness probe of port 9 fires just when the readiness probe of port 8080 was redirected.
    #[test]
    fn a_connection_of_another_probe_follows_no_redirect() {
        let mut stream = Stream::to("10.88.0.2:9").connect().refused().wait_ms(10_000).clone();
        answered(stream.again_to(8, "10.88.0.2:8080"), 302).again_to(9, "10.88.0.2:9").connect();
        assert_eq!(followed(&stream, 9), None);
        stream.again_to(10, "10.88.0.2:10").connect();
        assert!(followed(&stream, 10).is_some(), "the one that follows comes after it");
        // Long after, it is not known any more: the pod can be another one.
        answered(stream.wait_ms(400_000).again_to(11, "10.88.0.2:8080"), 302).again_to(12, "10.88.0.2:9").connect();
        assert!(followed(&stream, 12).is_some());
        // The answer to its first attempt was not read.
        for closes_late in [false, true] {
            let mut unread = Stream::new().connect().established().clone();
            if !closes_late {
                unread.closes((100, 101, 200));
            }
            unread.again_to(8, "10.88.0.2:9").connect();
            if closes_late {
                unread.back_to(7).wait_ms(1).closes((100, 101, 200));
            }
            answered(unread.wait_ms(10_000).again_to(9, "10.88.0.2:8080"), 302).again_to(10, "10.88.0.2:9").connect();
            assert!(followed(&unread, 10).is_some());
        }
        // The prober was busy once.
        let mut busy = Stream::new();
        answered(&mut busy, 302).wait_ms(200).again_to(8, "10.88.0.2:9").connect().wait_ms(10_000);
        answered(busy.again_to(9, "10.88.0.2:8080"), 302).again_to(10, "10.88.0.2:9").connect();
        assert!(followed(&busy, 10).is_some());
    }
}
