//! Finds the software that made a netfilter rule, by the names of its chain and table.

use tracer_model::event::{Backend, FirewallRule};

/// Software that writes rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    pub name: &'static str,
    /// It enforces network policies.
    pub policy: bool,
}

const fn owner(name: &'static str) -> Owner {
    Owner { name, policy: false }
}

const fn enforcer(name: &'static str) -> Owner {
    Owner { name, policy: true }
}

pub(crate) const FIREWALLD: Owner = owner("firewalld");
const KUBE_PROXY: Owner = owner("kube-proxy");

/// By the beginning of the chain's name.
const CHAINS: &[(&str, Owner)] = &[
    ("ufw-", owner("ufw")),
    ("ufw6-", owner("ufw")),
    ("cali-", enforcer("calico")),
    ("CILIUM_", enforcer("cilium")),
    ("KUBE-NWPLCY-", enforcer("kube-router")),
    ("KUBE-POD-FW-", enforcer("kube-router")),
    (ROUTER_SERVICES, owner("kube-router")),
    ("KUBE-ROUTER-", enforcer("kube-router")),
    ("WEAVE-NPC", enforcer("weave")),
    ("WEAVE-", owner("weave")),
    ("ANTREA-", enforcer("antrea")),
    ("AZURE-NPM", enforcer("azure-npm")),
    // Both write the same rules into it (pkg/kubelet/kubelet_network_linux.go, pkg/proxy/iptables/proxier.go).
    ("KUBE-FIREWALL", owner("the kubelet or kube-proxy")),
    ("KUBE-", KUBE_PROXY),
    ("FLANNEL-", owner("flannel")),
    ("DOCKER", owner("docker")),
    ("NETAVARK", owner("podman")),
    ("CNI-", owner("CNI plugins")),
    ("LIBVIRT_", owner("libvirt")),
    ("f2b-", owner("fail2ban")),
    ("CHAOS-", owner("chaos-mesh")),
    ("INPUT_ZONES", FIREWALLD),
    ("FORWARD_ZONES", FIREWALLD),
    ("FORWARD_IN_ZONES", FIREWALLD),
];

/// The table of firewalld that drops everything: in panic mode, and for a moment while firewalld starts or reloads.
pub const PANIC: &str = "firewalld_policy_drop";

/// By the whole name of the table.
const TABLES: &[(&str, Owner)] = &[
    ("firewalld", FIREWALLD),
    (PANIC, FIREWALLD),
    ("calico", enforcer("calico")),
    ("cilium", enforcer("cilium")),
    ("kube-network-policies", enforcer("kube-network-policies")),
    ("kindnet-network-policies", enforcer("kindnet")),
    ("kube-proxy", KUBE_PROXY),
    ("flannel-ipv4", owner("flannel")),
    ("flannel-ipv6", owner("flannel")),
    ("docker-bridges", owner("docker")),
    ("netavark", owner("podman")),
    ("f2b-table", owner("fail2ban")),
    ("crowdsec", owner("crowdsec")),
    ("crowdsec6", owner("crowdsec")),
];

/// The software that made the rule, if its names show it. A policy is of ufw if ufw has chains in the same table.
pub fn owner_of(rule: &FirewallRule, all: &[FirewallRule]) -> Option<Owner> {
    by_chain(&rule.chain).or_else(|| by_table(&rule.table)).or_else(|| {
        let neighbours = all.iter().filter(|it| it.backend == rule.backend && it.table == rule.table);
        let mut owners = neighbours.filter_map(|it| by_chain(&it.chain));
        rule.policy.then(|| owners.find(|owner| owner.name == "ufw")).flatten()
    })
}

/// kube-proxy made the rule.
pub fn is_of_kube_proxy(rule: &FirewallRule) -> bool {
    owner_of(rule, &[]) == Some(KUBE_PROXY)
}

