use proptest::prelude::*;

use super::*;

impl<K: Ord + Clone, V: Clone, const MOST: usize> Recent<K, V, MOST> {
    /// The entries, the one that was written longest ago first.
    fn by_age(&self) -> Vec<(K, V)> {
        self.order.values().filter_map(|key| Some((key.clone(), self.get(key)?.clone()))).collect()
    }
}

fn filled(keys: &[u8]) -> Recent<u8, u8, 3> {
    let mut map = Recent::default();
    keys.iter().for_each(|key| map.insert(*key, *key));
    map
}

fn keys(map: &Recent<u8, u8, 3>) -> Vec<u8> {
    map.range(..).map(|(key, _)| *key).collect()
}

#[test]
fn a_full_map_drops_the_oldest_entry_not_the_smallest_key() {
    assert_eq!(keys(&filled(&[9, 1, 5])), [1, 5, 9], "there is room");
    assert_eq!(keys(&filled(&[9, 1, 5, 7])), [1, 5, 7]);
    assert_eq!(keys(&filled(&[9, 1, 5, 9, 7])), [5, 7, 9], "9 was written again");
}

#[test]
fn each_mutable_access_counts_as_a_write() {
    let writes: [fn(&mut Recent<u8, u8, 3>); 3] = [
        |map| *map.or_default(9) += 1,
        |map| map.get_mut(&9).into_iter().for_each(|it| *it += 1),
        |map| map.insert(9, 10),
    ];
    for write in writes {
        let mut map = filled(&[9, 1, 5]);
        write(&mut map);
        map.insert(7, 7);
        assert_eq!((keys(&map), map.get(&9)), (vec![5, 7, 9], Some(&10)));
    }
}

#[test]
fn a_read_does_not_count_as_a_write() {
    let mut map = filled(&[9, 1, 5]);
    assert!(map.contains_key(&9) && map.get(&9) == Some(&9) && map.values().count() == 3);
    map.insert(7, 7);
    assert_eq!(keys(&map), [1, 5, 7]);
}

#[test]
fn a_spared_key_is_dropped_last() {
    let mut map = filled(&[9, 1, 5]);
    map.insert_sparing(7, 7, |key| *key >= 9);
    assert_eq!(keys(&map), [5, 7, 9]);
    map.insert_sparing(8, 8, |_| true);
    assert_eq!(keys(&map), [5, 7, 8], "there are no others");
}

#[test]
fn a_removed_entry_leaves_room() {
    let mut map = filled(&[9, 1, 5]);
    assert_eq!((map.remove(&1), map.remove(&1)), (Some(1), None));
    map.insert(7, 7);
    assert_eq!(keys(&map), [5, 7, 9]);
    map.retain(|key, _| *key != 7);
    map.insert(8, 8);
    assert_eq!(keys(&map), [5, 8, 9]);
}

#[test]
fn a_queue_keeps_its_last_items() {
    let mut queue = VecDeque::new();
    (0..5).for_each(|n| remember(3, &mut queue, n));
    assert_eq!(queue, [2, 3, 4]);
}

const MOST: usize = 5;

/// A simple implementation with a list, from the oldest to the newest entry.
#[derive(Default)]
struct Model(Vec<(u8, u16)>);

impl Model {
    fn take(&mut self, key: u8) -> Option<u16> {
        let place = self.0.iter().position(|(at, _)| *at == key)?;
        Some(self.0.remove(place).1)
    }

    fn insert(&mut self, key: u8, value: u16, spares: impl Fn(u8) -> bool) {
        if self.take(key).is_none() && self.0.len() == MOST {
            self.0.remove(self.0.iter().position(|(at, _)| !spares(*at)).unwrap_or(0));
        }
        self.0.push((key, value));
    }

    fn add(&mut self, key: u8) {
        let value = self.0.iter().find(|(at, _)| *at == key).map_or(0, |(_, value)| *value);
        self.insert(key, value.wrapping_add(1), |_| false);
    }
}

fn is_spared(key: u8) -> bool {
    key.is_multiple_of(4)
}

fn step(map: &mut Recent<u8, u16, MOST>, model: &mut Model, (what, key, value): (u8, u8, u16)) {
    match what {
        0 | 1 => {
            map.insert(key, value);
            model.insert(key, value, |_| false);
        }
        2 => {
            map.insert_sparing(key, value, |key| is_spared(*key));
            model.insert(key, value, is_spared);
        }
        3 => {
            let it = map.or_default(key);
            *it = it.wrapping_add(1);
            model.add(key);
        }
        4 => {
            if let Some(it) = map.get_mut(&key) {
                *it = it.wrapping_add(1);
                model.add(key);
            }
        }
        5 => assert_eq!(map.remove(&key), model.take(key)),
        _ => {
            map.retain(|at, _| *at > key);
            model.0.retain(|(at, _)| *at > key);
        }
    }
}

proptest! {
    #[test]
    fn a_map_holds_the_same_as_a_list_in_the_order_of_writes(
        steps in prop::collection::vec((0u8..7, 0u8..12, any::<u16>()), 0..200)
    ) {
        let (mut map, mut model) = (Recent::default(), Model::default());
        for one in steps {
            step(&mut map, &mut model, one);
            prop_assert!(map.entries.len() <= MOST);
            prop_assert_eq!(map.order.len(), map.entries.len());
            prop_assert_eq!(&map.by_age(), &model.0);
            let mut sorted = model.0.clone();
            sorted.sort_unstable_by_key(|(key, _)| *key);
            prop_assert_eq!(map.range(..).map(|(key, value)| (*key, *value)).collect::<Vec<_>>(), sorted);
        }
    }
}
