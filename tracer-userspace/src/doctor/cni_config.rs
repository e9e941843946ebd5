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

/// A distribution's own folders first: podman leaves its file in /etc/cni/net.d, which their kubelets do not read.
const PLACES: &[Place] = &[
    // OpenShift's CRI-O. Its package leaves examples in /etc/cni/net.d, which nobody reads.
    Place { configs: "/etc/kubernetes/cni/net.d", binaries: &["/var/lib/cni/bin", "/usr/libexec/cni", "/opt/cni/bin"] },
    Place {
        configs: "/var/lib/rancher/k3s/agent/etc/cni/net.d",
        binaries: &["/var/lib/rancher/k3s/data/current/bin", "/var/lib/rancher/k3s/data/cni"],
    },
    Place {
        configs: "/var/snap/microk8s/current/args/cni-network",
        binaries: &["/var/snap/microk8s/current/opt/cni/bin"],
    },
    Place {
        configs: "/etc/cni/net.d",
        // The last is GKE's.
        binaries: &["/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni", "/home/kubernetes/bin"],
    },
];

/// Plugins that hand over to those of another configuration.
const META: &[&str] = &["multus", "multus-shim"];
/// Container runtimes run it for each pod, though no configuration names it.
const LOOPBACK: &str = "loopback";

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
    /// Multus hands over to plugins that no file here names.
    pub(super) elsewhere: bool,
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Found {
    config: Option<Config>,
    /// Plugins without a binary.
    missing: Vec<String>,
    loopback: bool,
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
        if !has_binary(view, &config, plugin)? {
            missing.push(plugin.clone());
        }
    }
    let loopback = has_binary(view, &config, LOOPBACK)?;
    let subnet = config.subnet_file.as_deref().map_or(Ok(true), |path| view.exists(path))?;
    Ok(Found { config: Some(config), missing, loopback, subnet, prober: view.prober, pod_link: pod_link(view) })
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
        let config = read_config(view, &path)?;
        let multus = config.plugins.iter().any(|name| META.contains(&name.as_str()));
        let config = match () {
            () if config.elsewhere => behind(view, place, config, &others)?,
            () if multus => config,
            () => Config { others, ..config },
        };
        return Ok(Some(Config { path, binaries: place.binaries, ..config }));
    }
    Ok(None)
}

fn read_config(view: &View, path: &str) -> Result<Config, Unread> {
    let text = view.text(path)?;
    let config: Value = serde_json::from_str(&text).map_err(|error| {
        Unread::new(
            format!("{path} is not JSON: {error}"),
            format!("write {path} anew: the CNI's DaemonSet does when its pod restarts"),
        )
    })?;
    Ok(parse(&config))
}

/// Multus without delegates in its own file hands over to the next one beside it.
fn behind(view: &View, place: &Place, multus: Config, others: &[String]) -> Result<Config, Unread> {
    let Some(next) = others.first() else { return Ok(multus) };
    let next = read_config(view, &format!("{}/{next}", place.configs))?;
    let mut plugins = [multus.plugins, next.plugins].concat();
    plugins.sort_unstable();
    plugins.dedup();
    Ok(Config { plugins, ..next })
}

/// A list of plugins, or one; of Multus those that it hands over to, too.
fn parse(config: &Value) -> Config {
    let plugins = plugins(config);
    let delegates = plugins.iter().filter_map(|plugin| plugin.get("delegates")?.as_array()).flatten();
    let delegates: Vec<&Value> = delegates.flat_map(|it| self::plugins(it)).collect();
    let is_meta = |plugin: &&Value| kind(plugin).is_some_and(|name| META.contains(&name));
    let elsewhere = delegates.is_empty() && plugins.iter().any(is_meta);
    let plugins = [plugins, delegates].concat();
    let mut names: Vec<String> = Vec::new();
    for plugin in &plugins {
        let types = [kind(plugin), plugin.get("ipam").and_then(kind)].into_iter().flatten();
        // Names of binaries: a path among them would be looked up elsewhere.
        names.extend(types.filter(|name| !name.is_empty() && !name.contains('/')).map(str::to_owned));
    }
    let flannel = plugins.iter().find(|plugin| kind(plugin) == Some("flannel"));
    let subnet_file =
        flannel.map(|plugin| plugin.get("subnetFile").and_then(Value::as_str).unwrap_or(SUBNET_FILE).to_owned());
    if flannel.is_some() {
        // flannel hands over to these two.
        names.extend(["bridge".to_owned(), "host-local".to_owned()]);
    }
    names.sort_unstable();
    names.dedup();
    Config { plugins: names, subnet_file, elsewhere, ..Config::default() }
}

