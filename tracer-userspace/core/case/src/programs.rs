//! The BPF programs of the device at which one dropped a packet, by name, and the data plane that they belong to.

use serde_json::json;

use crate::case::{Case, is_of_handshake};
use crate::drop_reason::{dropped_in, place_of};
use crate::evidence::evidence_of;
use crate::netfilter::is_missed;
use tracer_model::event::{DeviceProgram, PacketDrop, ProgramPlace};
use tracer_model::record::{Command, Evidence};
use tracer_model::shell;

/// How much older than a drop a reading may be. The core issues the same query again only after this time.
pub const PROGRAMS_NS: u64 = 1_000_000_000;

/// The programs at the place of a drop, as they were read.
pub struct Programs<'a> {
    drop: &'a PacketDrop,
    place: ProgramPlace,
    read: u64,
    all: Vec<&'a DeviceProgram>,
}

impl<'a> Programs<'a> {
    /// `None`: they were not read.
    pub fn at(case: &Case<'a>, time: u64, drop: &'a PacketDrop) -> Option<Self> {
        let place = place_of(drop)?;
        let (read, programs) = case.node.programs(drop.netns?, drop.device.as_ref()?.ifindex)?;
        let all = programs.iter().filter(|it| it.place == place).collect();
        (read.saturating_add(PROGRAMS_NS) >= time).then_some(Self { drop, place, read, all })
    }

    /// "handle_ingress (id 41, a name of the AWS network policy agent), unnamed (id 7)"; `None`: no programs.
    pub fn names(&self) -> Option<String> {
        let name = |program: &&DeviceProgram| {
            let owner = Owner::of(program).map(|it| format!(", a name of {}", it.name())).unwrap_or_default();
            format!("{} (id {}{owner})", program.name.as_deref().unwrap_or("unnamed"), program.id)
        };
        let names: Vec<String> = self.all.iter().map(name).collect();
        (!names.is_empty()).then(|| names.join(", "))
    }

    /// Filters of other kinds can run at that place.
    pub const fn is_at_tc(&self) -> bool {
        matches!(self.place, ProgramPlace::TcIngress | ProgramPlace::TcEgress)
    }

    pub fn evidence(&self) -> Option<Evidence> {
        let (device, names) = (self.drop.device.as_ref()?, self.names()?);
        let text = format!("programs at {} of {} as they were read: {names}", self.place, device.name);
        let fields = json!({ "device": device.name, "netns": self.drop.netns, "programs": self.all });
        Some(evidence_of("bpf", self.read, text, fields))
    }

    /// What to do first, and the commands for it; `None`: no program is of a known owner.
    pub fn fix(&self, case: &Case<'_>) -> Option<(String, Vec<Command>)> {
        let mut owners: Vec<Owner> = self.all.iter().filter_map(|it| Owner::of(it)).collect();
        owners.sort();
        owners.dedup();
        let device = shell::link(self.drop.device.as_ref().map_or("", |it| &it.name));
        let (advice, commands): (Vec<_>, Vec<_>) = owners.iter().map(|it| it.fix(case, device)).unzip();
        (!owners.is_empty()).then(|| (advice.join(". "), commands.concat()))
    }
}

/// A data plane with programs of its own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Owner {
    Aws,
    Calico,
    Cilium,
}

impl Owner {
    fn of(program: &DeviceProgram) -> Option<Self> {
        // `cil_from_container-lxc12`; `cali_tc_preambl:[61]`, of older versions `to_hep_no_log.o:[calico_to_host_ep]`.
        match program.name.as_deref()? {
            "handle_ingress" | "handle_egress" => Some(Self::Aws),
            name if name.starts_with("cil_") => Some(Self::Cilium),
            name if name.split(":[").any(|it| it.starts_with("cali_") || it.starts_with("calico_")) => {
                Some(Self::Calico)
            }
            _ => None,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Aws => "the AWS network policy agent",
            Self::Calico => "Calico",
            Self::Cilium => "Cilium",
        }
    }

    fn fix(self, case: &Case<'_>, device: &str) -> (&'static str, Vec<Command>) {
        match self {
            // With its option --enable-policy-event-logs, the agent logs the addresses of what it denies.
            Self::Aws => (
                "Find what denies it in the PolicyEndpoints, or in the log of the AWS network policy agent on this node (Verdict: DENY)",
                vec![
                    Command::in_cluster("kubectl get policyendpoints -A"),
                    Command::on_node(format!("grep -F {} {AWS_LOG} | tail", case.attempt.flow.dst.ip())),
                ],
            ),
            Self::Calico => (
                "Find the rule and the reason with calico-node -bpf, in Calico's pod on this node",
                ["policy dump DEVICE all", "counters dump --iface=DEVICE"]
                    .map(|it| Command::in_pod(format!("calico-node -bpf {}", it.replace("DEVICE", device))))
                    .into_iter()
                    .chain(list_own_policies("calico"))
                    .collect(),
            ),
            Self::Cilium => (
                "Find Cilium's reason for the drop with cilium-dbg, in its pod on this node (metric cilium_drop_count_total by reason)",
                [Command::in_pod(SHOW_DROPS)].into_iter().chain(list_own_policies("cilium")).collect(),
            ),
        }
    }
}

