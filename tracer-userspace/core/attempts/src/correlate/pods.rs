//! The pods of the node, indexed by address and namespace. A node has hundreds of pods, and each event needs a lookup.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use tracer_model::event::{Container, Netns, Pod, PodRef};
use tracer_model::recent::Recent;

/// The container name of the API server, and the begin of its pod's name, in kubeadm, RKE2 and OpenShift.
const API_SERVER: &str = "kube-apiserver";
/// How many names of kubelet outcomes are kept. A node is designed for some 250 pods.
const MAX_REPORTED: usize = 1024;

/// The pods, in the order of their list.
#[derive(Debug, Default)]
pub struct KnownPods {
    all: Vec<Pod>,
    by_addr: BTreeMap<IpAddr, Vec<usize>>,
    /// By the `host` of a probe or lifecycle handler.
    by_host: BTreeMap<IpAddr, Vec<usize>>,
    /// The pods with a network namespace of their own.
    by_netns: BTreeMap<Netns, usize>,
    /// The pods with probes or lifecycle handlers that may connect to an address that is in no list.
    unlisted_addr: Vec<usize>,
    handler_ports: BTreeSet<u16>,
    have_specs: bool,
    /// The pods that kubelet outcomes name, by uid. The cgroups of the node show only the uid of a pod.
    reported: Recent<String, PodRef, MAX_REPORTED>,
    /// The pods that were seen with a network namespace of their own, by uid, and the last one; `None`: another one has
    /// its number now.
    ran: Recent<String, Option<Netns>, MAX_REPORTED>,
    /// When a list first showed that a pod is being deleted, by uid.
    deleting: Recent<String, u64, MAX_REPORTED>,
}

impl KnownPods {
    pub(super) fn replace(&mut self, time: u64, pods: &[Pod]) {
        if self.update(pods) {
            self.add_reported_names();
            for uid in self.all.iter().filter(|pod| pod.deleting).filter_map(|pod| pod.uid.as_ref()) {
                if self.deleting.get(uid).is_none() {
                    self.deleting.insert(uid.clone(), time);
                }
            }
            for pod in self.all.iter().filter(|pod| pod.netns.is_some() && !pod.host_network) {
                pod.uid.iter().for_each(|uid| self.ran.insert(uid.clone(), pod.netns));
            }
            self.index();
        }
    }

    /// Keeps the name of a pod in a kubelet outcome, if it comes with the uid.
    pub(super) fn observe_reported(&mut self, named: &PodRef) {
        let PodRef { namespace: Some(_), name: Some(_), uid: Some(uid) } = named else { return };
        if self.reported.get(uid) != Some(named) && named.is_nameable() {
            self.reported.insert(uid.clone(), named.clone());
            self.add_reported_names();
        }
    }

    fn add_reported_names(&mut self) {
        for pod in self.all.iter_mut().filter(|pod| pod.name.is_none()) {
            if let Some(named) = pod.uid.as_ref().and_then(|uid| self.reported.get(uid)) {
                (pod.namespace, pod.name) = (named.namespace.clone(), named.name.clone());
            }
        }
    }

    /// Another namespace has this number now, until a list names its pod: the pods in the last list were in the earlier
    /// one.
    pub(super) fn forget_namespace(&mut self, netns: Netns) {
        let there = self.ran.range(..).filter(|(_, last)| **last == Some(netns));
        let there: Vec<String> = there.map(|(uid, _)| uid.clone()).collect();
        there.into_iter().for_each(|uid| self.ran.insert(uid, None));
        let mut is_listed = false;
        for pod in self.all.iter_mut().filter(|pod| pod.netns == Some(netns)) {
            (pod.netns, is_listed) = (None, true);
        }
        if is_listed {
            self.index();
        }
    }

    /// Takes a new list; returns whether it differs. Often one pod of the list changed, so the unchanged begin and end
    /// are not copied.
    fn update(&mut self, pods: &[Pod]) -> bool {
        let old = &mut self.all;
        let begin = old.iter().zip(pods).take_while(|(old, new)| old == new).count();
        let rest = old[begin..].iter().rev().zip(pods[begin..].iter().rev());
        let end = rest.take_while(|(old, new)| old == new).count();
        let differs = begin + end < old.len().max(pods.len());
        old.splice(begin..old.len() - end, pods[begin..pods.len() - end].iter().cloned());
        differs
    }

