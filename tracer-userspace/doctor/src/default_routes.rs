//! The default routes of the main routing table.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use super::Check;
use super::finding::{Finding, Fix, Remediation, Unread};
use super::view::View;
use tracer_model::shell;

pub(super) const CHECK: Check = Check {
    name: "default_routes",
    why: "kubelet and CNI agents take the node's address and uplink from the default route. With several routes, these can change at each start; without one, ClusterIPs are unreachable",
    expected: || "one IPv4 default route".into(),
    run: |view| Ok(vec![check(view)?]),
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Route {
    pub(super) dev: String,
    pub(super) gateway: Ipv4Addr,
    pub(super) metric: u32,
}

impl Route {
    /// The words ` via GATEWAY`; empty if the route has no gateway.
    fn via(&self) -> String {
        if self.gateway.is_unspecified() { String::new() } else { format!(" via {}", self.gateway) }
    }
}

fn check(view: &View) -> Result<Finding, Unread> {
    let text = view.net("route")?;
    // A node with other IPv4 routes may have lost its default route.
    let without_v4 = text.lines().count() == 1;
    let only_v6 = without_v4 && only_v6(view)?;
    Ok(if only_v6 { CHECK.draft().ok("no IPv4 route at all, and an IPv6 default route") } else { judge(&parse(&text)) })
}

/// `include/uapi/linux/route.h`. RTF_REJECT marks unreachable, prohibit and blackhole routes.
const RTF_UP: u32 = 1;
const RTF_REJECT: u32 = 0x200;

/// Whether the node has an IPv6 default route and no IPv4 one.
pub(super) fn only_v6(view: &View) -> Result<bool, Unread> {
    Ok(read_v4(view)?.is_empty() && view.exists("/proc/net/ipv6_route")? && has_v6(&view.net("ipv6_route")?))
}

pub(super) fn read_v4(view: &View) -> Result<Vec<Route>, Unread> {
    Ok(parse(&view.net("route")?))
}

/// `Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT`, addresses in the byte order of the machine.
fn parse(text: &str) -> Vec<Route> {
    let route = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let hex = |at: usize| u32::from_str_radix(words.get(at)?, 16).ok();
        let is_usable = hex(3)? & (RTF_UP | RTF_REJECT) == RTF_UP;
        let default = hex(1)? == 0 && hex(7)? == 0;
        let gateway = Ipv4Addr::from(hex(2)?.to_ne_bytes());
        let metric = words.get(6)?.parse().ok()?;
        (is_usable && default).then(|| Route { dev: words[0].to_owned(), gateway, metric })
    };
    text.lines().skip(1).filter_map(route).collect()
}

/// include/uapi/linux/ipv6_route.h: the kernel learned the route from a router advertisement.
const RTF_ADDRCONF: u32 = 0x0004_0000;

/// Links with an IPv6 default route that the kernel learned.
pub(super) fn learned_v6(view: &View) -> Result<Vec<String>, Unread> {
    if !view.exists("/proc/net/ipv6_route")? {
        return Ok(Vec::new());
    }
    let text = view.net("ipv6_route")?;
    let links = v6_defaults(&text).filter(|(flags, _)| flags & RTF_ADDRCONF != 0).map(|(_, link)| link.to_owned());
    Ok(links.collect::<BTreeSet<_>>().into_iter().collect())
}

fn has_v6(text: &str) -> bool {
    v6_defaults(text).next().is_some()
}

/// Flags and device of each IPv6 default route. A line has destination, prefix length, source, prefix length, next hop,
/// metric, references, use, flags, device. The kernel's own last route, which rejects all packets, is on `lo`.
fn v6_defaults(text: &str) -> impl Iterator<Item = (u32, &str)> {
    text.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let default = words.get(1) == Some(&"00") && words[0].bytes().all(|byte| byte == b'0');
        let (flags, link) = (u32::from_str_radix(words.get(8)?, 16).ok()?, *words.get(9)?);
        (default && link != "lo").then_some((flags, link))
    })
}

fn judge(routes: &[Route]) -> Finding {
    let text = |route: &Route| format!("{}{} metric {}", route.dev, route.via(), route.metric);
    let draft = CHECK.draft().with("routes", routes.len());
    let list: Vec<_> = routes.iter().map(text).collect();
    match routes {
        [] => draft.warn(
            "no IPv4 default route: ClusterIPs of kube-proxy are unreachable unless another route covers them",
            Fix::new(
                Remediation::on_node("Add a default route", "ip route add default via GATEWAY dev UPLINK"),
                "set it in the node's network configuration (systemd-networkd, netplan, NetworkManager)",
            ),
        ),
        [_] => draft.ok(format!("one: {}", list[0])),
        [best, rest @ ..] => {
            let tied = rest.iter().any(|route| route.metric == best.metric && route.dev != best.dev);
            let how = if tied { "with the same metric" } else { "with different metrics" };
            let observed = format!("{} default routes {how}: {}", routes.len(), list.join("; "));
            let keep = "where a route was deleted, take it out of the network configuration, too";
            draft.warn(observed, Fix::new(keep_one(best, rest), keep))
        }
    }
}

