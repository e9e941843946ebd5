//! Whether the node forwards packets between pods and the network.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::finding::{Draft, Finding, Fix, Remediation, Unread, listed, of_link};
use super::view::View;
use super::{Check, default_routes};
use tracer_model::event::Pod;
use tracer_model::shell;

pub(super) const CHECK: Check = Check {
    name: "ip_forward",
    why: "without forwarding the kernel drops all packets that are not for the node itself: pods cannot reach each other or a Service",
    expected: || V4.into(),
    run: |view| Ok(vec![v4(view), v6(view)]),
};

const V4: &str = "net.ipv4.ip_forward = 1, or forwarding = 1 for the links that pods' packets come in on";
const V6: &str = "net.ipv6.conf.all.forwarding = 1 where IPv6 is used";

fn draft(family: &str) -> Draft {
    CHECK.expects(if family == "ipv4" { V4 } else { V6 }).with("family", family)
}

fn v4(view: &View) -> Finding {
    check_v4(view).unwrap_or_else(|unread| draft("ipv4").unknown(unread))
}

/// The kernel checks the setting of the link on which a packet arrives. A write to `ip_forward` sets it for all links.
fn check_v4(view: &View) -> Result<Finding, Unread> {
    let value = view.number("net/ipv4/ip_forward")?;
    let (on, off): (Vec<_>, Vec<_>) =
        view.number_of_each_link("forwarding")?.into_iter().partition(|(_, value)| *value != 0);
    let name = |(name, _): (String, u64)| name;
    let (on, mut off): (Vec<_>, Vec<_>) = (on.into_iter().map(name).collect(), off.into_iter().map(name).collect());
    if value != 0 && !off.is_empty() {
        let used_by_pods = links_of_pod_traffic(view);
        off.retain(|name| used_by_pods.contains(name));
    }
    let only_v6 = value == 0 && default_routes::only_v6(view).unwrap_or(false);
    Ok(judge_v4(value, on, off, only_v6))
}

/// The links on which packets from and to pods arrive: uplinks, bridges, pods' links. With `--root` only the uplinks are known.
fn links_of_pod_traffic(view: &View) -> BTreeSet<String> {
    let links = view.links().unwrap_or_default();
    let pod_links = links.into_iter().filter(|link| matches!(link.kind.as_deref(), Some("veth" | "bridge")));
    let uplinks = default_routes::read_v4(view).unwrap_or_default().into_iter().map(|route| route.dev);
    pod_links.map(|link| link.state.name).chain(uplinks).collect()
}

/// `on`: links that forward. `off`: uplinks, bridges and pods' links that do not. `only_v6`: only IPv6 has a default
/// route.
fn judge_v4(value: u64, on: Vec<String>, off: Vec<String>, only_v6: bool) -> Finding {
    let observed = format!("net.ipv4.ip_forward = {value}");
    let names = |links: &[String]| listed(&links.iter().map(String::as_str).collect::<Vec<_>>());
    match value {
        0 if !on.is_empty() => draft("ipv4").with("forwarding", on.clone()).ok(format!(
            "{observed}; packets that arrive on {} are forwarded by the links' own settings, those of other links are not",
            names(&on)
        )),
        0 if only_v6 => draft("ipv4").ok(format!("{observed}; only IPv6 has a default route")),
        0 => draft("ipv4").fail(observed, Fix::sysctl(&[("net.ipv4.ip_forward", "1")])),
        _ if off.is_empty() => draft("ipv4").ok(observed),
        _ => draft("ipv4").with("not_forwarding", off.clone()).warn(
            format!(
                "{observed}, but packets that arrive on {} are not forwarded: net.ipv4.conf.<link>.forwarding = 0",
                names(&off)
            ),
            forward_links(&off),
        ),
    }
}

/// Pods' links come and go, so the loop continues after a link that is gone.
fn forward_links(links: &[String]) -> Fix {
    let links = links.iter().map(|name| shell::link(name)).collect::<Vec<_>>().join(" ");
    let now = format!("for link in {links}; do echo 1 > \"/proc/sys/net/ipv4/conf/$link/forwarding\"; done");
    let keep = "find what sets it to 0: `grep -rs forwarding /etc/sysctl.d /etc/sysctl.conf`, IPv4Forwarding= of systemd-networkd";
    Fix::new(Remediation::on_node("Let these links forward", now), keep)
}

