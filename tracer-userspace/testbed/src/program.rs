//! A BPF program at tc that drops TCP, as the data path of a CNI plugin does.

use std::io::Write as _;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

use anyhow::{Context as _, Result};
use libc::RTM_NEWTFILTER;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_sys::protocols::NETLINK_ROUTE;
use nix::net::if_::if_nametoindex;
use nix::sys::resource::{RLIM_INFINITY, Resource, setrlimit};
use tracer_node::netlink::{Netlink, push, push_text};
use tracer_node::programs::{BPF_TCX_INGRESS, TCA_BPF_NAME, TCA_KIND, TCA_OPTIONS, bpf};

use crate::net::Netns;
use crate::node::Family;

const BPF_PROG_LOAD: u32 = 5;
const BPF_PROG_ATTACH: u32 = 8;
const BPF_PROG_TYPE_SCHED_CLS: u32 = 3;

/// Adds the program as a filter of a device, at [`INGRESS`](tracer_node::programs::INGRESS) or egress. `tc` can add
/// programs of files only.
pub(crate) fn filter(ns: &Netns, device: &str, parent: u32, program: &OwnedFd, name: Option<&str>) -> Result<()> {
    const TCA_BPF_FD: u16 = 6;
    const TCA_BPF_FLAGS: u16 = 8;
    const ACT_DIRECT: u32 = 1;
    const PRIORITY: u32 = 1 << 16;
    const ETH_P_ALL: u16 = 3;
    ns.run("tc", &["qdisc", "add", "dev", device, "clsact"], "")?;
    let mut options = Vec::new();
    push(&mut options, TCA_BPF_FD, &program.as_raw_fd().to_ne_bytes());
    name.into_iter().for_each(|name| push_text(&mut options, TCA_BPF_NAME, name));
    push(&mut options, TCA_BPF_FLAGS, &ACT_DIRECT.to_ne_bytes());
    ns.enter(|| {
        let info = PRIORITY | u32::from(ETH_P_ALL.to_be());
        let mut request = [0, if_nametoindex(device)?, 0, parent, info].map(u32::to_ne_bytes).concat();
        push_text(&mut request, TCA_KIND, "bpf");
        push(&mut request, TCA_OPTIONS, &options);
        let added = Netlink::open(NETLINK_ROUTE)?.change(RTM_NEWTFILTER, NLM_F_CREATE | NLM_F_EXCL, &request);
        added.context("add a filter with a BPF program")
    })
}

/// Attaches the program by tcx, at ingress of a device.
pub(crate) fn tcx(ns: &Netns, device: &str, program: &OwnedFd) -> Result<()> {
    ns.enter(|| {
        let program = program.as_raw_fd().cast_unsigned();
        // SAFETY: there are no addresses among the attributes.
        let attached = unsafe { bpf(BPF_PROG_ATTACH, &mut [if_nametoindex(device)?, program, BPF_TCX_INGRESS, 0]) };
        attached.map(drop).context("attach a BPF program by tcx")
    })
}

/// What the program does with TCP: TC_ACT_SHOT drops a packet, TC_ACT_STOLEN takes it without a trace.
pub(crate) const SHOT: u64 = 2;
pub(crate) const STOLEN: u64 = 4;

/// Loads the program with a name of at most 15 bytes.
pub(crate) fn load(family: Family, name: &str, act: u64) -> Result<OwnedFd> {
    /// Type, number of instructions, their address, the address of the licence, log, version and flags, name.
    #[repr(C)]
    struct Load([u32; 2], [u64; 2], [u64; 3], [u8; 16]);
    // Of Ethernet's header the protocol, of the header of IP the next protocol.
    let (ether_type, protocol_at) = match family {
        Family::V4 => (0x0800, 14 + 9),
        Family::V6 => (0x86dd, 14 + 6),
    };
    // `struct bpf_insn`: code, registers, number of instructions to skip, immediate value.
    let program: [(u64, u64, u64, u64); 9] = [
        (0xbf, 0x16, 0, 0),        // r6 = the packet
        (0x28, 0, 0, 12),          // r0 = two bytes of it
        (0x55, 0, 2, ether_type),  // another protocol: to TC_ACT_OK
        (0x30, 0, 0, protocol_at), // r0 = a byte of it
        (0x15, 0, 2, 6),           // TCP: to the act
        (0xb7, 0, 0, 0),           // TC_ACT_OK
        (0x95, 0, 0, 0),
        (0xb7, 0, 0, act),
        (0x95, 0, 0, 0),
    ];
    let program = program.map(|(code, registers, skip, value)| code | registers << 8 | skip << 16 | value << 32);
    let mut name_bytes = [0; 16];
    (&mut name_bytes[..15]).write_all(name.as_bytes())?;
    let addresses = [program.as_ptr() as u64, c"GPL".as_ptr() as u64];
    let mut attributes = Load([BPF_PROG_TYPE_SCHED_CLS, program.len() as u32], addresses, [0; 3], name_bytes);
    // Before 5.11 programs count against it.
    let _ = setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY);
    // SAFETY: the instructions and the licence outlive the call, which only reads them.
    let fd = unsafe { bpf(BPF_PROG_LOAD, &mut attributes) }.context("load a BPF program")?;
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
