//! The table of causes. The order of decision, conditions of the node and `tracer explain` follow it. `cargo xtask bless`
//! writes the alerts' lists, the runbook's rows and the lists of the documentation.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Who has to act.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// The operator of the node: the cause can affect any of its pods.
    Node,
    /// The operator of the network, its policies and its firewalls.
    Network,
    /// The operator of the kubelet.
    Kubelet,
    /// The author of the pod's spec: its probes, limits and budgets.
    Pod,
    /// The author of the application.
    Application,
}

/// How serious it is, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// An attempt failed.
    Error,
    /// No failure of its own: a start within its budget, or what stands beside another cause.
    Warning,
    /// Nothing failed.
    Info,
}

/// How far an attempt with this cause gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The pod has no network yet.
    Sandbox,
    /// No SYN leaves.
    Connect,
    /// The connection is not established.
    Handshake,
    /// TLS is not established.
    Tls,
    /// No answer, or not the one that the probe needs.
    Answer,
    /// The command of an exec probe runs, or cannot run.
    Command,
    /// It depends on the attempt.
    Any,
}

/// Other properties of a cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trait {
    /// The attempt reached the target's process or its listener.
    Reached,
    /// The attempt got an answer that refuses.
    Refusal,
    /// Nobody listened on the port.
    NoListener,
    /// The container was not ready yet, if it has just started.
    NotReady,
    /// A process that ends with its pod causes the same failure.
    EndsWithProcess,
    /// A network that is removed with its pod causes the same failure.
    EndsWithNetwork,
    /// It stands beside the cause of a verdict, in `also`, and is none itself.
    AlsoOnly,
}

/// Declares the causes: variant, name, scope, stage, severity of a failure, traits, and the first look of an operator.
/// The page is `docs/causes/NAME.md`.
macro_rules! causes {
    ($(
        $(#[$doc:meta])*
        $variant:ident = $name:literal: $scope:expr, $stage:ident, $severity:ident, [$($trait:ident),*], $look:literal;
    )*) => {
        /// The cause of a failed (or misleading) attempt. Once released, a name is never reused.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
        #[serde(rename_all = "snake_case")]
        pub enum Cause { $($(#[$doc])* $variant,)* }

        impl Cause {
            /// Every cause, in the order of decision.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The name in records.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            pub fn from_name(name: &str) -> Option<Self> {
                match name { $($name => Some(Self::$variant),)* _ => None }
            }

            /// Who has to act; `None` for `unexplained`.
            pub const fn scope(self) -> Option<Scope> {
                use Scope::{Application, Kubelet, Network, Node, Pod};
                match self { $(Self::$variant => $scope,)* }
            }

            /// How far such an attempt gets.
            pub const fn stage(self) -> Stage {
                match self { $(Self::$variant => Stage::$stage,)* }
            }

            /// How serious a failure with this cause is.
            pub const fn severity(self) -> Severity {
                match self { $(Self::$variant => Severity::$severity,)* }
            }

            pub const fn traits(self) -> &'static [Trait] {
                match self { $(Self::$variant => &[$(Trait::$trait),*],)* }
            }

            /// Where to look first: the other cells of its row in `docs/runbook.md`. Empty if no alert names the cause.
            pub const fn first_look(self) -> &'static str {
                match self { $(Self::$variant => $look,)* }
            }

            /// Its page, in Markdown.
            pub const fn page(self) -> &'static str {
                match self { $(Self::$variant => include_str!(concat!("../../../../docs/causes/", $name, ".md")),)* }
            }
        }
    };
}

