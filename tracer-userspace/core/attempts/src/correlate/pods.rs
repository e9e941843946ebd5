//! The pods of the node, found by what an event carries: an address or a namespace. A node has hundreds, and each event of
//! each attempt asks.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use tracer_model::event::{Container, Netns, Pod};

/// The name of its container, and how that of its pod begins, as kubeadm, RKE2 and OpenShift have it.
const API_SERVER: &str = "kube-apiserver";

/// The pods, in the order of their list.
#[derive(Debug, Default)]
pub struct KnownPods {
    all: Vec<Pod>,
    by_addr: BTreeMap<IpAddr, Vec<usize>>,
    /// By the address that a probe or a lifecycle handler names in place of the pod's.
    by_host: BTreeMap<IpAddr, Vec<usize>>,
    /// Those with a network of their own.
    by_netns: BTreeMap<Netns, usize>,
    /// Those of which a probe or a lifecycle handler may dial an address that no list has.
    elsewhere: Vec<usize>,
    handler_ports: BTreeSet<u16>,
    have_specs: bool,
}

impl KnownPods {
    pub(super) fn replace(&mut self, pods: &[Pod]) {
        if self.take(pods) {
            self.index();
        }
    }

    /// It is another list than that of before. A list comes as a whole where one pod changed: what stands as before at its
    /// begin and its end is not copied.
    fn take(&mut self, pods: &[Pod]) -> bool {
        let old = &mut self.all;
        let begin = old.iter().zip(pods).take_while(|(old, new)| old == new).count();
        let rest = old[begin..].iter().rev().zip(pods[begin..].iter().rev());
        let end = rest.take_while(|(old, new)| old == new).count();
        let is_other = begin + end < old.len().max(pods.len());
        old.splice(begin..old.len() - end, pods[begin..pods.len() - end].iter().cloned());
        is_other
    }

