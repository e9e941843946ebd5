//! Which target is looked at next: one that owes a handshake goes before those that owe an answer, these before those of which
//! nothing is awaited, and the addresses take turns. A pod has as many targets as it has probes: they hold up its own, and not another pod's.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

use tracer_model::event::Netns;
use tracer_model::query::{Awaited, TargetQuery};

/// Addresses and targets of each that wait at most; more are left out.
const MAX_ADDRESSES: usize = 1024;
const MAX_OF_ADDRESS: usize = 64;

/// The targets that wait.
#[derive(Debug, Default)]
pub struct Turns {
    handshakes: Lines,
    answers: Lines,
    ended: Lines,
}

impl Turns {
    /// Takes one in, unless it waits already; `false`: there is no room.
    pub fn put(&mut self, look: TargetQuery) -> bool {
        match look.awaited {
            Awaited::Handshake => self.handshakes.put(look),
            Awaited::Answer => self.handshakes.waits(&look) || self.answers.put(look),
            Awaited::Nothing => self.ended.put(look),
        }
    }

    /// The next one; of those that owe no handshake only with `others`.
    pub fn take(&mut self, others: bool) -> Option<TargetQuery> {
        let other = || self.answers.take().or_else(|| self.ended.take());
        self.handshakes.take().or_else(|| others.then(other).flatten())
    }

    /// So many that owe no handshake wait.
    pub fn others(&self) -> usize {
        self.answers.count() + self.ended.count()
    }

    pub fn is_empty(&self) -> bool {
        [&self.handshakes, &self.answers, &self.ended].iter().all(|lines| lines.turns.is_empty())
    }
}

/// The targets of each address, and in which order the addresses have their turn.
#[derive(Debug, Default)]
struct Lines {
    waiting: BTreeMap<(Netns, IpAddr), VecDeque<TargetQuery>>,
    turns: VecDeque<(Netns, IpAddr)>,
}

impl Lines {
    fn waits(&self, look: &TargetQuery) -> bool {
        self.waiting.get(&place(look)).is_some_and(|line| line.iter().any(|it| it.target == look.target))
    }

    fn count(&self) -> usize {
        self.waiting.values().map(VecDeque::len).sum()
    }

    fn put(&mut self, look: TargetQuery) -> bool {
        if self.waits(&look) {
            return true;
        }
        let place = place(&look);
        let waiting = self.waiting.get(&place).map_or(0, VecDeque::len);
        let room = if waiting == 0 { self.turns.len() < MAX_ADDRESSES } else { waiting < MAX_OF_ADDRESS };
        if room {
            self.turns.extend((waiting == 0).then_some(place));
            self.waiting.entry(place).or_default().push_back(look);
        }
        room
    }

    fn take(&mut self) -> Option<TargetQuery> {
        let place = self.turns.pop_front()?;
        let line = self.waiting.get_mut(&place)?;
        let look = line.pop_front();
        if line.is_empty() {
            self.waiting.remove(&place);
        } else {
            self.turns.push_back(place);
        }
        look
    }
}

const fn place(look: &TargetQuery) -> (Netns, IpAddr) {
    (look.from, look.target.ip())
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    fn look(host: u8, port: u16, awaited: Awaited) -> TargetQuery {
        TargetQuery {
            from: Netns(1),
            target: SocketAddr::from(([10, 0, 0, host], port)),
            reported: None,
            awaited,
            peer: None,
        }
    }

    fn taken(turns: &mut Turns, answers: bool) -> Vec<(u8, u16)> {
        let next = std::iter::from_fn(|| turns.take(answers));
        let named = |target: SocketAddr| (target.to_string().as_bytes()[7] - b'0', target.port());
        next.map(|look| named(look.target)).collect()
    }

    #[test]
    fn the_hanging_probes_of_one_pod_do_not_hold_up_anothers_look() {
        let mut turns = Turns::default();
        let room = (0..100).filter(|port| turns.put(look(1, 9000 + port, Awaited::Answer))).count();
        assert_eq!((room, turns.others()), (MAX_OF_ADDRESS, MAX_OF_ADDRESS));
        assert!(turns.put(look(2, 80, Awaited::Answer)) && turns.put(look(3, 80, Awaited::Handshake)));
        assert_eq!(turns.take(false), Some(look(3, 80, Awaited::Handshake)));
        assert_eq!(turns.take(false), None, "their time has not come");
        assert_eq!(taken(&mut turns, true)[..3], [(1, 9000), (2, 80), (1, 9001)]);
        assert!(turns.is_empty());
    }

    #[test]
    fn nor_do_its_handshakes() {
        let mut turns = Turns::default();
        (0..100).for_each(|port| _ = turns.put(look(1, 9000 + port, Awaited::Handshake)));
        assert!(turns.put(look(2, 80, Awaited::Handshake)));
        assert_eq!(taken(&mut turns, false)[..2], [(1, 9000), (2, 80)]);
    }

    #[test]
    fn a_target_waits_once() {
        let mut turns = Turns::default();
        for awaited in [Awaited::Handshake, Awaited::Answer, Awaited::Handshake] {
            assert!(turns.put(look(1, 80, awaited)));
        }
        assert_eq!(taken(&mut turns, true), [(1, 80)]);
    }

    #[test]
    fn what_is_over_comes_last_and_displaces_nothing() {
        let mut turns = Turns::default();
        for awaited in [Awaited::Nothing, Awaited::Answer, Awaited::Nothing] {
            assert!(turns.put(look(1, 80, awaited)));
        }
        assert_eq!((turns.others(), turns.take(false)), (2, None));
        assert_eq!(turns.take(true), Some(look(1, 80, Awaited::Answer)));
        assert_eq!(turns.take(true), Some(look(1, 80, Awaited::Nothing)));
        assert!(turns.is_empty());
    }

    #[test]
    fn addresses_beyond_the_limit_are_left_out() {
        let mut turns = Turns::default();
        let at = |n: u16| TargetQuery { from: Netns(u32::from(n)), ..look(1, 80, Awaited::Handshake) };
        let room = (0..2000).filter(|n| turns.put(at(*n))).count();
        assert_eq!((room, turns.put(at(0)), turns.put(at(1999))), (MAX_ADDRESSES, true, false));
    }
}