causes! {
    /// The attempt's source port is a NodePort and IPVS took its SYN-ACK.
    NodeportEphemeralCollision = "nodeport_ephemeral_collision": Some(Node), Handshake, Error, [],
        "`tracer doctor --check port_overlap` | the sysctl of that row, for your own range";
    /// `lo` of the attempt's namespace is down and its route goes over it.
    LoopbackDown = "loopback_down": Some(Node), Handshake, Error, [],
        "`ip link show lo`; the *culprit* in the verdict | `ip link set lo up`; then stop the culprit";
    /// The pod's link, or the one that leads to it, is down, or its namespace is gone.
    PodLinkDown = "pod_link_down": Some(Network), Handshake, Error, [EndsWithNetwork],
        "`ip link` on the node; who set the link down";
    /// The target Service has no ready endpoint.
    ServiceNoEndpoints = "service_no_endpoints": Some(Application), Handshake, Error, [],
        "the readiness of the Service's pods";
    /// The connection table of the namespace is full.
    ConntrackTableFull = "conntrack_table_full": Some(Node), Handshake, Error, [],
        "`tracer doctor --check conntrack` | a larger table; find who fills it";
    /// Dropped or rejected as INVALID.
    ConntrackInvalid = "conntrack_invalid": Some(Network), Any, Error, [],
        "the rule that drops invalid packets; asymmetric routes";
    /// Stopped by the CNI's policy enforcement, or by a tc, XDP or cgroup program.
    NetworkPolicyDrop = "network_policy_drop": Some(Network), Any, Error, [],
        "the policy of the CNI that selects the pod";
    /// A netfilter rule answered for this flow with a RST or an ICMP error.
    FirewallReject = "firewall_reject": Some(Network), Handshake, Error, [],
        "the rule named in the verdict, with its table, chain, handle and owner";
    /// A netfilter rule dropped a packet of this flow.
    FirewallDrop = "firewall_drop": Some(Network), Any, Error, [],
        "the rule named in the verdict, with its table, chain, handle and owner";
    /// The node lacks a setting that pods' traffic needs.
    MissingNodePrerequisite = "missing_node_prerequisite": Some(Node), Handshake, Error, [],
        "`tracer doctor`: the row that fails | the command of that row";
    /// The reverse-path filter dropped a packet of this attempt.
    RpFilterDrop = "rp_filter_drop": Some(Network), Handshake, Error, [],
        "`tracer doctor --check rp_filter`";
    /// The pod's link is a part of the device by which the node asks for it.
    HostIsolatedLink = "host_isolated_link": Some(Network), Handshake, Error, [],
        "`ip -d link` in the pod: a macvlan or ipvlan of the device that the node uses";
    /// A routing rule of the node, or a route in the pod, leads out of the wrong link.
    AsymmetricRoute = "asymmetric_route": Some(Network), Handshake, Error, [],
        "`ip rule`; the rule that the verdict names";
    /// The link-layer address of the target (or of the gateway) could not be resolved.
    NeighbourFailure = "neighbour_failure": Some(Network), Handshake, Error, [EndsWithNetwork],
        "`ip neigh`; `tracer doctor --check neighbours`";
    /// There is no route to the target, or one that refuses.
    RouteUnreachable = "route_unreachable": Some(Network), Connect, Error, [EndsWithNetwork],
        "`ip route get ADDRESS` on the node";
    /// No source port is free.
    EphemeralPortsExhausted = "ephemeral_ports_exhausted": Some(Node), Connect, Error, [],
        "the record `port_pressure`: who connects most | reuse of connections; a wider range";
    /// The processes that serve the target are frozen or stopped.
    TargetFrozen = "target_frozen": Some(Pod), Any, Error, [Reached],
        "who paused or stopped the process; the verdict has the command that resumes it";
    /// The listener's accept queue is full.
    AcceptQueueOverflow = "accept_queue_overflow": Some(Application), Handshake, Error, [Reached],
        "`ss -ltn` in the pod: the queue against its limit";
    /// The listener's queue of half-open connections is full.
    SynBacklogOverflow = "syn_backlog_overflow": Some(Application), Handshake, Error, [Reached],
        "`ss -ltn` in the pod: the queue against its limit";
    /// Refused, and a connection of a process has that local port; or a process of another pod or of the node listens on
    /// it: no server can bind it.
    PortTaken = "port_taken": Some(Pod), Any, Error, [Refusal, NoListener],
        "the process with a connection on the port, or with a listener; the verdict names it";
    /// The liveness or startup budget ended before the container listened.
    StartupBudgetExceeded = "startup_budget_exceeded": Some(Pod), Handshake, Error,
        [Refusal, NoListener, NotReady, EndsWithProcess],
        "the `startupProbe` in the verdict, ready to paste";
    /// Refused, and the process began to listen later, or is still starting.
    NotListeningYet = "not_listening_yet": Some(Pod), Handshake, Warning,
        [Refusal, NoListener, NotReady, EndsWithProcess],
        "the `startupProbe` in the verdict, ready to paste";
    /// The probe is wrong, not the application.
    ProbeMisconfigured = "probe_misconfigured": Some(Pod), Answer, Error, [Refusal],
        "the field of the probe that the verdict names";
    /// No process listens on that address and port.
    ConnectionRefused = "connection_refused": Some(Application), Handshake, Error,
        [Refusal, NoListener, NotReady, EndsWithProcess],
        "the port of the probe, and the address on which the process listens";
    /// The pod's own address translation sent the attempt to another process, which closed it.
    MeshRedirect = "mesh_redirect": Some(Pod), Answer, Error, [Refusal, EndsWithProcess],
        "the log of the proxy in the pod, and which ports it exempts";
    /// Any other RST before ESTABLISHED.
    HandshakeRst = "handshake_rst": Some(Network), Handshake, Error, [Refusal],
        "what stands between the prober and the process: proxy, virtual machine, load balancer";
    /// A RST after ESTABLISHED, before the answer.
    MidStreamRst = "mid_stream_rst": Some(Application), Answer, Error, [Reached, EndsWithProcess],
        "the log of the process at that moment";
    /// Full-size segments do not get through.
    MtuBlackhole = "mtu_blackhole": Some(Network), Answer, Error, [],
        "the MTU of the CNI against that of the uplink";
    /// The kubelet sent its request, or read the answer, too late.
    KubeletDelayed = "kubelet_delayed": Some(Kubelet), Any, Error, [],
        "CPU pressure of the node and of the kubelet";
    /// Established, and TLS was not finished before the timeout.
    TlsHandshakeSlow = "tls_handshake_slow": Some(Application), Tls, Error, [Reached, NotReady, EndsWithProcess],
        "the latency of the health handler against `timeoutSeconds`";
    /// The target took the request, and sent no byte before the prober gave up.
    SlowResponse = "slow_response": Some(Application), Answer, Error, [Reached, NotReady, EndsWithProcess],
        "the latency of the health handler against `timeoutSeconds`";
    /// Nothing of the target's container could run.
    TargetStarved = "target_starved": Some(Pod), Any, Error, [Reached],
        "what the container waits for: a processor, a disk or memory";
    /// The target's container had used up its CPU quota and was held back. In `also` only.
    CpuThrottled = "cpu_throttled": Some(Pod), Answer, Warning, [AlsoOnly],
        "the CPU limit: raise it before the timeout";
    /// The server closed the connection without a byte.
    ClosedWithoutAnswer = "closed_without_answer": Some(Application), Answer, Error,
        [Reached, Refusal, NotReady, EndsWithProcess],
        "the log of the process at that moment";
    /// The application answered with a failure.
    AppStatusFailure = "app_status_failure": Some(Application), Answer, Error,
        [Reached, Refusal, NotReady, EndsWithProcess],
        "what the health handler checks";
    /// The pod's own connects fail. In `also` only.
    DependencyUnreachable = "dependency_unreachable": Some(Application), Any, Warning, [AlsoOnly],
        "the peer that the verdict names, if the pod needs it, and egress policies";
    /// The command of an exec probe did not end in time.
    ExecTimeout = "exec_timeout": Some(Application), Command, Error, [],
        "the command, run by hand in the container";
    /// A limit or a guard kept the runtime from starting the command of an exec probe.
    ExecNotRun = "exec_not_run": Some(Pod), Command, Error, [],
        "the limit or the guard that the verdict names; it is not the image";
    /// The command of an exec probe failed, or could not be run.
    ExecFailed = "exec_failed": Some(Application), Command, Error, [],
        "the command, run by hand in the container";
    /// The kubelet failed before it tried to connect to the pod.
    KubeletClientError = "kubelet_client_error": Some(Kubelet), Connect, Error, [],
        "file descriptors, resolver and proxy settings of the kubelet";
    /// The wall clock was set back, and the kubelet waits until it reaches the start of the container.
    ProbeNotRun = "probe_not_run": Some(Kubelet), Any, Warning, [],
        "`timedatectl`, and when the node set its clock; delete the pods that the verdicts name";
    /// A pod's sandbox waits for the network.
    CniNotReady = "cni_not_ready": Some(Network), Sandbox, Error, [],
        "the CNI's agent on this node, and `/etc/cni/net.d`";
    /// A tcpSocket attempt that another process than the application accepted.
    ProbeProvesNothing = "probe_proves_nothing": Some(Pod), Answer, Info, [], "";
    /// A tcpSocket attempt that succeeded at a TLS listener.
    TlsEofNoise = "tls_eof_noise": Some(Pod), Answer, Info, [], "";
    /// A tcpSocket attempt that succeeded at a server that speaks first.
    TcpProbeNoise = "tcp_probe_noise": Some(Pod), Answer, Info, [], "";
    /// None of these.
    Unexplained = "unexplained": None, Any, Error, [], "";
}

impl Cause {
    pub fn has(self, what: Trait) -> bool {
        self.traits().contains(&what)
    }

    /// The cause is a state of the node, not of one pod.
    pub fn is_of_node(self) -> bool {
        self.scope() == Some(Scope::Node)
    }
}

display_as_serialized!(Scope);

impl std::fmt::Display for Cause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::Cause;

    #[test]
    fn names_round_trip_and_agree_with_serde() {
        for &cause in Cause::ALL {
            assert_eq!(Cause::from_name(cause.name()), Some(cause));
            assert_eq!(serde_json::to_value(cause).ok(), Some(serde_json::Value::from(cause.name())));
        }
        assert_eq!(Cause::from_name("no_such_cause"), None);
    }
}
