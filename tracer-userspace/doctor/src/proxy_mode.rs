//! Whether the kernel has the tables of one kube-proxy mode only.

use std::collections::BTreeSet;

use super::Check;
use super::finding::{Finding, Fix, Unread};
use super::view::View;
use tracer_model::event::{Backend, ProxyMode};
use tracer_netfilter::Survey;
use tracer_node::links::Link;

pub(super) const CHECK: Check = Check {
    name: "proxy_mode",
    why: "tables of a second proxy, or of a former one, send a Service's packets to backends that no longer exist",
    expected: || "the tables of one proxy: IPVS, iptables or nftables".into(),
    run: |view| Ok(vec![check(view)?]),
};

fn check(view: &View) -> Result<Finding, Unread> {
    let services = view.exists("/proc/thread-self/net/ip_vs")? && has_services(&view.net("ip_vs")?);
    let links = view.links()?;
    let ipvs = services && links.iter().any(is_proxy_link);
    let cilium = links.iter().any(|link| link.state.name == "cilium_host");
    let finding = judge(&proxies(ipvs, &view.firewall()?), cilium);
    Ok(if services && !ipvs { with_other_ipvs(finding) } else { finding })
}

/// Whether this is the link of kube-proxy or kube-router. kube-vip and keepalived make IPVS services without such a link.
fn is_proxy_link(link: &Link) -> bool {
    link.holds_service_addresses() || link.state.name == "kube-dummy-if"
}

fn with_other_ipvs(finding: Finding) -> Finding {
    let observed = format!("{}; services of IPVS without kube-proxy's link (kube-vip, keepalived)", finding.observed);
    Finding { observed, ..finding }
}

/// `/proc/net/ip_vs` has three heading lines, then a line for each virtual service.
fn has_services(text: &str) -> bool {
    text.lines().any(|line| ["TCP ", "UDP ", "SCTP", "FWM "].iter().any(|kind| line.starts_with(kind)))
}

/// The mode of each proxy with tables, and the backend of iptables (else empty).
type Tables = BTreeSet<(String, &'static str)>;

/// kube-proxy makes iptables chains in IPVS mode, too. Only the chain of a Service shows the iptables mode.
fn proxies(ipvs: bool, survey: &Survey) -> Tables {
    let mut found = Tables::new();
    if ipvs {
        found.insert((ProxyMode::Ipvs.to_string(), ""));
    }
    for table in &survey.tables {
        if table.backend == Backend::Nftables && table.name == "kube-proxy" {
            found.insert((ProxyMode::Nftables.to_string(), ""));
        } else if table.chains.iter().any(|chain| chain.name.starts_with("KUBE-SVC-")) {
            let backend = if table.backend == Backend::IptablesLegacy { "legacy" } else { "nft" };
            found.insert((ProxyMode::Iptables.to_string(), backend));
        }
    }
    found
}

fn judge(found: &Tables, cilium: bool) -> Finding {
    let text = |(mode, backend): &(String, &str)| {
        if backend.is_empty() { mode.clone() } else { format!("{mode} ({backend})") }
    };
    let names: Vec<String> = found.iter().map(text).collect();
    let modes: Vec<&str> = found.iter().map(|(mode, _)| mode.as_str()).collect();
    let draft = CHECK.draft().with("modes", modes);
    match names.as_slice() {
        [] if cilium => draft.ok("no kube-proxy tables, but links of Cilium, which can replace kube-proxy"),
        [] => draft.unknown(Unread::new(
            "no Service in the tables of IPVS, iptables or nftables: kube-proxy does not run here, has not written them yet, or another program replaces it",
            "on a node of a cluster: `kubectl -n kube-system get pods -o wide | grep kube-proxy`",
        )),
        [one] => draft.ok(one.clone()),
        several => draft.warn(
            format!("tables of several proxies: {}", several.join(", ")),
            Fix::lasting("`kube-proxy --cleanup` while kube-proxy is stopped, then start it again; or restart the node"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Status;
    use tracer_model::event::LinkState;
    use tracer_netfilter::{SurveyChain, SurveyTable};

    fn survey(backend: Backend, name: &str, chain: &str) -> Survey {
        let chains = vec![SurveyChain { name: chain.into(), ..SurveyChain::default() }];
        Survey { tables: vec![SurveyTable { backend, family: "ip", name: name.into(), chains }], ..Survey::default() }
    }

    #[test]
    fn one_proxy_is_ok_and_two_are_a_warning() {
        let iptables = survey(Backend::IptablesNft, "nat", "KUBE-SVC-ABC");
        assert_eq!(judge(&proxies(false, &iptables), false).observed, "iptables (nft)");
        let both = judge(&proxies(true, &iptables), false);
        assert_eq!(both.status, Status::Warn);
        assert_eq!(both.observed, "Tables of several proxies: iptables (nft), ipvs");
        let nftables = survey(Backend::Nftables, "kube-proxy", "services");
        assert_eq!(judge(&proxies(false, &nftables), false).observed, "nftables");
    }

    #[test]
    fn iptables_chains_of_the_ipvs_mode_are_no_second_proxy() {
        let chains = survey(Backend::IptablesNft, "nat", "KUBE-SERVICES");
        assert_eq!(judge(&proxies(true, &chains), false).observed, "ipvs");
    }

    #[test]
    fn no_table_is_unknown_unless_cilium_is_there() {
        assert_eq!(judge(&Tables::new(), false).status, Status::Unknown);
        assert_eq!(judge(&Tables::new(), true).status, Status::Ok);
    }

    #[test]
    fn ipvs_services_belong_to_a_proxy_only_with_its_link() {
        let link =
            |name: &str| Link { state: LinkState { name: name.into(), ..LinkState::default() }, ..Link::default() };
        assert!(is_proxy_link(&link("kube-ipvs0")) && is_proxy_link(&link("kube-dummy-if")));
        assert!(!is_proxy_link(&link("eth0")));
        let iptables = survey(Backend::IptablesNft, "nat", "KUBE-SVC-ABC");
        let finding = with_other_ipvs(judge(&proxies(false, &iptables), false));
        assert!(finding.status == Status::Ok && finding.observed.contains("keepalived"), "{finding:?}");
    }

    #[test]
    fn virtual_services_are_found_after_the_heading() {
        let head = "IP Virtual Server version 1.2.1 (size=4096)\nProt LocalAddress:Port Scheduler Flags\n  -> RemoteAddress:Port\n";
        assert!(!has_services(head) && has_services(&format!("{head}TCP  0A600001:01BB rr\n")));
    }
}
