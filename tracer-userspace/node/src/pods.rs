//! Finds the pods of this node without any API: from the cgroups, namespaces and log directories of its processes.
//!
//! A namespace without a known pod becomes a pod without a name, because probes may connect to its address.
//! It has processes, or it is only bound at `/run/netns`. tracer never guesses names.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::net::IpAddr;
use std::path::Path;

use super::addresses;
use super::enter::in_netns;
use super::namespaces::named;
use super::procfs::{NodeNetns, Process, netns_of};
use super::room::Room;
use tracer_model::event::{Container, Netns, Pod};

/// How many log names are read. The kubelet keeps a few for each container.
const MAX_NAMES: usize = 16_384;
/// How many namespaces are read; the rest is skipped. A node is designed for some 250 pods.
const MAX_NAMESPACES: usize = 4096;
/// How many addresses are kept: of one namespace other than the node's, and of all these together. A pod has a few.
const MAX_OF_NETNS: usize = 64;
const MAX_ADDRESSES: usize = 16_384;

/// Pod and container names, read from the names of the kubelet's log directories and files.
#[derive(Default)]
struct LogNames {
    /// From `/var/log/pods`, by pod uid.
    pods: HashMap<String, PodName>,
    /// From `/var/log/containers`, by container id: the container's name and its pod's name.
    containers: HashMap<String, (String, PodName)>,
}

/// Namespace and name.
type PodName = (String, String);

#[derive(Default)]
struct Group {
    containers: BTreeSet<String>,
    /// For each namespace: how many of the pod's processes are in it, and the pid of one of them.
    namespaces: BTreeMap<Netns, (usize, u32)>,
}

/// All pods of the node, named ones first, and a problem to report if some namespaces were skipped.
pub fn discover(processes: &[Process], node: &NodeNetns) -> (Vec<Pod>, Option<String>) {
    // The kubelet creates these names in the prober's `/var/log`. Without it, tracer's own is read.
    let names = LogNames::read(&[format!("/proc/{}/root/var/log", node.pid).as_ref(), "/var/log".as_ref()]);
    let mut claimed = BTreeSet::from([node.netns]);
    let (mut pods, mut left) = (Vec::new(), AddressesLeft(MAX_ADDRESSES));
    for (uid, group) in groups(processes) {
        let pod = named_pod(uid, &group, node, &names, &mut left);
        claimed.extend(pod.netns);
        pods.push(pod);
    }
    let mut room = Room::of(MAX_NAMESPACES);
    pods.extend(unnamed_pods(processes, claimed, &mut room, &mut left));
    (pods, room.problem())
}

/// How many addresses may still be kept.
struct AddressesLeft(usize);

impl AddressesLeft {
    /// Takes the addresses that `read` returns. `read` gets the number of addresses that may be kept.
    fn take(&mut self, read: impl FnOnce(usize) -> Vec<IpAddr>) -> Vec<IpAddr> {
        let addrs = read(self.0.min(MAX_OF_NETNS));
        self.0 = self.0.saturating_sub(addrs.len());
        addrs
    }
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
    /// The namespace of most of its processes: a CNI agent may run one process in another namespace.
    fn netns(&self) -> Option<(Netns, u32)> {
        let most = self.namespaces.iter().max_by_key(|(_, (count, pid))| (*count, std::cmp::Reverse(*pid)));
        most.map(|(netns, (_, pid))| (*netns, *pid))
    }
}

fn named_pod(uid: String, group: &Group, node: &NodeNetns, names: &LogNames, left: &mut AddressesLeft) -> Pod {
    let at = group.netns();
    let host_network = at.is_some_and(|(netns, _)| netns == node.netns);
    let own = at.filter(|_| !host_network);
    let addrs = own.map(|(_, pid)| left.take(|most| addresses::of_process(pid, most))).unwrap_or_default();
    let (namespace, name) = names.of_pod(&uid, group).cloned().unzip();
    let container = |id: &String| Container {
        name: names.containers.get(id).map(|(name, _)| name.clone()),
        id: Some(id.clone()),
        ..Container::default()
    };
    Pod {
        namespace,
        name,
        uid: Some(uid),
        kubelet_uid: None,
        workload: None,
        addrs,
        netns: at.map(|(netns, _)| netns),
        host_network,
        containers: group.containers.iter().map(container).collect(),
        deleting: false,
    }
}

