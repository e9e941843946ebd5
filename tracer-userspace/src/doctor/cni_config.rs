//! The CNI's configuration, its binaries and what they read.

use serde_json::Value;

use super::Check;
use super::finding::{Draft, Finding, Mend, Unread};
use super::view::View;

/// The check.
pub(super) const CHECK: Check = Check {
    name: "cni_config",
    why: "without a configuration, its binaries or flannel's subnet file no pod gets a network: FailedCreatePodSandBox",
    run: |view| vec![check(view)],
};

/// Where a distribution keeps configurations and binaries.
struct Place {
    configs: &'static str,
    binaries: &'static [&'static str],
}

const PLACES: &[Place] = &[
    // OpenShift's CRI-O. Its package leaves examples in /etc/cni/net.d, which nobody reads.
    Place { configs: "/etc/kubernetes/cni/net.d", binaries: &["/var/lib/cni/bin", "/usr/libexec/cni", "/opt/cni/bin"] },
    Place {
        configs: "/etc/cni/net.d",
        // The last is GKE's.
        binaries: &["/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni", "/home/kubernetes/bin"],
    },
    Place {
        configs: "/var/lib/rancher/k3s/agent/etc/cni/net.d",
        binaries: &["/var/lib/rancher/k3s/data/current/bin", "/var/lib/rancher/k3s/data/cni"],
    },
    Place {
        configs: "/var/snap/microk8s/current/args/cni-network",
        binaries: &["/var/snap/microk8s/current/opt/cni/bin"],
    },
];

const SUBNET_FILE: &str = "/run/flannel/subnet.env";

/// The configuration in force: the first by name, as container runtimes take it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Config {
    pub(super) path: String,
    /// Types of its plugins, IPAM included.
    pub(super) plugins: Vec<String>,
    /// Other configurations beside it.
    others: Vec<String>,
    binaries: &'static [&'static str],
    /// flannel's, if it is used.
    subnet_file: Option<String>,
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Found {
    config: Option<Config>,
    /// Plugins without a binary.
    missing: Vec<String>,
    /// flannel's subnet file is there.
    subnet: bool,
    prober: bool,
    /// A link of a pod on this node: some CNI works.
    pod_link: Option<String>,
}

fn draft() -> Draft {
    CHECK.expects(
        "one CNI configuration, a binary for each of its plugins, and flannel's subnet file where flannel is used",
    )
}

fn check(view: &View) -> Finding {
    read(view).map_or_else(|unread| draft().unknown(unread), |found| judge(&found))
}

fn read(view: &View) -> Result<Found, Unread> {
    let Some(config) = active(view)? else {
        return Ok(Found { prober: view.prober, pod_link: pod_link(view), ..Found::default() });
    };
    let mut missing = Vec::new();
    for plugin in &config.plugins {
        let mut found = false;
        for folder in config.binaries {
            found |= view.exists(&format!("{folder}/{plugin}"))?;
        }
        if !found {
            missing.push(plugin.clone());
        }
    }
    let subnet = config.subnet_file.as_deref().map_or(Ok(true), |path| view.exists(path))?;
    Ok(Found { config: Some(config), missing, subnet, prober: view.prober, pod_link: pod_link(view) })
}

fn pod_link(view: &View) -> Option<String> {
    let links = view.links().unwrap_or_default();
    links.into_iter().find(|link| link.kind.as_deref() == Some("veth")).map(|link| link.state.name)
}

/// The configuration in force, if there is any.
pub(super) fn active(view: &View) -> Result<Option<Config>, Unread> {
    for place in PLACES {
        let is_config = |name: &String| [".conf", ".conflist", ".json"].iter().any(|end| name.ends_with(end));
        let mut names: Vec<String> = view.names(place.configs)?.into_iter().filter(is_config).collect();
        if names.is_empty() {
            continue;
        }
        let others = names.split_off(1);
        let path = format!("{}/{}", place.configs, names[0]);
        let text = view.text(&path)?;
        let config: Value = serde_json::from_str(&text).map_err(|error| {
            Unread::new(
                format!("{path} is not JSON: {error}"),
                format!("write {path} anew: the CNI's DaemonSet does when its pod restarts"),
            )
        })?;
        return Ok(Some(Config { path, others, binaries: place.binaries, ..parse(&config) }));
    }
    Ok(None)
}

