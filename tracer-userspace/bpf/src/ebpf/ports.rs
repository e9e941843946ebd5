//! The map in which the programs count the ephemeral ports of each process.

use aya::maps::{HashMap, MapData};
use tracer_common::ports::PortUse;
use tracer_node::settings::local_port_range;

use super::global::Global;

/// The kernel's default range.
const DEFAULT_RANGE: (u16, u16) = (32768, 60999);

/// Counters by thread group.
pub(super) type Ports = HashMap<MapData, u32, Global<PortUse>>;

/// Reads the counters; `take` also resets them. Counts between the read and the reset get lost: microseconds once a minute.
pub(super) fn read(ports: &mut Ports, take: bool) -> Vec<(u32, PortUse)> {
    let counted: Vec<_> = ports.iter().flatten().map(|(tgid, usage)| (tgid, usage.0)).collect();
    if take {
        for (tgid, _) in &counted {
            let _ = ports.remove(tgid);
        }
    }
    counted
}

/// `net.ipv4.ip_local_port_range` of the own network namespace.
pub(super) fn range() -> (u32, u32) {
    let (first, last) = local_port_range().unwrap_or(DEFAULT_RANGE);
    (first.into(), last.into())
}
