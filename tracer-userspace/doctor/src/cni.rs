//! The CNI's active configuration: where distributions keep it, and what it names.

use serde_json::Value;

use super::finding::Unread;
use super::view::View;

/// Where a distribution keeps configurations and binaries.
pub(super) struct Place {
    pub(super) configs: &'static str,
    binaries: &'static [&'static str],
}

/// A distribution's own folders first: podman leaves its file in /etc/cni/net.d, which their kubelets do not read.
pub(super) const PLACES: &[Place] = &[
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
/// Where flanneld writes it by its default.
pub(super) const SUBNET_FILE: &str = "/run/flannel/subnet.env";

/// The active configuration: the first by name, as container runtimes take it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Config {
    pub(super) path: String,
    /// Types of its plugins, IPAM included.
    pub(super) plugins: Vec<String>,
    /// Other configurations beside it.
    pub(super) others: Vec<String>,
    pub(super) binaries: &'static [&'static str],
    /// flannel's, if it is used.
    pub(super) subnet_file: Option<String>,
    /// Multus hands over to plugins that no file here names.
    pub(super) elsewhere: bool,
}

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
            format!("write {path} again: the CNI's DaemonSet does when its pod restarts"),
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

#[cfg(test)]
mod tests {
    use super::super::testing::Tree;
    use super::*;

    /// Debian's podman leaves such a file.
    #[test]
    fn a_distributions_own_folder_counts_before_the_usual_one() {
        let podman = ("etc/cni/net.d/87-podman-bridge.conflist", r#"{"plugins":[{"type":"bridge"}]}"#);
        let calico =
            ("var/snap/microk8s/current/args/cni-network/10-calico.conflist", r#"{"plugins":[{"type":"calico"}]}"#);
        let config = active(&Tree::new(&[podman, calico]).view()).expect("read");
        assert_eq!(config.map(|it| it.plugins), Some(vec!["calico".to_owned()]));
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
