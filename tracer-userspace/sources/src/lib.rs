//! Observations from outside the kernel stream: links, NodePorts, settings, pods and Services of this node.
//!
//! [`snapshot`] reads all once, quickly; [`watch`] emits each again when it changes. Only a wrong file is an error.
//! A missing privilege or kernel feature is a line in `problems`.

mod background;
mod binds;
pub mod cluster;
pub mod files;
#[doc(hidden)]
pub mod fuzzing;
mod inquire;
mod kubelet;
mod kubelet_pods;
mod merge;
mod pace;
mod sent;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod watch;
pub use tracer_node::{namespaces, procfs};

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;

pub use background::{Background, Supervisor};
pub use files::FileError;
pub use files::api::or_default;
pub use inquire::QueryThreads;
pub use kubelet::{
    KubeletLog, KubeletLogging, KubeletLoggingError, NamedLog, TO_NAME as TO_NAME_THE_LOG,
    exposure as kubelet_log_exposure, journal_in, lack as kubelet_log_lack, stderr_lost as kubelet_stderr_lost,
    unfollowed as kubelet_log_unfollowed,
};
pub use merge::merge;
pub use procfs::{NodeNetns, Prober};
pub use watch::watch;

use cluster::{Cluster, View};
use files::Stamp;
use kubelet_pods::KubeletPods;
use tracer_model::event::{
    KNOWN_PROBERS, Netns, NodePorts, ObservationKind, Pod, Pods, ProxyMode, Service, ServicePort, Services,
};
use tracer_model::plural::counted;
use tracer_node::sock_diag::listening_ports;
use tracer_node::{links, pods, settings};

#[derive(Clone, Debug, Default)]
pub struct SourceConfig {
    /// Names of the probers' processes; empty: [`KNOWN_PROBERS`].
    pub probers: Vec<String>,
    /// `--pods`
    pub pods: Option<PathBuf>,
    /// `--services`
    pub services: Option<PathBuf>,
    /// The cluster API, for the lists that no file gives.
    pub cluster: Option<Cluster>,
}

impl SourceConfig {
    /// Whether a file or the cluster API lists pods. Otherwise the kubelet's own list is read.
    fn lists_pods(&self) -> bool {
        self.pods.is_some() || self.cluster.as_ref().is_some_and(|cluster| cluster.config.pods)
    }

    /// The process names that count as probers.
    pub fn prober_names(&self) -> Vec<String> {
        if self.probers.is_empty() {
            KNOWN_PROBERS.iter().map(ToString::to_string).collect()
        } else {
            self.probers.clone()
        }
    }
}

#[derive(Debug)]
pub struct Snapshot {
    pub probers: Vec<Prober>,
    /// The node's network namespace; absent if `/proc` shows not even our own.
    pub node: Option<NodeNetns>,
    /// The observations: links, NodePorts, settings, pods and Services.
    pub observations: Vec<ObservationKind>,
    /// The sources of the observations, for people.
    pub sources: Vec<String>,
    /// What could not be read and which privilege that needs, one line each.
    pub problems: Vec<String>,
    listed: Listed,
    /// The namespace of which every NodePort table could be read.
    tables_of: Option<Netns>,
}

/// Pods, as a file, the cluster API or the kubelet lists them, and Services, as a file lists them.
#[derive(Debug)]
struct Listed {
    pods: Vec<Pod>,
    /// Absent without a file.
    services: Option<Vec<Service>>,
    kubelet: KubeletPods,
    pods_stamp: Option<Stamp>,
    services_stamp: Option<Stamp>,
}

impl Listed {
    /// Takes the stamps before it reads: a change during the read is then noticed later.
    fn read(config: &SourceConfig) -> Result<Self, FileError> {
        let mut listed = Self {
            pods_stamp: config.pods.as_deref().and_then(Stamp::of),
            services_stamp: config.services.as_deref().and_then(Stamp::of),
            pods: config.pods.as_deref().map(files::read_pods).transpose()?.unwrap_or_default(),
            services: config.services.as_deref().map(files::read_services).transpose()?,
            kubelet: KubeletPods::default(),
        };
        if let Some(cluster) = &config.cluster {
            listed.take(cluster, cluster.view());
        }
        Ok(listed)
    }

    /// Replaces the pods that the cluster API lists. The rest is from files.
    fn take(&mut self, cluster: &Cluster, view: View) {
        if cluster.config.pods {
            self.pods = view.pods;
        }
    }

    /// The listed pods, joined with those that were found on the node.
    fn pods_with(&self, found: Vec<Pod>) -> ObservationKind {
        ObservationKind::Pods(Pods { pods: merge(found, &self.pods) })
    }

    fn services(&self) -> Option<ObservationKind> {
        self.services.clone().map(|services| ObservationKind::Services(Services { services }))
    }
}