    fn index(&mut self) {
        let Self { all, reported, ran, deleting, .. } = std::mem::take(self);
        *self = Self { all, reported, ran, deleting, ..Self::default() };
        for (place, pod) in self.all.iter().enumerate() {
            pod.addrs.iter().for_each(|addr| add_place(&mut self.by_addr, *addr, place));
            hosts(pod).filter_map(|host| host.parse().ok()).for_each(|addr| add_place(&mut self.by_host, addr, place));
            if let Some(netns) = pod.netns.filter(|_| !pod.host_network) {
                self.by_netns.entry(netns).or_insert(place);
            }
        }
        for places in self.by_addr.values_mut() {
            drop_stale(places, &self.all, &self.ran);
        }
        let unlisted = self.all.iter().enumerate().filter(|(_, pod)| may_connect_to_unlisted_addr(pod));
        self.unlisted_addr = unlisted.map(|(place, _)| place).collect();
        let containers = self.all.iter().flat_map(|pod| &pod.containers);
        self.handler_ports = containers.flat_map(|it| &it.lifecycle).map(|handler| handler.port).collect();
        self.have_specs = self.all.iter().any(Pod::has_specs);
    }

    /// The pod was being deleted at that time.
    pub fn was_deleting(&self, pod: &Pod, at: u64) -> bool {
        pod.deleting && pod.uid.as_ref().and_then(|uid| self.deleting.get(uid)).is_some_and(|since| *since <= at)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Pod> {
        self.all.iter()
    }

    /// The pods with this address; several pods on the host's network share one.
    pub fn at(&self, addr: IpAddr) -> impl Iterator<Item = &Pod> {
        self.places(addr).iter().map(|place| &self.all[*place])
    }

    /// The pod with this address and a network namespace of its own. Of several, the one with a known name. `None` if
    /// several are left.
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

    /// The network namespace of its own that a pod has, or had when its address was last found.
    pub fn last_netns(&self, pod: &Pod) -> Option<Netns> {
        let last = || *self.ran.get(pod.uid.as_ref()?)?;
        pod.netns.or_else(last).filter(|_| !pod.host_network)
    }

    /// The pods with probes or lifecycle handlers that may connect to this address.
    pub fn targeting(&self, addr: IpAddr) -> impl Iterator<Item = &Pod> {
        let named = self.by_host.get(&addr).into_iter().flatten();
        let mut places: Vec<usize> =
            self.places(addr).iter().chain(named).chain(&self.unlisted_addr).copied().collect();
        places.sort_unstable();
        places.dedup();
        places.into_iter().map(|place| &self.all[place])
    }

    /// The pod with this network namespace.
    pub fn in_netns(&self, netns: Netns) -> Option<&Pod> {
        self.by_netns.get(&netns).map(|place| &self.all[*place])
    }

    /// A lifecycle handler of some pod connects to this port.
    pub fn have_handler_on(&self, port: u16) -> bool {
        self.handler_ports.contains(&port)
    }

    /// A probe of some pod connects to this target.
    pub fn are_probed_at(&self, dst: SocketAddr) -> bool {
        let containers = self.targeting(dst.ip()).flat_map(|pod| &pod.containers);
        containers.flat_map(|it| &it.probes).any(|spec| spec.port == dst.port())
    }

    /// The target is the API server of this node in a static pod, and is probed there.
    pub fn is_api_server(&self, dst: SocketAddr) -> bool {
        let is_probed = |it: &Container| it.probes.iter().any(|spec| spec.port == dst.port());
        self.targeting(dst.ip()).any(|pod| {
            let by_name = pod.name.as_ref().is_some_and(|name| name.starts_with(API_SERVER));
            let is_it = |it: &Container| by_name || it.name.as_deref() == Some(API_SERVER);
            // An API server in a pod with its own network namespace is another cluster's (a hosted control plane).
            pod.host_network && pod.containers.iter().any(|it| is_it(it) && is_probed(it))
        })
    }

    /// The probes or lifecycle handlers of some pod are known, and not only the names of pods.
    pub const fn have_specs(&self) -> bool {
        self.have_specs
    }

    fn places(&self, addr: IpAddr) -> &[usize] {
        self.by_addr.get(&addr).map_or(&[], Vec::as_slice)
    }
}

/// Adds a place once. Places come in ascending order.
fn add_place(places: &mut BTreeMap<IpAddr, Vec<usize>>, addr: IpAddr, place: usize) {
    let places = places.entry(addr).or_default();
    if places.last() != Some(&place) {
        places.push(place);
    }
}

/// Drops the pods that no longer have an address: they ran and do no more, and a pod with another uid has the address in
/// its namespace. The list of pods is older than that. A pod that was never seen to run may be in a namespace that tracer
/// cannot see, beside another node on this machine with the same addresses.
fn drop_stale(places: &mut Vec<usize>, all: &[Pod], ran: &Recent<String, Option<Netns>, MAX_REPORTED>) {
    let runs = |pod: &Pod| pod.uid.is_some() && pod.netns.is_some() && !pod.host_network;
    let has_run = |pod: &Pod| pod.uid.as_ref().is_some_and(|uid| ran.contains_key(uid));
    let is_stale = |pod: &Pod| has_run(pod) && pod.netns.is_none() && !pod.host_network;
    // A namespace without a known pod may be that of the listed one.
    let unknown = |pod: &Pod| pod.uid.is_none() && pod.netns.is_some();
    if places.iter().any(|place| runs(&all[*place])) && !places.iter().any(|place| unknown(&all[*place])) {
        places.retain(|place| !is_stale(&all[*place]));
    }
}

/// A probe or handler names a host by name, or the pod has no address: a standalone kubelet reports none for a
/// host-network pod.
fn may_connect_to_unlisted_addr(pod: &Pod) -> bool {
    pod.host_network && pod.addrs.is_empty() || hosts(pod).any(|host| host.parse::<IpAddr>().is_err())
}

/// The `host` of its probes and lifecycle handlers.
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
        let addrs = vec![address(addr)];
        Pod { name: Some(name.into()), addrs, netns: Some(Netns(netns)), ..Pod::default() }
    }

    fn names<'a>(pods: impl Iterator<Item = &'a Pod>) -> Vec<&'a str> {
        pods.filter_map(|pod| pod.name.as_deref()).collect()
    }

    #[test]
    fn pods_are_found_by_address_in_the_order_of_the_list() {
        let by_host = |name: &str, host: &str| {
            let spec = ProbeSpec { host: Some(host.into()), ..http_probe(80) };
            let container = Container { probes: vec![spec], ..Container::default() };
            Pod { containers: vec![container], ..pod(name, "10.88.0.9", 9) }
        };
        let mut known = KnownPods::default();
        let named = [by_host("by host", "10.88.0.1"), by_host("by name", "localhost"), by_host("other", "10.88.0.2")];
        let mut pods = [pod("a", "10.88.0.1", 1), pod("c", "10.88.0.1", 3), pod("d", "10.88.0.4", 4)];
        pods[1].addrs.push(pods[0].addrs[0]);
        known.replace(0, &[named.as_slice(), &pods].concat());
        let addr = address("10.88.0.1");
        assert_eq!(names(known.at(addr)), ["a", "c"]);
        assert_eq!(names(known.targeting(addr)), ["by host", "by name", "a", "c"]);
        assert_eq!(known.in_netns(Netns(4)).and_then(|pod| pod.name.as_deref()), Some("d"));
        assert!(known.have_specs());
    }

    #[test]
    fn an_address_that_two_named_pods_have_finds_no_pod() {
        let (addr, nameless) = (address("10.88.0.1"), Pod { name: None, ..pod("", "10.88.0.1", 3) });
        let of = |pods: &[Pod]| {
            let mut known = KnownPods::default();
            known.replace(0, pods);
            (known.only_at(addr).map(|pod| pod.name.clone().unwrap_or_default()), known.netns_at(addr))
        };
        let (a, b) = (pod("a", "10.88.0.1", 1), pod("b", "10.88.0.1", 2));
        let listed = Pod { netns: None, ..a.clone() };
        assert_eq!(of(std::slice::from_ref(&a)), (Some("a".into()), Some(Netns(1))));
        assert_eq!(of(&[a.clone(), b]), (None, None));
        assert_eq!(of(&[a, nameless.clone()]), (Some("a".into()), None), "two namespaces are possible");
        assert_eq!(of(&[listed, nameless.clone()]), (Some("a".into()), Some(Netns(3))));
        assert_eq!(of(std::slice::from_ref(&nameless)), (Some(String::new()), Some(Netns(3))));
        assert_eq!(of(&[nameless.clone(), Pod { netns: Some(Netns(4)), ..nameless }]), (None, None));
    }

    /// The list of pods still has the one that had the address before.
    #[test]
    fn a_pod_that_lost_its_address_to_another_is_stale() {
        let with_uid =
            |name: &str, netns: u32| Pod { uid: Some(format!("uid-{name}")), ..pod(name, "10.88.0.1", netns) };
        let at_after = |has_run: bool, pods: &[Pod]| {
            let mut known = KnownPods::default();
            if has_run {
                known.replace(0, &[with_uid("old", 1)]);
            }
            known.replace(0, pods);
            names(known.targeting(address("10.88.0.1"))).join(" ")
        };
        let (new, running) = (with_uid("new", 2), with_uid("old", 1));
        let old = Pod { netns: None, ..running.clone() };
        let at = |pods: &[Pod]| at_after(true, pods);
        assert_eq!(at(&[old.clone(), new.clone()]), "new");
        assert_eq!(at_after(false, &[old.clone(), new.clone()]), "old new", "another node may have the same addresses");
        assert_eq!(at(&[running, new]), "old new", "both run");
        assert_eq!(at(&[old.clone(), Pod { uid: None, ..pod("", "10.88.0.1", 2) }]), "old ", "its uid is not known");
        assert_eq!(at(&[old]), "old", "nothing of it is seen");
    }

    #[test]
    fn a_kubelet_outcome_gives_a_pod_of_the_cgroups_its_name() {
        let nameless = Pod { name: None, uid: Some("x".into()), ..pod("", "10.88.0.1", 1) };
        let named =
            |uid: &str| PodRef { namespace: Some("shop".into()), name: Some("db-0".into()), uid: Some(uid.into()) };
        let mut known = KnownPods::default();
        let full_name = |known: &KnownPods| known.only_at(address("10.88.0.1")).and_then(Pod::full_name);
        known.replace(0, std::slice::from_ref(&nameless));
        known.observe_reported(&named("y"));
        assert_eq!(full_name(&known).as_deref(), Some("x"));
        known.observe_reported(&named("x"));
        assert_eq!(full_name(&known).as_deref(), Some("shop/db-0"));
        known.replace(0, &[nameless, pod("b", "10.88.0.2", 2)]);
        assert_eq!(full_name(&known).as_deref(), Some("shop/db-0"), "the next list of the cgroups has no names either");
    }

    #[test]
    fn a_pod_is_found_by_the_host_of_its_lifecycle_handler() {
        let (event, scheme, path) = (LifecycleEvent::PreStop, "http".into(), "/".into());
        let handler = LifecycleHandler { event, scheme, port: 9000, host: Some("10.88.0.1".into()), path };
        let container = Container { lifecycle: vec![handler], ..Container::default() };
        let mut known = KnownPods::default();
        known.replace(0, &[Pod { containers: vec![container], ..pod("a", "10.88.0.9", 9) }, pod("b", "10.88.0.1", 1)]);
        assert_eq!(names(known.targeting(address("10.88.0.1"))), ["a", "b"]);
        assert!(known.have_handler_on(9000) && !known.have_handler_on(80) && known.have_specs());
        known.replace(0, &[]);
        assert!(!known.have_handler_on(9000));
    }

    #[test]
    fn the_list_before_does_not_matter() {
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
            lists.iter().for_each(|list| known.replace(0, list));
            format!("{known:?}")
        };
        for (before, now) in lists.iter().flat_map(|before| lists.iter().map(move |now| (before, now))) {
            assert_eq!(known(&[before, now]), known(&[now]));
        }
    }

    #[test]
    fn a_pod_on_the_hosts_network_is_not_found_by_namespace() {
        let mut known = KnownPods::default();
        known.replace(0, &[Pod { host_network: true, ..pod("proxy", "10.0.0.1", 1) }]);
        assert!(known.in_netns(Netns(1)).is_none());
    }

    #[test]
    fn the_api_server_is_found_by_the_name_of_its_static_pod_or_container() {
        let probed = |pod_name: &str, container: &str| {
            let probes = vec![http_probe(6443)];
            let container = Container { name: Some(container.into()), probes, ..Container::default() };
            let mut known = KnownPods::default();
            known
                .replace(0, &[Pod { host_network: true, containers: vec![container], ..pod(pod_name, "10.0.0.1", 1) }]);
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
