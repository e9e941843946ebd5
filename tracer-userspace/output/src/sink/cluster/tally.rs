//! Failures of each container, counted until they may be reported. It reads no clock: callers pass the time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use jiff::Timestamp;
use tokio::time::Instant;

use super::note::{FailedPod, Note};
use super::rates::Rates;
use tracer_model::event::ConnId;
use tracer_model::record::Cause;

/// Containers and causes remembered at once.
const MAX: usize = 1024;

/// One Event.
pub(super) type Key = (FailedPod, Cause);

/// The content of an Event.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) message: String,
    /// All failures.
    pub(super) count: u32,
    /// Failures that no write to the API contains yet.
    pub(super) unsent: u32,
    pub(super) first: Timestamp,
    pub(super) last: Timestamp,
    /// The name of the Event, once it exists.
    pub(super) event: Option<String>,
    /// The last attempt that was counted. A revision of it does not count again.
    attempt: Option<ConnId>,
    /// When the next write may happen.
    due: Instant,
    last_seen: Instant,
}

#[derive(Debug)]
pub(super) struct EventTally {
    rates: Rates,
    entries: BTreeMap<Key, Entry>,
    /// Notes that no write to the API will contain.
    dropped: Arc<AtomicU64>,
}

impl EventTally {
    pub(super) const fn new(rates: Rates, dropped: Arc<AtomicU64>) -> Self {
        Self { rates, entries: BTreeMap::new(), dropped }
    }

    /// Counts a note, or drops it if there is no room.
    pub(super) fn take(&mut self, note: Note, now: Instant, wall: Timestamp) {
        let Note { about, attempt, says } = note;
        let key = says.as_ref().map(|(cause, _)| (about, *cause));
        self.withdraw(attempt, key.as_ref());
        let (Some(key), Some((_, message))) = (key, says) else { return };
        if !self.entries.contains_key(&key) && !self.make_room() {
            return self.count_dropped(1);
        }
        let due = now + self.rates.settle;
        let entry = self.entries.entry(key).or_insert_with(|| Entry::new(wall, now, due));
        entry.message = message;
        if attempt.is_none() || entry.attempt != attempt {
            entry.count_one(now, wall, due);
        }
        entry.attempt = attempt;
    }

    /// Takes back the note of this attempt under another cause than `but`, if it is not written yet.
    fn withdraw(&mut self, attempt: Option<ConnId>, but: Option<&Key>) {
        if attempt.is_none() {
            return;
        }
        let other = |(key, entry): &(&Key, &mut Entry)| entry.attempt == attempt && Some(*key) != but;
        if let Some((_, entry)) = self.entries.iter_mut().find(other).filter(|(_, entry)| entry.unsent > 0) {
            (entry.unsent, entry.count, entry.attempt) = (entry.unsent - 1, entry.count.saturating_sub(1), None);
        }
        self.entries.retain(|_, entry| entry.count > 0);
    }

    /// If there is no room, removes the oldest entry that is completely written. `false`: no such entry exists.
    fn make_room(&mut self) -> bool {
        if self.entries.len() < MAX {
            return true;
        }
        let written = self.entries.iter().filter(|(_, entry)| entry.unsent == 0);
        let oldest = written.min_by_key(|(_, entry)| entry.last_seen).map(|(key, _)| key.clone());
        oldest.is_some_and(|oldest| self.entries.remove(&oldest).is_some())
    }

    /// The entry that is due first, and when.
    pub(super) fn next(&self) -> Option<(Instant, &Key)> {
        let waiting = self.entries.iter().filter(|(_, entry)| entry.unsent > 0);
        waiting.map(|(key, entry)| (entry.due, key)).min_by_key(|(due, _)| *due)
    }

    pub(super) fn get(&self, key: &Key) -> Option<&Entry> {
        self.entries.get(key)
    }

    /// The Event of this name contains all failures of the entry.
    pub(super) fn written(&mut self, key: &Key, event: String, now: Instant) {
        let next = now + self.rates.every;
        if let Some(entry) = self.entries.get_mut(key) {
            (entry.unsent, entry.event, entry.due) = (0, Some(event), next);
        }
    }

    /// The Event of the entry exists, but its content may be old.
    pub(super) fn made(&mut self, key: &Key, event: String) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.event = Some(event);
        }
    }

    /// The API has deleted the Event: the unsent failures become a new one.
    pub(super) fn gone(&mut self, key: &Key) {
        if let Some(entry) = self.entries.get_mut(key) {
            (entry.event, entry.count, entry.first) = (None, entry.unsent, entry.last);
        }
    }

    /// Drops an entry that the API will never accept.
    pub(super) fn give_up(&mut self, key: &Key) {
        if let Some(entry) = self.entries.remove(key) {
            self.count_dropped(entry.unsent);
        }
    }

    /// Removes old entries; drops those that could not be written.
    pub(super) fn expire(&mut self, now: Instant) {
        let (give_up, forget) = (self.rates.give_up, self.rates.forget);
        let is_lost = |entry: &Entry| entry.unsent > 0 && now >= entry.due + give_up;
        let lost: Vec<Key> = self.entries.iter().filter(|(_, it)| is_lost(it)).map(|(key, _)| key.clone()).collect();
        self.entries.retain(|_, entry| entry.unsent > 0 || now < entry.last_seen + forget);
        lost.iter().for_each(|key| self.give_up(key));
    }

    /// Drops what has not been written at the end.
    pub(super) fn end(self) {
        self.entries.values().for_each(|entry| self.count_dropped(entry.unsent));
    }

    fn count_dropped(&self, notes: u32) {
        self.dropped.fetch_add(notes.into(), Ordering::Relaxed);
    }
}