    fn index(&mut self) {
        *self = Self { all: std::mem::take(&mut self.all), ..Self::default() };
        for (place, pod) in self.all.iter().enumerate() {
            pod.addrs.iter().for_each(|addr| note(&mut self.by_addr, *addr, place));
            hosts(pod).filter_map(|host| host.parse().ok()).for_each(|addr| note(&mut self.by_host, addr, place));
            if let Some(netns) = pod.netns.filter(|_| !pod.host_network) {
                self.by_netns.entry(netns).or_insert(place);
            }
        }
        let elsewhere = self.all.iter().enumerate().filter(|(_, pod)| uses_other_address(pod));
        self.elsewhere = elsewhere.map(|(place, _)| place).collect();
        let containers = self.all.iter().flat_map(|pod| &pod.containers);
        self.handler_ports = containers.flat_map(|it| &it.lifecycle).map(|handler| handler.port).collect();
        self.have_specs = self.all.iter().any(Pod::has_specs);
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Pod> {
        self.all.iter()
    }

    /// Those with this address; on the host's network several share one.
    pub fn at(&self, addr: IpAddr) -> impl Iterator<Item = &Pod> {
        self.places(addr).iter().map(|place| &self.all[*place])
    }

    /// The one with a network of its own that has this address; of several the one that is known by more than its namespace.
    /// None if it could be two.
    pub fn only_at(&self, addr: IpAddr) -> Option<&Pod> {
        let own = || self.at(addr).filter(|pod| !pod.host_network);
        let mut known = own().filter(|pod| pod.uid.is_some() || pod.name.is_some());
        match (known.next(), known.next()) {
            (Some(pod), None) => Some(pod),
            (Some(_), Some(_)) => None,
            (None, _) => own().next().filter(|_| own().count() == 1),
        }
    }

    /// The namespace of the pods at this address, if those with a known namespace share one.
    pub fn netns_at(&self, addr: IpAddr) -> Option<Netns> {
        let mut all = self.at(addr).filter_map(|pod| pod.netns);
        let first = all.next()?;
        all.all(|netns| netns == first).then_some(first)
    }

    /// Those of which a probe or a lifecycle handler may dial this address.
    pub fn connected_at(&self, addr: IpAddr) -> impl Iterator<Item = &Pod> {
        let named = self.by_host.get(&addr).into_iter().flatten();
        let mut places: Vec<usize> = self.places(addr).iter().chain(named).chain(&self.elsewhere).copied().collect();
        places.sort_unstable();
        places.dedup();
        places.into_iter().map(|place| &self.all[place])
    }

    /// The pod that has this namespace as its own.
    pub fn in_netns(&self, netns: Netns) -> Option<&Pod> {
        self.by_netns.get(&netns).map(|place| &self.all[*place])
    }

    /// A lifecycle handler of any of them dials this port.
    pub fn have_handler_on(&self, port: u16) -> bool {
        self.handler_ports.contains(&port)
    }

    /// A probe of any of them dials this.
    pub fn are_probed_at(&self, dst: SocketAddr) -> bool {
        let containers = self.connected_at(dst.ip()).flat_map(|pod| &pod.containers);
        containers.flat_map(|it| &it.probes).any(|spec| spec.port == dst.port())
    }

    /// It is the API server of this node, as a static pod runs it, and is probed there.
    pub fn is_api_server(&self, dst: SocketAddr) -> bool {
        let is_probed = |it: &Container| it.probes.iter().any(|spec| spec.port == dst.port());
        self.connected_at(dst.ip()).any(|pod| {
            let by_name = pod.name.as_ref().is_some_and(|name| name.starts_with(API_SERVER));
            let is_it = |it: &Container| by_name || it.name.as_deref() == Some(API_SERVER);
            // One in a pod of its own network is another cluster's (a hosted control plane).
            pod.host_network && pod.containers.iter().any(|it| is_it(it) && is_probed(it))
        })
    }

    /// Their probes or lifecycle handlers are known, and not only their names.
    pub const fn have_specs(&self) -> bool {
        self.have_specs
    }

    fn places(&self, addr: IpAddr) -> &[usize] {
        self.by_addr.get(&addr).map_or(&[], Vec::as_slice)
    }
}

/// Each place once: they come in order.
fn note(places: &mut BTreeMap<IpAddr, Vec<usize>>, addr: IpAddr, place: usize) {
    let places = places.entry(addr).or_default();
    if places.last() != Some(&place) {
        places.push(place);
    }
}

/// By a name, or because a host-network pod of a standalone kubelet has no address in its status.
fn uses_other_address(pod: &Pod) -> bool {
    pod.host_network && pod.addrs.is_empty() || hosts(pod).any(|host| host.parse::<IpAddr>().is_err())
}

/// What its probes and lifecycle handlers name in place of its address.
fn hosts(pod: &Pod) -> impl Iterator<Item = &str> {
    let probes = pod.containers.iter().flat_map(|it| &it.probes).map(|spec| &spec.host);
    let handlers = pod.containers.iter().flat_map(|it| &it.lifecycle).map(|handler| &handler.host);
    probes.chain(handlers).filter_map(Option::as_deref)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracer_core::testing::*;

    fn pod(name: &str, addr: &str, netns: u32) -> Pod {
        let addrs = vec![addr.parse().expect("an address")];
        Pod { name: Some(name.into()), addrs, netns: Some(Netns(netns)), ..Pod::default() }
    }

    fn names<'a>(pods: impl Iterator<Item = &'a Pod>) -> Vec<&'a str> {
        pods.filter_map(|pod| pod.name.as_deref()).collect()
    }

    #[test]
    fn they_are_found_by_address_in_the_order_of_the_list() {
        let by_host = |name: &str, host: &str| {
            let spec = ProbeSpec { host: Some(host.into()), ..http_probe(80) };
            let container = Container { probes: vec![spec], ..Container::default() };
            Pod { containers: vec![container], ..pod(name, "10.88.0.9", 9) }
        };
        let mut known = KnownPods::default();
        let named = [by_host("by host", "10.88.0.1"), by_host("by name", "localhost"), by_host("other", "10.88.0.2")];
        let mut pods = [pod("a", "10.88.0.1", 1), pod("c", "10.88.0.1", 3), pod("d", "10.88.0.4", 4)];
        pods[1].addrs.push(pods[0].addrs[0]);
        known.replace(&[named.as_slice(), &pods].concat());
        let addr = "10.88.0.1".parse().expect("an address");
        assert_eq!(names(known.at(addr)), ["a", "c"]);
        assert_eq!(names(known.connected_at(addr)), ["by host", "by name", "a", "c"]);
        assert_eq!(known.in_netns(Netns(4)).and_then(|pod| pod.name.as_deref()), Some("d"));
        assert!(known.have_specs());
    }

    #[test]
    fn an_address_of_two_is_nobodys() {
        let (addr, nameless) =
            ("10.88.0.1".parse().expect("an address"), Pod { name: None, ..pod("", "10.88.0.1", 3) });
        let of = |pods: &[Pod]| {
            let mut known = KnownPods::default();
            known.replace(pods);
            (known.only_at(addr).map(|pod| pod.name.clone().unwrap_or_default()), known.netns_at(addr))
        };
        let (a, b) = (pod("a", "10.88.0.1", 1), pod("b", "10.88.0.1", 2));
        let listed = Pod { netns: None, ..a.clone() };
        assert_eq!(of(std::slice::from_ref(&a)), (Some("a".into()), Some(Netns(1))));
        assert_eq!(of(&[a.clone(), b]), (None, None));
        assert_eq!(of(&[a, nameless.clone()]), (Some("a".into()), None), "it has a name, and no say where it is");
        assert_eq!(of(&[listed, nameless.clone()]), (Some("a".into()), Some(Netns(3))));
        assert_eq!(of(std::slice::from_ref(&nameless)), (Some(String::new()), Some(Netns(3))));
        assert_eq!(of(&[nameless.clone(), Pod { netns: Some(Netns(4)), ..nameless }]), (None, None));
    }

    #[test]
    fn a_lifecycle_handler_dials_as_a_probe_does() {
        let (event, scheme, path) = (LifecycleEvent::PreStop, "http".into(), "/".into());
        let handler = LifecycleHandler { event, scheme, port: 9000, host: Some("10.88.0.1".into()), path };
        let container = Container { lifecycle: vec![handler], ..Container::default() };
        let mut known = KnownPods::default();
        known.replace(&[Pod { containers: vec![container], ..pod("a", "10.88.0.9", 9) }, pod("b", "10.88.0.1", 1)]);
        assert_eq!(names(known.connected_at("10.88.0.1".parse().expect("an address"))), ["a", "b"]);
        assert!(known.have_handler_on(9000) && !known.have_handler_on(80) && known.have_specs());
        known.replace(&[]);
        assert!(!known.have_handler_on(9000));
    }

    #[test]
    fn the_next_list_replaces_the_last_one() {
        let mut known = KnownPods::default();
        known.replace(&[pod("a", "10.88.0.1", 1)]);
        known.replace(&[pod("b", "10.88.0.2", 2)]);
        let addrs = ["10.88.0.1", "10.88.0.2"].map(|addr| addr.parse().expect("an address"));
        assert_eq!(addrs.map(|addr| known.at(addr).count()), [0, 1]);
        assert!(known.in_netns(Netns(1)).is_none());
    }

    #[test]
    fn whatever_list_was_before_makes_no_difference() {
        let [a, b, c] = [pod("a", "10.88.0.1", 1), pod("b", "10.88.0.2", 2), pod("c", "10.88.0.3", 3)];
        let moved = pod("b", "10.88.0.9", 9);
        let lists: &[&[&Pod]] = &[
            &[],
            &[&a],
            &[&a, &a],
            &[&a, &a, &a],
            &[&c, &b, &a],
            &[&a, &b, &c],
            &[&b, &c],
            &[&a, &c],
            &[&a, &b],
            &[&a, &moved, &c],
        ];
        let lists: Vec<Vec<Pod>> = lists.iter().map(|list| list.iter().map(|pod| (*pod).clone()).collect()).collect();
        let known = |lists: &[&[Pod]]| {
            let mut known = KnownPods::default();
            lists.iter().for_each(|list| known.replace(list));
            format!("{known:?}")
        };
        for (before, now) in lists.iter().flat_map(|before| lists.iter().map(move |now| (before, now))) {
            assert_eq!(known(&[before, now]), known(&[now]));
        }
    }

    #[test]
    fn a_pod_on_the_hosts_network_has_no_namespace_of_its_own() {
        let mut known = KnownPods::default();
        known.replace(&[Pod { host_network: true, ..pod("proxy", "10.0.0.1", 1) }]);
        assert!(known.in_netns(Netns(1)).is_none());
    }

    #[test]
    fn the_api_server_of_the_node_is_known_by_its_static_pod() {
        let probed = |pod_name: &str, container: &str| {
            let probes = vec![http_probe(6443)];
            let container = Container { name: Some(container.into()), probes, ..Container::default() };
            let mut known = KnownPods::default();
            known.replace(&[Pod { host_network: true, containers: vec![container], ..pod(pod_name, "10.0.0.1", 1) }]);
            known
        };
        let at = |port: u16| SocketAddr::from(([10, 0, 0, 1], port));
        let own = probed("kube-apiserver-n1", "server");
        assert!(own.is_api_server(at(6443)) && !own.is_api_server(at(10250)));
        assert!(probed("kas", "kube-apiserver").is_api_server(at(6443)));
        let proxy = probed("proxy", "haproxy");
        assert!(proxy.are_probed_at(at(6443)) && !proxy.is_api_server(at(6443)));
    }
}