/// Namespaces without a known pod. The namespaces of process 1 and of tracer are skipped: around a nested node they are
/// the host's.
fn unnamed_pods(
    processes: &[Process],
    mut claimed: BTreeSet<Netns>,
    room: &mut Room,
    left: &mut AddressesLeft,
) -> Vec<Pod> {
    claimed.extend(netns_of(1).into_iter().chain(netns_of(std::process::id())));
    let mut pods = Vec::new();
    let mut add = |netns, pod: Option<&str>, read: &dyn Fn(usize) -> Vec<IpAddr>| {
        if !claimed.contains(&netns) && room.take(pod) {
            claimed.insert(netns);
            let addrs = left.take(read);
            if !addrs.is_empty() {
                pods.push(Pod { addrs, netns: Some(netns), ..Pod::default() });
            }
        }
    };
    for process in processes {
        if let Some(netns) = process.netns {
            let pod = process.pod.as_ref().map(|pod| pod.uid.as_str());
            add(netns, pod, &|most| addresses::of_process(process.pid, most));
        }
    }
    for (netns, path) in named(&["/run/netns"]).take(MAX_NAMESPACES) {
        add(netns, None, &|most| in_netns(&path, || addresses::of_thread(most)).unwrap_or_default());
    }
    pods
}

impl LogNames {
    /// Reads each directory from the first place that has it: a container may mount one directory without the other.
    fn read(places: &[&Path]) -> Self {
        Self {
            pods: names_in(places, "pods").filter_map(|name| pod_directory(&name)).collect(),
            containers: names_in(places, "containers").filter_map(|name| container_file(&name)).collect(),
        }
    }

    /// The pod's name, by its uid or by any of its containers.
    fn of_pod(&self, uid: &str, group: &Group) -> Option<&PodName> {
        let of_containers = || group.containers.iter().find_map(|id| self.containers.get(id));
        self.pods.get(uid).or_else(|| of_containers().map(|(_, pod)| pod))
    }
}

fn names_in(places: &[&Path], directory: &str) -> impl Iterator<Item = String> {
    let entries = places.iter().find_map(|place| fs::read_dir(place.join(directory)).ok());
    entries.into_iter().flatten().flatten().take(MAX_NAMES).filter_map(|entry| entry.file_name().into_string().ok())
}

/// `<namespace>_<name>_<uid>`
fn pod_directory(name: &str) -> Option<(String, PodName)> {
    let mut parts = name.split('_');
    let (namespace, pod, uid) = (parts.next()?, parts.next()?, parts.next()?);
    Some((uid.to_owned(), (namespace.to_owned(), pod.to_owned())))
}

/// `<pod>_<namespace>_<container>-<id>.log`: a symlink of the kubelet's to the log (`legacyLogSymlink`,
/// pkg/kubelet/kuberuntime/legacy.go). The kubelet cuts the id where the file name is too long; no container matches it
/// then.
fn container_file(name: &str) -> Option<(String, (String, PodName))> {
    let mut parts = name.strip_suffix(".log")?.split('_');
    let (pod, namespace, (container, id)) = (parts.next()?, parts.next()?, parts.next()?.rsplit_once('-')?);
    Some((id.to_owned(), (container.to_owned(), (namespace.to_owned(), pod.to_owned()))))
}

#[cfg(test)]
mod tests {
    use super::super::cgroup::PodProcess;
    use super::*;
    use tracer_testing::Scratch;

    fn process(pid: u32, netns: u32, uid: Option<&str>, container: Option<&str>) -> Process {
        let pod = uid.map(|uid| PodProcess { uid: uid.into(), container: container.map(Into::into) });
        Process { pid, netns: Some(Netns(netns)), prober: None, pod }
    }

