//! The order of queries. Attempts without a handshake go first, then those without an answer, then those that are over.
//! Within each group the addresses take turns: a pod with many hanging probes delays only its own queries.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

use tracer_model::event::Netns;
use tracer_model::query::{Awaited, TargetQuery};

/// How many addresses can wait, and how many targets of each; further queries are dropped.
const MAX_ADDRESSES: usize = 1024;
const MAX_OF_ADDRESS: usize = 64;

#[derive(Debug, Default)]
pub struct TargetQueue {
    handshakes: RoundRobin,
    answers: RoundRobin,
    ended: RoundRobin,
}

impl TargetQueue {
    /// Adds a query, unless its target already waits; `false` if there is no room.
    pub fn push(&mut self, query: TargetQuery) -> bool {
        match query.awaited {
            Awaited::Handshake => self.handshakes.push(query),
            Awaited::Answer => self.handshakes.has(&query) || self.answers.push(query),
            Awaited::Nothing => self.ended.push(query),
        }
    }

    /// The next query. Without `others`, only queries of attempts without a handshake.
    pub fn pop(&mut self, others: bool) -> Option<TargetQuery> {
        let other = || self.answers.pop().or_else(|| self.ended.pop());
        self.handshakes.pop().or_else(|| others.then(other).flatten())
    }

    /// How many queries wait of attempts that have their handshake or are over.
    pub fn count_others(&self) -> usize {
        self.answers.count() + self.ended.count()
    }

    pub fn is_empty(&self) -> bool {
        [&self.handshakes, &self.answers, &self.ended].iter().all(|all| all.turns.is_empty())
    }
}

/// The waiting queries of each address, and the order in which the addresses take turns.
#[derive(Debug, Default)]
struct RoundRobin {
    waiting: BTreeMap<(Netns, IpAddr), VecDeque<TargetQuery>>,
    turns: VecDeque<(Netns, IpAddr)>,
}

impl RoundRobin {
    fn has(&self, query: &TargetQuery) -> bool {
        self.waiting.get(&place(query)).is_some_and(|line| line.iter().any(|it| it.target == query.target))
    }

    fn count(&self) -> usize {
        self.waiting.values().map(VecDeque::len).sum()
    }

    fn push(&mut self, query: TargetQuery) -> bool {
        if self.has(&query) {
            return true;
        }
        let place = place(&query);
        let waiting = self.waiting.get(&place).map_or(0, VecDeque::len);
        let room = if waiting == 0 { self.turns.len() < MAX_ADDRESSES } else { waiting < MAX_OF_ADDRESS };
        if room {
            self.turns.extend((waiting == 0).then_some(place));
            self.waiting.entry(place).or_default().push_back(query);
        }
        room
    }

    fn pop(&mut self) -> Option<TargetQuery> {
        let place = self.turns.pop_front()?;
        let line = self.waiting.get_mut(&place)?;
        let query = line.pop_front();
        if line.is_empty() {
            self.waiting.remove(&place);
        } else {
            self.turns.push_back(place);
        }
        query
    }
}

const fn place(query: &TargetQuery) -> (Netns, IpAddr) {
    (query.from, query.target.ip())
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    fn query(host: u8, port: u16, awaited: Awaited) -> TargetQuery {
        TargetQuery {
            from: Netns(1),
            target: SocketAddr::from(([10, 0, 0, host], port)),
            reported: None,
            awaited,
            peer: None,
            pod: None,
        }
    }

    fn taken(queue: &mut TargetQueue, answers: bool) -> Vec<(u8, u16)> {
        let next = std::iter::from_fn(|| queue.pop(answers));
        let named = |target: SocketAddr| (target.to_string().as_bytes()[7] - b'0', target.port());
        next.map(|query| named(query.target)).collect()
    }

    #[test]
    fn hanging_probes_of_one_pod_do_not_delay_queries_of_another() {
        let mut queue = TargetQueue::default();
        let room = (0..100).filter(|port| queue.push(query(1, 9000 + port, Awaited::Answer))).count();
        assert_eq!((room, queue.count_others()), (MAX_OF_ADDRESS, MAX_OF_ADDRESS));
        assert!(queue.push(query(2, 80, Awaited::Answer)) && queue.push(query(3, 80, Awaited::Handshake)));
        assert_eq!(queue.pop(false), Some(query(3, 80, Awaited::Handshake)));
        assert_eq!(queue.pop(false), None, "only handshakes now");
        assert_eq!(taken(&mut queue, true)[..3], [(1, 9000), (2, 80), (1, 9001)]);
        assert!(queue.is_empty());
    }

    #[test]
    fn a_target_that_waits_is_not_added_again() {
        let mut queue = TargetQueue::default();
        for awaited in [Awaited::Handshake, Awaited::Answer, Awaited::Handshake] {
            assert!(queue.push(query(1, 80, awaited)));
        }
        assert_eq!(taken(&mut queue, true), [(1, 80)]);
    }

    #[test]
    fn attempts_that_are_over_come_last() {
        let mut queue = TargetQueue::default();
        for awaited in [Awaited::Nothing, Awaited::Answer, Awaited::Nothing] {
            assert!(queue.push(query(1, 80, awaited)));
        }
        assert_eq!((queue.count_others(), queue.pop(false)), (2, None));
        assert_eq!(queue.pop(true), Some(query(1, 80, Awaited::Answer)));
        assert_eq!(queue.pop(true), Some(query(1, 80, Awaited::Nothing)));
        assert!(queue.is_empty());
    }

    #[test]
    fn addresses_beyond_the_limit_are_dropped() {
        let mut queue = TargetQueue::default();
        let at = |n: u16| TargetQuery { from: Netns(u32::from(n)), ..query(1, 80, Awaited::Handshake) };
        let room = (0..2000).filter(|n| queue.push(at(*n))).count();
        assert_eq!((room, queue.push(at(0)), queue.push(at(1999))), (MAX_ADDRESSES, true, false));
    }
}
