//! The same scenario with other names: addresses, ports, namespaces, processes, connections, times.
//!
//! This changes the JSON by the names of the fields, and so covers kinds of observation that are added later.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use serde_json::Value;

use super::fixtures::{Recorded, parse};
use tracer_model::event::{ConnId, Observation};

/// The distance between the namespaces of two instances: larger than any recording.
const NETNS_STEP: u64 = 1_000;
/// The kernel numbers network namespaces from here on (`include/linux/proc_ns.h`).
const NETNS_FIRST: u64 = 0xefff_ff00;
/// The distance between the connections of two instances: more than the nanoseconds of half a day.
const CONN_STEP: u64 = 1 << 46;

/// How many instances have addresses of their own; then the addresses repeat.
pub(crate) const SLOTS: u64 = 90;

/// One way to rename.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Renaming {
    /// Which instance: each has namespaces, connections and pids of its own. Its addresses repeat after 90 others.
    pub(crate) instance: u64,
    /// Changes ephemeral ports by exclusive or. An even number keeps the parity, which the kernel chose.
    pub(crate) ports: u16,
    /// Added to every time.
    pub(crate) shift_ns: i64,
}

impl Renaming {
    /// The observations of a recording under other names.
    pub(crate) fn of(&self, recording: &Recorded) -> Vec<Observation> {
        let mut lines = recording.lines.clone();
        lines.iter_mut().for_each(|line| self.value("", line));
        parse(&lines)
    }

    /// The new number of a connection.
    pub(crate) fn conn(&self, conn: ConnId) -> ConnId {
        ConnId(conn.0 + self.instance * CONN_STEP)
    }

    fn value(&self, name: &str, value: &mut Value) {
        match value {
            Value::Object(fields) => fields.iter_mut().for_each(|(name, value)| self.value(name, value)),
            Value::Array(items) => items.iter_mut().for_each(|item| self.value(name, item)),
            Value::Number(number) => {
                if let Some(renamed) = number.as_u64().and_then(|n| self.number(name, n)) {
                    *value = renamed.into();
                }
            }
            Value::String(text) if name == "conn" => {
                *text = text.parse().map_or_else(|_| text.clone(), |n| self.conn(ConnId(n)).0.to_string());
            }
            Value::String(text) => *text = self.text(text),
            Value::Null | Value::Bool(_) => {}
        }
    }

    fn number(&self, name: &str, n: u64) -> Option<u64> {
        match name {
            "pid" | "tid" => Some(self.pid(n)),
            "port" => u16::try_from(n).ok().map(|port| self.port(port).into()),
            name if name.ends_with("_boot_ns") => n.checked_add_signed(self.shift_ns),
            // A network namespace, in any field.
            _ if (NETNS_FIRST..=u32::MAX.into()).contains(&n) => Some(n + self.instance * NETNS_STEP),
            _ => None,
        }
    }

    /// Process 1 is the same everywhere.
    const fn pid(&self, pid: u64) -> u64 {
        if pid <= 1 { pid } else { pid + self.instance * 10_000 }
    }

    const fn port(&self, port: u16) -> u16 {
        if port < 32768 { port } else { port ^ self.ports }
    }

    /// A text: an address with or without a port, a network, the path of a process, or words with addresses in them.
    fn text(&self, text: &str) -> String {
        if let Some((pid, rest)) = text.strip_prefix("/proc/").and_then(|rest| rest.split_once('/')) {
            return pid.parse().map_or_else(|_| text.to_owned(), |pid| format!("/proc/{}/{rest}", self.pid(pid)));
        }
        text.split_inclusive([' ', ',', '/']).map(|word| self.word(word)).collect()
    }

    fn word(&self, word: &str) -> String {
        let bare = word.trim_end_matches([' ', ',', '/']);
        let end = &word[bare.len()..];
        if let Ok(addr) = bare.parse::<SocketAddr>() {
            return format!("{}{end}", SocketAddr::new(self.addr(addr.ip()), self.port(addr.port())));
        }
        bare.parse::<IpAddr>().map_or_else(|_| word.to_owned(), |addr| format!("{}{end}", self.addr(addr)))
    }

    /// Changes only the first part of an address: addresses of one network stay in one network. Addresses with a
    /// meaning of their own (loopback, unspecified, link-local, multicast) stay.
    fn addr(&self, addr: IpAddr) -> IpAddr {
        match addr {
            IpAddr::V4(v4) if v4.octets()[0] == 10 => {
                let [_, b, c, d] = v4.octets();
                Ipv4Addr::new(10 + (self.instance % SLOTS) as u8, b, c, d).into()
            }
            IpAddr::V6(v6) if v6.segments()[0] & 0xff00 == 0xfd00 => {
                let mut segments = v6.segments();
                segments[0] += (self.instance % SLOTS) as u16;
                Ipv6Addr::from(segments).into()
            }
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_are_changed_and_meanings_kept() {
        let renaming = Renaming { instance: 2, ports: 6, shift_ns: 5 };
        let mut value = json!({
            "time_boot_ns": 10, "conn": "7", "netns": 4_026_531_840_u32, "actor": {"pid": 1, "tid": 12},
            "flow": {"src": "10.88.0.1:40000", "dst": "[fd00:10::2]:8080"}, "addrs": ["127.0.0.1", "::1"],
            "path": "/proc/12/ns/net", "rule": "ip saddr 10.88.0.0/16 drop",
        });
        renaming.value("", &mut value);
        let expected = json!({
            "time_boot_ns": 15, "conn": (7 + 2 * CONN_STEP).to_string(), "netns": 4_026_533_840_u32,
            "actor": {"pid": 1, "tid": 20_012},
            "flow": {"src": "12.88.0.1:40006", "dst": "[fd02:10::2]:8080"}, "addrs": ["127.0.0.1", "::1"],
            "path": "/proc/20012/ns/net", "rule": "ip saddr 12.88.0.0/16 drop",
        });
        assert_eq!(value, expected);
    }
}
