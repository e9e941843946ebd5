//! The table of hooks: their programs, the program types in order, and what is unknown without each hook.
//!
//! The loader attaches the hooks of this table. To add a hook, add its function in `tracer-ebpf/src/hooks` and a row here.

use tracer_common::names::Hook;

/// How a program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramType {
    /// BPF trampoline at the entry or exit of a function: cheapest, needs BTF and no perf capability.
    Fentry,
    /// Breakpoint or ftrace at the entry or return of a function.
    Kprobe,
    RawTracepoint,
    /// Classic tracepoint, only for `syscalls:*`: a single one slows every system call of the node.
    Tracepoint,
    /// A program for the sockets of a cgroup2 cgroup. It sees packets or socket operations, and changes neither.
    Cgroup,
}

impl ProgramType {
    /// The name in records and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fentry => "fentry",
            Self::Kprobe => "kprobe",
            Self::RawTracepoint => "raw_tracepoint",
            Self::Tracepoint => "tracepoint",
            Self::Cgroup => "cgroup",
        }
    }
}

/// One way to attach a hook.
#[derive(Clone, Copy, Debug)]
pub struct Variant {
    pub program_type: ProgramType,
    /// Programs, and what each is attached to. Either all are attached or none.
    pub programs: &'static [(&'static str, &'static str)],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    Start,
    /// At the start, and later again if it failed: the function is in this module.
    ModuleLoaded(&'static str),
    /// Loaded at the start, and attached to the cgroups of probers when these are found.
    Prober,
    /// As `Prober`, but only if probers are watched at their own cgroups.
    ProberAlone,
    OnDemand,
}

#[derive(Clone, Copy, Debug)]
pub struct Row {
    pub hook: Hook,
    /// In order of preference.
    pub variants: &'static [Variant],
    /// Whether tracer cannot start without it.
    pub required: bool,
    pub when: When,
    /// The hook is not needed, and not missing, if this program is attached.
    pub unless: Option<&'static str>,
    /// If the hook cannot be attached, these hooks together report the same.
    pub covered_by: &'static [Hook],
    /// What is unknown without it.
    pub lost: &'static str,
}

const fn fentry(programs: &'static [(&'static str, &'static str)]) -> Variant {
    Variant { program_type: ProgramType::Fentry, programs }
}
const fn kprobe(programs: &'static [(&'static str, &'static str)]) -> Variant {
    Variant { program_type: ProgramType::Kprobe, programs }
}
const fn raw(programs: &'static [(&'static str, &'static str)]) -> Variant {
    Variant { program_type: ProgramType::RawTracepoint, programs }
}
const fn syscalls(programs: &'static [(&'static str, &'static str)]) -> Variant {
    Variant { program_type: ProgramType::Tracepoint, programs }
}
const fn cgroup(programs: &'static [(&'static str, &'static str)]) -> Variant {
    Variant { program_type: ProgramType::Cgroup, programs }
}

/// A function, by fentry or else by a kprobe: the name of its programs without the program type, and the function.
macro_rules! function {
    ($name:literal, $function:literal) => {
        &[fentry(&[(concat!("fentry_", $name), $function)]), kprobe(&[(concat!("kprobe_", $name), $function)])]
    };
}

/// A raw tracepoint. Its program has the same name.
macro_rules! tracepoint {
    ($name:literal) => {
        &[raw(&[($name, $name)])]
    };
}

const fn row(hook: Hook, lost: &'static str, variants: &'static [Variant]) -> Row {
    Row { hook, variants, required: false, when: When::Start, unless: None, covered_by: &[], lost }
}

impl Row {
    const fn required(mut self) -> Self {
        self.required = true;
        self
    }

    const fn when(mut self, when: When) -> Self {
        self.when = when;
        self
    }

    const fn unless(mut self, program: &'static str) -> Self {
        self.unless = Some(program);
        self
    }

