//! Hooks by number and name. The name is what records, metrics and docs print; numbers are never reused.

/// Declares the hooks: number, variant, name.
macro_rules! hooks {
    ($($(#[$doc:meta])* $variant:ident = $number:literal, $name:literal;)*) => {
        numbered! {
            /// The place in the kernel that an event comes from.
            #[derive(Hash, PartialOrd, Ord)]
            pub enum Hook { $($(#[$doc])* #[cfg_attr(feature = "serde", serde(rename = $name))] $variant = $number,)* }
        }

        impl Hook {
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The name in records, metrics and docs.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}

hooks! {
    /// The state of a TCP socket changes. Connects and listens are such changes, too.
    InetSockSetState = 1, "inet_sock_set_state";
    /// `tcp_connect`: a connect with its source port.
    TcpConnect = 2, "tcp_connect";
    /// `connect(2)` returned.
    SysConnect = 3, "sys_exit_connect";
    /// A SYN or segment is retransmitted.
    TcpRetransmit = 4, "tcp_retransmit_skb";
    /// A RST is sent.
    TcpSendReset = 5, "tcp_send_reset";
    /// A RST without a socket (on kernels where the tracepoint does not report it), IPv4.
    TcpV4SendReset = 6, "tcp_v4_send_reset";
    /// The same for IPv6.
    TcpV6SendReset = 7, "tcp_v6_send_reset";
    /// A RST is received.
    TcpReceiveReset = 8, "tcp_receive_reset";
    /// A packet is dropped.
    KfreeSkb = 9, "kfree_skb";
    /// A task's namespaces change.
    SwitchTaskNamespaces = 10, "switch_task_namespaces";
    /// `setns(2)` returned.
    SysSetns = 11, "sys_exit_setns";
    /// `unshare(2)` returned.
    SysUnshare = 12, "sys_exit_unshare";
    /// A task was forked, perhaps into a new namespace.
    SchedProcessFork = 13, "sched_process_fork";
    /// A namespace ends.
    PutNet = 14, "__put_net";
    /// A file that names a namespace is opened.
    SysOpenat = 15, "sys_enter_openat";
    /// A device's flags changed.
    DevNotifyFlags = 16, "__dev_notify_flags";
    /// A device's queue is reset, as when a link goes down.
    QdiscReset = 17, "qdisc_reset";
    /// An ICMP error is sent.
    IcmpSend = 18, "icmp_send";
    /// IPVS sends a packet to a backend.
    IpvsNatXmit = 19, "ip_vs_nat_xmit";
    /// The same for IPv6.
    IpvsNatXmitV6 = 20, "ip_vs_nat_xmit_v6";
    /// IPVS found no backend.
    IpvsLeave = 21, "ip_vs_leave";
    /// A packet arrives at a socket (used only while a port is watched for TLS).
    CgroupSkb = 22, "cgroup_skb";
    /// A program was executed: the path for later culprits.
    SchedProcessExec = 23, "sched_process_exec";
    /// `icmp6_send`, an ICMPv6 error.
    Icmp6Send = 24, "icmp6_send";
    /// A SYN arrives at a listener.
    TcpConnRequest = 25, "tcp_conn_request";
    /// A packet arrives at a prober's socket: the first bytes of an answer.
    CgroupAnswer = 26, "cgroup_answer";
    /// The sockets of a prober's cgroup: connects with their source port, and changes of state.
    SockOps = 27, "sock_ops";
    /// A task gets a name, which may be that of a prober.
    TaskRename = 28, "task_rename";
    /// A task moves into a cgroup; it may be a prober.
    CgroupAttachTask = 29, "cgroup_attach_task";
    /// A socket starts or stops listening.
    InetCskListen = 30, "inet_csk_listen_start";
    /// Connects and closes of all processes, only counted.
    PortUse = 31, "port_use";
    /// A socket of a pod with a failed probe gets an error.
    SkErrorReport = 32, "inet_sk_error_report";
    /// The kernel kills a process to free memory.
    MarkVictim = 33, "mark_victim";
}
