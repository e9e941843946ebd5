//! Reverse-path filtering against the CNI in use and the routes.

use super::finding::{Draft, Finding, Mend, Unread};
use super::view::View;
use super::{Check, default_routes};

/// The check.
pub(super) const CHECK: Check = Check {
    name: "rp_filter",
    why: "strict filtering drops a packet whose answer would leave by another link; some CNIs route like that, one refuses loose filtering",
    run: |view| vec![check(view)],
};

const STRICT: u64 = 1;
const LOOSE: u64 = 2;

/// Settings: of all links and of each (the greater counts), and where default routes go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Found {
    all: u64,
    links: Vec<(String, u64)>,
    uplinks: Vec<String>,
}

impl Found {
    fn effective(&self, value: u64) -> u64 {
        self.all.max(value)
    }

    /// Links whose names begin so, with this filtering.
    fn with(&self, prefixes: &[&str], wanted: u64) -> Vec<&str> {
        let named = |name: &str| prefixes.iter().any(|prefix| name.starts_with(prefix));
        let links = self.links.iter().filter(|(name, value)| named(name) && self.effective(*value) == wanted);
        links.map(|(name, _)| name.as_str()).collect()
    }

    fn has(&self, prefix: &str) -> bool {
        self.links.iter().any(|(name, _)| name.starts_with(prefix))
    }
}

fn draft() -> Draft {
    CHECK.expects("what the CNI in use needs: not strict (1) with Cilium, AWS VPC CNI or several uplinks, not loose (2) with Calico")
}

fn check(view: &View) -> Finding {
    read(view).map_or_else(|unread| draft().unknown(unread), |found| judge(&found))
}

fn read(view: &View) -> Result<Found, Unread> {
    let all = view.number("net/ipv4/conf/all/rp_filter")?;
    let names = view.names("/proc/sys/net/ipv4/conf")?;
    let links = names.into_iter().filter(|name| !matches!(name.as_str(), "all" | "default" | "lo"));
    // A link that is gone by now has no setting.
    let links = links.filter_map(|name| {
        let value = view.number(&format!("net/ipv4/conf/{name}/rp_filter")).ok()?;
        Some((name, value))
    });
    let uplinks = default_routes::read_v4(view)?;
    let mut uplinks: Vec<String> = uplinks.into_iter().map(|route| route.dev).collect();
    uplinks.sort_unstable();
    uplinks.dedup();
    Ok(Found { all, links: links.collect(), uplinks })
}

fn judge(found: &Found) -> Finding {
    let draft = draft().with("all", found.all);
    let list = |names: &[&str]| {
        let more = if names.len() > 4 { format!(" and {} more", names.len() - 4) } else { String::new() };
        format!("{}{more}", names.iter().take(4).copied().collect::<Vec<_>>().join(", "))
    };
    let uplinks: Vec<&str> = found.uplinks.iter().map(String::as_str).collect();
    let strict_uplinks: Vec<&str> =
        found.with(&uplinks, STRICT).into_iter().filter(|name| uplinks.contains(name)).collect();
    let cilium = found.with(&["lxc", "cilium_"], STRICT);
    if !cilium.is_empty() {
        return draft.fail(format!("strict on {}: Cilium's links need 0", list(&cilium)), off(found, &cilium));
    }
    if found.has("eni") && !strict_uplinks.is_empty() {
        return draft.fail(
            format!(
                "strict on {} with links of the AWS VPC CNI, whose answers leave by another link",
                list(&strict_uplinks)
            ),
            loose(found, &strict_uplinks),
        );
    }
    if uplinks.len() > 1 && !strict_uplinks.is_empty() {
        return draft.warn(
            format!(
                "strict on {}, and default routes over {}: what arrives on the one that is not chosen is dropped",
                list(&strict_uplinks),
                list(&uplinks)
            ),
            loose(found, &strict_uplinks),
        );
    }
    let calico = found.with(&["cali"], LOOSE);
    if !calico.is_empty() && found.all == LOOSE {
        return draft.warn(
            "net.ipv4.conf.all.rp_filter = 2 (loose) with Calico, which refuses to start so unless FELIX_IGNORELOOSERPF is set",
            Mend::sysctl(&[("net.ipv4.conf.all.rp_filter", "1")]),
        );
    }
    let strict = found.links.iter().filter(|(_, value)| found.effective(*value) == STRICT).count();
    draft.ok(format!(
        "net.ipv4.conf.all.rp_filter = {}; strict on {strict} of {} links, {} uplink(s)",
        found.all,
        found.links.len(),
        uplinks.len()
    ))
}

/// Off on these links, and with it on all: the greater of the two counts.
fn off(found: &Found, links: &[&str]) -> Mend {
    settings(found, links, "0")
}

fn loose(found: &Found, links: &[&str]) -> Mend {
    settings(found, links, "2")
}

fn settings(found: &Found, links: &[&str], value: &str) -> Mend {
    // A dot in a link's name is written as a slash in a setting's.
    let names: Vec<String> =
        links.iter().map(|link| format!("net.ipv4.conf.{}.rp_filter", link.replace('.', "/"))).collect();
    let mut all: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), value)).collect();
    if found.all == STRICT && value == "0" {
        all.insert(0, ("net.ipv4.conf.all.rp_filter", "0"));
    }
    Mend::sysctl(&all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Status;

    fn found(all: u64, links: &[(&str, u64)], uplinks: &[&str]) -> Found {
        let links = links.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        Found { all, links, uplinks: uplinks.iter().map(ToString::to_string).collect() }
    }

    #[test]
    fn strict_with_two_uplinks() {
        let two = found(1, &[("eth0", 0), ("wlan0", 0)], &["eth0", "wlan0"]);
        assert_eq!(judge(&two).status, Status::Warn);
        assert_eq!(judge(&Found { all: 2, ..two.clone() }).status, Status::Ok);
        assert_eq!(judge(&Found { uplinks: vec!["eth0".into()], ..two }).status, Status::Ok);
    }

    #[test]
    fn each_cni_has_its_own_needs() {
        let cilium = judge(&found(1, &[("lxc12", 0), ("eth0", 0)], &["eth0"]));
        assert_eq!(cilium.status, Status::Fail);
        let mend = cilium.remediation.expect("mend");
        assert_eq!(mend, "sysctl -w net.ipv4.conf.all.rp_filter=0 && sysctl -w net.ipv4.conf.lxc12.rp_filter=0");
        assert_eq!(judge(&found(0, &[("lxc12", 0)], &["eth0"])).status, Status::Ok);
        assert_eq!(judge(&found(0, &[("eni1", 0), ("eth0", 1)], &["eth0"])).status, Status::Fail);
        assert_eq!(judge(&found(2, &[("cali1", 0)], &["eth0"])).status, Status::Warn);
        assert_eq!(judge(&found(1, &[("cali1", 1)], &["eth0"])).status, Status::Ok);
    }
}
