//! Observations of the node: targets, namespaces, links, listeners, NodePorts.

use super::*;

impl Stream {
    /// The target is inspected.
    pub fn inspection(&mut self, fill: impl FnOnce(&mut Inspection)) -> &mut Self {
        let mut reading = Inspection::nothing(NODE, self.flow.dst);
        reading.netns = Some(POD);
        fill(&mut reading);
        self.push(ObservationKind::Inspection(Box::new(reading)))
    }

    /// An inspection of the target shows its server.
    pub fn serving(&mut self, serving: Serving) -> &mut Self {
        self.inspection(|reading| reading.serving = Some(Box::new(serving)))
    }

    /// The sockets of the target's pod are read.
    pub fn pod_sockets(&mut self, fill: impl FnOnce(&mut PodSockets)) -> &mut Self {
        let mut reading = PodSockets::nothing(NODE, self.flow.dst, Some(POD));
        fill(&mut reading);
        self.push(ObservationKind::PodSockets(Box::new(reading)))
    }

    /// The cgroups of the container with this id are read: it has processes.
    pub fn container_read(&mut self, id: &str) -> &mut Self {
        self.push(ObservationKind::Limits(Box::new(ContainerLimits { id: id.into(), ..ContainerLimits::default() })))
    }

    pub fn netns_made(&mut self, netns: Netns) -> &mut Self {
        self.netns_op(netns, NetnsOpKind::Unshare)
    }

    pub fn netns_ends(&mut self, netns: Netns) -> &mut Self {
        self.netns_op(netns, NetnsOpKind::End)
    }

    /// A process enters the namespace. Where functions can be hooked, `unshare` is reported like this, too.
    pub fn netns_entered(&mut self, netns: Netns) -> &mut Self {
        self.netns_op(netns, NetnsOpKind::Switch)
    }

    pub fn netns_op(&mut self, netns: Netns, op: NetnsOpKind) -> &mut Self {
        self.push(ObservationKind::NetnsOp(NetnsOp { actor: prober(), ancestors: Vec::new(), netns, op }))
    }

    /// Somebody sets a link up or down.
    pub fn link_set(&mut self, netns: Netns, ifindex: u32, name: &str, up: bool) -> &mut Self {
        self.push(ObservationKind::LinkChange(link_change(netns, ifindex, name, up)))
    }

    /// A worker of the kernel sets a link down.
    pub fn link_set_by_kernel(&mut self, netns: Netns, ifindex: u32, name: &str) -> &mut Self {
        let actor = Actor { pid: 35, tid: 35, comm: "kworker/u8:2".into(), ..prober() };
        let ancestors = vec![Ancestor { pid: 2, comm: "kthreadd".into() }];
        let change = LinkChange { actor, ancestors, ..link_change(netns, ifindex, name, false) };
        self.push(ObservationKind::LinkChange(change))
    }

    pub fn listens(&mut self, netns: Netns, port: u16, begins: bool) -> &mut Self {
        self.listens_on(netns, SocketAddr::new(std::net::Ipv4Addr::UNSPECIFIED.into(), port), begins)
    }

    pub fn listens_on(&mut self, netns: Netns, addr: SocketAddr, begins: bool) -> &mut Self {
        self.process_listens_on(99, netns, addr, begins)
    }

    pub fn process_listens_on(&mut self, pid: u32, netns: Netns, addr: SocketAddr, begins: bool) -> &mut Self {
        let actor = Actor { pid, tid: pid, comm: "app".into(), ..prober() };
        self.push(ObservationKind::Listen(Listen::new(netns, addr, actor, begins)))
    }

    pub fn node_port(&mut self, mode: ProxyMode, port: u16, backends: &[&str]) -> &mut Self {
        let backends = backends.iter().map(|b| address(b)).collect();
        let (addrs, service) = (vec![self.flow.src.ip()], Some("kube-system/dashboard".into()));
        let port = NodePort { port, addrs, service, backends, listened: false };
        self.push(ObservationKind::NodePorts(NodePorts::new(NODE, mode, vec![port])))
    }

    /// kube-proxy's rules have `shop/cart:http` at this external address of the node.
    pub fn external(&mut self, at: &str) -> &mut Self {
        let external = [(address(at), "shop/cart:http".to_owned())].into();
        let table = NodePorts::new(NODE, ProxyMode::Iptables, Vec::new());
        self.push(ObservationKind::NodePorts(NodePorts { external, ..table }))
    }

    /// The list of Services has `shop/cart` with this port only. `fill` gives it addresses.
    pub fn service(&mut self, port: u16, fill: impl FnOnce(&mut Service)) -> &mut Self {
        let mut cart = Service::named(ServiceName { namespace: "shop".into(), name: "cart".into() });
        cart.ports = vec![ServicePort { name: None, port, node_port: None }];
        fill(&mut cart);
        self.push(ObservationKind::Services(Services { services: vec![cart] }))
    }

    /// systemd-networkd has removed these.
    pub fn flushed(&mut self, rules: FlushedRules) -> &mut Self {
        let by = Remover { pid: 412, comm: "systemd-network".into(), exe: None, ancestors: Vec::new() };
        let count = if rules.of_routing().is_empty() { 40 } else { rules.of_routing().len() };
        let since_boot_ns = self.now();
        self.push(ObservationKind::RulesFlushed(Box::new(RulesFlushed {
            netns: NODE,
            since_boot_ns,
            count,
            incomplete: false,
            rules,
            by: Some(by),
        })))
    }

    /// A rule of priority 1000, or a route, to these addresses.
    pub fn removed_to(addr: &str, len: u8) -> RemovedRoute {
        let to = Some(Prefix { addr: address(addr), len });
        RemovedRoute { v6: false, from: None, to, narrower: false, table: 101, priority: Some(1000) }
    }

    /// The cluster API lists these endpoints of `shop/cart`; `None`: it does not answer.
    pub fn endpoints(&mut self, ready: Option<&[&str]>, not_ready: &[&str]) -> &mut Self {
        let addrs = |list: &[&str]| list.iter().map(|it| address(it)).collect();
        let name = ServiceName { namespace: "shop".into(), name: "cart".into() };
        self.push(ObservationKind::ServiceEndpoints(Box::new(Service {
            ready_endpoints: ready.map(addrs),
            not_ready_endpoints: addrs(not_ready),
            ..Service::named(name)
        })))
    }

    /// The node has this setting.
    pub fn sysctl(&mut self, name: &str, value: &str) -> &mut Self {
        let sysctls = [(name.to_owned(), value.to_owned())].into();
        self.push(ObservationKind::NodeSettings(NodeSettings { sysctls, ..NodeSettings::default() }))
    }

    pub fn links(&mut self, lo_up: bool, addrs: &[&str]) -> &mut Self {
        self.node_links(vec![LinkState { up: lo_up, loopback: true, ..link(1, "lo", addrs) }])
    }

    /// The links of the node are read.
    pub fn node_links(&mut self, links: Vec<LinkState>) -> &mut Self {
        self.push(ObservationKind::Links(Links { netns: NODE, cookie: None, links }))
    }
}
