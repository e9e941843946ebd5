//! Whether the binaries and the subnet file that the CNI's configuration needs exist.

use super::Check;
use super::cni::{Config, K3S, PLACES, active};
use super::finding::{Finding, Fix, Remediation, Unread};
use super::view::View;
use tracer_model::record::Command;

pub(super) const CHECK: Check = Check {
    name: "cni_config",
    why: "without a configuration, its binaries or flannel's subnet file, no pod gets a network: FailedCreatePodSandBox",
    expected: || {
        "one CNI configuration, a binary for each of its plugins, and flannel's subnet file where flannel is used"
            .into()
    },
    run: |view| Ok(vec![judge(&read(view)?)]),
};

/// Container runtimes run this plugin for each pod, although no configuration names it.
const LOOPBACK: &str = "loopback";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct CniState {
    config: Option<Config>,
    /// Plugins without a binary.
    missing: Vec<String>,
    has_loopback: bool,
    /// Whether flannel's subnet file exists, if one is needed.
    has_subnet_file: bool,
    prober: bool,
    /// A link of a pod on this node; it shows that some CNI works.
    pod_link: Option<String>,
}

fn read(view: &View) -> Result<CniState, Unread> {
    let mut found = CniState { prober: view.prober, pod_link: pod_link(view), ..CniState::default() };
    if let Some(config) = active(view)? {
        for plugin in &config.plugins {
            if !has_binary(view, &config, plugin)? {
                found.missing.push(plugin.clone());
            }
        }
        found.has_loopback = has_binary(view, &config, LOOPBACK)?;
        found.has_subnet_file = config.subnet_file.as_deref().map_or(Ok(true), |path| view.exists(path))?;
        found.config = Some(config);
    }
    Ok(found)
}

