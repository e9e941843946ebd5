//! Ranges of ports, as the kernel writes them.

/// `--service-node-port-range` of an API server that was not told otherwise.
pub const NODE_PORTS: (u16, u16) = (30000, 32767);

/// All of these in the form of `ip_local_reserved_ports` (`proc_do_large_bitmap`): in order, and joined where they touch.
#[must_use]
pub fn merged(ranges: impl IntoIterator<Item = (u16, u16)>) -> String {
    let mut all: Vec<(u16, u16)> = ranges.into_iter().collect();
    all.sort_unstable();
    let mut merged: Vec<(u16, u16)> = Vec::new();
    for (from, to) in all {
        match merged.last_mut() {
            Some(last) if u32::from(from) <= u32::from(last.1) + 1 => last.1 = last.1.max(to),
            _ => merged.push((from, to)),
        }
    }
    let text = |(from, to): &(u16, u16)| if from == to { from.to_string() } else { format!("{from}-{to}") };
    merged.iter().map(text).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::merged;

    #[test]
    fn ranges_that_touch_are_one() {
        assert_eq!(merged([(32000, 32010), (8080, 8080), (32011, 32011), (32005, 32006)]), "8080,32000-32011");
        assert_eq!(merged([(65535, 65535), (65534, 65534)]), "65534-65535");
        assert_eq!(merged([]), "");
    }
}
