//! Bounded collections that forget what is oldest.
//!
//! Addresses, ports and namespaces have no order in time: which of them a full map gives up cannot be known by their order.

use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeBounds;

/// A map of at most `MOST` entries, in the order of its keys: one more takes the place of the entry that was written longest
/// ago. Writes are numbered: no clock is asked, and the same input leaves the same entries.
#[derive(Clone, Debug)]
pub struct Recent<K, V, const MOST: usize> {
    /// With the number of each entry's last write.
    entries: BTreeMap<K, (u64, V)>,
    /// The keys by those numbers.
    order: BTreeMap<u64, K>,
    writes: u64,
}

impl<K, V, const MOST: usize> Default for Recent<K, V, MOST> {
    fn default() -> Self {
        const { assert!(MOST > 0, "a map with room for nothing") };
        Self { entries: BTreeMap::new(), order: BTreeMap::new(), writes: 0 }
    }
}

impl<K: Ord + Clone, V, const MOST: usize> Recent<K, V, MOST> {
    /// Takes in an entry, in place of one with this key, else of the oldest if there is no room.
    pub fn insert(&mut self, key: K, value: V) {
        self.insert_sparing(key, value, |_| false);
    }

    /// The same, but an entry with a spared key goes only if there are no others.
    pub fn insert_sparing(&mut self, key: K, value: V, spares: impl Fn(&K) -> bool) {
        if let Some(before) = self.get_mut(&key) {
            *before = value;
            return;
        }
        self.make_room(spares);
        let number = self.number();
        self.order.insert(number, key.clone());
        self.entries.insert(key, (number, value));
    }

    /// The value of a key, to be written; made if there is none.
    pub fn or_default(&mut self, key: K) -> &mut V
    where
        V: Default,
    {
        if !self.contains_key(&key) {
            self.make_room(|_| false);
        }
        let number = self.number();
        let (last, value) = self.entries.entry(key.clone()).or_default();
        self.order.remove(last);
        self.order.insert(number, key);
        *last = number;
        value
    }

    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let number = self.number();
        let (last, value) = self.entries.get_mut(key)?;
        if let Some(key) = self.order.remove(last) {
            self.order.insert(number, key);
        }
        *last = number;
        Some(value)
    }

    pub fn remove(&mut self, key: &K) -> Option<V> {
        let (last, value) = self.entries.remove(key)?;
        self.order.remove(&last);
        Some(value)
    }

    pub fn retain(&mut self, keep: impl Fn(&K, &V) -> bool) {
        let order = &mut self.order;
        self.entries.retain(|key, (last, value)| keep(key, value) || order.remove(last).is_none());
    }

    pub fn get(&self, key: &K) -> Option<&V> {
        self.entries.get(key).map(|(_, value)| value)
    }

    pub fn contains_key(&self, key: &K) -> bool {
        self.entries.contains_key(key)
    }

    /// The values, in the order of their keys.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.entries.values().map(|(_, value)| value)
    }

    /// Entries with keys in a range, in the order of the keys.
    pub fn range(&self, keys: impl RangeBounds<K>) -> impl Iterator<Item = (&K, &V)> {
        self.entries.range(keys).map(|(key, (_, value))| (key, value))
    }

    /// A number that is higher than those of all writes so far.
    const fn number(&mut self) -> u64 {
        self.writes += 1;
        self.writes
    }

    fn make_room(&mut self, spares: impl Fn(&K) -> bool) {
        if self.entries.len() < MOST {
            return;
        }
        let oldest = self.order.values().find(|key| !spares(key)).or_else(|| self.order.values().next());
        if let Some(key) = oldest.cloned() {
            self.remove(&key);
        }
    }
}

/// The last `most` things of a sequence.
pub fn remember<T>(most: usize, queue: &mut VecDeque<T>, item: T) {
    if queue.len() >= most {
        queue.pop_front();
    }
    queue.push_back(item);
}

#[cfg(test)]
mod tests;
