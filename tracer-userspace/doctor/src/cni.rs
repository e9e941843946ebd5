//! Finds and reads the CNI's active configuration in the folders that distributions use.

use std::collections::BTreeSet;

use serde_json::Value;

use super::finding::Unread;
use super::view::View;

/// The folders in which a distribution keeps configurations and binaries.
pub(super) struct Place {
    pub(super) configs: &'static str,
    binaries: &'static [&'static str],
}

/// The folder of k3s, which runs flannel in its own process.
pub(super) const K3S: &str = "/var/lib/rancher/k3s/agent/etc/cni/net.d";

/// The folders of single distributions come first: podman leaves a file in /etc/cni/net.d, which these do not read.
pub(super) const PLACES: &[Place] = &[
    // OpenShift's CRI-O. Its package leaves examples in /etc/cni/net.d, which CRI-O does not read there.
    Place { configs: "/etc/kubernetes/cni/net.d", binaries: &["/var/lib/cni/bin", "/usr/libexec/cni", "/opt/cni/bin"] },
    Place { configs: K3S, binaries: &["/var/lib/rancher/k3s/data/current/bin", "/var/lib/rancher/k3s/data/cni"] },
    Place {
        configs: "/var/snap/microk8s/current/args/cni-network",
        binaries: &["/var/snap/microk8s/current/opt/cni/bin"],
    },
    Place {
        configs: "/etc/cni/net.d",
        // The last folder is GKE's.
        binaries: &["/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni", "/home/kubernetes/bin"],
    },
];

/// Plugins that call the plugins of another configuration.
const META: &[&str] = &["multus", "multus-shim"];
/// flanneld's default path of its subnet file.
pub(super) const SUBNET_FILE: &str = "/run/flannel/subnet.env";

/// The active configuration: the first file by name, as container runtimes choose it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Config {
    pub(super) path: String,
    /// Types of its plugins, including IPAM plugins.
    pub(super) plugins: Vec<String>,
    /// Other configurations in the same folder.
    pub(super) others: Vec<String>,
    pub(super) binaries: &'static [&'static str],
    /// Path of flannel's subnet file, if flannel is used.
    pub(super) subnet_file: Option<String>,
    /// Whether Multus calls plugins that this file does not name.
    pub(super) has_unknown_delegates: bool,
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
            () if config.has_unknown_delegates => with_next_config(view, place, config, &others)?,
            () if multus => config,
            () => Config { others: others.into_iter().filter(|name| is_of_a_cni(name)).collect(), ..config },
        };
        return Ok(Some(Config { path, binaries: place.binaries, ..config }));
    }
    Ok(None)
}

/// podman and the packages of container runtimes leave files of their own, which do no harm behind the CNI's.
fn is_of_a_cni(name: &str) -> bool {
    !["podman", "loopback"].iter().any(|harmless| name.contains(harmless))
}

fn read_config(view: &View, path: &str) -> Result<Config, Unread> {
    let text = view.text(path)?;
    let config: Value = serde_json::from_str(&text).map_err(|error| {
        Unread::new(
            format!("{path} is not JSON: {error}"),
            format!("correct {path}, or restart the CNI's DaemonSet pod on this node: it writes the file again"),
        )
    })?;
    Ok(parse(&config))
}

/// Adds the plugins of the next file by name: Multus calls them if its own file names no delegates.
fn with_next_config(view: &View, place: &Place, multus: Config, others: &[String]) -> Result<Config, Unread> {
    let Some(next) = others.first() else { return Ok(multus) };
    let next = read_config(view, &format!("{}/{next}", place.configs))?;
    let plugins: BTreeSet<String> = multus.plugins.into_iter().chain(next.plugins).collect();
    Ok(Config { plugins: plugins.into_iter().collect(), ..next })
}

/// Parses a list of plugins or a single plugin, and the delegates of Multus.
fn parse(config: &Value) -> Config {
    let plugins = plugins(config);
    let delegates = plugins.iter().filter_map(|plugin| plugin.get("delegates")?.as_array()).flatten();
    let delegates: Vec<&Value> = delegates.flat_map(|it| self::plugins(it)).collect();
    let is_meta = |plugin: &&Value| kind(plugin).is_some_and(|name| META.contains(&name));
    let has_unknown_delegates = delegates.is_empty() && plugins.iter().any(is_meta);
    let plugins = [plugins, delegates].concat();
    let mut names = BTreeSet::new();
    for plugin in &plugins {
        let types = [kind(plugin), plugin.get("ipam").and_then(kind)].into_iter().flatten();
        // These are names of binaries. A path would lead out of the folder of binaries.
        names.extend(types.filter(|name| !name.is_empty() && !name.contains('/')).map(str::to_owned));
    }
    let flannel = plugins.iter().find(|plugin| kind(plugin) == Some("flannel"));
    let subnet_file =
        flannel.map(|plugin| plugin.get("subnetFile").and_then(Value::as_str).unwrap_or(SUBNET_FILE).to_owned());
    if flannel.is_some() {
        // flannel calls these two plugins.
        names.extend(["bridge".to_owned(), "host-local".to_owned()]);
    }
    Config { plugins: names.into_iter().collect(), subnet_file, has_unknown_delegates, ..Config::default() }
}

/// The plugins of a list; a configuration without a list is one plugin itself.
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
    fn the_folder_of_a_distribution_comes_before_the_common_one() {
        let podman = ("etc/cni/net.d/87-podman-bridge.conflist", r#"{"plugins":[{"type":"bridge"}]}"#);
        let calico =
            ("var/snap/microk8s/current/args/cni-network/10-calico.conflist", r#"{"plugins":[{"type":"calico"}]}"#);
        let config = active(&Tree::new(&[podman, calico]).view()).expect("read");
        assert_eq!(config.map(|it| it.plugins), Some(vec!["calico".to_owned()]));
    }

    #[test]
    fn a_symbolic_link_stays_below_the_root() {
        let tree = Tree::new(&[("etc/hostname", "")]);
        let folder = tree.path().join("etc/cni");
        std::fs::create_dir_all(&folder).expect("folder");
        std::os::unix::fs::symlink("/etc", folder.join("net.d")).expect("link");
        std::fs::write(tree.path().join("etc/10-mine.conf"), r#"{"type":"ptp"}"#).expect("file");
        assert_eq!(active(&tree.view()).expect("read").map(|it| it.plugins), Some(vec!["ptp".to_owned()]));
    }
}
