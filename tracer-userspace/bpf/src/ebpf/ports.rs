//! The maps in which the programs count the ephemeral ports of each process.

use std::collections::BTreeMap;

use aya::maps::{HashMap, MapData, PerCpuArray, PerCpuValues};
use tracer_common::ports::{PortUse, SLOTS};
use tracer_node::settings::local_port_range;

use super::global::Global;

/// The kernel's default range.
const DEFAULT_RANGE: (u16, u16) = (32768, 60999);

/// What the programs count.
pub(super) struct Ports {
    pub(super) by_process: HashMap<MapData, u32, Global<PortUse>>,
    /// What some processes did on each CPU, and is not in `by_process` yet.
    pub(super) slots: PerCpuArray<MapData, Global<PortUse>>,
}

impl Ports {
    /// Reads the counters; `take` also resets them. Counts between the read and the reset get lost: microseconds once a
    /// minute.
    pub(super) fn read(&mut self, take: bool) -> Vec<(u32, PortUse)> {
        let mut counted: BTreeMap<u32, PortUse> =
            self.by_process.iter().flatten().map(|(tgid, usage)| (tgid, usage.0)).collect();
        for slot in 0..SLOTS {
            let Ok(cpus) = self.slots.get(&slot, 0) else { continue };
            for Global(usage) in cpus.iter().filter(|it| it.0.tgid != 0) {
                counted.entry(usage.tgid).and_modify(|total| total.add(usage)).or_insert(*usage);
            }
            if take {
                let free = vec![Global(PortUse::default()); cpus.len()];
                let _ = PerCpuValues::try_from(free).map(|free| self.slots.set(slot, free, 0));
            }
        }
        if take {
            counted.keys().for_each(|tgid| _ = self.by_process.remove(tgid));
        }
        counted.into_iter().filter(|(_, usage)| usage.connects > 0 || usage.closes > 0).collect()
    }
}

/// `net.ipv4.ip_local_port_range` of the own network namespace.
pub(super) fn range() -> (u32, u32) {
    let (first, last) = local_port_range().unwrap_or(DEFAULT_RANGE);
    (first.into(), last.into())
}
