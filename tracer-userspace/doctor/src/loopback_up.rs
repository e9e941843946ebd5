//! Whether the node's loopback link is up and has its address.

use std::net::{IpAddr, Ipv4Addr};

use super::Check;
use super::finding::{Finding, Fix, Remediation, Unread};
use super::view::View;

pub(super) const CHECK: Check = Check {
    name: "loopback_up",
    why: "connections to an address of the node itself go over lo, and so do the probes of hostNetwork pods",
    expected: || "lo is up and has 127.0.0.1".into(),
    run: |view| {
        let lo = if view.is_files() { from_files(view) } else { from_links(view) };
        Ok(vec![judge(lo?)])
    },
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Loopback {
    up: bool,
    /// Whether 127.0.0.1 is on `lo`; absent: not known.
    addressed: Option<bool>,
}

fn from_links(view: &View) -> Result<Option<Loopback>, Unread> {
    let links = view.links()?;
    let lo = links.iter().map(|link| &link.state).find(|link| link.loopback);
    let own = IpAddr::from(Ipv4Addr::LOCALHOST);
    Ok(lo.map(|lo| Loopback { up: lo.up, addressed: Some(lo.addrs.contains(&own)) }))
}

/// `/sys/class/net/lo/flags`: IFF_UP is 1.
fn from_files(view: &View) -> Result<Option<Loopback>, Unread> {
    let text = view.kernel("/sys/class/net/lo/flags")?;
    let flags = u32::from_str_radix(text.trim().trim_start_matches("0x"), 16);
    let flags = flags.map_err(|_| Unread::new(format!("/sys/class/net/lo/flags holds `{}`", text.trim()), ""))?;
    Ok(Some(Loopback { up: flags & 1 != 0, addressed: None }))
}

fn judge(lo: Option<Loopback>) -> Finding {
    let set_up = || {
        Fix::new(
            Remediation::on_node("Set lo up", "ip link set lo up"),
            "find what set it down: a tracer that runs when it happens names the process and how it entered the namespace",
        )
    };
    match lo {
        None => CHECK.draft().fail("this network namespace has no loopback link", set_up()),
        Some(Loopback { up: false, .. }) => CHECK.draft().fail("lo is down", set_up()),
        Some(Loopback { addressed: Some(false), .. }) => {
            let address = Remediation::on_node("Give lo its address", "ip addr add 127.0.0.1/8 dev lo");
            CHECK.draft().fail("lo is up and has no 127.0.0.1", Fix::lasting(address))
        }
        Some(Loopback { addressed: Some(true), .. }) => CHECK.draft().ok("lo is up and has 127.0.0.1"),
        Some(Loopback { addressed: None, .. }) => CHECK.draft().ok("lo is up"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Tree;
    use super::*;
    use crate::Status;

    #[test]
    fn lo_that_is_down_or_without_an_address_fails() {
        let of = |up, addressed| judge(Some(Loopback { up, addressed: Some(addressed) })).status;
        assert_eq!((of(false, true), of(true, false), of(true, true)), (Status::Fail, Status::Fail, Status::Ok));
        assert_eq!(judge(None).status, Status::Fail);
    }

    #[test]
    fn flags_of_a_file_are_parsed() {
        let of = |flags| Tree::new(&[("sys/class/net/lo/flags", flags)]).finding(&CHECK).status;
        assert_eq!((of("0x9\n"), of("0x8\n"), of("x\n")), (Status::Ok, Status::Fail, Status::Unknown));
    }
}