const AWS_LOG: &str = "/var/log/aws-routed-eni/network-policy-agent.log";
/// Prints the packets that Cilium drops, with its reasons.
pub const SHOW_DROPS: &str = "cilium-dbg monitor --type drop";

/// Lists the policies of Kubernetes itself.
pub fn list_policies() -> Command {
    Command::in_cluster("kubectl get networkpolicy -A")
}

/// Lists the policies that this software enforces besides those of Kubernetes.
pub fn list_own_policies(owner: &str) -> Option<Command> {
    let kinds = match owner {
        "calico" => CALICO,
        "cilium" => "ciliumnetworkpolicies,ciliumclusterwidenetworkpolicies",
        "antrea" => "networkpolicies.crd.antrea.io,clusternetworkpolicies.crd.antrea.io",
        "kindnet" | "kube-network-policies" => "adminnetworkpolicies,baselineadminnetworkpolicies",
        _ => return None,
    };
    Some(Command::in_cluster(format!("kubectl get {kinds} -A")))
}

/// The policies of a host endpoint apply to the node and its hostNetwork pods.
const CALICO: &str = "networkpolicies.crd.projectcalico.org,globalnetworkpolicies.crd.projectcalico.org,hostendpoints.crd.projectcalico.org";

/// The first needed packet that a program dropped: when, the drop and the program.
pub fn dropped<'a>(case: &Case<'a>) -> Option<(u64, &'a PacketDrop, &'static str)> {
    let missed = |time, drop: &PacketDrop| case.attempt.established.is_some() && is_missed(case, time, drop);
    let needed = |time: u64, drop: &PacketDrop| is_of_handshake(case, time, drop) || missed(time, drop);
    case.attempt.drops().find_map(|(time, drop)| {
        let program = program_of(drop)?;
        needed(time, drop).then_some((time, drop, program))
    })
}

fn program_of(drop: &PacketDrop) -> Option<&'static str> {
    match (place_of(drop), drop.reason.as_deref()) {
        (Some(ProgramPlace::TcIngress), Some(_)) => Some("a tc program or filter (ingress)"),
        (Some(ProgramPlace::TcEgress), Some(_)) => Some("a tc program or filter (egress)"),
        (Some(ProgramPlace::TcIngress), None) => Some("probably a tc program or filter (ingress)"),
        (Some(ProgramPlace::TcEgress), None) => Some("probably a tc program or filter (egress)"),
        (Some(ProgramPlace::Xdp), _) => Some("an XDP program"),
        (None, Some(CGROUP_EGRESS)) => Some("a cgroup program (egress)"),
        (None, Some(SOCKET_FILTER)) => Some(SOCKET_FILTERS),
        (None, Some(_)) if ovs_reason(drop).is_some_and(|number| BY_FLOWS.contains(&number)) => {
            Some("Open vSwitch, by its flows,")
        }
        // It frees a packet that a program refused without a reason, and also what it cannot send since its peer is
        // down.
        (None, Some("NOT_SPECIFIED")) if dropped_in(drop) == Some(NETKIT) => Some("a netkit program or policy"),
        (None, _) => None,
    }
}

const SOCKET_FILTERS: &str = "a socket filter or cgroup program (ingress), a security module or a lack of memory";

/// drivers/net/netkit.c
pub const NETKIT: &str = "netkit_xmit";

/// The number that Open vSwitch gives its reasons (`enum ovs_drop_reason`, net/openvswitch/drop.h, 6.7 and later).
pub fn ovs_reason(drop: &PacketDrop) -> Option<u32> {
    drop.reason.as_deref()?.strip_prefix("OPENVSWITCH:")?.parse().ok()
}

/// `OVS_DROP_LAST_ACTION` (no action sends the packet on) and `OVS_DROP_EXPLICIT` (a drop action): flows drop the
/// packet on purpose, or no flow is there for it. The other reasons are errors and limits.
const BY_FLOWS: [u32; 2] = [1, 3];

/// What to do about a packet that Open vSwitch dropped by its flows.
pub const FLOWS: &str = "Find the flow that drops it, on this node (Antrea: in its agent's container antrea-ovs; OpenShift: on the host). ovs-appctl ofproto/trace names the rule (a policy, SpoofGuard, a port that has no flows yet)";

/// A program at the sender's cgroup or one above it (`__cgroup_bpf_run_filter_skb`, kernel/bpf/cgroup.c).
pub const CGROUP_EGRESS: &str = "BPF_CGROUP_EGRESS";