/// The rule rejects a Service without endpoints. kube-proxy looks it up by address, protocol and port, before it
/// rejects the rest of its ClusterIPs (pkg/proxy/nftables, `setupNFTables`).
pub(crate) fn is_endpoints_check(rule: &FirewallRule) -> bool {
    let chains = ["service-endpoints-check", "nodeport-endpoints-check"];
    is_nft_proxy(rule) && chains.contains(&rule.chain.as_str()) && rule.when.dport.is_some()
}

/// The rule rejects a Service's address on a port that the Service does not have, or a ClusterIP of no Service.
pub fn is_cluster_ips_check(rule: &FirewallRule) -> bool {
    let for_ipvs = [IPVS_FILTER, ROUTER_SERVICES].contains(&rule.chain.as_str());
    is_nft_proxy(rule) && rule.chain == "cluster-ips-check" || for_ipvs
}

/// The rule drops a ClusterIP that no Service has (pkg/proxy/nftables, `setupNFTables`).
pub fn is_of_no_service(rule: &FirewallRule) -> bool {
    is_cluster_ips_check(rule) && rule.comment.as_deref() == Some("Drop traffic to unallocated ClusterIPs")
}

/// The chain for packets to a Service's address that IPVS did not take (pkg/proxy/ipvs, `kubeIPVSFilterChain`).
pub const IPVS_FILTER: &str = "KUBE-IPVS-FILTER";
/// That of kube-router, which has other chains for policies (pkg/controllers/proxy, `setupIpvsFirewall`).
const ROUTER_SERVICES: &str = "KUBE-ROUTER-SERVICES";

/// The fix for a rule that its owner adds for a reason of its own, and a command for the cluster.
pub fn own_fix(rule: &FirewallRule) -> Option<(&'static str, &'static str)> {
    let comment = rule.comment.as_deref().unwrap_or_default();
    let by_source = comment.contains(" traffic not accepted by KUBE-FW-")
        || rule.chain == "KUBE-SOURCE-RANGES-FIREWALL"
        || is_nft_proxy(rule) && rule.chain.starts_with("firewall-");
    match owner_of(rule, &[])?.name {
        "calico" if comment.ends_with("Unknown interface") => Some(UNKNOWN_INTERFACE),
        "calico" if rule.chain == "cali-cidr-block" => Some(NO_SERVICE),
        "calico" if comment.ends_with("Configured DefaultEndpointToHostAction") => Some(TO_HOST),
        "kube-proxy" if by_source => Some(SOURCE_RANGES),
        _ => None,
    }
}

/// The last rule of a chain with a rule for each pod (felix/rules/dispatch.go).
const UNKNOWN_INTERFACE: (&str, &str) = (
    "Find why Calico's agent on this node has no rules for the pod's interface: the pod is new, or calico-node does not run or is behind. Its log may say it",
    "kubectl get pods -A -o wide -l k8s-app=calico-node",
);
const TO_HOST: (&str, &str) = (
    "Calico does not let pods connect to their own node: set its defaultEndpointToHostAction to Return or Accept, or let a policy allow it",
    "kubectl get felixconfigurations.crd.projectcalico.org default -o yaml",
);
/// kube-proxy would have translated the address of a Service (felix/rules/static.go, `serviceLoopPrevention`).
const NO_SERVICE: (&str, &str) = (
    "kube-proxy on this node does not translate that address: no Service has it, or the Service has no endpoints here, or kube-proxy does not run. Calico drops such packets, as they would loop (serviceLoopPrevention)",
    "kubectl get services,endpointslices -A -o wide",
);
/// The last rule for a Service that has spec.loadBalancerSourceRanges.
const SOURCE_RANGES: (&str, &str) = (
    "Add the client's address to spec.loadBalancerSourceRanges of the Service: kube-proxy drops what comes from elsewhere",
    "kubectl get services -A -o custom-columns=NS:.metadata.namespace,NAME:.metadata.name,FROM:.spec.loadBalancerSourceRanges",
);

