//! Joins the pods found on the node with those of a file: names and probes from the file, namespaces from the node.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;

use tracer_model::event::{Container, Pod};

/// Every pod of both, each once.
pub fn merge(discovered: Vec<Pod>, from_file: &[Pod]) -> Vec<Pod> {
    let places = places(&discovered);
    let mut rest: Vec<Option<Pod>> = discovered.into_iter().map(Some).collect();
    let mut joined: Vec<(Pod, Vec<Pod>)> = Vec::with_capacity(from_file.len());
    for listed in from_file {
        let same: BTreeSet<usize> = keys(listed).filter_map(|key| places.get(&key)).flatten().copied().collect();
        let take = |at: usize| rest[at].take_if(|found| is_named(listed, found) == Some(true));
        joined.push((listed.clone(), same.into_iter().filter_map(take).collect()));
    }
    join_by_address(&mut joined, &mut rest);
    let mut discovered: Vec<Pod> = rest.into_iter().flatten().collect();
    let taken: HashSet<IpAddr> = joined.iter().flat_map(|(listed, found)| confirmed(listed, found)).collect();
    discovered.retain_mut(|found| keeps_any(found, &taken));
    let joined = joined.into_iter().map(|(listed, found)| found.into_iter().fold(listed, |l, f| absorb(l, f, &taken)));
    joined.chain(discovered).collect()
}

/// What two records of a pod have in common: a uid, or namespace and name.
#[derive(Debug, PartialEq, Eq, Hash)]
enum Key {
    Uid(String),
    Name(Option<String>, String),
}

fn keys(pod: &Pod) -> impl Iterator<Item = Key> {
    let uids = [&pod.uid, &pod.kubelet_uid].into_iter().flatten().cloned().map(Key::Uid);
    uids.chain(pod.name.clone().map(|name| Key::Name(pod.namespace.clone(), name)))
}

/// Where each key is in the list. Comparing each pod with each other would take a second for some thousand pods.
fn places(pods: &[Pod]) -> HashMap<Key, Vec<usize>> {
    let mut places: HashMap<Key, Vec<usize>> = HashMap::new();
    for (at, key) in pods.iter().enumerate().flat_map(|(at, pod)| keys(pod).map(move |key| (at, key))) {
        places.entry(key).or_default().push(at);
    }
    places
}

/// Compares the uids if both have one: a StatefulSet's pod that was deleted by force still runs beside its successor
/// of the same name. Otherwise compares the names. `None`: neither is known.
fn is_named(listed: &Pod, found: &Pod) -> Option<bool> {
    if let (Some(_), Some(uid)) = (&listed.uid, &found.uid) {
        return Some(listed.has_uid(uid));
    }
    let named = listed.name.is_some() && found.name.is_some();
    named.then(|| listed.name == found.name && listed.namespace == found.namespace)
}

/// Joins a listed pod that has no match by uid or name with the only namespace that has its address. Joins nothing if
/// several namespaces have the address, or several pods claim the namespace: a pod with CAP_NET_ADMIN can take any.
fn join_by_address(joined: &mut [(Pod, Vec<Pod>)], rest: &mut [Option<Pod>]) {
    let mut holders: HashMap<IpAddr, BTreeSet<usize>> = HashMap::new();
    let found = |at: usize| rest[at].as_ref().filter(|found| !found.host_network);
    for (place, found) in (0..rest.len()).filter_map(|at| Some((at, found(at)?))) {
        for addr in &found.addrs {
            holders.entry(*addr).or_default().insert(place);
        }
    }
    let mut claims: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (number, (listed, _)) in
        joined.iter().enumerate().filter(|(_, (pod, same))| same.is_empty() && !pod.host_network)
    {
        let of_any = listed.addrs.iter().filter_map(|addr| holders.get(addr)).flatten();
        let is_unnamed = |at: &usize| found(*at).is_some_and(|found| is_named(listed, found).is_none());
        let can_be: BTreeSet<usize> = of_any.copied().filter(is_unnamed).collect();
        if let (1, Some(at)) = (can_be.len(), can_be.first()) {
            claims.entry(*at).or_default().push(number);
        }
    }
    for (at, by) in claims {
        if let [number] = by[..] {
            joined[number].1.extend(rest[at].take());
        }
    }
}