/// A list of plugins, or one.
fn parse(config: &Value) -> Config {
    let single = [config.clone()];
    let plugins = config.get("plugins").and_then(Value::as_array).map_or(&single[..], Vec::as_slice);
    let mut names: Vec<String> = Vec::new();
    for plugin in plugins {
        let ipam = plugin.get("ipam").and_then(|ipam| ipam.get("type"));
        let types = [plugin.get("type"), ipam].into_iter().flatten().filter_map(Value::as_str);
        // Names of binaries: a path among them would be looked up elsewhere.
        names.extend(types.filter(|name| !name.is_empty() && !name.contains('/')).map(str::to_owned));
    }
    let flannel = plugins.iter().find(|plugin| plugin.get("type").and_then(Value::as_str) == Some("flannel"));
    let subnet_file =
        flannel.map(|plugin| plugin.get("subnetFile").and_then(Value::as_str).unwrap_or(SUBNET_FILE).to_owned());
    if flannel.is_some() {
        // flannel hands over to these two.
        names.extend(["bridge".to_owned(), "host-local".to_owned()]);
    }
    names.sort_unstable();
    names.dedup();
    Config { plugins: names, subnet_file, ..Config::default() }
}

fn judge(found: &Found) -> Finding {
    let Some(config) = &found.config else { return without(found) };
    let draft = draft().with("config", config.path.clone()).with("plugins", config.plugins.clone());
    if !found.missing.is_empty() {
        let missing = found.missing.join(", ");
        let places = config.binaries.join(", ");
        let observed = format!("{} needs {missing}: not in {places}", config.path);
        let draft = draft.with("missing", found.missing.clone());
        if let Some(link) = &found.pod_link {
            return draft.unknown(elsewhere(&observed, link, "its binaries", "bin_dir", "plugin_dirs"));
        }
        return draft.fail(
            observed,
            Mend::lasting(format!("install the CNI plugins ({missing}) into {}: package kubernetes-cni or containernetworking-plugins, or restart the CNI's DaemonSet pod", config.binaries[0])),
        );
    }
    if let Some(path) = config.subnet_file.as_ref().filter(|_| !found.subnet) {
        return draft.fail(
            format!("{} uses flannel, and {path} does not exist: sandboxes fail until flanneld has written it", config.path),
            Mend::lasting("see why flanneld does not run: `kubectl -n kube-flannel logs -l app=flannel` (it needs the API server, br_netfilter and a pod CIDR for this node)"),
        );
    }
    if !config.others.is_empty() {
        return draft.with("others", config.others.clone()).warn(
            format!("{} is used; {} beside it is not", config.path, config.others.join(", ")),
            Mend::lasting("remove what a former CNI left behind in that folder"),
        );
    }
    draft.ok(format!("{} with {}, all binaries present", config.path, config.plugins.join(", ")))
}

/// Without a configuration.
fn without(found: &Found) -> Finding {
    let places: Vec<_> = PLACES.iter().map(|place| place.configs).collect();
    let observed = format!("no CNI configuration in {}", places.join(", "));
    if let Some(link) = &found.pod_link {
        return draft().unknown(elsewhere(&observed, link, "its configuration", "conf_dir", "network_dir"));
    }
    if found.prober {
        return draft().fail(observed, Mend::lasting("install a CNI, or see why its DaemonSet has not written its configuration: `kubectl -n kube-system get pods -o wide`"));
    }
    draft().unknown(Unread::new(
        format!("{observed}, and no kubelet runs here"),
        "run `tracer doctor` where the kubelet runs, or give --prober its name",
    ))
}

/// A pod has a network: what was not found may be where only the container runtime's configuration says.
fn elsewhere(observed: &str, link: &str, what: &str, containerd: &str, crio: &str) -> Unread {
    Unread::new(
        format!("{observed}; but {link} looks like a pod's link: the container runtime may have {what} elsewhere"),
        format!("see {containerd} in containerd's configuration, or {crio} in CRI-O's"),
    )
}

#[cfg(test)]
mod tests {
    use super::super::testing::Tree;
    use super::*;
    use crate::doctor::Status;

