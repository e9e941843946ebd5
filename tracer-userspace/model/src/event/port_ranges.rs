//! Port ranges, in the form of the kernel's settings.

/// The default of the API server's `--service-node-port-range`.
pub const NODE_PORTS: (u16, u16) = (30000, 32767);
/// What a fix says that reserves the default NodePorts.
pub const DEFAULT_ONLY: &str =
    "30000-32767 is the default range: if your API server has --service-node-port-range, reserve that range";

/// The ranges in the form of `ip_local_reserved_ports` (`proc_do_large_bitmap`): sorted, and joined where they touch.
pub fn merged(ranges: impl IntoIterator<Item = (u16, u16)>) -> String {
    let text = |(from, to): &(u16, u16)| if from == to { from.to_string() } else { format!("{from}-{to}") };
    joined(ranges).iter().map(text).collect::<Vec<_>>().join(",")
}

/// How many ports of `ip_local_port_range` connect() takes: those with the parity of its lower bound, minus the
/// reserved ones. The other ports are for bind(0), and connect() takes them only when these are used up.
pub fn preferred((first, last): (u16, u16), reserved: &[(u16, u16)]) -> u32 {
    let (first, end) = (u32::from(first), u32::from(last) + 1);
    let below = |port: u32| port.min(end).saturating_sub(first).div_ceil(2);
    let reserved = joined(reserved.iter().copied());
    below(end) - reserved.iter().map(|(from, to)| below(u32::from(*to) + 1) - below(u32::from(*from))).sum::<u32>()
}

fn joined(ranges: impl IntoIterator<Item = (u16, u16)>) -> Vec<(u16, u16)> {
    let mut all: Vec<(u16, u16)> = ranges.into_iter().filter(|(from, to)| from <= to).collect();
    all.sort_unstable();
    let mut joined: Vec<(u16, u16)> = Vec::new();
    for (from, to) in all {
        match joined.last_mut() {
            Some(last) if u32::from(from) <= u32::from(last.1) + 1 => last.1 = last.1.max(to),
            _ => joined.push((from, to)),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::{merged, preferred};

    #[test]
    fn ranges_that_touch_are_joined() {
        assert_eq!(merged([(32000, 32010), (8080, 8080), (32011, 32011), (32005, 32006)]), "8080,32000-32011");
        assert_eq!(merged([(65535, 65535), (65534, 65534)]), "65534-65535");
        assert_eq!(merged([]), "");
    }

    #[test]
    fn the_number_of_preferred_ports_equals_a_count_one_by_one() {
        let one_by_one = |(first, last): (u16, u16), reserved: &[(u16, u16)]| {
            let is_in = |port: u16| reserved.iter().any(|(from, to)| (*from..=*to).contains(&port));
            (first..=last).filter(|port| (port - first).is_multiple_of(2) && !is_in(*port)).count() as u32
        };
        let reserved: [&[(u16, u16)]; 7] = [
            &[],
            &[(30000, 32767), (8080, 8080)],
            &[(1025, 1025), (1020, 1026), (1026, 1031), (1040, 1041)],
            &[(0, 1024), (65000, 65535)],
            &[(1030, 1020), (1027, 1029)],
            &[(0, 65535)],
            &[(1033, 1050)],
        ];
        for range in [(1024, 65000), (1025, 1034), (1033, 1033), (0, 65535), (65535, 65535), (2000, 1000)] {
            for reserved in reserved {
                assert_eq!(preferred(range, reserved), one_by_one(range, reserved), "{range:?} less {reserved:?}");
            }
        }
    }
}