/// The listed addresses that the node does not contradict. A pod that has only other addresses of the same family has
/// changed its own. A pod without any of that family may hide them from the kernel, as gVisor does.
fn confirmed(listed: &Pod, found: &[Pod]) -> Vec<IpAddr> {
    if listed.host_network || found.is_empty() {
        return Vec::new();
    }
    let has = |addr: &IpAddr| found.iter().any(|it| it.addrs.contains(addr));
    let has_others = |addr: &IpAddr| found.iter().flat_map(|it| &it.addrs).any(|it| it.is_ipv4() == addr.is_ipv4());
    let family = |addr: &IpAddr| listed.addrs.iter().filter(|it| it.is_ipv4() == addr.is_ipv4()).any(has);
    listed.addrs.iter().copied().filter(|addr| family(addr) || !has_others(addr)).collect()
}

/// Removes the addresses of listed pods. A namespace without a pod that then has no address left is dropped.
fn keeps_any(found: &mut Pod, taken: &HashSet<IpAddr>) -> bool {
    let before = found.addrs.len();
    found.addrs.retain(|addr| !taken.contains(addr));
    found.uid.is_some() || found.addrs.len() == before || !found.addrs.is_empty()
}

/// Keeps the listed addresses. Adds addresses of the namespace only in a family without a listed address on the node:
/// a pod with CAP_NET_ADMIN can give itself the address of another pod.
fn absorb(mut listed: Pod, found: Pod, taken: &HashSet<IpAddr>) -> Pod {
    listed.netns = listed.netns.or(found.netns);
    listed.host_network |= found.host_network;
    let kept: Vec<bool> = listed.addrs.iter().filter(|it| found.addrs.contains(it)).map(IpAddr::is_ipv4).collect();
    let new = found.addrs.into_iter().filter(|addr| !kept.contains(&addr.is_ipv4()) && !taken.contains(addr));
    listed.addrs.extend(new);
    found.containers.into_iter().for_each(|container| absorb_container(&mut listed.containers, container));
    listed
}

fn absorb_container(listed: &mut Vec<Container>, found: Container) {
    if found.id.is_some() && listed.iter().any(|container| container.id == found.id) {
        return;
    }
    // The sandbox's own container (pause) has no name and no probe. A list of containers has all that have one.
    if found.name.is_none() && !listed.is_empty() {
        return;
    }
    match listed.iter_mut().find(|container| container.name.is_some() && container.name == found.name) {
        Some(container) if ended(container, &found) => {}
        // The container restarted after the list was written: the id on the node is the running one, and the listed runs
        // are another container's.
        Some(container) => {
            container.id = found.id;
            container.runs = None;
        }
        None => listed.push(found),
    }
}

