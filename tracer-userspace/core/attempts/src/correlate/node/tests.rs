use std::net::Ipv4Addr;

use super::*;
use tracer_core::testing::*;

const DST: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 88, 0, 2)), 8080);

fn node(stream: &Stream) -> Node {
    let mut node = Node::default();
    stream.observations.iter().for_each(|observation| node.observe(observation));
    node
}

#[test]
fn the_end_of_a_namespace_ends_its_listeners() {
    let mut stream = Stream::new().netns_made(POD).listens(POD, 8080, true).listens(NODE, 8080, true).clone();
    assert!(node(&stream).listeners.knows(POD, DST) && node(&stream).namespaces.made(POD).is_some());
    let node = self::node(stream.netns_op(POD, NetnsOpKind::End));
    assert!(!node.listeners.knows(POD, DST) && node.namespaces.made(POD).is_none());
    assert!(node.listeners.knows(NODE, DST), "another namespace's");
}

#[test]
fn a_new_namespace_has_no_links_and_listeners_of_an_older_one_with_its_number() {
    let mut stream = Stream::new().links(true, &["10.88.0.1"]).listens(NODE, 8080, true).clone();
    let addr = address("10.88.0.1");
    assert!(node(&stream).owns(NODE, addr));
    let node = self::node(stream.netns_op(NODE, NetnsOpKind::Unshare));
    assert!(!node.owns(NODE, addr) && !node.listeners.knows(NODE, DST));
}

/// Where functions can be hooked, a new namespace is only seen to be entered. What became of the old one is known by its
/// end.
#[test]
fn nothing_of_an_ended_namespace_is_known_of_the_next_one_with_its_number() {
    let known = |ops: &[NetnsOpKind]| {
        let mut stream = Stream::new().http_readiness().pod_in(POD).link_set(POD, 2, "eth0", false).clone();
        stream.inspection(|_| ()).pod_sockets(|_| ());
        let addr: SocketAddr = address("10.88.0.2:443");
        stream.push(tls_hello(Some(POD), "10.88.0.2:443"));
        ops.iter().for_each(|kind| _ = stream.netns_op(POD, *kind));
        let node = node(&stream);
        [
            node.links.down(POD, 2).is_some(),
            node.netns_of_addr(NODE, addr.ip()) == Some(POD),
            node.pods.in_netns(POD).is_some(),
            node.targets.inspections_from(NODE, address("10.88.0.2:8080")).next().is_some(),
            node.pod_sockets(NODE, address("10.88.0.2:8080")).is_some(),
            node.tls.hello(Some(POD), addr).is_some(),
        ]
    };
    use NetnsOpKind::{Clone, End, Setns, Switch, Unshare};
    assert_eq!([known(&[]), known(&[Switch]), known(&[Setns])], [[true; 6]; 3], "a process entered it");
    assert_eq!(known(&[End]), [true, true, true, true, false, true], "late events are of this one");
    assert_eq!([known(&[End, Switch]), known(&[Unshare]), known(&[Clone])], [[false; 6]; 3]);
}

/// The kernel's program has reported no entry, because the cgroup enters too many namespaces.
#[test]
fn a_link_that_is_set_up_shows_the_next_namespace_with_the_number() {
    let known = |up: bool| {
        let mut stream = Stream::new().http_readiness().pod_in(POD).netns_ends(POD).clone();
        let node = node(stream.link_set(POD, 1, "lo", up));
        (node.has_ended(POD), node.pods.in_netns(POD).is_some())
    };
    assert_eq!((known(false), known(true)), ((true, true), (false, false)));
}

#[test]
fn an_address_of_the_clients_namespace_goes_before_an_inspection() {
    let stream = Stream::new().links(true, &["10.88.0.1"]).inspection(|it| it.netns = Some(POD)).clone();
    let at = |addr: &str| node(&stream).netns_of_addr(NODE, address(addr));
    assert_eq!(["10.88.0.1", "127.0.0.1", "10.88.0.2", "10.88.0.3"].map(at), [Some(NODE), Some(NODE), Some(POD), None]);
}

#[test]
fn a_namespace_that_reuses_a_number_of_the_start_is_new() {
    let mut stream = Stream::new();
    stream.start().namespaces.push(POD);
    stream.netns_op(POD, NetnsOpKind::Switch);
    assert!(node(&stream).namespaces.made(POD).is_none(), "it was there");
    stream.netns_op(POD, NetnsOpKind::End).netns_op(POD, NetnsOpKind::Switch);
    assert!(node(&stream).namespaces.made(POD).is_some());
}

/// Without CAP_SYS_PTRACE, or under AppArmor, tracer cannot read the namespaces of pods at the start. Then `kubectl
/// exec` must not make an old pod look new.
#[test]
fn an_entry_shows_a_new_namespace_only_if_all_old_ones_are_known() {
    let made = |incomplete: bool, ops: &[NetnsOpKind]| {
        let mut stream = Stream::new();
        stream.start().namespaces_incomplete = incomplete;
        ops.iter().for_each(|kind| _ = stream.netns_op(POD, *kind));
        node(&stream).namespaces.made(POD).is_some()
    };
    assert!(made(false, &[NetnsOpKind::Switch]) && !made(true, &[NetnsOpKind::Switch]));
    assert!(made(true, &[NetnsOpKind::Switch, NetnsOpKind::Unshare]));
    assert!(made(true, &[NetnsOpKind::End, NetnsOpKind::Switch]), "the number is used again");
}

/// A pod that repeatedly listens or enters namespaces must not lower the confidence of verdicts.
#[test]
fn lost_listen_and_namespace_events_do_not_count_for_attempts() {
    let lost = |place: &str| {
        let mut stream = Stream::new();
        let node = self::node(stream.lost_in(place, 7));
        (node.lost_between(0, u64::MAX), node.losses.between(0, u64::MAX).count())
    };
    assert_eq!(["ring", "program", "map"].map(lost), [(7, 1); 3]);
    assert_eq!([Loss::LISTEN, Loss::NAMESPACE].map(lost), [(0, 1); 2]);
}

/// ip_vs is loaded after the start.
#[test]
fn a_hook_that_is_attached_later_is_not_missing() {
    let mut stream = Stream::new().missing(Hook::IpvsLeave).clone();
    assert_eq!(node(&stream).missing_of(&[Hook::IpvsLeave]), [Hook::IpvsLeave]);
    let hooks = vec![Hook::IpvsLeave.name().to_owned()];
    stream.push(ObservationKind::HooksAttached(HooksAttached { hooks }));
    assert_eq!(node(&stream).missing_of(&[Hook::IpvsLeave]), []);
    let missing_at = |at| node(&stream).missing_at(&[Hook::IpvsLeave], at, |_| false);
    assert_eq!([missing_at(0), missing_at(u64::MAX)], [vec![Hook::IpvsLeave], vec![]], "an attempt may be older");
}
