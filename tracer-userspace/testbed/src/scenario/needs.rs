//! What a scenario needs from the machine. Features of the kernel are tried in a temporary namespace.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Result, ensure};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use crate::cgroup::{Cgroup, Freezer, enable_limits, has_pressure};
use crate::net::{Netns, finish, is_installed, own_name};
use crate::node::{hung, tap};
use crate::options::is_emulated;
use tracer_bpf::ebpf::hooks::ProgramType;
use tracer_bpf::ebpf::switches;
use tracer_node::programs::{BPF_TCX_INGRESS, attached};

/// A feature or a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    Ipvs,
    /// iptables over nftables, with REJECT.
    Iptables,
    /// The old ip_tables.
    LegacyIptables,
    /// nftables with NAT.
    NftNat,
    /// BPF programs at tc.
    TcProgram,
    /// BPF programs at tc without a filter (kernel 6.6).
    Tcx,
    /// A machine made for the test, so that scenarios may change settings of the whole machine.
    OwnMachine,
    /// iptables over nftables, with NAT.
    IptablesNat,
    /// iptables over nftables, with TPROXY.
    TransparentProxy,
    /// A CPU that is not emulated, so that an inspection of a namespace takes milliseconds.
    RealProcessor,
    Nft,
    /// A CPU controller for cgroups.
    CpuQuota,
    /// A memory controller for cgroups.
    MemoryLimit,
    /// cgroup v2 with a freezer.
    Freezer,
    /// cgroup v1 with a freezer.
    FreezerV1,
    /// The pressure of cgroups.
    Pressure,
    Macvlan,
    Ipvlan,
    PacketSocket,
    /// File systems in user space.
    Fuse,
    /// TAP devices.
    Tap,
    /// A shell. Tracer's image has none.
    Shell,
    /// A hook that shows ICMP errors.
    IcmpHook,
    /// A hook that shows packets of IPVS.
    IpvsHook,
    /// `ss -K` destroys sockets.
    SocketDestroy,
}

const MODULES: &[&str] = &[
    "veth",
    "bridge",
    "dummy",
    "br_netfilter",
    "nf_conntrack",
    "nf_tables",
    "nft_reject_inet",
    "nft_reject_ipv4",
    "nft_compat",
    "nft_fib_inet",
    "nft_chain_nat",
    "nft_nat",
    "nft_ct",
    "nft_limit",
    "nft_reject_ipv6",
    "nft_reject_netdev",
    "xt_conntrack",
    "xt_comment",
    "xt_addrtype",
    "xt_CT",
    "xt_TPROXY",
    "iptable_raw",
    "sch_ingress",
    "cls_bpf",
    "ip_tables",
    "iptable_filter",
    "ipt_REJECT",
    "xt_tcpudp",
    "xt_nat",
    "ip_vs",
    "ip_vs_rr",
    "macvlan",
    "ipvlan",
    "tun",
    "fuse",
];

/// For tests: loads the kernel modules that exist, and enables the controllers for cgroups. `tracer selftest` does not
/// change the machine.
pub fn prepare_machine() {
    enable_limits();
    for module in MODULES {
        let _ = finish(Command::new("modprobe").args(["-q", module]), "");
    }
}

impl Need {
    /// Why the machine lacks it. `None` if it is available.
    pub fn lacking(self) -> Option<String> {
        static TRIED: [OnceLock<Option<String>>; 25] = [const { OnceLock::new() }; 25];
        TRIED[self as usize].get_or_init(|| self.attempt()).clone()
    }

