//! Pods with probes, and how their containers ran.

use super::*;

impl Stream {
    fn probed(&mut self, probe: ProbeSpec) -> &mut Self {
        self.pod_probed("web", probe)
    }

    /// The pod at the target's address with one probe.
    fn pod_probed(&mut self, name: &str, probe: ProbeSpec) -> &mut Self {
        let container = Container { name: Some("app".into()), probes: vec![probe], ..Container::default() };
        let pod = Pod {
            namespace: Some("default".into()),
            name: Some(name.into()),
            addrs: vec![self.flow.dst.ip()],
            containers: vec![container],
            ..Pod::default()
        };
        self.push(ObservationKind::Pods(Pods { pods: vec![pod] }))
    }

    /// The pod with a readiness probe that runs a command.
    pub fn exec_readiness(&mut self) -> &mut Self {
        let exec = ExecSpec { probe_type: ProbeType::Readiness, timeout_s: 1, period_s: 10, failure_threshold: 3 };
        let container = Container { name: Some("app".into()), exec: vec![exec], ..Container::default() };
        let (namespace, name) = (Some("default".into()), Some("web".into()));
        self.push(ObservationKind::Pods(Pods {
            pods: vec![Pod { namespace, name, containers: vec![container], ..Pod::default() }],
        }))
    }

    pub fn liveness(&mut self, period_s: u32, failure_threshold: u32) -> &mut Self {
        let probe_type = ProbeType::Liveness;
        self.probed(ProbeSpec { probe_type, period_s, failure_threshold, ..self.http_probe() })
    }

    pub fn http_startup(&mut self) -> &mut Self {
        let probe_type = ProbeType::Startup;
        self.probed(ProbeSpec { probe_type, ..self.http_probe() })
    }

    pub fn liveness_after(&mut self, initial_delay_s: u32, period_s: u32, failure_threshold: u32) -> &mut Self {
        let probe_type = ProbeType::Liveness;
        self.probed(ProbeSpec { probe_type, initial_delay_s, period_s, failure_threshold, ..self.http_probe() })
    }

    /// `terminationGracePeriodSeconds` of the first probe.
    pub fn grace_s(&mut self, seconds: u32) -> &mut Self {
        self.change_pod(|pod| pod.containers[0].probes[0].grace_s = Some(seconds))
    }

    /// The container of the pod has this id now.
    pub fn container_id(&mut self, id: &str) -> &mut Self {
        self.change_pod(|pod| pod.containers[0].id = Some(id.into()))
    }

    /// The kubelet does not start the pod's container again.
    pub fn never_restarted(&mut self) -> &mut Self {
        self.change_pod(|pod| pod.containers[0].never_restarted = true)
    }

    /// The pod has a second container, without probes.
    pub fn second_container(&mut self) -> &mut Self {
        self.container_too("sidecar")
    }

    /// The pod has a second container of this name, without probes.
    pub fn container_too(&mut self, name: &str) -> &mut Self {
        self.change_pod(|pod| {
            let other = Container { id: None, probes: Vec::new(), ..pod.containers[0].clone() };
            pod.containers.push(Container { name: Some(name.into()), ..other });
        })
    }

    /// The pod has a second container of this name, with the probes of the first.
    pub fn probed_container_too(&mut self, name: &str) -> &mut Self {
        self.change_pod(|pod| {
            let probes = pod.containers[0].probes.clone();
            pod.containers.push(Container { name: Some(name.into()), probes, ..Container::default() });
        })
    }

    pub fn http_readiness(&mut self) -> &mut Self {
        self.probed(self.http_probe())
    }

    pub fn http_readiness_at(&mut self, path: &str) -> &mut Self {
        let path = Some(path.into());
        self.probed(ProbeSpec { path, ..self.http_probe() })
    }

    /// Istio has rewritten the readiness probe, and its agent is in the pod.
    pub fn asked_by_pilot_agent(&mut self) -> &mut Self {
        self.http_readiness_at("/app-health/app/readyz").container_too("istio-proxy")
    }

    /// The target's address belongs to this pod now.
    pub fn http_readiness_of(&mut self, pod: &str) -> &mut Self {
        self.pod_probed(pod, self.http_probe())
    }

    /// The pod's container has a readiness probe on the same port, too.
    pub fn readiness_too(&mut self) -> &mut Self {
        self.probed_too(self.http_probe())
    }

    /// The pod's container has a liveness probe on the same port, too.
    pub fn http_liveness_too(&mut self) -> &mut Self {
        self.probed_too(ProbeSpec { probe_type: ProbeType::Liveness, ..self.http_probe() })
    }

    /// The pod's container has a liveness probe with another timeout, too, which is else as its readiness probe.
    pub fn like_liveness_too(&mut self, timeout_s: u32) -> &mut Self {
        self.change_pod(|pod| {
            let probes = &mut pod.containers[0].probes;
            probes.push(ProbeSpec { probe_type: ProbeType::Liveness, timeout_s, ..probes[0].clone() });
        })
    }

    fn probed_too(&mut self, probe: ProbeSpec) -> &mut Self {
        self.change_pod(|pod| pod.containers[0].probes.push(probe))
    }

    /// The pod's container has a startup probe that runs a command, too.
    pub fn exec_startup_too(&mut self) -> &mut Self {
        let exec = ExecSpec { probe_type: ProbeType::Startup, timeout_s: 1, period_s: 10, failure_threshold: 30 };
        self.change_pod(|pod| pod.containers[0].exec.push(exec))
    }

