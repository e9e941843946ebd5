//! Bounded collections that drop their oldest entries.
//!
//! Keys such as addresses, ports and namespaces have no order in time. So a full map needs the order of writes.

use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeBounds;

/// A map of at most `MOST` entries, in the order of its keys. A full map drops the entry that was written longest ago.
/// Writes have numbers instead of times, so the same input leaves the same entries.
#[derive(Clone, Debug)]
pub struct Recent<K, V, const MOST: usize> {
    /// The entries, each with the number of its last write.
    entries: BTreeMap<K, (u64, V)>,
    /// The keys, by the number of the last write.
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
    /// Inserts an entry or replaces the one with its key. A full map drops the oldest entry for a new key.
    pub fn insert(&mut self, key: K, value: V) {
        self.insert_sparing(key, value, |_| false);
    }

    /// Inserts an entry; a full map drops an entry with a spared key only if there are no others.
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

    /// The value of a key, to be changed; a default value if there is none.
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

    /// Removes the entry that was written longest ago.
    pub fn remove_oldest(&mut self) -> Option<V> {
        let key = self.order.values().next().cloned()?;
        self.remove(&key)
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

    /// The values, in the order of their keys. Changes do not count as writes.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.entries.values_mut().map(|(_, value)| value)
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
        match self.order.values().find(|key| !spares(key)).cloned() {
            Some(key) => self.remove(&key),
            None => self.remove_oldest(),
        };
    }
}

/// Appends an item to a queue of the last `most` items.
pub fn remember<T>(most: usize, queue: &mut VecDeque<T>, item: T) {
    if queue.len() >= most {
        queue.pop_front();
    }
    queue.push_back(item);
}

#[cfg(test)]
mod tests;