    fn attempt(self) -> Option<String> {
        match self {
            Self::OwnMachine => (!is_emulated())
                .then(|| "changes a setting of the whole machine, so it needs a virtual machine".to_owned()),
            Self::RealProcessor => is_emulated().then(|| {
                "an emulated processor is too slow to inspect a pod or to trace the sender of a RST in time".to_owned()
            }),
            Self::CpuQuota => {
                let made = Cgroup::throttled("need-quota");
                made.err().map(|error| format!("a cgroup with a CPU quota: {error:#}"))
            }
            Self::MemoryLimit => {
                let made = Cgroup::small("need-memory");
                made.err().map(|error| format!("a cgroup with a limit of memory: {error:#}"))
            }
            Self::Freezer => {
                (!Freezer::V2.is_available()).then(|| "no cgroup of version 2 can be frozen here".to_owned())
            }
            Self::FreezerV1 => {
                (!Freezer::V1.is_available()).then(|| "no freezer of cgroup version 1 is mounted".to_owned())
            }
            Self::Pressure => {
                (!has_pressure()).then(|| "the cgroups of version 2 have no cpu.pressure here".to_owned())
            }
            Self::Shell => (!is_installed("sh")).then(|| "no `sh` on this machine".to_owned()),
            Self::PacketSocket => {
                let opened = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, None);
                opened.err().map(|error| format!("no packet socket: {} (CAP_NET_RAW)", error.desc()))
            }
            Self::Fuse => hung::open().err().map(|error| format!("/dev/fuse: {error}")),
            Self::Tap => tap::open().err().map(|error| format!("/dev/net/tun: {error}")),
            Self::IcmpHook => (switches::silences(ProgramType::Kprobe) && !has_tracepoint("icmp_send")).then(|| {
                "no hook shows ICMP errors: kprobes are switched off, and this kernel has no such tracepoint".to_owned()
            }),
            Self::IpvsHook => switches::silences(ProgramType::Kprobe)
                .then(|| "no hook shows what IPVS does: kprobes are switched off".to_owned()),
            Self::Ipvs => trial("ipvs", "ipvsadm", &["-A", "-t", "10.96.0.1:1", "-s", "rr"], ""),
            Self::Iptables => trial("iptables", "iptables-nft", REJECT, ""),
            Self::LegacyIptables => trial("iptables-legacy", "iptables-legacy", REJECT, ""),
            Self::IptablesNat => trial("iptables-nat", "iptables-nft", DNAT, ""),
            Self::TransparentProxy => trial("tproxy", "iptables-nft", TPROXY, ""),
            Self::Nft => trial("nft", "nft", &["-f", "-"], NFT),
            Self::NftNat => trial("nft-nat", "nft", &["-f", "-"], NFT_NAT),
            Self::SocketDestroy => try_in("ss", "ss", destroy_listener),
            Self::Tcx => {
                let found = attached(LOOPBACK, BPF_TCX_INGRESS);
                found.err().map(|error| format!("the kernel has no tcx: {error}"))
            }
            Self::TcProgram => trial("tc-program", "tc", &["-batch", "-"], TC_PROGRAM),
            Self::Macvlan => trial("macvlan", "ip", &["-batch", "-"], MACVLAN),
            Self::Ipvlan => trial("ipvlan", "ip", &["-batch", "-"], IPVLAN),
        }
    }
}

/// The index of `lo` in every namespace.
const LOOPBACK: u32 = 1;

fn has_tracepoint(name: &str) -> bool {
    let symbol = format!("__traceiter_{name}");
    let symbols = fs::read_to_string("/proc/kallsyms").unwrap_or_default();
    symbols.lines().any(|line| line.split_whitespace().nth(2) == Some(&symbol))
}

const REJECT: &[&str] = &["-A", "INPUT", "-p", "tcp", "-j", "REJECT", "--reject-with", "tcp-reset"];
const DNAT: &[&str] =
    &["-t", "nat", "-A", "OUTPUT", "-p", "tcp", "--dport", "1", "-j", "DNAT", "--to-destination", "10.88.0.2:2"];
pub(super) const TPROXY: &[&str] =
    &["-t", "mangle", "-A", "PREROUTING", "-p", "tcp", "--dport", "8080", "-j", "TPROXY", "--on-port", "15006"];
const NFT: &str = "table inet t { chain c { type filter hook input priority 0; }; }\n";
const NFT_NAT: &str = "table ip t { chain c { type nat hook prerouting priority -100; fib daddr type local tcp dport 1 dnat to 10.88.0.2:2; }; }\n";
const TC_PROGRAM: &str = "qdisc add dev lo clsact\nfilter add dev lo ingress bpf da bytecode '1,6 0 0 2'\n";
const MACVLAN: &str = "link add d0 type veth peer name d1\nlink add m0 link d0 type macvlan mode bridge\n";
const IPVLAN: &str = "link add d0 type veth peer name d1\nlink add m0 link d0 type ipvlan mode l2\n";

/// Runs a command in a new namespace. It succeeds only if the kernel has the feature. Returns why it fails.
fn trial(name: &str, program: &str, args: &[&str], input: &str) -> Option<String> {
    try_in(name, program, |ns| ns.run(program, args, input).map(drop))
}

/// `ss` prints the sockets that it has destroyed, and skips in silence those that the kernel cannot destroy.
fn destroy_listener(ns: &Netns) -> Result<()> {
    let _listener = ns.enter(|| Ok(TcpListener::bind((Ipv4Addr::UNSPECIFIED, 1))?))?;
    let destroyed = ns.run("ss", &["-HtlK", "sport", "= :1"], "")?;
    ensure!(!destroyed.trim().is_empty(), "the kernel destroys no sockets (CONFIG_INET_DIAG_DESTROY)");
    Ok(())
}

fn try_in(name: &str, program: &str, work: impl FnOnce(&Netns) -> Result<()>) -> Option<String> {
    if !is_installed(program) {
        return Some(format!("no `{program}` on this machine"));
    }
    let outcome = Netns::create(&own_name(format_args!("need-{name}"))).and_then(|ns| work(&ns));
    outcome.err().map(|error| format!("{name}: {}", first_line(&format!("{error:#}"))))
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().chars().take(300).collect()
}