    /// The pod's container has a lifecycle handler that asks this port.
    pub fn lifecycle(&mut self, event: LifecycleEvent, port: u16) -> &mut Self {
        let handler = LifecycleHandler { event, scheme: "http".into(), port, host: None, path: "/stop".into() };
        self.change_pod(|pod| pod.containers[0].lifecycle.push(handler))
    }

    /// The pod has the target's address.
    pub fn at_target(&mut self) -> &mut Self {
        let addr = self.flow.dst.ip();
        self.change_pod(|pod| pod.addrs = vec![addr])
    }

    /// The list of pods comes again, with this change.
    fn change_pods(&mut self, change: impl FnOnce(&mut Vec<Pod>)) -> &mut Self {
        let last = self.observations.iter().rev().find_map(|it| match &it.kind {
            ObservationKind::Pods(pods) => Some(pods.clone()),
            _ => None,
        });
        let mut pods = last.expect("a pod in a test");
        change(&mut pods.pods);
        self.push(ObservationKind::Pods(pods))
    }

    fn change_pod(&mut self, change: impl FnOnce(&mut Pod)) -> &mut Self {
        self.change_pods(|pods| change(&mut pods[0]))
    }

    /// An httpGet readiness probe of the target's port.
    fn http_probe(&self) -> ProbeSpec {
        http_probe(self.flow.dst.port())
    }

    /// The pod with a readiness probe of another port.
    pub fn http_readiness_on(&mut self, port: u16) -> &mut Self {
        self.probed(http_probe(port))
    }

    /// The runs of the container, as the kubelet reports them from now on.
    pub fn runs(&mut self, runs: Runs) -> &mut Self {
        self.change_pod(|pod| pod.containers[0].runs = Some(runs))
    }

    /// The pod's network namespace is known.
    pub fn pod_in(&mut self, netns: Netns) -> &mut Self {
        self.change_pod(|pod| pod.netns = Some(netns))
    }

    /// Somebody deletes the pod.
    pub fn deleting(&mut self) -> &mut Self {
        self.change_pod(|pod| pod.deleting = true)
    }

    /// The time this many seconds ago.
    pub const fn seconds_ago(&self, seconds: u64) -> u64 {
        self.now - seconds * 1_000_000_000
    }

    pub fn tcp_readiness(&mut self) -> &mut Self {
        self.probed(ProbeSpec { handler: Handler::Tcp, scheme: None, path: None, ..self.http_probe() })
    }

    pub fn http_readiness_over_tls(&mut self, tls: bool) -> &mut Self {
        if tls { self.https_readiness() } else { self.http_readiness() }
    }

    pub fn https_readiness(&mut self) -> &mut Self {
        let scheme = Some("https".into());
        self.probed(ProbeSpec { scheme, ..self.http_probe() })
    }

    pub fn grpc_readiness(&mut self, timeout_s: u32) -> &mut Self {
        self.probed(ProbeSpec { handler: Handler::Grpc, scheme: None, path: None, timeout_s, ..self.http_probe() })
    }

    /// The readiness probe of the pod has a field of its handler that says what it speaks.
    pub fn speaking(&mut self, speaks: ProbeProtocol) -> &mut Self {
        self.change_pod(|pod| pod.containers[0].probes[0].speaks = Some(speaks))
    }

    /// The pod's container has a gRPC liveness probe of the same port, too.
    pub fn grpc_liveness_too(&mut self, timeout_s: u32) -> &mut Self {
        let (handler, probe_type) = (Handler::Grpc, ProbeType::Liveness);
        let like = self.http_probe();
        self.probed_too(ProbeSpec { handler, probe_type, scheme: None, path: None, timeout_s, ..like })
    }

    /// A pod on the host's network at the target's address. Its container of this name has a liveness probe.
    pub fn host_network_liveness(&mut self, container: &str, period_s: u32) -> &mut Self {
        self.liveness(period_s, 8).on_host_network().named_container(container)
    }

    /// The pod's first container has this name.
    pub fn named_container(&mut self, name: &str) -> &mut Self {
        self.change_pod(|pod| pod.containers[0].name = Some(name.into()))
    }

    /// The pod at the target's address, without its probes: `attach` with no list of them.
    pub fn without_specs(&mut self) -> &mut Self {
        self.http_readiness().last_pods().pods[0].containers[0].probes.clear();
        self
    }

    /// Another pod, of which only the name is known yet.
    pub fn pod_without_specs(&mut self, addr: &str) -> &mut Self {
        let addrs = vec![address(addr)];
        let pod = Pod { name: Some("new".into()), uid: Some("new".into()), addrs, ..Pod::default() };
        self.change_pods(|pods| pods.push(pod))
    }

    /// The probe of another pod connects to the target's address by its `host`.
    pub fn probed_from_elsewhere(&mut self) -> &mut Self {
        let spec = ProbeSpec { host: Some(self.flow.dst.ip().to_string()), ..self.http_probe() };
        self.change_pods(|pods| {
            let container = Container { probes: vec![spec], ..pods[0].containers[0].clone() };
            pods.push(Pod { name: Some("evil".into()), containers: vec![container], ..Pod::default() });
        })
    }

    /// The pod is on the host's network.
    pub fn on_host_network(&mut self) -> &mut Self {
        self.change_pod(|pod| pod.host_network = true)
    }

    /// The pod's container has an HTTPS liveness probe on the same port, too.
    pub fn https_liveness_too(&mut self) -> &mut Self {
        let (scheme, probe_type) = (Some("https".into()), ProbeType::Liveness);
        self.probed_too(ProbeSpec { scheme, probe_type, ..self.http_probe() })
    }
}