/// The result of one read of the node.
#[derive(Debug, Default)]
struct NodeView {
    probers: Vec<Prober>,
    node: Option<NodeNetns>,
    observations: Vec<ObservationKind>,
    pods: Vec<Pod>,
    /// Whether the kubelet listed its pods.
    by_kubelet: bool,
    problems: Vec<String>,
    /// The namespace, if every NodePort table could be read: a table without an observation has no NodePorts.
    tables_of: Option<Netns>,
}

/// Reads everything once. The only error is a file that was named and cannot be used.
pub fn snapshot(config: &SourceConfig) -> Result<Snapshot, FileError> {
    let mut listed = Listed::read(config)?;
    let NodeView { probers, node, mut observations, pods, by_kubelet, mut problems, tables_of } =
        read_node(config, &mut listed);
    problems.extend(config.cluster.as_ref().and_then(|cluster| wrong_node(cluster, &pods)));
    problems.extend(node.as_ref().and_then(no_sockets));
    observations.push(listed.pods_with(pods));
    observations.extend(listed.services());
    let mut sources = sources(config, &observations);
    sources.extend(by_kubelet.then(|| "pods and probes (the kubelet's socket)".to_owned()));
    Ok(Snapshot { probers, node, observations, sources, problems, listed, tables_of })
}

/// The problem if the kernel lists no TCP sockets, since tcp_diag cannot be loaded.
fn no_sockets(node: &NodeNetns) -> Option<String> {
    let error = node.enter(listening_ports).ok()?.err()?;
    Some(format!(
        "the kernel does not list TCP sockets ({error}), so listeners and their queues are unknown: load the module tcp_diag"
    ))
}

/// The problem if the API lists no pod of this node although the node has pods: the cluster may know it by another
/// name.
fn wrong_node(cluster: &Cluster, found: &[Pod]) -> Option<String> {
    let view = cluster.view();
    let none = cluster.config.pods && view.is_complete() && view.pods.is_empty();
    let name = &cluster.config.node_name;
    (none && found.iter().any(|pod| pod.uid.is_some())).then(|| {
        format!("the cluster API knows no pod of a node `{name}`, and this node has pods: is that its name? (NODE_NAME, --node-name)")
    })
}

/// Names NodePorts after their Services. IPVS has no names; the list of Services has them, if there is one.
fn name_node_ports(observations: &mut [ObservationKind], services: &[Service]) {
    let ports = services.iter().flat_map(|service| service.ports.iter().map(move |port| (service, port)));
    let names: HashMap<u16, String> =
        ports.filter_map(|(service, port)| Some((port.node_port?, port_name(service, port)))).collect();
    for kind in observations {
        if let ObservationKind::NodePorts(table) = kind {
            for port in table.ports.iter_mut().filter(|port| port.service.is_none()) {
                port.service = names.get(&port.port).cloned();
            }
        }
    }
}

/// `namespace/name[:port]`, as kube-proxy writes it.
fn port_name(service: &Service, port: &ServicePort) -> String {
    let Service { namespace, name, .. } = service;
    match port.name.as_deref() {
        Some(port) if !port.is_empty() => format!("{namespace}/{name}:{port}"),
        _ => format!("{namespace}/{name}"),
    }
}

/// Scans the processes, then reads the node's namespace. If the kubelet does not list its pods, its previous list
/// stays.
fn read_node(config: &SourceConfig, listed: &mut Listed) -> NodeView {
    let (processes, skipped) = procfs::scan(&config.prober_names());
    let probers = procfs::probers(&processes);
    let problems = prober_problems(&probers).into_iter().chain(skipped).collect();
    let node = procfs::node_netns(&probers);
    let mut view = NodeView { probers, node, problems, ..NodeView::default() };
    let Some(node) = view.node.clone() else {
        view.problems.push("cannot read /proc/self/ns/net: is /proc mounted?".into());
        return view;
    };
    let (pods, skipped) = pods::discover(&processes, &node);
    view.pods = pods;
    view.problems.extend(skipped);
    view.read_tables(&node);
    name_node_ports(&mut view.observations, listed.services.as_deref().unwrap_or_default());
    let by_kubelet = if config.lists_pods() { None } else { listed.kubelet.read(&node, &view.pods) };
    match by_kubelet {
        Some(Ok(pods)) => (listed.pods, view.by_kubelet) = (pods, true),
        Some(Err(problem)) => view.problems.push(problem),
        None => {}
    }
    // The prober's process ended during the read, which explains all problems. The next read finds another process.
    if procfs::netns_of(node.pid) != Some(node.netns) {
        view.problems.clear();
    }
    view
}

