//! Offsets and enum values of the running kernel. Userspace resolves them from BTF and passes them to the programs as read-only
//! globals. [`ABSENT32`](crate::ABSENT32) stands for a field that the kernel does not have.

/// Declares the table once: the struct, its value without any offset, and the list of fields for userspace.
macro_rules! offsets {
    ($($field:ident: $type_name:literal . $path:literal;)*) => {
        /// Byte offsets of kernel struct fields.
        #[derive(Clone, Copy, Debug)]
        #[repr(C)]
        pub struct Offsets { $(#[doc = concat!("`", $type_name, ".", $path, "`")] pub $field: u32,)* }

        impl Offsets {
            /// The value without any offset.
            pub const ABSENT: Self = Self { $($field: $crate::ABSENT32,)* };
            /// `(struct, member path)` in field order.
            pub const FIELDS: &'static [(&'static str, &'static str)] = &[$(($type_name, $path),)*];
            /// Builds the table from values in field order; `None` is absent.
            pub fn from_values(values: &[Option<u32>]) -> Self {
                let mut it = values.iter().copied();
                Self { $($field: it.next().flatten().unwrap_or($crate::ABSENT32),)* }
            }
        }
    };
}

offsets! {
    sk_family: "sock" . "__sk_common.skc_family";
    sk_state: "sock" . "__sk_common.skc_state";
    sk_daddr: "sock" . "__sk_common.skc_daddr";
    sk_rcv_saddr: "sock" . "__sk_common.skc_rcv_saddr";
    sk_dport: "sock" . "__sk_common.skc_dport";
    sk_num: "sock" . "__sk_common.skc_num";
    sk_v6_daddr: "sock" . "__sk_common.skc_v6_daddr";
    sk_v6_rcv_saddr: "sock" . "__sk_common.skc_v6_rcv_saddr";
    sk_net: "sock" . "__sk_common.skc_net";
    sk_protocol: "sock" . "sk_protocol";
    sk_bound_dev_if: "sock" . "__sk_common.skc_bound_dev_if";
    sk_err: "sock" . "sk_err";
    sk_error_queue: "sock" . "sk_error_queue";
    sk_dst_cache: "sock" . "sk_dst_cache";
    inet_sport: "inet_sock" . "inet_sport";
    tcp_bytes_received: "tcp_sock" . "bytes_received";
    tcp_rcv_nxt: "tcp_sock" . "rcv_nxt";
    tcp_copied_seq: "tcp_sock" . "copied_seq";
    tcp_bytes_sent: "tcp_sock" . "bytes_sent";
    tcp_bytes_acked: "tcp_sock" . "bytes_acked";
    tcp_write_seq: "tcp_sock" . "write_seq";
    tcp_snd_nxt: "tcp_sock" . "snd_nxt";
    tcp_mstamp: "tcp_sock" . "tcp_mstamp";
    tcp_rack_mstamp: "tcp_sock" . "rack.mstamp";
    tcp_rack_rtt_us: "tcp_sock" . "rack.rtt_us";
    sk_ack_backlog: "sock" . "sk_ack_backlog";
    sk_max_ack_backlog: "sock" . "sk_max_ack_backlog";
    icsk_qlen: "inet_connection_sock" . "icsk_accept_queue.qlen";
    net_syncookies: "net" . "ipv4.sysctl_tcp_syncookies";
    net_max_syn_backlog: "net" . "ipv4.sysctl_max_syn_backlog";
    skb_sk: "sk_buff" . "sk";
    skb_dev: "sk_buff" . "dev";
    skb_len: "sk_buff" . "len";
    skb_head: "sk_buff" . "head";
    skb_network_header: "sk_buff" . "network_header";
    skb_cb: "sk_buff" . "cb";
    exterr_ee: "sock_exterr_skb" . "ee";
    dev_ifindex: "net_device" . "ifindex";
    dev_flags: "net_device" . "flags";
    dev_name: "net_device" . "name";
    dev_net: "net_device" . "nd_net";
    net_inum: "net" . "ns.inum";
    task_nsproxy: "task_struct" . "nsproxy";
    task_tgid: "task_struct" . "tgid";
    task_pid: "task_struct" . "pid";
    task_comm: "task_struct" . "comm";
    task_group_leader: "task_struct" . "group_leader";
    task_real_parent: "task_struct" . "real_parent";
    task_cgroups: "task_struct" . "cgroups";
    nsproxy_net: "nsproxy" . "net_ns";
    nsproxy_uts: "nsproxy" . "uts_ns";
    nsproxy_ipc: "nsproxy" . "ipc_ns";
    nsproxy_mnt: "nsproxy" . "mnt_ns";
    nsproxy_pid: "nsproxy" . "pid_ns_for_children";
    nsproxy_cgroup: "nsproxy" . "cgroup_ns";
    css_set_subsys: "css_set" . "subsys";
    css_set_dfl_cgrp: "css_set" . "dfl_cgrp";
    css_cgroup: "cgroup_subsys_state" . "cgroup";
    cgroup_kn: "cgroup" . "kn";
    kernfs_id: "kernfs_node" . "id";
    qdisc_dev_queue: "Qdisc" . "dev_queue";
    queue_dev: "netdev_queue" . "dev";
    binprm_filename: "linux_binprm" . "filename";
    dev_state: "net_device" . "state";
    task_files: "task_struct" . "files";
    files_fdt: "files_struct" . "fdt";
    fdt_fd: "fdtable" . "fd";
    file_private: "file" . "private_data";
    socket_sk: "socket" . "sk";
    task_mm: "task_struct" . "mm";
    mm_env_start: "mm_struct" . "env_start";
    mm_env_end: "mm_struct" . "env_end";
    conntrack_tuples: "nf_conn" . "tuplehash";
    tuple_in_hash: "nf_conntrack_tuple_hash" . "tuple";
    tuple_src: "nf_conntrack_tuple" . "src";
    tuple_dst: "nf_conntrack_tuple" . "dst";
    skb_nfct: "sk_buff" . "_nfct";
}

/// Values of kernel enums, resolved by name; [`ABSENT32`](crate::ABSENT32) if the kernel does not have one.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct EnumValues {
    /// `enum cgroup_subsys_id`: `memory_cgrp_id`.
    pub memory_cgrp_id: u32,
    /// `enum skb_drop_reason`: `SKB_CONSUMED` (6.12+), no drop.
    pub skb_consumed: u32,
    /// `enum skb_drop_reason`: `QUEUE_PURGE` (6.18+), a queue emptied with its socket: no drop of traffic.
    pub queue_purge: u32,
}

/// The number of a helper that no kernel has. Programs for locked-down kernels call it, and the loader puts the kernel function
/// `bpf_rdonly_cast` in its place.
pub const RDONLY_CAST: u32 = 0x7472_6163;

/// BTF ids of structs that begin with a number of that size, for programs that load from kernel memory by `bpf_rdonly_cast`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Types {
    pub begins_with_u64: u32,
    pub begins_with_u32: u32,
    pub begins_with_u16: u32,
    pub begins_with_u8: u32,
}

impl Types {
    /// The names of these structs, in the order of the fields.
    pub const NAMES: [&str; 4] = ["timespec64", "in_addr", "udphdr", "icmphdr"];
}

/// Settings that are fixed when the programs are loaded.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Settings {
    /// The tracer's own thread group: its own events are never reported.
    pub own_pid: u32,
    /// 1: track every process's connections.
    pub all_connections: u32,
    /// The lowest ephemeral port.
    pub port_first: u32,
    /// The highest.
    pub port_last: u32,
    /// The low bits of a connection's identity, which have the processor's number: [`cpu_mask`](crate::conn::cpu_mask).
    pub cpu_mask: u32,
    /// 1: only the probers' cgroups are watched. A prober's first connections may be missed, before its cgroup is found.
    pub prober_hooks: u32,
}