/// Unless the kernel's `sk_filter` gives more exact reasons, `sk_filter_trim_cap` (net/core/filter.c) gives this one
/// for all that it refuses: packets from the memory reserves, and refusals of a cgroup program, a security module
/// (`security_sock_rcv_skb`) or a filter of the socket.
pub const SOCKET_FILTER: &str = "SOCKET_FILTER";

#[cfg(test)]
mod tests {
    use tracer_core::testing::*;

    fn program(place: ProgramPlace, id: u32, name: &str) -> DeviceProgram {
        DeviceProgram { place, id, name: (!name.is_empty()).then(|| name.to_owned()) }
    }

    /// A program at ingress of the pod's `eth0` drops the SYN. tracer reads the programs after the first decision.
    fn dropped(programs: Vec<DeviceProgram>) -> Stream {
        let mut stream = Stream::new().links(true, &["10.88.0.1"]).connect().clone();
        stream.drop_on(SYN, "TC_INGRESS", POD, Some(device(2, "eth0"))).settles();
        stream.push(reading(programs)).clone()
    }

    fn reading(programs: Vec<DeviceProgram>) -> ObservationKind {
        ObservationKind::DevicePrograms(Box::new(DevicePrograms { netns: POD, ifindex: 2, programs }))
    }

    fn verdict(names: &[&str]) -> Verdict {
        let programs = (41..).zip(names).map(|(id, name)| program(ProgramPlace::TcIngress, id, name));
        dropped(programs.collect()).gives_up().verdict()
    }

    #[test]
    fn a_program_is_named_with_its_owner_and_the_owners_fix() {
        let aws = verdict(&["handle_ingress"]);
        assert_eq!((aws.cause.name(), aws.confidence), ("network_policy_drop", Confidence::Likely));
        assert_has(&aws.summary, &["programs there: handle_ingress (id 41, a name of the AWS network policy agent)"]);
        assert_has(&aws.evidence[1].text, &["programs at tc_ingress of eth0 as they were read: handle_ingress"]);
        assert_eq!(aws.remediation.commands[0], Command::in_cluster("kubectl get policyendpoints -A"));
        assert_has(&aws.remediation, &["grep -F 10.88.0.2 /var/log/aws-routed-eni/", "kubectl get networkpolicy -A"]);
        assert_lacks(&aws.remediation, &["cilium"]);
        let calico = verdict(&["cali_tc_preambl:[61]"]).remediation;
        assert_eq!(calico.commands[0], Command::in_pod("calico-node -bpf policy dump eth0 all"));
        assert_eq!(verdict(&["to_hep_no_log.o:[calico_to_host_ep]"]).remediation, calico);
        let cilium = verdict(&["cil_from_container-lxc12"]).remediation;
        assert_eq!(cilium.commands[0], Command::in_pod("cilium-dbg monitor --type drop"));
    }

    #[test]
    fn of_several_programs_each_is_named_and_each_owner_has_its_fix() {
        let found = verdict(&["cil_from_conta", "", "handle_egress", "my_cil_filter"]);
        let names = "programs there: cil_from_conta (id 41, a name of Cilium), unnamed (id 42), handle_egress (id 43, ";
        assert_has(&found.summary, &[names, "my_cil_filter (id 44)"]);
        assert_has(&found.remediation, &["(Verdict: DENY). Find Cilium's reason", "cilium-dbg", "policyendpoints"]);
    }

    #[test]
    fn without_a_known_owner_the_fix_names_no_data_plane() {
        let unknown = verdict(&["drop_tcp"]);
        let elsewhere = dropped(vec![program(ProgramPlace::TcEgress, 7, "cil_to_contain")]).gives_up().verdict();
        let mut unread = Stream::new().links(true, &["10.88.0.1"]).connect().clone();
        let unread = unread.drop_on(SYN, "TC_INGRESS", POD, Some(device(2, "eth0"))).gives_up().verdict();
        assert_has(&unknown.summary, &["; programs there: drop_tcp (id 41)"]);
        assert_has(&elsewhere.summary, &["no BPF program was found there, so most likely a filter of another kind"]);
        assert_starts(&unread.remediation, "Find the dataplane's own reason");
        assert_starts(&unknown.remediation, "Find what attached that program");
        assert_lacks(&unknown.remediation, &["cilium"]);
        assert_starts(&elsewhere.remediation, "Find the filter there that counts more packets");
        assert_has(&elsewhere.remediation.commands[1].run, &["tc -s filter show dev eth0 ingress"]);
    }

    /// The device may have other programs since.
    #[test]
    fn an_old_reading_names_nothing() {
        let mut stream = Stream::new();
        stream.push(reading(vec![program(ProgramPlace::TcIngress, 41, "drop_tcp")])).wait_ms(60_000).connect();
        stream.drop_on(SYN, "TC_INGRESS", POD, Some(device(2, "eth0"))).gives_up();
        assert_lacks(&stream.verdict().summary, &["programs there"]);
    }
}