/// Of a list, or of a configuration of one plugin.
fn plugins(config: &Value) -> Vec<&Value> {
    config.get("plugins").and_then(Value::as_array).map_or_else(|| vec![config], |plugins| plugins.iter().collect())
}

fn kind(plugin: &Value) -> Option<&str> {
    plugin.get("type")?.as_str()
}

fn judge(found: &Found) -> Finding {
    let Some(config) = &found.config else { return without(found) };
    let draft = draft().with("config", config.path.clone()).with("plugins", config.plugins.clone());
    if !found.missing.is_empty() {
        let missing = found.missing.join(", ");
        let places = config.binaries.join(", ");
        let observed = format!("{} needs {missing}: no program of that name in {places}", config.path);
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
    let observed = format!("{} with {}, all binaries present", config.path, config.plugins.join(", "));
    if !found.loopback && found.pod_link.is_none() {
        return draft.with("missing", vec![LOOPBACK]).warn(
            format!("{observed} but `{LOOPBACK}`, which container runtimes run for each pod (containerd from 2.0 on can do without: use_internal_loopback)"),
            Mend::lasting(format!("install the CNI plugins ({LOOPBACK}) into {}: package kubernetes-cni or containernetworking-plugins", config.binaries[0])),
        );
    }
    draft.ok(observed)
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
    const BINARIES: [(&str, &str); 5] = [
        ("opt/cni/bin/flannel", "ELF"),
        ("opt/cni/bin/portmap", "ELF"),
        ("opt/cni/bin/bridge", "ELF"),
        ("usr/lib/cni/host-local", "ELF"),
        ("opt/cni/bin/loopback", "ELF"),
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

    /// containerd and CRI-O run `loopback` for each pod; a copy that was interrupted leaves an empty file.
    #[test]
    fn loopback_is_missed_and_an_empty_file_is_no_program() {
        let ptp = ("etc/cni/net.d/10-x.conf", r#"{"type":"ptp"}"#);
        let (program, loopback) = (("opt/cni/bin/ptp", "ELF"), BINARIES[4]);
        assert_eq!(of(&[ptp, program, loopback]).status, Status::Ok);
        let finding = of(&[ptp, program]);
        assert!(finding.status == Status::Warn && finding.observed.contains("`loopback`"), "{finding:?}");
        assert_eq!(of(&[ptp, ("opt/cni/bin/ptp", ""), loopback]).status, Status::Fail);
        let tree = Tree::new(&[ptp, program, loopback]);
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
        std::fs::set_permissions(tree.path().join(program.0), mode).expect("mode");
        assert_eq!(check(&tree.view()).status, Status::Fail);
    }

    /// Its daemon reads the file beside its own, and does not start without.
    #[test]
    fn multus_hands_over_to_the_next_file_or_to_its_delegates() {
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

    /// Debian's podman leaves such a file.
    #[test]
    fn a_distribution_s_own_folder_counts_before_the_usual_one() {
        let podman = ("etc/cni/net.d/87-podman-bridge.conflist", r#"{"plugins":[{"type":"bridge"}]}"#);
        let calico =
            ("var/snap/microk8s/current/args/cni-network/10-calico.conflist", r#"{"plugins":[{"type":"calico"}]}"#);
        let config = active(&Tree::new(&[podman, calico]).view()).expect("read");
        assert_eq!(config.map(|it| it.plugins), Some(vec!["calico".to_owned()]));
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
    /// Those of an OpenShift node, with what cri-o's package leaves.
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
    fn nodes_that_keep_them_elsewhere() {
        let finding = of(&GKE);
        assert_eq!(finding.status, Status::Ok, "{}", finding.observed);
        assert_eq!(of(&GKE[..4]).fields["missing"], serde_json::json!(["host-local"]));
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