    #[test]
    fn a_pod_gets_the_namespace_of_most_of_its_processes() {
        let processes = [
            process(1_000_001, 7, Some("a"), Some("c1")),
            process(1_000_002, 7, Some("a"), Some("c2")),
            process(1_000_003, 1, Some("a"), None),
            process(1_000_004, 1, Some("b"), Some("c3")),
        ];
        let node = NodeNetns { pid: 1_000_000, netns: Netns(1) };
        let (pods, _) = discover(&processes, &node);
        assert_eq!((pods[0].netns, pods[0].host_network, pods[0].containers.len()), (Some(Netns(7)), false, 2));
        assert_eq!((pods[1].netns, pods[1].host_network), (Some(Netns(1)), true));
        assert!(pods.iter().all(|pod| pod.name.is_none() && pod.addrs.is_empty() || pod.uid.is_none()));
    }

    /// Any pod that may unshare can make namespaces with as many addresses as it likes.
    #[test]
    fn namespaces_and_addresses_are_bounded() {
        let node = NodeNetns { pid: 1_000_000, netns: Netns(1) };
        let processes: Vec<_> = (0..200).map(|it| process(1_000_001 + it, 7 + it, Some("a"), None)).collect();
        assert_eq!(discover(&processes[..9], &node).1, None);
        assert!(discover(&processes, &node).1.is_some_and(|problem| problem.contains("left out")));
        let mut left = AddressesLeft(MAX_OF_NETNS + 1);
        let mut take = || left.take(|most| vec![IpAddr::from([10, 0, 0, 1]); most.min(1_000)]).len();
        assert_eq!([take(), take(), take()], [MAX_OF_NETNS, 1, 0]);
    }

    #[test]
    fn log_directories_name_pods_and_containers() {
        let uid = "5d3b1a7c-2f0e-4b8e-9a55-0c6f1c1c8e11";
        let expected = (uid.to_owned(), ("kube-system".to_owned(), "coredns-6d4b-x".to_owned()));
        assert_eq!(pod_directory(&format!("kube-system_coredns-6d4b-x_{uid}")), Some(expected));
        assert_eq!(pod_directory("lost+found"), None);
        let id = "c".repeat(64);
        let file = format!("coredns-6d4b-x_kube-system_side-car-{id}.log");
        let pod = ("kube-system".into(), "coredns-6d4b-x".into());
        assert_eq!(container_file(&file), Some((id, ("side-car".into(), pod))));
        assert_eq!((container_file("other.txt"), container_file("a_b.log")), (None, None));
    }

    /// In the DaemonSet's container the symlinks lead nowhere, and `/var/log` has no `pods` directory.
    #[test]
    fn each_log_directory_is_read_from_the_first_place_that_has_it() {
        let scratch = Scratch::new();
        let (own, prober) = (scratch.path("own"), scratch.path("prober"));
        fs::create_dir_all(own.join("containers")).expect("a directory");
        let link = own.join("containers").join("cart-0_shop_app-c1.log");
        std::os::unix::fs::symlink("/var/log/pods/nowhere/0.log", link).expect("a symlink");
        let named = |places: &[&Path]| {
            let group = Group { containers: ["c0".into(), "c1".into()].into(), ..Group::default() };
            let node = NodeNetns { pid: 1_000_000, netns: Netns(1) };
            let pod = named_pod("u".into(), &group, &node, &LogNames::read(places), &mut AddressesLeft(0));
            let containers: Vec<_> = pod.containers.into_iter().map(|it| it.name).collect();
            (pod.namespace, pod.name, containers)
        };
        let with_pod = |name: &str| (Some("shop".into()), Some(name.into()), vec![None, Some("app".into())]);
        assert_eq!(named(&[&prober, &own]), with_pod("cart-0"), "by its container");
        fs::create_dir_all(prober.join("pods").join("shop_cart_u")).expect("a directory");
        assert_eq!(named(&[&prober, &own]), with_pod("cart"), "by its own directory");
        assert_eq!(named(&[scratch.root()]), (None, None, vec![None, None]));
    }
}