    const FLANNEL: (&str, &str) =
        ("etc/cni/net.d/10-flannel.conflist", r#"{"name":"cbr0","plugins":[{"type":"flannel"},{"type":"portmap"}]}"#);
    const BINARIES: [(&str, &str); 4] = [
        ("opt/cni/bin/flannel", ""),
        ("opt/cni/bin/portmap", ""),
        ("opt/cni/bin/bridge", ""),
        ("usr/lib/cni/host-local", ""),
    ];

    fn of(files: &[(&str, &str)]) -> Finding {
        check(&Tree::new(files).view())
    }

    #[test]
    fn flannel_s_whole_set() {
        let subnet = ("run/flannel/subnet.env", "FLANNEL_MTU=1450\n");
        let all = [&[FLANNEL, subnet], &BINARIES[..]].concat();
        assert_eq!(of(&all).status, Status::Ok, "{}", of(&all).observed);
        let without_subnet = [&[FLANNEL], &BINARIES[..]].concat();
        let finding = of(&without_subnet);
        assert!(finding.status == Status::Fail && finding.observed.contains(SUBNET_FILE), "{finding:?}");
        let finding = of(&[FLANNEL, subnet, BINARIES[0]]);
        assert!(
            finding.status == Status::Fail && finding.observed.contains("bridge, host-local, portmap"),
            "{finding:?}"
        );
    }

    #[test]
    fn a_second_configuration_is_told() {
        let conf = ("etc/cni/net.d/87-podman.conflist", "{}");
        let subnet = ("run/flannel/subnet.env", "");
        assert_eq!(of(&[&[FLANNEL, conf, subnet], &BINARIES[..]].concat()).status, Status::Warn);
    }

    #[test]
    fn nothing_or_junk() {
        assert_eq!(of(&[("etc/hostname", "")]).status, Status::Unknown);
        assert_eq!(of(&[("etc/cni/net.d/10-x.conf", "{")]).status, Status::Unknown);
        let none = Found { prober: true, ..Found::default() };
        assert_eq!(judge(&none).status, Status::Fail);
        let elsewhere = Found { pod_link: Some("veth0".into()), ..none };
        assert_eq!(judge(&elsewhere).status, Status::Unknown, "pods have a network");
    }

    /// The files of a GKE node.
    const GKE: [(&str, &str); 4] = [
        (
            "etc/cni/net.d/10-containerd-net.conflist",
            r#"{"name":"k8s-pod-network","cniVersion":"0.3.1","plugins":[{"type":"ptp","mtu":1460,"ipam":{"type":"host-local"}},{"type":"portmap"}]}"#,
        ),
        ("home/kubernetes/bin/ptp", ""),
        ("home/kubernetes/bin/portmap", ""),
        ("home/kubernetes/bin/host-local", ""),
    ];
    /// Those of an OpenShift node, with what cri-o's package leaves.
    const OPENSHIFT: [(&str, &str); 4] = [
        ("etc/kubernetes/cni/net.d/00-multus.conf", r#"{"name":"multus-cni-network","type":"multus-shim"}"#),
        ("var/lib/cni/bin/multus-shim", ""),
        (
            "etc/cni/net.d/100-crio-bridge.conflist",
            r#"{"name":"crio","plugins":[{"type":"bridge","bridge":"cni0","ipam":{"type":"host-local"}}]}"#,
        ),
        ("etc/cni/net.d/200-loopback.conflist", r#"{"name":"loopback","plugins":[{"type":"loopback"}]}"#),
    ];

    #[test]
    fn nodes_that_keep_them_elsewhere() {
        let finding = of(&GKE);
        assert_eq!(finding.status, Status::Ok, "{}", finding.observed);
        assert_eq!(of(&GKE[..3]).fields["missing"], serde_json::json!(["host-local"]));
        let finding = of(&OPENSHIFT);
        assert_eq!(finding.status, Status::Ok, "{}", finding.observed);
        assert!(finding.observed.starts_with("/etc/kubernetes/cni/net.d/00-multus.conf"), "{}", finding.observed);
    }

    #[test]
    fn binaries_that_pods_do_without_are_elsewhere() {
        let config =
            Config { path: "/etc/cni/net.d/10-x.conf".into(), binaries: &["/opt/cni/bin"], ..Config::default() };
        let none = Found { config: Some(config), missing: vec!["ptp".into()], prober: true, ..Found::default() };
        assert_eq!(judge(&none).status, Status::Fail);
        let finding = judge(&Found { pod_link: Some("veth0".into()), ..none });
        assert!(finding.status == Status::Unknown && finding.observed.contains("needs ptp"), "{finding:?}");
        assert!(finding.remediation.is_some_and(|it| it.contains("bin_dir")));
    }

    #[test]
    fn a_link_leads_nowhere_else() {
        let tree = Tree::new(&[("etc/hostname", "")]);
        let folder = tree.path().join("etc/cni");
        std::fs::create_dir_all(&folder).expect("folder");
        std::os::unix::fs::symlink("/etc", folder.join("net.d")).expect("link");
        std::fs::write(tree.path().join("etc/10-mine.conf"), r#"{"type":"ptp"}"#).expect("file");
        assert_eq!(active(&tree.view()).expect("read").map(|it| it.plugins), Some(vec!["ptp".to_owned()]));
    }
}