fn has_binary(view: &View, config: &Config, plugin: &str) -> Result<bool, Unread> {
    for folder in config.binaries {
        if view.is_program(&format!("{folder}/{plugin}"))? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn pod_link(view: &View) -> Option<String> {
    let links = view.links().unwrap_or_default();
    // Cilium can have netkit.
    links.into_iter().find(|link| matches!(link.kind.as_deref(), Some("veth" | "netkit"))).map(|link| link.state.name)
}

fn judge(found: &CniState) -> Finding {
    let Some(config) = &found.config else { return no_config(found) };
    let draft = CHECK.draft().with("config", config.path.clone()).with("plugins", config.plugins.clone());
    let install = |plugins: &str| {
        let package = "package kubernetes-cni or containernetworking-plugins";
        format!("install the CNI plugins ({plugins}) into {}: {package}", config.binaries[0])
    };
    if !found.missing.is_empty() {
        let missing = found.missing.join(", ");
        let places = config.binaries.join(", ");
        let observed = format!("{} needs {missing}: no program of that name in {places}", config.path);
        let draft = draft.with("missing", found.missing.clone());
        if let Some(link) = &found.pod_link {
            return draft.unknown(may_be_elsewhere(&observed, link, "its binaries", "bin_dir", "plugin_dirs"));
        }
        let fix = format!("{}, or restart the CNI's DaemonSet pod", install(&missing));
        return draft.fail(observed, Fix::lasting(fix));
    }
    if let Some(path) = config.subnet_file.as_ref().filter(|_| !found.has_subnet_file) {
        let missing = format!("{path} does not exist: sandboxes fail until flanneld has written it");
        let text = "See why flanneld does not run: it needs the API server, br_netfilter and a pod CIDR for this node";
        let fix = Fix::lasting(Remediation::on_node(text, flannel_log(config)));
        return draft.fail(format!("{} uses flannel, and {missing}", config.path), fix);
    }
    if !config.others.is_empty() {
        return draft.with("others", config.others.clone()).warn(
            format!("the container runtime uses {} and ignores {}", config.path, config.others.join(", ")),
            Fix::lasting("remove what a former CNI left behind in that folder"),
        );
    }
    let observed = format!("{} with {}, all binaries present", config.path, config.plugins.join(", "));
    if !found.has_loopback && found.pod_link.is_none() {
        return draft.with("missing", vec![LOOPBACK]).warn(
            format!("{observed} except `{LOOPBACK}`, which container runtimes run for each pod (containerd since 2.0 does not need it with use_internal_loopback)"),
            Fix::lasting(install(LOOPBACK)),
        );
    }
    draft.ok(observed)
}

/// k3s runs flannel in its own process. Elsewhere it is a container, and its log is read on the node: where the network
/// does not work, the API server may not reach the kubelet. The newest container comes first, also one that has ended.
fn flannel_log(config: &Config) -> &'static str {
    match config.path.starts_with(K3S) {
        true => "journalctl -u k3s -u k3s-agent | grep -i flannel",
        false => "crictl logs $(crictl ps -a -q --name kube-flannel | head -n1)",
    }
}

fn no_config(found: &CniState) -> Finding {
    let places: Vec<_> = PLACES.iter().map(|place| place.configs).collect();
    let observed = format!("no CNI configuration in {}", places.join(", "));
    if let Some(link) = &found.pod_link {
        let unread = may_be_elsewhere(&observed, link, "its configuration", "conf_dir", "network_dir");
        return CHECK.draft().unknown(unread);
    }
    if found.prober {
        let list = Command::in_cluster("kubectl get pods -A -o wide --field-selector spec.nodeName=NODE");
        let fix = Remediation::from("Install a CNI, or see why its DaemonSet has not written its configuration");
        return CHECK.draft().fail(observed, Fix::lasting(fix.run([list])));
    }
    CHECK.draft().unknown(Unread::new(
        format!("{observed}, and no kubelet runs here"),
        "run `tracer doctor` where the kubelet runs, or give --prober its name",
    ))
}

/// A pod has a network, so the files may be in a folder that only the container runtime's configuration names.
fn may_be_elsewhere(observed: &str, link: &str, what: &str, containerd: &str, crio: &str) -> Unread {
    Unread::new(
        format!("{observed}; but {link} looks like a pod's link: the container runtime may have {what} elsewhere"),
        format!("see {containerd} in containerd's configuration, or {crio} in CRI-O's"),
    )
}

#[cfg(test)]
mod tests {
    use super::super::cni::SUBNET_FILE;
    use super::super::testing::{FLANNEL, Tree, fix};
    use super::*;
    use crate::Status;
    use tracer_testing::assert_has;

    const BINARIES: [(&str, &str); 5] = [
        ("opt/cni/bin/flannel", "ELF"),
        ("opt/cni/bin/portmap", "ELF"),
        ("opt/cni/bin/bridge", "ELF"),
        ("usr/lib/cni/host-local", "ELF"),
        ("opt/cni/bin/loopback", "ELF"),
    ];

    fn of(files: &[(&str, &str)]) -> Finding {
        Tree::new(files).finding(&CHECK)
    }

    #[test]
    fn flannel_needs_its_binaries_and_its_subnet_file() {
        let subnet = ("run/flannel/subnet.env", "FLANNEL_MTU=1450\n");
        let all = [&[FLANNEL, subnet], &BINARIES[..]].concat();
        assert_eq!(of(&all).status, Status::Ok, "{}", of(&all).observed);
        let without_subnet = [&[FLANNEL], &BINARIES[..]].concat();
        let finding = of(&without_subnet);
        assert!(finding.status == Status::Fail && finding.observed.contains(SUBNET_FILE), "{finding:?}");
        assert!(fix(&finding).starts_with("crictl logs"), "{finding:?}");
        let k3s = "var/lib/rancher/k3s";
        let files: Vec<_> = ["flannel", "bridge", "host-local", "portmap"]
            .into_iter()
            .map(|name| (format!("{k3s}/data/current/bin/{name}"), "ELF"))
            .chain([(format!("{k3s}/agent/etc/cni/net.d/10-flannel.conflist"), FLANNEL.1)])
            .collect();
        let finding = of(&files.iter().map(|(path, text)| (path.as_str(), *text)).collect::<Vec<_>>());
        assert!(fix(&finding).starts_with("journalctl -u k3s"), "{finding:?}");
        let finding = of(&[FLANNEL, subnet, BINARIES[0]]);
        assert_eq!(finding.status, Status::Fail);
        assert_has(&finding.observed, &["bridge, host-local, portmap"]);
    }

    #[test]
    fn a_second_configuration_is_a_warning() {
        let subnet = ("run/flannel/subnet.env", "");
        for (name, status) in [
            ("30-weave.conflist", Status::Warn),
            ("87-podman-bridge.conflist", Status::Ok),
            ("99-loopback.conf", Status::Ok),
        ] {
            let path = format!("etc/cni/net.d/{name}");
            let finding = of(&[&[FLANNEL, (&path, "{}"), subnet], &BINARIES[..]].concat());
            assert_eq!(finding.status, status, "{name}");
        }
    }

    /// containerd and CRI-O run `loopback` for each pod. An interrupted copy leaves an empty file.
    #[test]
    fn a_missing_loopback_is_a_warning_and_an_empty_binary_fails() {
        let ptp = ("etc/cni/net.d/10-x.conf", r#"{"type":"ptp"}"#);
        let (program, loopback) = (("opt/cni/bin/ptp", "ELF"), BINARIES[4]);
        assert_eq!(of(&[ptp, program, loopback]).status, Status::Ok);
        let finding = of(&[ptp, program]);
        assert!(finding.status == Status::Warn && finding.observed.contains("`loopback`"), "{finding:?}");
        assert_eq!(of(&[ptp, ("opt/cni/bin/ptp", ""), loopback]).status, Status::Fail);
        let tree = Tree::new(&[ptp, program, loopback]);
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
        std::fs::set_permissions(tree.path().join(program.0), mode).expect("mode");
        assert_eq!(tree.finding(&CHECK).status, Status::Fail);
    }

    /// The daemon of Multus reads the file next to its own, and does not start without it.
    #[test]
    fn multus_needs_the_binaries_of_the_next_file_or_of_its_delegates() {
        let shim = ("etc/cni/net.d/00-multus.conf", r#"{"type":"multus-shim"}"#);
        let delegates = (
            "etc/cni/net.d/00-multus.conf",
            r#"{"type":"multus","delegates":[{"name":"cbr0","plugins":[{"type":"flannel"},{"type":"portmap"}]}]}"#,
        );
        let programs = [("opt/cni/bin/multus", "ELF"), ("opt/cni/bin/multus-shim", "ELF")];
        let subnet = ("run/flannel/subnet.env", "");
        for multus in [shim, delegates] {
            let all = [&[multus, FLANNEL, subnet], &programs[..], &BINARIES].concat();
            assert_eq!(of(&all).status, Status::Ok, "{}", of(&all).observed);
            let finding = of(&[&[multus, FLANNEL], &programs[..]].concat());
            assert_eq!(finding.fields["missing"], serde_json::json!(["bridge", "flannel", "host-local", "portmap"]));
            let without_subnet = of(&[&[multus, FLANNEL], &programs[..], &BINARIES].concat());
            assert!(without_subnet.observed.contains(SUBNET_FILE), "{without_subnet:?}");
        }
    }

    #[test]
    fn a_missing_or_invalid_configuration_is_not_ok() {
        assert_eq!(of(&[("etc/hostname", "")]).status, Status::Unknown);
        assert_eq!(of(&[("etc/cni/net.d/10-x.conf", "{")]).status, Status::Unknown);
        let none = CniState { prober: true, ..CniState::default() };
        assert_eq!(judge(&none).status, Status::Fail);
        let elsewhere = CniState { pod_link: Some("veth0".into()), ..none };
        assert_eq!(judge(&elsewhere).status, Status::Unknown, "pods have a network");
    }

    /// The files of a GKE node.
    const GKE: [(&str, &str); 5] = [
        (
            "etc/cni/net.d/10-containerd-net.conflist",
            r#"{"name":"k8s-pod-network","cniVersion":"0.3.1","plugins":[{"type":"ptp","mtu":1460,"ipam":{"type":"host-local"}},{"type":"portmap"}]}"#,
        ),
        ("home/kubernetes/bin/ptp", "ELF"),
        ("home/kubernetes/bin/portmap", "ELF"),
        ("home/kubernetes/bin/loopback", "ELF"),
        ("home/kubernetes/bin/host-local", "ELF"),
    ];
    /// The files of an OpenShift node, with the examples that the package of CRI-O leaves.
    const OPENSHIFT: [(&str, &str); 5] = [
        ("etc/kubernetes/cni/net.d/00-multus.conf", r#"{"name":"multus-cni-network","type":"multus-shim"}"#),
        ("var/lib/cni/bin/multus-shim", "ELF"),
        ("usr/libexec/cni/loopback", "ELF"),
        (
            "etc/cni/net.d/100-crio-bridge.conflist",
            r#"{"name":"crio","plugins":[{"type":"bridge","bridge":"cni0","ipam":{"type":"host-local"}}]}"#,
        ),
        ("etc/cni/net.d/200-loopback.conflist", r#"{"name":"loopback","plugins":[{"type":"loopback"}]}"#),
    ];

    #[test]
    fn folders_of_gke_and_openshift_are_searched() {
        let finding = of(&GKE);
        assert_eq!(finding.status, Status::Ok, "{}", finding.observed);
        assert_eq!(of(&GKE[..4]).fields["missing"], serde_json::json!(["host-local"]));
        let finding = of(&OPENSHIFT);
        assert_eq!(finding.status, Status::Ok, "{}", finding.observed);
        assert!(finding.observed.starts_with("/etc/kubernetes/cni/net.d/00-multus.conf"), "{}", finding.observed);
    }

    #[test]
    fn missing_binaries_are_unknown_while_pods_have_a_network() {
        let config =
            Config { path: "/etc/cni/net.d/10-x.conf".into(), binaries: &["/opt/cni/bin"], ..Config::default() };
        let none = CniState { config: Some(config), missing: vec!["ptp".into()], prober: true, ..CniState::default() };
        assert_eq!(judge(&none).status, Status::Fail);
        let finding = judge(&CniState { pod_link: Some("veth0".into()), ..none });
        assert!(finding.status == Status::Unknown && finding.observed.contains("needs ptp"), "{finding:?}");
        assert!(fix(&finding).contains("bin_dir"));
    }
}
