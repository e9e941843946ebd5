//! The map in which the programs count who uses up ephemeral ports.

use std::fs;

use aya::maps::{HashMap, MapData};
use tracer_common::ports::PortUse;

use super::global::Global;

/// What the kernel takes where nothing is set.
const DEFAULT_RANGE: (u32, u32) = (32768, 60999);

/// Counters by thread group.
pub(super) type Ports = HashMap<MapData, u32, Global<PortUse>>;

/// Everything counted; with `take` the counters begin again. What is counted in between is not seen:
/// microseconds, once a minute.
pub(super) fn read(ports: &mut Ports, take: bool) -> Vec<(u32, PortUse)> {
    let counted: Vec<_> = ports.iter().flatten().map(|(tgid, usage)| (tgid, usage.0)).collect();
    if take {
        for (tgid, _) in &counted {
            let _ = ports.remove(tgid);
        }
    }
    counted
}

/// `net.ipv4.ip_local_port_range` here.
pub(super) fn range() -> (u32, u32) {
    let text = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let mut words = text.split_whitespace().map(str::parse);
    match (words.next(), words.next()) {
        (Some(Ok(first)), Some(Ok(last))) => (first, last),
        _ => DEFAULT_RANGE,
    }
}
