//! Joins the pods found on the node with those of a file: names and probes from the file, namespaces from the node.

use std::net::IpAddr;

use crate::event::{Container, Pod};

/// Every pod of both, each once.
#[must_use]
pub fn merge(mut discovered: Vec<Pod>, from_file: &[Pod]) -> Vec<Pod> {
    let mut pods = Vec::with_capacity(from_file.len() + discovered.len());
    for listed in from_file {
        let (same, rest) = discovered.into_iter().partition(|found| is_same(listed, found));
        discovered = rest;
        pods.push(same.into_iter().fold(listed.clone(), absorb));
    }
    pods.append(&mut discovered);
    pods
}

/// By uid, if both have one: a StatefulSet's pod that was deleted by force still runs beside the next one of its name. Else by
/// name, or by address.
fn is_same(listed: &Pod, found: &Pod) -> bool {
    if let (Some(_), Some(uid)) = (&listed.uid, &found.uid) {
        return listed.has_uid(uid);
    }
    if listed.name.is_some() && found.name.is_some() {
        return listed.name == found.name && listed.namespace == found.namespace;
    }
    !listed.host_network && !found.host_network && share_address(&listed.addrs, &found.addrs)
}

fn share_address(left: &[IpAddr], right: &[IpAddr]) -> bool {
    left.iter().any(|addr| right.contains(addr))
}

fn absorb(mut listed: Pod, found: Pod) -> Pod {
    listed.netns = listed.netns.or(found.netns);
    listed.host_network |= found.host_network;
    for addr in found.addrs {
        if !listed.addrs.contains(&addr) {
            listed.addrs.push(addr);
        }
    }
    found.containers.into_iter().for_each(|container| absorb_container(&mut listed.containers, container));
    listed
}

fn absorb_container(listed: &mut Vec<Container>, found: Container) {
    if found.id.is_some() && listed.iter().any(|container| container.id == found.id) {
        return;
    }
    // The sandbox's own (pause) has no name, and no probe: a list of containers has all that can be asked.
    if found.name.is_none() && !listed.is_empty() {
        return;
    }
    match listed.iter_mut().find(|container| container.name.is_some() && container.name == found.name) {
        Some(container) if ended(container, &found) => {}
        // Restarted since the list was written: the id on the node is the one that runs, and its runs are another's.
        Some(container) => {
            container.id = found.id;
            container.runs = None;
        }
        None => listed.push(found),
    }
}

/// The list knows that what was found on the node a moment ago has ended.
fn ended(listed: &Container, found: &Container) -> bool {
    let last = listed.runs.as_ref().and_then(|runs| runs.last.as_ref());
    found.id.is_some() && last.is_some_and(|last| last.id == found.id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Ended, Netns, Runs};

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
        let seen: Vec<_> = merged.iter().map(|pod| (pod.name.as_deref(), pod.netns.map(|netns| netns.0))).collect();
        let expected = [
            (Some("by-uid"), Some(1)),
            (Some("static"), Some(6)),
            (Some("by-name"), Some(2)),
            (Some("by-addr"), Some(3)),
            (Some("elsewhere"), None),
            (None, Some(5)),
        ];
        assert_eq!(seen, expected);
        assert_eq!(merged[0].addrs, [IpAddr::from([10, 0, 0, 1])]);
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

    /// Deleted by force, and still running: the API knows the next pod of its name only.
    #[test]
    fn two_pods_of_one_name_are_two() {
        let merged = merge(
            vec![pod(Some("db-0"), Some("old"), &[[10, 0, 0, 1]], Some(1))],
            &[pod(Some("db-0"), Some("new"), &[[10, 0, 0, 2]], None)],
        );
        let seen: Vec<_> = merged.iter().map(|pod| (pod.uid.as_deref(), pod.netns, pod.addrs.as_slice())).collect();
        let (old, new) = ([IpAddr::from([10, 0, 0, 1])], [IpAddr::from([10, 0, 0, 2])]);
        assert_eq!(seen, [(Some("new"), None, new.as_slice()), (Some("old"), Some(Netns(1)), old.as_slice())]);
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

    /// Which of the two is older is told by the run that ended.
    #[test]
    fn the_runs_of_another_container_are_not_its_own() {
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
