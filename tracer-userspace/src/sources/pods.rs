//! Pods of this node without any API: from the cgroups, namespaces and log directories of its processes.
//!
//! A namespace that holds processes but no pod, or is only bound at `/run/netns`, becomes a pod without a
//! name: an attempt to its address is a probe all the same. Names are never guessed.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::addresses;
use super::procfs::{NodeNetns, Process, in_netns, netns_of};
use crate::event::{Container, Netns, Pod};

/// A node holds 250 pods by design; beyond this the rest is left out.
const MAX_NAMESPACES: usize = 4096;

/// What the kubelet's log directories say.
#[derive(Default)]
struct LogNames {
    /// uid to namespace and name.
    pods: HashMap<String, (String, String)>,
    /// Container id to container name.
    containers: HashMap<String, String>,
}

/// What the processes of one pod say.
#[derive(Default)]
struct Group {
    containers: BTreeSet<String>,
    /// How many of its processes are where, and one of them.
    namespaces: BTreeMap<Netns, (usize, u32)>,
}

/// All pods of the node, named ones first.
pub(super) fn discover(processes: &[Process], node: &NodeNetns) -> Vec<Pod> {
    let names = LogNames::read(node);
    let mut claimed = BTreeSet::from([node.netns]);
    let mut pods = Vec::new();
    for (uid, group) in groups(processes) {
        let pod = named_pod(uid, &group, node, &names);
        claimed.extend(pod.netns);
        pods.push(pod);
    }
    pods.extend(nameless(processes, claimed));
    pods
}

fn groups(processes: &[Process]) -> BTreeMap<String, Group> {
    let mut groups: BTreeMap<String, Group> = BTreeMap::new();
    for process in processes {
        let Some(pod) = &process.pod else { continue };
        let group = groups.entry(pod.uid.clone()).or_default();
        group.containers.extend(pod.container.clone());
        if let Some(netns) = process.netns {
            group.namespaces.entry(netns).or_insert((0, process.pid)).0 += 1;
        }
    }
    groups
}

impl Group {
    /// Where most of its processes are: a CNI agent may have a thread group elsewhere.
    fn netns(&self) -> Option<(Netns, u32)> {
        let most = self.namespaces.iter().max_by_key(|(_, (count, pid))| (*count, std::cmp::Reverse(*pid)));
        most.map(|(netns, (_, pid))| (*netns, *pid))
    }
}

fn named_pod(uid: String, group: &Group, node: &NodeNetns, names: &LogNames) -> Pod {
    let at = group.netns();
    let host_network = at.is_some_and(|(netns, _)| netns == node.netns);
    let addrs = at.filter(|_| !host_network).map(|(_, pid)| addresses::of_process(pid)).unwrap_or_default();
    let (namespace, name) = names.pods.get(&uid).cloned().unzip();
    let container = |id: &String| Container {
        name: names.containers.get(id).cloned(),
        id: Some(id.clone()),
        ..Container::default()
    };
    Pod {
        namespace,
        name,
        uid: Some(uid),
        kubelet_uid: None,
        addrs,
        netns: at.map(|(netns, _)| netns),
        host_network,
        containers: group.containers.iter().map(container).collect(),
        deleting: false,
    }
}

/// Namespaces of no pod. Those of process 1 and of ourselves are the host's around a nested node.
fn nameless(processes: &[Process], mut claimed: BTreeSet<Netns>) -> Vec<Pod> {
    claimed.extend(netns_of(1).into_iter().chain(netns_of(std::process::id())));
    let mut pods = Vec::new();
    let mut add = |netns, read: &dyn Fn() -> Vec<IpAddr>| {
        if claimed.len() < MAX_NAMESPACES && claimed.insert(netns) {
            let addrs = read();
            if !addrs.is_empty() {
                pods.push(Pod { addrs, netns: Some(netns), ..Pod::default() });
            }
        }
    };
    for process in processes {
        if let Some(netns) = process.netns {
            add(netns, &|| addresses::of_process(process.pid));
        }
    }
    for (netns, path) in bound_namespaces() {
        add(netns, &|| in_netns(&path, addresses::of_thread).unwrap_or_default());
    }
    pods
}

