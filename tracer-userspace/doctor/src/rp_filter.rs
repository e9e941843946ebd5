//! Whether reverse-path filtering suits the CNI in use and the routes.

use std::collections::BTreeSet;

use super::finding::{Finding, Fix, KEEP, Remediation, Unread, listed, of_link};
use super::view::View;
use super::{Check, default_routes};

pub(super) const CHECK: Check = Check {
    name: "rp_filter",
    why: "strict filtering drops a packet if its answer would leave by another link, and some CNIs route like that",
    expected: || {
        "what the CNI in use needs: off (0) on Cilium's links; not strict (1) with AWS VPC CNI or several uplinks"
            .into()
    },
    run: |view| Ok(vec![judge(&read(view)?)]),
};

const STRICT: u64 = 1;
/// Name prefixes of Cilium's links: those of pods, and its own.
const CILIUM: &[&str] = &["lxc", "cilium_"];

/// The settings `all` and of each link, of which the kernel uses the greater, and the links of default routes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Filtering {
    all: u64,
    links: Vec<(String, u64)>,
    uplinks: Vec<String>,
}

impl Filtering {
    fn effective(&self, value: u64) -> u64 {
        self.all.max(value)
    }

    /// Links with one of these prefixes, if `like` is true for their effective setting.
    fn links_with(&self, prefixes: &[&str], like: impl Fn(u64) -> bool) -> Vec<&str> {
        let named = |name: &str| prefixes.iter().any(|prefix| name.starts_with(prefix));
        let links = self.links.iter().filter(|(name, value)| named(name) && like(self.effective(*value)));
        links.map(|(name, _)| name.as_str()).collect()
    }

    fn has(&self, prefix: &str) -> bool {
        self.links.iter().any(|(name, _)| name.starts_with(prefix))
    }
}

fn read(view: &View) -> Result<Filtering, Unread> {
    let all = view.number("net/ipv4/conf/all/rp_filter")?;
    let links = view.number_of_each_link("rp_filter")?;
    let uplinks: BTreeSet<String> = default_routes::read_v4(view)?.into_iter().map(|route| route.dev).collect();
    Ok(Filtering { all, links, uplinks: uplinks.into_iter().collect() })
}

fn judge(found: &Filtering) -> Finding {
    let draft = CHECK.draft().with("all", found.all);
    let uplinks: Vec<&str> = found.uplinks.iter().map(String::as_str).collect();
    let strict_uplinks: Vec<&str> =
        found.links_with(&uplinks, |value| value == STRICT).into_iter().filter(|name| uplinks.contains(name)).collect();
    let cilium = found.links_with(CILIUM, |value| value > 0);
    // `lxc` alone does not show Cilium: lxcbr0 is a bridge of the package lxc.
    if found.has("cilium_host") && !cilium.is_empty() {
        return draft.fail(format!("on for {}: Cilium's links need 0, also in net.ipv4.conf.all (on a link without an IPv4 address, loose (2) drops as strict does)", listed(&cilium)), turn_off(found));
    }
    if found.has("eni") && !strict_uplinks.is_empty() {
        let strict = listed(&strict_uplinks);
        let observed = format!("strict on {strict} with links of the AWS VPC CNI: answers leave by another link");
        return draft.fail(observed, set_loose(&strict_uplinks));
    }
    if uplinks.len() > 1 && !strict_uplinks.is_empty() {
        let observed = format!(
            "strict on {}, and default routes over {}: the kernel drops packets that arrive on an uplink that it does not choose for the answer",
            listed(&strict_uplinks),
            listed(&uplinks)
        );
        return draft.warn(observed, set_loose(&strict_uplinks));
    }
    let strict = found.links.iter().filter(|(_, value)| found.effective(*value) == STRICT).count();
    draft.ok(format!(
        "net.ipv4.conf.all.rp_filter = {}; strict on {strict} of {} links; uplinks: {}",
        found.all,
        found.links.len(),
        uplinks.len()
    ))
}

