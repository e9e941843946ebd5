//! Parts of observations that need no stream.

use super::*;

pub fn firewall(netns: Netns, rules: Vec<FirewallRule>) -> ObservationKind {
    firewall_with(netns, rules, |_| ())
}

/// A reading of the rules with more fields.
pub fn firewall_with(netns: Netns, rules: Vec<FirewallRule>, fill: impl FnOnce(&mut Firewall)) -> ObservationKind {
    let mut reading = Firewall { rules, ..Firewall::empty(netns) };
    fill(&mut reading);
    ObservationKind::Firewall(Box::new(reading))
}

/// A rule that every packet meets, in a chain of its own table.
pub fn rule(chain: &str, verdict: RuleVerdict) -> FirewallRule {
    FirewallRule {
        backend: Backend::Nftables,
        family: "inet".into(),
        table: "t".into(),
        chain: chain.into(),
        base: Some(chain.into()),
        hooks: vec!["INPUT".into(), "OUTPUT".into()],
        verdict,
        policy: false,
        handle: Some(4),
        comment: None,
        when: When::default(),
        exact: true,
        first: false,
        priority: Some(0),
        limit: None,
        packets: None,
        proxy_port: None,
    }
}

/// The pod redirects port 8080 to a proxy. Another process, or the same one, listens on the port.
pub fn redirect(proxy: u32, app: u32) -> Redirect {
    let listener = |pid, comm: &str| Some(Listener { pid, comm: comm.to_owned() });
    let (server, passed_over) = (listener(proxy, "envoy"), listener(app, "app"));
    Redirect { to: address("10.88.0.2:15006"), server, passed_over, outside: false }
}

/// A link that is up, with these addresses.
pub fn link(ifindex: u32, name: &str, addrs: &[&str]) -> LinkState {
    let addrs = addrs.iter().map(|addr| address(addr)).collect();
    LinkState { ifindex, name: name.into(), up: true, addrs, ..LinkState::default() }
}

/// A route out of `device`, while the pod is behind `pod_device`.
pub fn stray(device: &str, pod_device: &str, table: u32) -> StrayRoute {
    let (device, pod_device) = (device.to_owned(), pod_device.to_owned());
    StrayRoute { device, pod_device, pod_bridge: None, detached: false, table, rule: None }
}

pub fn neighbour(state: &str) -> NeighbourState {
    NeighbourState { addr: address("10.88.0.2"), state: state.to_owned(), ifindex: 2, confirmed_ms_ago: None }
}

/// A listener on the port of the target, with `waiting` of `backlog` connections in its queue.
pub fn listener(waiting: u32, backlog: u32) -> ListenerState {
    ListenerState { addr: address("0.0.0.0:8080"), waiting, backlog, half_open: None }
}

/// A process of the server, with so many threads.
pub fn server_process(pid: u32, threads: u32) -> ServerProcess {
    let tasks = ServerTasks { count: threads, ..ServerTasks::default() };
    ServerProcess {
        pid,
        comm: "app".into(),
        tasks,
        frozen: None,
        frozen_above: None,
        cpu_cgroup: None,
        core_dumping: false,
    }
}

/// The target's end of the attempt's connection.
pub fn served(unread: u32, accepted: bool) -> ServedConnection {
    ServedConnection {
        peer: address("10.88.0.1:40000"),
        unread,
        unacknowledged: None,
        accepted,
        pid: None,
        waits_at: Vec::new(),
    }
}

/// A process in this namespace, if it is known, read a ClientHello at this address.
pub fn tls_hello(netns: Option<Netns>, addr: &str) -> ObservationKind {
    ObservationKind::TlsHello(TlsHello { netns, addr: address(addr) })
}

/// Somebody sets a link up or down.
pub fn link_change(netns: Netns, ifindex: u32, name: &str, up: bool) -> LinkChange {
    LinkChange {
        netns,
        ifindex,
        name: name.into(),
        up,
        actor: prober(),
        ancestors: Vec::new(),
        exe: None,
        cni_netns: None,
        hook: Hook::QdiscReset,
    }
}

/// The kubelet reports that the readiness probe of the pod failed.
pub(super) fn readiness_failed(reason: ProbeOutput) -> KubeletProbe {
    KubeletProbe {
        pod: PodRef { namespace: Some("default".into()), name: Some("web".into()), uid: None },
        container: Some("app".into()),
        probe_type: ProbeType::Readiness,
        result: KubeletResult::Failure,
        reason,
        output: None,
        src: None,
        dst: None,
        written_boot_ns: 0,
        pid: Some(100),
        event_count: None,
    }
}

pub fn prober() -> Actor {
    Actor { pid: 10, tid: 11, comm: "kubelet".into(), netns: Some(NODE), cgroup: None, cgroup_memory: None }
}

pub fn http_probe(port: u16) -> ProbeSpec {
    ProbeSpec {
        probe_type: ProbeType::Readiness,
        handler: Handler::Http,
        scheme: Some("http".into()),
        speaks: None,
        port,
        host: None,
        path: Some("/".into()),
        timeout_s: 1,
        period_s: 10,
        failure_threshold: 3,
        initial_delay_s: 0,
        grace_s: None,
    }
}

/// A device that is up.
pub fn device(ifindex: u32, name: &str) -> Device {
    Device { ifindex, name: name.into(), up: true, loopback: false }
}

pub fn lo(up: bool) -> Option<Device> {
    Some(Device { ifindex: 1, name: "lo".into(), up, loopback: true })
}

pub fn start() -> Start {
    Start {
        version: "0".into(),
        kernel: "0".into(),
        node_name: "n1".into(),
        node_netns: Some(NODE),
        namespaces: vec![NODE],
        probers: vec!["kubelet".into()],
        ..Start::default()
    }
}