    const fn covered_by(mut self, hooks: &'static [Hook]) -> Self {
        self.covered_by = hooks;
        self
    }
}

/// All hooks, in the order in which they are attached: a program that another row's `unless` names comes first. `sock_ops` is
/// attached before all others, if it is wanted.
pub const HOOKS: &[Row] = &[
    row(Hook::InetSockSetState, "everything: connects, their outcome, listeners", tracepoint!("inet_sock_set_state"))
        .required(),
    row(Hook::TcpConnect, "the source port while a connect still waits", function!("tcp_connect", "tcp_connect"))
        .covered_by(&[Hook::SysConnect])
        .unless("sock_ops"),
    row(
        Hook::SysConnect,
        "connects that fail before a SYN is sent: no route, no free source port",
        &[
            fentry(&[("fexit_sys_connect", "__sys_connect")]),
            kprobe(&[("kprobe_sys_connect", "__sys_connect"), ("kretprobe_sys_connect", "__sys_connect")]),
            syscalls(&[("sys_enter_connect", "sys_enter_connect"), ("sys_exit_connect", "sys_exit_connect")]),
        ],
    ),
    row(
        Hook::TcpRetransmit,
        "that a SYN or a request was sent again",
        &[raw(&[("tcp_retransmit_skb", "tcp_retransmit_skb")]), raw(&[("tcp_retransmit_skb_2", "tcp_retransmit_skb")])],
    ),
    row(
        Hook::TcpSendReset,
        "who sent a RST",
        &[raw(&[("tcp_send_reset", "tcp_send_reset")]), raw(&[("tcp_send_reset_2", "tcp_send_reset")])],
    ),
    row(
        Hook::TcpV4SendReset,
        "that a connection was refused because nobody listens (IPv4)",
        function!("tcp_v4_send_reset", "tcp_v4_send_reset"),
    )
    .unless("tcp_send_reset"),
    row(
        Hook::TcpV6SendReset,
        "that a connection was refused because nobody listens (IPv6)",
        function!("tcp_v6_send_reset", "tcp_v6_send_reset"),
    )
    .when(When::ModuleLoaded("ipv6"))
    .unless("tcp_send_reset"),
    row(Hook::TcpReceiveReset, "that the prober received a RST, and in which state", tracepoint!("tcp_receive_reset")),
    row(
        Hook::KfreeSkb,
        "packets dropped on this node, and why",
        &[raw(&[("kfree_skb", "kfree_skb")]), raw(&[("kfree_skb_2", "kfree_skb")])],
    ),
    row(
        Hook::SwitchTaskNamespaces,
        "who entered or made a network namespace",
        function!("switch_task_ns", "switch_task_namespaces"),
    )
    .covered_by(&[Hook::SysSetns, Hook::SysUnshare]),
    row(
        Hook::SysSetns,
        "who entered a network namespace",
        &[syscalls(&[("sys_enter_setns", "sys_enter_setns"), ("sys_exit_setns", "sys_exit_setns")])],
    )
    .unless("switch_task_ns"),
    row(
        Hook::SysUnshare,
        "who made a network namespace by unshare",
        &[syscalls(&[("sys_enter_unshare", "sys_enter_unshare"), ("sys_exit_unshare", "sys_exit_unshare")])],
    )
    .unless("switch_task_ns"),
    row(Hook::SchedProcessFork, "who made a network namespace by clone", tracepoint!("sched_process_fork")),
    row(Hook::PutNet, "when a network namespace ended", function!("put_net", "__put_net")),
    row(
        Hook::SysOpenat,
        "by which path a task entered a network namespace",
        &[
            fentry(&[("fentry_do_sys_openat2", "do_sys_openat2")]),
            kprobe(&[("kprobe_do_sys_openat2", "do_sys_openat2")]),
            syscalls(&[("sys_enter_openat", "sys_enter_openat")]),
        ],
    ),
    row(
        Hook::DevNotifyFlags,
        "who set a link up (qdisc_reset names who set one down, if it is attached)",
        function!("dev_notify_flags", "__dev_notify_flags"),
    ),
    row(Hook::QdiscReset, "who set a link down", tracepoint!("qdisc_reset")),
    row(Hook::MarkVictim, "that a process was killed for lack of memory", tracepoint!("mark_victim")),
    row(Hook::SchedProcessExec, "the executable of a culprit that is gone", tracepoint!("sched_process_exec")),
    row(
        Hook::IcmpSend,
        "ICMP errors sent by this node about a connection",
        &[
            raw(&[("icmp_send", "icmp_send")]),
            fentry(&[("fentry_icmp_send", "__icmp_send")]),
            kprobe(&[("kprobe_icmp_send", "__icmp_send")]),
        ],
    ),
    row(Hook::Icmp6Send, "ICMPv6 errors sent by this node about a connection", function!("icmp6_send", "icmp6_send"))
        .when(When::ModuleLoaded("ipv6")),
    ipvs(Hook::IpvsNatXmit, &[kprobe(&[("ip_vs_nat_xmit", "ip_vs_nat_xmit")])]),
    ipvs(Hook::IpvsNatXmitV6, &[kprobe(&[("ip_vs_nat_xmit_v6", "ip_vs_nat_xmit_v6")])]),
    ipvs(Hook::IpvsLeave, &[kprobe(&[("ip_vs_leave", "ip_vs_leave")])]),
    row(
        Hook::TcpConnRequest,
        "that a SYN met a listener with a full queue (its state is read instead, a moment later)",
        function!("tcp_conn_request", "tcp_conn_request"),
    ),
    row(
        Hook::InetCskListen,
        "who starts or stops listening",
        &[
            fentry(&[
                ("fentry_inet_csk_listen_start", "inet_csk_listen_start"),
                ("fentry_inet_csk_listen_stop", "inet_csk_listen_stop"),
            ]),
            kprobe(&[
                ("kprobe_inet_csk_listen_start", "inet_csk_listen_start"),
                ("kprobe_inet_csk_listen_stop", "inet_csk_listen_stop"),
            ]),
            cgroup(&[("post_bind4", "post_bind4"), ("post_bind6", "post_bind6"), ("sock_release", "sock_release")]),
            raw(&[("inet_sock_set_state_rest", "inet_sock_set_state")]),
        ],
    )
    .unless("inet_sock_set_state"),
    row(
        Hook::PortUse,
        "who uses up source ports",
        &[
            fentry(&[("fentry_count_connect", "tcp_connect"), ("fentry_tcp_send_fin", "tcp_send_fin")]),
            kprobe(&[("kprobe_count_connect", "tcp_connect"), ("kprobe_tcp_send_fin", "tcp_send_fin")]),
            cgroup(&[("connect4", "connect4"), ("connect6", "connect6"), ("release_port", "sock_release")]),
        ],
    )
    .when(When::OnDemand)
    .unless("inet_sock_set_state"),
    row(Hook::TaskRename, "when a prober starts", tracepoint!("task_rename")).unless("inet_sock_set_state"),
    row(Hook::CgroupAttachTask, "when a prober moves to another cgroup", tracepoint!("cgroup_attach_task"))
        .unless("inet_sock_set_state"),
    row(
        Hook::SockOps,
        "nothing; the default hooks see probers, and other processes pay for them",
        &[cgroup(&[("sock_ops", "sock_ops")])],
    )
    .when(When::ProberAlone)
    .unless("inet_sock_set_state"),
    row(Hook::CgroupAnswer, "the HTTP status of an answer", &[cgroup(&[("cgroup_answer", "ingress")])])
        .when(When::Prober),
    row(Hook::CgroupSkb, "whether a port speaks TLS", &[cgroup(&[("cgroup_skb", "ingress")])]).when(When::OnDemand),
    row(
        Hook::SkErrorReport,
        "which connects of a pod with a failing probe are refused or rejected",
        &[
            raw(&[("inet_sk_error_report", "inet_sk_error_report")]),
            kprobe(&[("kprobe_sock_def_error_report", "sock_def_error_report")]),
        ],
    )
    .when(When::OnDemand),
];

const fn ipvs(hook: Hook, variants: &'static [Variant]) -> Row {
    row(hook, "that IPVS took the packet of a connection", variants).when(When::ModuleLoaded("ip_vs"))
}