/// Whether the container that was found on the node a moment ago has ended by now, as the list has it.
fn ended(listed: &Container, found: &Container) -> bool {
    let last = listed.runs.as_ref().and_then(|runs| runs.last.as_ref());
    found.id.is_some() && last.is_some_and(|last| last.id == found.id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracer_model::event::{Ended, Netns, Runs};
    use tracer_testing::address;

    fn pod(name: Option<&str>, uid: Option<&str>, addrs: &[[u8; 4]], netns: Option<u32>) -> Pod {
        Pod {
            namespace: name.map(|_| "default".into()),
            name: name.map(Into::into),
            uid: uid.map(Into::into),
            addrs: addrs.iter().copied().map(IpAddr::from).collect(),
            netns: netns.map(Netns),
            ..Pod::default()
        }
    }

    #[test]
    fn joined_by_uid_name_or_address() {
        let listed = [
            pod(Some("by-uid"), Some("u1"), &[], None),
            Pod { kubelet_uid: Some("hash".into()), ..pod(Some("static"), Some("mirror"), &[], None) },
            pod(Some("by-name"), None, &[], None),
            pod(Some("by-addr"), Some("u3"), &[[10, 0, 0, 3]], None),
            pod(Some("elsewhere"), Some("u4"), &[[10, 0, 9, 9]], None),
        ];
        let found = vec![
            pod(None, Some("u1"), &[[10, 0, 0, 1]], Some(1)),
            pod(Some("static"), Some("hash"), &[], Some(6)),
            pod(Some("by-name"), Some("u2"), &[[10, 0, 0, 2]], Some(2)),
            pod(None, None, &[[10, 0, 0, 3]], Some(3)),
            pod(None, None, &[[10, 0, 0, 5]], Some(5)),
        ];
        let merged = merge(found, &listed);
        let found: Vec<_> = merged.iter().map(|pod| (pod.name.as_deref(), pod.netns.map(|netns| netns.0))).collect();
        let expected = [
            (Some("by-uid"), Some(1)),
            (Some("static"), Some(6)),
            (Some("by-name"), Some(2)),
            (Some("by-addr"), Some(3)),
            (Some("elsewhere"), None),
            (None, Some(5)),
        ];
        assert_eq!(found, expected);
        assert_eq!(merged[0].addrs, [IpAddr::from([10, 0, 0, 1])]);
    }

    /// No pod is compared with each other one: that would take minutes here.
    #[test]
    fn ten_thousand_pods_are_joined() {
        let uids: Vec<String> = (0..10_000_u32).map(|number| format!("uid-{number}")).collect();
        let addr = |at: usize| [10, 0, (at >> 8) as u8, at as u8];
        let each = |name| uids.iter().enumerate().map(move |(at, uid)| pod(name, Some(uid), &[addr(at)], None));
        let mut found: Vec<Pod> = each(None).collect();
        found.iter_mut().zip(1..).for_each(|(pod, netns)| pod.netns = Some(Netns(netns)));
        found.reverse();
        let merged = merge(found, &each(Some("a")).collect::<Vec<_>>());
        let namespaces: Vec<_> = merged.iter().filter_map(|pod| pod.netns).collect();
        assert_eq!(namespaces, (1..=10_000).map(Netns).collect::<Vec<_>>());
    }

    #[test]
    fn an_address_used_again_by_another_pod_does_not_join() {
        let merged = merge(
            vec![pod(None, Some("new"), &[[10, 0, 0, 1]], Some(1))],
            &[pod(Some("old"), Some("old"), &[[10, 0, 0, 1]], None)],
        );
        assert_eq!(merged.len(), 2);
        assert_eq!(merged[0].netns, None);
    }

    fn addresses(pods: &[Pod]) -> Vec<Vec<String>> {
        pods.iter().map(|pod| pod.addrs.iter().map(ToString::to_string).collect()).collect()
    }

    /// A pod with CAP_NET_ADMIN can give itself any address. So can everybody who may unshare a namespace.
    #[test]
    fn a_listed_pod_keeps_its_address() {
        let (victim, own) = ([10, 0, 0, 1], [10, 0, 0, 2]);
        let listed = [pod(Some("evil"), Some("e"), &[own], None), pod(Some("victim"), Some("v"), &[victim], None)];
        let found = vec![
            pod(None, Some("e"), &[own, victim, [10, 0, 0, 9]], Some(1)),
            pod(None, Some("unlisted"), &[[10, 0, 0, 3], victim], Some(2)),
            pod(None, Some("v"), &[victim], Some(3)),
            pod(None, None, &[victim], Some(4)),
            pod(None, None, &[[10, 0, 0, 4], victim], Some(5)),
        ];
        let merged = merge(found, &listed);
        let namespaces: Vec<_> = merged.iter().map(|pod| pod.netns.map(|netns| netns.0)).collect();
        assert_eq!(namespaces, [Some(1), Some(3), Some(2), Some(5)]);
        assert_eq!(addresses(&merged), [["10.0.0.2"], ["10.0.0.1"], ["10.0.0.3"], ["10.0.0.4"]]);
        // The kernel does not know the addresses of the first pod (gVisor). The second has removed its own.
        let found = vec![pod(None, Some("e"), &[victim], Some(1)), pod(None, Some("v"), &[], Some(3))];
        assert_eq!(addresses(&merge(found, &listed)), [["10.0.0.2"], ["10.0.0.1"]]);
    }

    #[test]
    fn an_address_in_two_namespaces_joins_neither() {
        let listed = [pod(Some("a"), None, &[[10, 0, 0, 1]], None)];
        let found = |count: u32| (1..=count).map(|netns| pod(None, None, &[[10, 0, 0, 1]], Some(netns))).collect();
        assert_eq!(merge(found(1), &listed)[0].netns, Some(Netns(1)));
        let both = merge(found(2), &listed);
        assert_eq!((both.len(), both[0].netns), (3, None));
    }

    /// A pod that is gone, and the next one with its address: both are listed, and the node shows no process of either.
    #[test]
    fn a_namespace_that_two_listed_pods_claim_joins_neither() {
        let listed = [pod(Some("a"), None, &[[10, 0, 0, 1]], None), pod(Some("b"), None, &[[10, 0, 0, 1]], None)];
        let merged = merge(vec![pod(None, None, &[[10, 0, 0, 1]], Some(7))], &listed);
        let found: Vec<_> = merged.iter().map(|pod| (pod.name.as_deref(), pod.netns)).collect();
        assert_eq!(found, [(Some("a"), None), (Some("b"), None), (None, Some(Netns(7)))]);
    }

    #[test]
    fn the_node_gives_an_address_that_is_not_listed_or_changed() {
        let merged = |listed: &[[u8; 4]], found: &[&str]| {
            let addrs = found.iter().map(|addr| address(addr)).collect();
            let found = Pod { addrs, ..pod(None, Some("u"), &[], Some(1)) };
            addresses(&merge(vec![found], &[pod(Some("a"), Some("u"), listed, None)])).remove(0)
        };
        assert_eq!(merged(&[], &["10.0.0.1", "fd00::1"]), ["10.0.0.1", "fd00::1"], "not listed yet");
        assert_eq!(merged(&[[10, 0, 0, 1]], &["10.0.0.1", "10.0.0.8", "fd00::1"]), ["10.0.0.1", "fd00::1"]);
        assert_eq!(merged(&[[10, 0, 0, 1]], &["10.0.0.2"]), ["10.0.0.1", "10.0.0.2"], "a sandbox made again");
        // Another pod, which is not listed yet, may have the old address by then.
        let found =
            vec![pod(None, Some("u"), &[[10, 0, 0, 2]], Some(1)), pod(None, Some("n"), &[[10, 0, 0, 1]], Some(2))];
        let both = merge(found, &[pod(Some("a"), Some("u"), &[[10, 0, 0, 1]], None)]);
        assert_eq!(addresses(&both)[1], ["10.0.0.1"]);
    }

    /// A pod that was deleted by force and still runs: the API knows only the next pod of the same name.
    #[test]
    fn two_pods_of_one_name_stay_two() {
        let merged = merge(
            vec![pod(Some("db-0"), Some("old"), &[[10, 0, 0, 1]], Some(1))],
            &[pod(Some("db-0"), Some("new"), &[[10, 0, 0, 2]], None)],
        );
        let found: Vec<_> = merged.iter().map(|pod| (pod.uid.as_deref(), pod.netns, pod.addrs.as_slice())).collect();
        let (old, new) = ([IpAddr::from([10, 0, 0, 1])], [IpAddr::from([10, 0, 0, 2])]);
        assert_eq!(found, [(Some("new"), None, new.as_slice()), (Some("old"), Some(Netns(1)), old.as_slice())]);
    }

    #[test]
    fn a_restarted_container_has_the_id_of_the_node() {
        let container = |name: Option<&str>, id: &str| Container {
            name: name.map(Into::into),
            id: Some(id.into()),
            ..Container::default()
        };
        let mut listed = pod(Some("a"), Some("u"), &[], None);
        listed.containers = vec![container(Some("web"), "old")];
        let mut found = pod(None, Some("u"), &[], Some(1));
        found.containers = vec![container(Some("web"), "new"), container(None, "pause")];
        let merged = merge(vec![found], &[listed]);
        assert_eq!(merged[0].containers, [container(Some("web"), "new")], "the sandbox has one of its own");
    }

    /// The run that ended shows which of the two containers is older.
    #[test]
    fn runs_of_an_older_container_are_dropped() {
        let runs =
            Runs { restarts: 1, last: Some(Ended { id: Some("first".into()), ..Ended::default() }), ..Runs::default() };
        let known =
            Container { name: Some("web".into()), id: Some("second".into()), runs: Some(runs), ..Container::default() };
        let merged = |id: &str| {
            let mut listed = pod(Some("a"), Some("u"), &[], None);
            listed.containers = vec![known.clone()];
            let mut found = pod(None, Some("u"), &[], Some(1));
            found.containers =
                vec![Container { id: Some(id.into()), name: known.name.clone(), ..Container::default() }];
            merge(vec![found], &[listed]).remove(0).containers
        };
        assert_eq!(merged("second")[0], known);
        assert_eq!(merged("first")[0], known, "the list is newer than what was found");
        assert_eq!(merged("third"), [Container { id: Some("third".into()), runs: None, ..known.clone() }]);
    }
}