impl Entry {
    const fn new(wall: Timestamp, now: Instant, due: Instant) -> Self {
        Self {
            message: String::new(),
            count: 0,
            unsent: 0,
            first: wall,
            last: wall,
            event: None,
            attempt: None,
            due,
            last_seen: now,
        }
    }

    fn count_one(&mut self, now: Instant, wall: Timestamp, due: Instant) {
        if self.unsent == 0 {
            self.due = self.due.max(due);
        }
        self.count = self.count.saturating_add(1);
        self.unsent = self.unsent.saturating_add(1);
        (self.last, self.last_seen) = (wall, now);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn note(pod: &str, attempt: u64, cause: Option<Cause>) -> Note {
        let about = FailedPod { namespace: "shop".into(), pod: pod.into(), uid: None, container: None };
        Note { about, attempt: Some(ConnId(attempt)), says: cause.map(|it| (it, format!("{attempt}"))) }
    }

    fn tally() -> (EventTally, Instant) {
        (EventTally::new(Rates::default(), Arc::default()), Instant::now())
    }

    impl EventTally {
        /// Notes that were dropped, and those that are not written yet.
        fn counts(&self) -> (u64, u32) {
            (self.dropped.load(Ordering::Relaxed), self.entries.values().map(|entry| entry.unsent).sum())
        }
    }

    const REFUSED: Cause = Cause::ConnectionRefused;

    #[test]
    fn failures_are_counted_until_one_may_be_written() {
        let (mut tally, now) = tally();
        for attempt in 1..=3 {
            tally.take(note("a", attempt, Some(REFUSED)), now, Timestamp::UNIX_EPOCH);
        }
        // A revision of the last attempt.
        tally.take(note("a", 3, Some(REFUSED)), now, Timestamp::UNIX_EPOCH);
        let (due, key) = tally.next().expect("one");
        assert_eq!(due, now + Rates::default().settle);
        let key = key.clone();
        assert_eq!(tally.get(&key).map(|it| (it.count, it.message.as_str())), Some((3, "3")));
        tally.written(&key, "a.1".into(), now);
        assert!(tally.next().is_none());
        tally.take(note("a", 4, Some(REFUSED)), now, Timestamp::UNIX_EPOCH);
        assert_eq!(tally.next().map(|(due, _)| due), Some(now + Rates::default().every));
        assert_eq!(tally.get(&key).map(|it| (it.count, it.unsent)), Some((4, 1)));
    }

    #[test]
    fn a_revision_takes_back_what_was_not_written() {
        let (mut tally, now) = tally();
        let mut take = |attempt, cause| {
            tally.take(note("a", attempt, cause), now, Timestamp::UNIX_EPOCH);
            tally.entries.iter().map(|((_, cause), it)| (*cause, it.count)).collect::<Vec<_>>()
        };
        assert_eq!(take(1, Some(REFUSED)), [(REFUSED, 1)]);
        assert_eq!(take(1, Some(Cause::SlowResponse)), [(Cause::SlowResponse, 1)]);
        assert_eq!(take(1, None), []);
        assert_eq!(take(2, None), [], "nothing was reported");
    }

    #[test]
    fn notes_that_cannot_be_written_are_dropped_and_counted() {
        let (mut tally, now) = tally();
        for attempt in 1..=2 {
            tally.take(note("a", attempt, Some(REFUSED)), now, Timestamp::UNIX_EPOCH);
        }
        tally.expire(now + Duration::from_mins(9));
        assert_eq!(tally.counts(), (0, 2));
        tally.expire(now + Duration::from_mins(11));
        assert_eq!(tally.counts(), (2, 0));
    }

    #[test]
    fn a_full_tally_drops_new_notes_and_counts_them() {
        let (mut tally, now) = tally();
        let take = |tally: &mut EventTally, n: usize| {
            tally.take(note(&format!("p{n}"), n as u64, Some(REFUSED)), now, Timestamp::UNIX_EPOCH);
            tally.counts().0
        };
        assert!((0..MAX).all(|n| take(&mut tally, n) == 0));
        assert_eq!(take(&mut tally, MAX), 1);
        let key = tally.next().map(|(_, key)| key.clone()).expect("one");
        tally.written(&key, "x".into(), now);
        assert_eq!(take(&mut tally, MAX + 1), 1, "one is written");
        assert_eq!(tally.entries.len(), MAX);
    }
}