fn v6(view: &View) -> Finding {
    let read = || -> Result<Finding, Unread> {
        let Some(value) = view.number_if_any("net/ipv6/conf/all/forwarding")? else {
            return Ok(draft("ipv6").ok("the kernel has no IPv6"));
        };
        let global = if view.exists("/proc/net/if_inet6")? { globals(&view.net("if_inet6")?) } else { Vec::new() };
        let learned = if value == 0 { default_routes::learned_v6(view)? } else { Vec::new() };
        Ok(judge_v6(value, &global, pods_use_v6(view), &learned))
    };
    read().unwrap_or_else(|unread| draft("ipv6").unknown(unread))
}

/// Whether pods of this node have IPv6 addresses, if known.
fn pods_use_v6(view: &View) -> Option<bool> {
    let has = |pods: &Vec<Pod>| pods.iter().flat_map(|pod| &pod.addrs).any(IpAddr::is_ipv6);
    view.options.pods.as_ref().map(has)
}

/// Whether the node's pods use IPv6, if known. Without a global address on a link they do not.
pub(super) fn uses_v6(view: &View) -> Option<bool> {
    if matches!(view.exists("/proc/net/if_inet6"), Ok(false)) {
        return Some(false);
    }
    pods_use_v6(view).or_else(|| globals(&view.net("if_inet6").ok()?).is_empty().then_some(false))
}

/// Links with an address of global scope. A line has address, index, prefix length, scope, flags, name.
fn globals(text: &str) -> Vec<String> {
    let rows = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let mut names: Vec<String> = rows
        .filter(|row| row.get(3) == Some(&"00"))
        .filter_map(|row| row.get(5).map(|name| (*name).to_owned()))
        .collect();
    names.dedup();
    names
}

/// `pods`: whether pods have IPv6 addresses, if known. `learned`: links with a default route from a router advertisement.
fn judge_v6(value: u64, global: &[String], pods: Option<bool>, learned: &[String]) -> Finding {
    let observed = format!("net.ipv6.conf.all.forwarding = {value}");
    match (value, pods, global) {
        (1.., ..) => draft("ipv6").ok(observed),
        (0, Some(true), _) => {
            draft("ipv6").fail(format!("{observed}, and pods of this node have IPv6 addresses"), forward_v6(learned))
        }
        (0, Some(false), _) => draft("ipv6").ok(format!("{observed}; no pod of this node has an IPv6 address")),
        (0, None, []) => draft("ipv6").ok(format!("{observed}; no link has a global IPv6 address")),
        (0, None, links) => {
            let links = links.join(", ");
            let reason =
                format!("{observed}; global IPv6 addresses on {links}, and it is not known whether pods have any");
            draft("ipv6").unknown(Unread::without_pods(reason, CHECK.name))
        }
    }
}

