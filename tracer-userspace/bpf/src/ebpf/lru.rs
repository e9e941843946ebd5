//! How many entries the programs' LRU maps get: more on machines with many CPUs.
//!
//! At its first insert each CPU reserves 128 free nodes of a map (`LOCAL_FREE_TARGET`, kernel/bpf/bpf_lru_list.c). Before
//! d4adf1c9ee77 ("bpf: Adjust free target to avoid global starvation of LRU map", 2025) this had no limit. Once all nodes are
//! reserved, another CPU has a single node, and each insert replaces its previous entry.

use aya::{EbpfLoader, util::nr_cpus};

/// Every LRU map of the object with its entries, as in `tracer-ebpf/src/maps.rs`.
const MAPS: [(&str, u32); 13] = [
    ("CONNS", 8192),
    ("FLOWS", 16384),
    ("PENDING", 8192),
    ("DESTS", 8192),
    ("KNOWN", 4096),
    ("CONNECT_CALLS", 4096),
    ("ENTERING", 1024),
    ("OPENED", 1024),
    ("EXEC", 4096),
    ("LIMITS", 1024),
    ("CONN_LIMITS", 4096),
    ("LINK_DOWN", 256),
    ("PORTS", 4096),
];
/// The maps with an entry for each connection.
const OF_CONNECTIONS: [&str; 5] = ["CONNS", "FLOWS", "PENDING", "DESTS", "CONN_LIMITS"];
/// Their entries if the connections of all processes are tracked.
const FLOWS_ALL: u32 = 1 << 17;
/// How many nodes one CPU reserves.
const KEPT_BY_CPU: u32 = 128;
/// The limit of CPUs that count: with this many, the maps take about 100 MB by calculation.
const MAX_CPUS: usize = 512;

/// Sizes the maps for this machine.
pub(super) fn size(loader: &mut EbpfLoader<'_>, all_connections: bool) {
    let cpus = nr_cpus().unwrap_or(1);
    for (name, usual) in MAPS {
        let many = all_connections && OF_CONNECTIONS.contains(&name);
        loader.map_max_entries(name, entries(if many { FLOWS_ALL } else { usual }, cpus));
    }
}

/// Entries of a map, so that half of them remain even if each possible CPU reserves its nodes.
fn entries(usual: u32, cpus: usize) -> u32 {
    let kept = cpus.min(MAX_CPUS) as u32 * KEPT_BY_CPU;
    usual.max(kept + usual / 2)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use aya_obj::{Object, generated::bpf_map_type};

    use super::super::prepare::OBJECT;
    use super::*;

    #[test]
    fn every_lru_map_of_the_object_is_in_the_table() {
        let lru = |kind: u32| kind == bpf_map_type::BPF_MAP_TYPE_LRU_HASH as u32;
        let object = Object::parse(OBJECT).expect("the object");
        let maps = object.maps.iter().filter(|(_, map)| lru(map.map_type()));
        let found: BTreeMap<&str, u32> = maps.map(|(name, map)| (name.as_str(), map.max_entries())).collect();
        assert_eq!(found, BTreeMap::from(MAPS));
        assert!(OF_CONNECTIONS.iter().all(|name| found.contains_key(name)));
    }

    #[test]
    fn half_of_the_entries_remain_with_many_cpus() {
        assert_eq!([1, 2, 4, 32].map(|cpus| entries(8192, cpus)), [8192; 4]);
        assert_eq!([64, 128, 256].map(|cpus| entries(8192, cpus)), [12288, 20480, 36864]);
        assert_eq!([4, 8, 256].map(|cpus| entries(1024, cpus)), [1024, 1536, 33280]);
        for (name, usual) in MAPS {
            for cpus in 1..=MAX_CPUS {
                let left = entries(usual, cpus) - cpus as u32 * KEPT_BY_CPU;
                assert!(left >= usual / 2, "{name} with {cpus} CPUs: {left}");
            }
        }
        assert_eq!(entries(1024, 8192), entries(1024, MAX_CPUS));
    }
}