/// Namespaces bound at `/run/netns/NAME`. Every namespace file is on the same device, nsfs.
fn bound_namespaces() -> Vec<(Netns, PathBuf)> {
    let Ok(own) = fs::metadata("/proc/self/ns/net") else { return Vec::new() };
    let Ok(entries) = fs::read_dir("/run/netns") else { return Vec::new() };
    let bound = |path: PathBuf| {
        let file = fs::metadata(&path).ok()?;
        (file.dev() == own.dev()).then_some((Netns(file.ino() as u32), path))
    };
    entries.flatten().take(MAX_NAMESPACES).filter_map(|entry| bound(entry.path())).collect()
}

impl LogNames {
    /// From our own `/var/log`, or the prober's where that is not mounted here.
    fn read(node: &NodeNetns) -> Self {
        let roots = ["/var/log".into(), format!("/proc/{}/root/var/log", node.pid)];
        roots.iter().map(Path::new).find(|root| root.join("pods").is_dir()).map(Self::read_from).unwrap_or_default()
    }

    fn read_from(root: &Path) -> Self {
        Self {
            pods: names_in(&root.join("pods")).filter_map(|name| pod_directory(&name)).collect(),
            containers: names_in(&root.join("containers")).filter_map(|name| container_file(&name)).collect(),
        }
    }
}

fn names_in(directory: &Path) -> impl Iterator<Item = String> {
    fs::read_dir(directory).into_iter().flatten().flatten().filter_map(|entry| entry.file_name().into_string().ok())
}

/// `<namespace>_<name>_<uid>`
fn pod_directory(name: &str) -> Option<(String, (String, String))> {
    let mut parts = name.split('_');
    let (namespace, pod, uid) = (parts.next()?, parts.next()?, parts.next()?);
    Some((uid.to_owned(), (namespace.to_owned(), pod.to_owned())))
}

/// `<pod>_<namespace>_<container>-<id>.log`
fn container_file(name: &str) -> Option<(String, String)> {
    let (container, id) = name.strip_suffix(".log")?.rsplit('_').next()?.rsplit_once('-')?;
    Some((id.to_owned(), container.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::super::cgroup::PodProcess;
    use super::*;

    fn process(pid: u32, netns: u32, uid: Option<&str>, container: Option<&str>) -> Process {
        let pod = uid.map(|uid| PodProcess { uid: uid.into(), container: container.map(Into::into) });
        Process { pid, netns: Some(Netns(netns)), prober: None, pod }
    }

    #[test]
    fn a_pod_is_where_most_of_its_processes_are() {
        let processes = [
            process(1_000_001, 7, Some("a"), Some("c1")),
            process(1_000_002, 7, Some("a"), Some("c2")),
            process(1_000_003, 1, Some("a"), None),
            process(1_000_004, 1, Some("b"), Some("c3")),
        ];
        let node = NodeNetns { pid: 1_000_000, netns: Netns(1) };
        let pods = discover(&processes, &node);
        assert_eq!((pods[0].netns, pods[0].host_network, pods[0].containers.len()), (Some(Netns(7)), false, 2));
        assert_eq!((pods[1].netns, pods[1].host_network), (Some(Netns(1)), true));
        assert!(pods.iter().all(|pod| pod.name.is_none() && pod.addrs.is_empty() || pod.uid.is_none()));
    }

    #[test]
    fn log_directories_name_pods_and_containers() {
        let uid = "5d3b1a7c-2f0e-4b8e-9a55-0c6f1c1c8e11";
        let expected = (uid.to_owned(), ("kube-system".to_owned(), "coredns-6d4b-x".to_owned()));
        assert_eq!(pod_directory(&format!("kube-system_coredns-6d4b-x_{uid}")), Some(expected));
        assert_eq!(pod_directory("lost+found"), None);
        let id = "c".repeat(64);
        let file = format!("coredns-6d4b-x_kube-system_side-car-{id}.log");
        assert_eq!(container_file(&file), Some((id, "side-car".into())));
        assert_eq!(container_file("other.txt"), None);
    }
}