impl NodeView {
    fn read_tables(&mut self, node: &NodeNetns) {
        let links = links::read(node).unwrap_or_else(|error| {
            self.problems.push(error.to_string());
            Vec::new()
        });
        if !links.is_empty() {
            self.observations.push(ObservationKind::Links(links::to_observation(node, &links)));
        }
        let (node_ports, problems) = tracer_netfilter::read(node, &links);
        self.tables_of = problems.is_empty().then_some(node.netns);
        let of_ipvs =
            self.tables_of.filter(|_| node.net_file("ip_vs").exists()).and_then(|of| empty_ipvs(of, &node_ports));
        self.observations.extend(node_ports.into_iter().chain(of_ipvs).map(ObservationKind::NodePorts));
        self.problems.extend(problems.iter().map(ToString::to_string));
        match settings::read(node) {
            Ok(settings) => self.observations.push(ObservationKind::NodeSettings(settings)),
            Err(error) => self.problems.push(error.to_string()),
        }
    }
}

/// The table of IPVS, if it was read and has no NodePort: what IPVS takes is then not taken for a packet to a NodePort.
fn empty_ipvs(netns: Netns, tables: &[NodePorts]) -> Option<NodePorts> {
    let is_listed = tables.iter().any(|table| table.mode == ProxyMode::Ipvs);
    (!is_listed).then(|| NodePorts::new(netns, ProxyMode::Ipvs, Vec::new()))
}

fn prober_problems(probers: &[Prober]) -> Vec<String> {
    let mut problems = Vec::new();
    let hidden = probers.iter().filter(|prober| prober.netns.is_none()).count();
    if hidden > 0 {
        problems.push(format!(
            "the network namespace of {hidden} prober(s) cannot be read: needs CAP_SYS_PTRACE; \
             probes may be reported as connections"
        ));
    }
    let count = probers.iter().filter_map(|prober| prober.netns).collect::<BTreeSet<_>>().len();
    if count > 1 {
        problems.push(format!(
            "probers run in {count} network namespaces: links and NodePorts are read from one of them only"
        ));
    }
    problems
}

fn sources(config: &SourceConfig, observations: &[ObservationKind]) -> Vec<String> {
    let named = |kind: &ObservationKind| match kind {
        ObservationKind::Links(_) => Some("links and addresses (rtnetlink)".to_owned()),
        ObservationKind::NodePorts(NodePorts { ports, mode, .. }) => {
            let mode = if *mode == ProxyMode::Ipvs { "IPVS".to_owned() } else { mode.to_string() };
            Some(format!("{} ({mode})", counted(ports.len() as u64, "NodePort")))
        }
        ObservationKind::NodeSettings(_) => Some("settings (sysctl)".to_owned()),
        ObservationKind::Pods(_) => Some("pods (processes and cgroups)".to_owned()),
        _ => None,
    };
    let files = config.pods.iter().map(|path| format!("pods and probes ({})", path.display()));
    let services = config.services.iter().map(|path| format!("services ({})", path.display()));
    let cluster = config.cluster.iter().flat_map(Cluster::sources);
    observations.iter().filter_map(named).chain(files).chain(services).chain(cluster).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracer_model::event::NodePort;

    #[test]
    fn a_list_of_services_names_the_ports_of_ipvs() {
        let port = ServicePort { name: Some("https".into()), port: 443, node_port: Some(36704) };
        let service = Service {
            namespace: "kube-system".into(),
            name: "kubernetes-dashboard".into(),
            ports: vec![port],
            ..Service::default()
        };
        let port = |port| NodePort { port, ..NodePort::default() };
        let table = NodePorts::new(Netns(1), ProxyMode::Ipvs, vec![port(30080), port(36704)]);
        let mut observations = [ObservationKind::NodePorts(table)];
        name_node_ports(&mut observations, &[service]);
        let ObservationKind::NodePorts(named) = &observations[0] else {
            unreachable!("the observation keeps its kind")
        };
        let names: Vec<_> = named.ports.iter().map(|port| port.service.as_deref()).collect();
        assert_eq!(names, [None, Some("kube-system/kubernetes-dashboard:https")]);
    }

    #[test]
    fn a_table_of_ipvs_without_node_ports_counts_as_read() {
        let empty = |mode| NodePorts::new(Netns(1), mode, Vec::new());
        assert_eq!(empty_ipvs(Netns(1), &[empty(ProxyMode::Iptables)]), Some(empty(ProxyMode::Ipvs)));
        assert_eq!(empty_ipvs(Netns(1), &[empty(ProxyMode::Ipvs)]), None);
    }

    #[test]
    fn a_missing_prober_and_several_nodes_are_reported() {
        let at = |netns| Prober { pid: 1, comm: "kubelet".into(), netns };
        assert!(prober_problems(&[]).is_empty());
        let problems = prober_problems(&[at(Some(Netns(1))), at(Some(Netns(2))), at(None)]);
        assert!(problems[0].contains("1 prober(s)") && problems[1].contains("2 network namespaces"), "{problems:?}");
        assert!(problems[0].ends_with("; probes may be reported as connections"), "{problems:?}");
        assert!(prober_problems(&[at(Some(Netns(1)))]).is_empty());
    }
}
