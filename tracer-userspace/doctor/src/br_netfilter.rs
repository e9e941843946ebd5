//! Whether packets between ports of a bridge pass through iptables.

use super::Check;
use super::cni;
use super::finding::{Finding, Fix, KEEP, Remediation, Unread};
use super::view::View;

pub(super) const CHECK: Check = Check {
    name: "br_netfilter",
    why: "without it, answers from a Service's backend on the same Linux bridge as the client bypass NAT, and the client resets the connection. flannel and kubeadm refuse to start",
    expected: || format!("br_netfilter loaded, {V4} = 1 and {V6} = 1, where pods are on a Linux bridge"),
    run: |view| Ok(vec![check(view)?]),
};

const V4: &str = "net.bridge.bridge-nf-call-iptables";
const V6: &str = "net.bridge.bridge-nf-call-ip6tables";

fn check(view: &View) -> Result<Finding, Unread> {
    let v4 = view.number_if_any("net/bridge/bridge-nf-call-iptables")?;
    let v6 = view.number_if_any("net/bridge/bridge-nf-call-ip6tables")?;
    Ok(judge(v4, v6, bridge(view)))
}

/// What shows that pods are on a bridge, and whether its absence proves that they are not.
fn bridge(view: &View) -> (Option<String>, bool) {
    let configured = cni::active(view);
    if let Ok(Some(config)) = &configured
        && let Some(plugin) = config.plugins.iter().find(|plugin| BRIDGED.contains(&plugin.as_str()))
    {
        return (Some(format!("the CNI configuration {} uses `{plugin}`", config.path)), true);
    }
    let (links, is_read) = view.links().map_or_else(|_| (Vec::new(), false), |links| (links, true));
    let known = |name: &str| POD_BRIDGES.contains(&name);
    let link = links.iter().find(|link| link.kind.as_deref() == Some("bridge") && known(&link.state.name));
    let why = link.map(|link| format!("{} is a bridge", link.state.name));
    (why, matches!(configured, Ok(Some(config)) if is_read || !config.has_unknown_delegates))
}

/// CNI plugins that connect pods to a bridge.
const BRIDGED: &[&str] = &["bridge", "flannel", "weave-net"];
/// Names of bridges to which CNI plugins connect pods.
const POD_BRIDGES: &[&str] = &["cni0", "cbr0", "kube-bridge", "weave"];

/// The two settings, absent if the module is not loaded, and what [`bridge`] found.
fn judge(v4: Option<u64>, v6: Option<u64>, bridge: (Option<String>, bool)) -> Finding {
    let observed = match (v4, v6) {
        (None, None) => "br_netfilter is not loaded".to_owned(),
        (v4, v6) => {
            let text = |value: Option<u64>| value.map_or("absent".to_owned(), |value| value.to_string());
            format!("{V4} = {}, {V6} = {}", text(v4), text(v6))
        }
    };
    if v4 == Some(1) && v6.is_none_or(|value| value == 1) {
        return CHECK.draft().ok(observed);
    }
    match bridge {
        (Some(bridge), _) if v4 == Some(1) => CHECK.draft().warn(
            format!("{observed}; {bridge}: it does harm if pods have IPv6 addresses"),
            fix(v4),
        ),
        (Some(bridge), _) => CHECK.draft().fail(format!("{observed}; {bridge}"), fix(v4)),
        (None, true) => CHECK.draft().ok(format!("{observed}; the CNI configuration names no bridge, so br_netfilter is not needed")),
        (None, false) => CHECK.draft().unknown(Unread::new(
            format!("{observed}; neither a CNI configuration that shows how pods are connected nor a pod bridge was found, so it may be needed"),
            "run `tracer doctor` on the node, where its kubelet runs",
        )),
    }
}

/// `modprobe` fails if the module is built into the kernel and the node has no list of the kernel's modules, so the fix loads
/// it only where the settings are absent.
fn fix(v4: Option<u64>) -> Fix {
    let load = if v4.is_some() { "" } else { "modprobe br_netfilter && " };
    let now = format!("{load}sysctl -w {V4}=1 {V6}=1");
    let settings = Fix::persist(&[(V4, "1"), (V6, "1")]);
    let keep = format!("echo br_netfilter > /etc/modules-load.d/br_netfilter.conf && {settings}");
    Fix::new(Remediation::on_node("Let iptables see what bridges forward", now), Remediation::on_node(KEEP, keep))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{FLANNEL, Tree, fix as fix_of};
    use super::*;
    use crate::Status;
    use tracer_testing::assert_has;

    const SETTINGS: (&str, &str) = ("proc/sys/net/core/somaxconn", "4096\n");

    #[test]
    fn flannel_without_the_module_fails() {
        let finding = Tree::new(&[FLANNEL, SETTINGS]).finding(&CHECK);
        assert_eq!(finding.status, Status::Fail);
        assert_has(&finding.observed, &["not loaded", "10-flannel.conflist"]);
        assert!(fix_of(&finding).starts_with("modprobe br_netfilter"));
    }

    #[test]
    fn flannel_needs_the_settings_on() {
        let on = [
            FLANNEL,
            SETTINGS,
            ("proc/sys/net/bridge/bridge-nf-call-iptables", "1\n"),
            ("proc/sys/net/bridge/bridge-nf-call-ip6tables", "1\n"),
        ];
        assert_eq!(Tree::new(&on).finding(&CHECK).status, Status::Ok);
        let of = |v4, v6| {
            let mut off = on;
            (off[2].1, off[3].1) = (v4, v6);
            Tree::new(&off).finding(&CHECK)
        };
        assert_eq!((of("0\n", "1\n").status, of("0\n", "0\n").status), (Status::Fail, Status::Fail));
        assert_eq!(of("1\n", "0\n").status, Status::Warn, "pods may have no IPv6 addresses");
        assert!(fix_of(&of("0\n", "0\n")).starts_with("sysctl -w"), "the module is loaded");
    }

    #[test]
    fn a_cni_without_a_bridge_is_ok_and_an_unknown_cni_is_unknown() {
        let calico = ("etc/cni/net.d/10-calico.conflist", r#"{"plugins":[{"type":"calico"}]}"#);
        assert_eq!(Tree::new(&[calico, SETTINGS]).finding(&CHECK).status, Status::Ok);
        assert_eq!(Tree::new(&[SETTINGS]).finding(&CHECK).status, Status::Unknown);
        let shim = ("etc/cni/net.d/00-multus.conf", r#"{"type":"multus-shim"}"#);
        let unknown = Tree::new(&[shim, SETTINGS]).finding(&CHECK);
        assert_eq!(unknown.status, Status::Unknown, "the delegates of Multus are not known");
        assert_eq!(Tree::new(&[shim, FLANNEL, SETTINGS]).finding(&CHECK).status, Status::Fail);
        assert_eq!(Tree::new(&[calico]).finding(&CHECK).status, Status::Unknown);
    }
}