fn is_nft_proxy(rule: &FirewallRule) -> bool {
    rule.backend == Backend::Nftables && rule.table == "kube-proxy"
}

/// The software that is known to name chains like this.
pub fn by_chain(chain: &str) -> Option<Owner> {
    if chain == ADMINISTRATORS {
        return None;
    }
    let known = CHAINS.iter().find(|(prefix, _)| chain.starts_with(prefix)).map(|(_, owner)| *owner);
    known.or_else(|| is_zone_chain(chain).then_some(FIREWALLD))
}

/// Docker makes this chain for the administrator's rules, and adds none itself.
const ADMINISTRATORS: &str = "DOCKER-USER";

/// The zones that firewalld comes with.
const ZONES: [&str; 9] = ["block", "dmz", "drop", "external", "home", "internal", "public", "trusted", "work"];

/// Chains that firewalld adds to tables of iptables for one of its zones; no table there has its name.
fn is_zone_chain(chain: &str) -> bool {
    let zone = ["IN_", "FWD_", "FWDI_", "FWDO_"].iter().find_map(|begin| chain.strip_prefix(begin));
    zone.is_some_and(|zone| ZONES.iter().any(|known| zone.starts_with(known)))
}

/// The software that is known to name tables like this.
pub fn by_table(table: &str) -> Option<Owner> {
    TABLES.iter().find(|(name, _)| *name == table).map(|(_, owner)| *owner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_rules_of_an_enforcer_are_a_network_policy() {
        let known = |chain| by_chain(chain).map(|it| (it.name, it.policy));
        assert_eq!(known("cali-fw-cali0123"), Some(("calico", true)));
        assert_eq!(known("KUBE-POD-FW-ABCDEF"), Some(("kube-router", true)));
        assert_eq!(known("KUBE-ROUTER-SERVICES"), Some(("kube-router", false)));
        assert_eq!(known("KUBE-SERVICES"), Some(("kube-proxy", false)));
        assert_eq!(known("ufw-user-input"), Some(("ufw", false)));
        assert_eq!([known("podpolicy"), known("DOCKER-USER")], [None, None]);
        assert_eq!(known("DOCKER-FORWARD"), Some(("docker", false)));
        assert_eq!(by_table("firewalld").map(|it| it.policy), Some(false));
        assert_eq!(known("FWD_public"), Some(("firewalld", false)));
        assert_eq!(known("IN_drop"), Some(("firewalld", false)));
        assert_eq!((known("IN_web"), known("drop")), (None, None));
        assert_eq!(by_table("firewalld_policy_drop").map(|it| it.name), Some("firewalld"));
    }

    #[test]
    fn some_rules_are_there_for_a_reason_of_their_owner() {
        let own = |chain: &str, comment: &str| {
            let rule = tracer_core::testing::rule(chain, tracer_model::event::RuleVerdict::Drop);
            own_fix(&FirewallRule { comment: Some(comment.to_owned()), ..rule })
        };
        assert_eq!(own("cali-from-wl-dispatch-8", "cali:Xy12 Unknown interface"), Some(UNKNOWN_INTERFACE));
        assert_eq!(own("cali-wl-to-host", "Configured DefaultEndpointToHostAction"), Some(TO_HOST));
        let of_service = "shop/web:http traffic not accepted by KUBE-FW-NUKIZ6OKUXPJNT4C";
        assert_eq!(own("KUBE-PROXY-FIREWALL", of_service), Some(SOURCE_RANGES));
        assert_eq!([own("mine", of_service), own("mine", "Unknown interface")], [None; 2]);
        assert_eq!(own("cali-cidr-block", "cali:rQCL9AF5lrNpX_HO"), Some(NO_SERVICE));
        assert_eq!(own("cali-fw-cali1234", "cali:A2 Drop if no profiles matched"), None);
    }
}