/// Turns the filter off on Cilium's links and in `all`, because the kernel uses the greater of both. Pods' links come and go:
/// the command loops over the present ones, and a glob pattern covers later ones (sysctl.d(5)).
fn turn_off(found: &Filtering) -> Fix {
    let all = [("net.ipv4.conf.all.rp_filter", "0")];
    let all = if found.all > 0 { &all[..] } else { &[] };
    let first = if all.is_empty() { "" } else { "sysctl -w net.ipv4.conf.all.rp_filter=0; " };
    let links = [("net.ipv4.conf.lxc*.rp_filter", "0"), ("net.ipv4.conf.cilium_*.rp_filter", "0")];
    let folder = "/proc/sys/net/ipv4/conf";
    let now = format!(
        "{first}for f in {folder}/lxc*/rp_filter {folder}/cilium_*/rp_filter; do [ ! -e \"$f\" ] || echo 0 > \"$f\"; done"
    );
    let keep = Fix::persist(&[all, &links].concat());
    Fix::new(Remediation::on_node("Turn the filter off on Cilium's links", now), Remediation::on_node(KEEP, keep))
}

fn set_loose(links: &[&str]) -> Fix {
    let all: Vec<_> = links.iter().map(|link| (of_link("ipv4", link, "rp_filter"), "2")).collect();
    Fix::sysctl(&all)
}

#[cfg(test)]
mod tests {
    use super::super::testing::fix;
    use super::*;
    use crate::Status;

    fn found(all: u64, links: &[(&str, u64)], uplinks: &[&str]) -> Filtering {
        let links = links.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        Filtering { all, links, uplinks: uplinks.iter().map(ToString::to_string).collect() }
    }

    #[test]
    fn strict_filtering_with_two_uplinks_is_a_warning() {
        let two = found(1, &[("eth0", 0), ("wlan0", 0)], &["eth0", "wlan0"]);
        assert_eq!(judge(&two).status, Status::Warn);
        assert_eq!(judge(&Filtering { all: 2, ..two.clone() }).status, Status::Ok);
        assert_eq!(judge(&Filtering { uplinks: vec!["eth0".into()], ..two }).status, Status::Ok);
    }

    #[test]
    fn filtering_is_judged_by_the_needs_of_the_cni() {
        let links = |value| [("cilium_host", 0), ("lxc12", value), ("eth0", 0)];
        let cilium = judge(&found(1, &links(0), &["eth0"]));
        assert_eq!(cilium.status, Status::Fail);
        let command = "sysctl -w net.ipv4.conf.all.rp_filter=0; for f in /proc/sys/net/ipv4/conf/lxc*/rp_filter /proc/sys/net/ipv4/conf/cilium_*/rp_filter; do [ ! -e \"$f\" ] || echo 0 > \"$f\"; done";
        assert_eq!(fix(&cilium), command);
        assert!(cilium.persist.is_some_and(|it| it.to_string().contains("'net.ipv4.conf.lxc*.rp_filter = 0'")));
        let one = judge(&found(0, &links(1), &["eth0"]));
        assert!(one.status == Status::Fail && one.persist.is_some_and(|it| !it.to_string().contains("conf.all.")));
        assert_eq!(judge(&found(0, &links(0), &["eth0"])).status, Status::Ok);
        let by_systemd = judge(&found(0, &links(2), &["eth0"]));
        assert_eq!(by_systemd.status, Status::Fail, "2 drops on a link without an address");
        let loose = judge(&found(2, &links(0), &["eth0"]));
        assert!(fix(&loose).starts_with("sysctl -w net.ipv4.conf.all.rp_filter=0; "));
        assert_eq!(judge(&found(1, &[("lxcbr0", 0)], &["eth0"])).status, Status::Ok, "the bridge of the package lxc");
        assert_eq!(judge(&found(0, &[("eni1", 0), ("eth0", 1)], &["eth0"])).status, Status::Fail);
        assert_eq!(judge(&found(2, &[("cali1", 0)], &["eth0"])).status, Status::Ok);
        assert_eq!(judge(&found(1, &[("cali1", 1)], &["eth0"])).status, Status::Ok);
    }
}