/// When forwarding is turned on, the kernel drops the routes of router advertisements and accepts no more, unless `accept_ra`
/// of the link is 2 (`rt6_purge_dflt_routers`). So the fix sets `accept_ra` first.
fn forward_v6(learned: &[String]) -> Fix {
    let mut all: Vec<_> = learned.iter().map(|link| (of_link("ipv6", link, "accept_ra"), "2")).collect();
    all.push(("net.ipv6.conf.all.forwarding".into(), "1"));
    Fix::sysctl(&all)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Tree, fix};
    use super::*;
    use crate::Status;

    #[test]
    fn forwarding_off_fails_and_on_is_ok() {
        let of = |value: &str| v4(&Tree::new(&[("proc/sys/net/ipv4/ip_forward", value)]).view());
        assert_eq!((of("0\n").status, of("1\n").status), (Status::Fail, Status::Ok));
        assert_eq!(fix(&of("0\n")), "sysctl -w net.ipv4.ip_forward=1");
    }

    const ROUTE: &str = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\neth0\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\t0\t0\t0\n";

    #[test]
    fn the_setting_of_each_link_decides() {
        let of = |all: &str, [eth0, eth1]: [&str; 2]| {
            let lo = ("proc/sys/net/ipv4/conf/lo/forwarding", "1\n");
            let links =
                [("proc/sys/net/ipv4/conf/eth0/forwarding", eth0), ("proc/sys/net/ipv4/conf/eth1/forwarding", eth1)];
            let rest = [("proc/sys/net/ipv4/ip_forward", all), ("proc/net/route", ROUTE), lo];
            v4(&Tree::new(&[&rest[..], &links].concat()).view())
        };
        assert_eq!(of("0", ["0", "0"]).status, Status::Fail, "lo does not count");
        let openshift = of("0", ["0", "1"]);
        assert!(openshift.status == Status::Ok && openshift.observed.contains("arrive on eth1"), "{openshift:?}");
        let uplink = of("1", ["0", "1"]);
        assert_eq!(uplink.status, Status::Warn);
        assert_eq!(fix(&uplink), "for link in eth0; do echo 1 > \"/proc/sys/net/ipv4/conf/$link/forwarding\"; done");
        let named = draft("ipv4").warn("", forward_links(&["eth0.7".into(), "a;reboot".into()]));
        assert!(fix(&named).starts_with("for link in eth0.7 DEVICE; do "), "{}", fix(&named));
        assert_eq!(of("1", ["1", "0"]).status, Status::Ok, "eth1 is no uplink, and its kind is not known");
    }

    #[test]
    fn a_node_with_ipv6_alone_need_not_forward_ipv4() {
        let zeros = "0".repeat(32);
        let six = format!("{zeros} 00 {zeros} 00 {zeros} 00000400 1 0 00000003 eth0\n");
        let of = |route: &str| {
            let files =
                [("proc/sys/net/ipv4/ip_forward", "0"), ("proc/net/route", route), ("proc/net/ipv6_route", &six)];
            v4(&Tree::new(&files).view()).status
        };
        assert_eq!((of("Iface\n"), of(ROUTE)), (Status::Ok, Status::Fail));
    }

    #[test]
    fn ipv6_forwarding_matters_only_if_pods_use_ipv6() {
        let link = ["eth0".to_owned()];
        let of = |value, global: &[String], pods| judge_v6(value, global, pods, &[]).status;
        assert_eq!((of(0, &[], None), of(0, &link, None)), (Status::Ok, Status::Unknown));
        assert_eq!((of(0, &link, Some(false)), of(0, &link, Some(true))), (Status::Ok, Status::Fail));
        assert_eq!(of(1, &link, Some(true)), Status::Ok);
        let finding = judge_v6(0, &link, None, &[]);
        let fix = fix(&finding);
        assert!(fix.starts_with("NODE=$(hostname); kubectl") && fix.contains("${NODE:?}"), "{fix}");
    }

    #[test]
    fn the_fix_keeps_routes_of_router_advertisements() {
        let of = |learned: &[&str]| {
            let learned: Vec<String> = learned.iter().map(ToString::to_string).collect();
            fix(&judge_v6(0, &[], Some(true), &learned)).to_owned()
        };
        assert_eq!(of(&[]), "sysctl -w net.ipv6.conf.all.forwarding=1");
        let both = "sysctl -w net.ipv6.conf.eth0/7.accept_ra=2 && sysctl -w net.ipv6.conf.all.forwarding=1";
        assert_eq!(of(&["eth0.7"]), both);
        assert!(of(&["$(reboot)"]).starts_with("sysctl -w net.ipv6.conf.DEVICE.accept_ra=2 &&"));
    }

    #[test]
    fn links_with_global_addresses_are_found() {
        let text = "fe800000000000000000000000000001 02 40 20 80     eth0\nfd000000000000000000000000000001 02 40 00 80     eth0\n00000000000000000000000000000001 01 80 10 80       lo\n";
        assert_eq!(globals(text), ["eth0"]);
    }

    #[test]
    fn a_kernel_without_ipv6_is_ok() {
        let tree = Tree::new(&[("proc/sys/net/core/somaxconn", "4096\n"), ("proc/sys/net/ipv4/ip_forward", "1\n")]);
        assert!(CHECK.findings(&tree.view()).iter().all(|finding| finding.status == Status::Ok));
        let tree = Tree::new(&[("proc/sys/net/ipv4/ip_forward", "1\n")]);
        assert_eq!(v6(&tree.view()).status, Status::Unknown, "a folder without settings shows nothing");
    }
}