const NAME_THE_ADDRESS: &str =
    "Name the node's address and uplink: kubelet `--node-ip`, flannel `--iface`, Calico IP_AUTODETECTION_METHOD.";

/// The kernel prefers one of two routes with different metrics. The other may be for the time when the first uplink fails,
/// so it goes only if a person says so.
fn keep_one(best: &Route, rest: &[Route]) -> Remediation {
    match rest {
        [other] if other.dev != best.dev && other.metric != best.metric => {
            let spare = if other.metric > best.metric { other } else { best };
            let command =
                format!("ip route del default{} dev {} metric {}", spare.via(), shell::link(&spare.dev), spare.metric);
            let text = "Only if that link is no standby uplink: delete the route with the higher metric";
            Remediation::on_node(format!("{NAME_THE_ADDRESS} {text}"), command)
        }
        _ => format!(
            "{NAME_THE_ADDRESS} Or decide which of them the node is to use, and delete the others with `ip route del`"
        )
        .into(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Tree, fix};
    use super::*;
    use crate::Status;

    const HEAD: &str = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n";
    const ETH: &str = "eth0\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\t0\t0\t0\n";
    const WLAN: &str = "wlan0\t00000000\t0100010A\t0003\t0\t0\t600\t00000000\t0\t0\t0\n";
    const OTHER: &str = "eth0\t0000000A\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0\n";

    #[test]
    fn a_node_with_only_ipv6_routes_is_ok() {
        let none = "00000000000000000000000000000000 00 00000000000000000000000000000000 00 00000000000000000000000000000000 ffffffff 1 0 00200200 lo\n";
        let one = none.replace("lo\n", "eth0\n");
        let of = |v6: &str| Tree::new(&[("proc/net/route", HEAD), ("proc/net/ipv6_route", v6)]).finding(&CHECK).status;
        assert_eq!((of(none), of(&one)), (Status::Warn, Status::Ok));
    }

    #[test]
    fn only_links_with_learned_ipv6_routes_are_listed() {
        let row = |flags: &str, link: &str| {
            let zeros = "0".repeat(32);
            format!("{zeros} 00 {zeros} 00 fe80{} 00000400 1 0 {flags} {link}\n", "0".repeat(28))
        };
        let text = [row("00450003", "eth1"), row("00000003", "eth0"), row("00450003", "eth1")].concat();
        let tree = Tree::new(&[("proc/net/ipv6_route", &text)]);
        assert_eq!(learned_v6(&tree.view()), Ok(vec!["eth1".to_owned()]));
        assert_eq!(learned_v6(&Tree::new(&[("etc/hostname", "")]).view()), Ok(Vec::new()));
    }

    #[test]
    fn the_fix_for_a_route_without_a_gateway_names_no_gateway() {
        let tunnel = "wg0\t00000000\t00000000\t0001\t0\t0\t600\t00000000\t0\t0\t0\n";
        let finding = judge(&parse(&format!("{HEAD}{ETH}{tunnel}")));
        assert_eq!(fix(&finding), "ip route del default dev wg0 metric 600");
    }

    #[test]
    fn a_blackhole_route_is_no_second_default_route() {
        let blackhole = "*\t00000000\t00000000\t0201\t0\t0\t4278198272\t00000000\t0\t0\t0\n";
        assert_eq!(judge(&parse(&format!("{HEAD}{ETH}{blackhole}"))).status, Status::Ok);
    }

    #[test]
    fn only_one_default_route_is_ok() {
        let of = |rows: &[&str]| judge(&parse(&format!("{HEAD}{}", rows.concat())));
        assert_eq!(of(&[OTHER]).status, Status::Warn);
        let one = of(&[ETH, OTHER]);
        assert_eq!((one.status, one.observed.as_str()), (Status::Ok, "one: eth0 via 10.0.0.1 metric 100"));
        let two = of(&[ETH, WLAN, OTHER]);
        assert_eq!(two.status, Status::Warn);
        assert_eq!(fix(&two), "ip route del default via 10.1.0.1 dev wlan0 metric 600");
        let text = two.remediation.as_ref().map(|it| it.text.as_str()).unwrap_or_default();
        let standby = text.find("Only if that link is no standby uplink: delete");
        assert!(text.starts_with("Name the node's address") && standby.is_some(), "{text}");
        assert_eq!(of(&[WLAN, ETH]).remediation, two.remediation, "the order does not matter");
    }

    #[test]
    fn a_person_decides_where_the_metrics_do_not() {
        let tied = WLAN.replace("600", "100");
        let same_device = ETH.replace("0100000A", "0200000A").replace("100\t", "600\t");
        let third = WLAN.replace("wlan0", "eth1").replace("600", "700");
        for rows in [vec![ETH, &tied], vec![ETH, &same_device], vec![ETH, WLAN, &third]] {
            let finding = judge(&parse(&format!("{HEAD}{}", rows.concat())));
            assert_eq!((finding.status, finding.fields["routes"].as_u64()), (Status::Warn, Some(rows.len() as u64)));
            let remediation = finding.remediation.expect("a fix");
            assert_eq!(remediation.commands, [], "{rows:?}");
            assert!(remediation.text.contains("Or decide which"), "{}", remediation.text);
        }
    }
}
