//! Typed views of kernel objects: the only file that adds an offset to a pointer.
//!
//! A view is an address and nothing more. Every read goes through `bpf_probe_read_kernel`, so a
//! stale or wild address gives `None`, which is counted; a field that this kernel does not have
//! gives `None` without counting.

use aya_ebpf::helpers::generated::{
    bpf_get_current_task, bpf_probe_read_kernel as read_raw, bpf_probe_read_kernel_str as read_str_raw,
};
use tracer_common::{
    ABSENT32,
    actor::COMM_LEN,
    stats::Counter,
    tuple::{Tuple, V4_MAPPED_PREFIX},
};

use crate::{emit::count, maps::global};

pub const AF_INET: u16 = 2;
pub const AF_INET6: u16 = 10;
pub const IPPROTO_TCP: u16 = 6;
pub const IFF_UP: u32 = 1;
pub const IFF_LOOPBACK: u32 = 8;

/// `include/net/tcp_states.h`, unchanged since Linux 2.6.
pub mod state {
    pub const ESTABLISHED: u8 = 1;
    pub const SYN_SENT: u8 = 2;
    pub const SYN_RECV: u8 = 3;
    pub const FIN_WAIT1: u8 = 4;
    pub const CLOSE: u8 = 7;
    pub const CLOSE_WAIT: u8 = 8;
    pub const LAST_ACK: u8 = 9;
    pub const LISTEN: u8 = 10;
}

/// Copies `dst.len()` bytes from `base + offset`.
#[inline(always)]
pub fn read_into<T>(base: u64, offset: u32, dst: &mut T) -> bool {
    if offset == ABSENT32 || base == 0 {
        return false;
    }
    let from = (base + u64::from(offset)) as *const _;
    let failed = unsafe { read_raw((&raw mut *dst).cast(), size_of::<T>() as u32, from) } != 0;
    if failed {
        count(Counter::ReadFailed);
    }
    !failed
}

/// Reads a `T` at `base + offset`.
#[inline(always)]
pub fn read<T: Copy + Default>(base: u64, offset: u32) -> Option<T> {
    let mut value = T::default();
    read_into(base, offset, &mut value).then_some(value)
}

/// Copies a NUL-terminated string from `base + offset`; what follows the NUL is left as it was.
#[inline(always)]
pub fn read_str<const N: usize>(base: u64, offset: u32, dst: &mut [u8; N]) -> bool {
    if offset == ABSENT32 || base == 0 {
        return false;
    }
    let from = (base + u64::from(offset)) as *const _;
    unsafe { read_str_raw(dst.as_mut_ptr().cast(), N as u32, from) > 0 }
}

/// Writes an IPv4 address (network order) v4-mapped.
#[inline(always)]
pub fn map_v4(dst: &mut [u8; 16], addr: [u8; 4]) {
    let mut i = 0;
    while i < 12 {
        dst[i] = V4_MAPPED_PREFIX[i];
        i += 1;
    }
    dst[12] = addr[0];
    dst[13] = addr[1];
    dst[14] = addr[2];
    dst[15] = addr[3];
}

macro_rules! view {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub struct $name(pub u64);
        impl $name {
            #[inline(always)]
            pub fn exists(self) -> bool {
                self.0 != 0
            }
        }
    };
}

view!(
    /// `struct sock`, full or mini: for the latter only what lies in `sock_common` is meaningful.
    Sock
);
view!(
    /// `struct sk_buff`
    Skb
);
view!(
    /// `struct net_device`
    Dev
);
view!(
    /// `struct net`
    Net
);
view!(
    /// `struct task_struct`
    Task
);

impl Sock {
    #[inline(always)]
    pub fn is_tcp(self) -> bool {
        read::<u16>(self.0, global!(OFFS.sk_protocol)) == Some(IPPROTO_TCP)
    }

    #[inline(always)]
    pub fn state(self) -> u8 {
        read(self.0, global!(OFFS.sk_state)).unwrap_or(0)
    }

    #[inline(always)]
    pub fn err(self) -> Option<i32> {
        read(self.0, global!(OFFS.sk_err))
    }

    #[inline(always)]
    pub fn net(self) -> Net {
        Net(read(self.0, global!(OFFS.sk_net)).unwrap_or(0))
    }

    /// Source port from `inet_sport`: `skc_num` is 0 again as soon as the socket is closed.
    #[inline(always)]
    pub fn sport(self) -> u16 {
        u16::from_be(read(self.0, global!(OFFS.inet_sport)).unwrap_or(0))
    }

    #[inline(always)]
    pub fn num(self) -> u16 {
        read(self.0, global!(OFFS.sk_num)).unwrap_or(0)
    }

    #[inline(always)]
    pub fn dport(self) -> u16 {
        u16::from_be(read(self.0, global!(OFFS.sk_dport)).unwrap_or(0))
    }

    #[inline(always)]
    pub fn bytes_received(self) -> Option<u64> {
        read(self.0, global!(OFFS.tcp_bytes_received))
    }

    #[inline(always)]
    pub fn bytes_sent(self) -> Option<u64> {
        read(self.0, global!(OFFS.tcp_bytes_sent))
    }

    #[inline(always)]
    pub fn bytes_acked(self) -> Option<u64> {
        read(self.0, global!(OFFS.tcp_bytes_acked))
    }

    /// Local address, v4-mapped.
    #[inline(always)]
    pub fn local_addr(self, dst: &mut [u8; 16]) -> bool {
        self.addr(dst, global!(OFFS.sk_rcv_saddr), global!(OFFS.sk_v6_rcv_saddr))
    }

    #[inline(always)]
    fn addr(self, dst: &mut [u8; 16], v4: u32, v6: u32) -> bool {
        match read::<u16>(self.0, global!(OFFS.sk_family)) {
            Some(AF_INET) => match read::<[u8; 4]>(self.0, v4) {
                Some(addr) => {
                    map_v4(dst, addr);
                    true
                }
                None => false,
            },
            Some(AF_INET6) => read_into(self.0, v6, dst),
            _ => false,
        }
    }

    /// Addresses and ports from the socket's own side.
    #[inline(always)]
    pub fn tuple(self, dst: &mut Tuple) -> bool {
        dst.sport = self.sport();
        dst.dport = self.dport();
        dst.reserved = 0;
        self.local_addr(&mut dst.saddr)
            && self.addr(&mut dst.daddr, global!(OFFS.sk_daddr), global!(OFFS.sk_v6_daddr))
    }
}

impl Skb {
    #[inline(always)]
    pub fn sock(self) -> Sock {
        Sock(read(self.0, global!(OFFS.skb_sk)).unwrap_or(0))
    }

    #[inline(always)]
    pub fn dev(self) -> Dev {
        Dev(read(self.0, global!(OFFS.skb_dev)).unwrap_or(0))
    }

    #[inline(always)]
    pub fn len(self) -> u32 {
        read(self.0, global!(OFFS.skb_len)).unwrap_or(0)
    }

    #[inline(always)]
    pub fn data_len(self) -> u32 {
        read(self.0, global!(OFFS.skb_data_len)).unwrap_or(0)
    }

    #[inline(always)]
    pub fn data(self) -> u64 {
        read(self.0, global!(OFFS.skb_data)).unwrap_or(0)
    }

    /// Address of the IP header, 0 if there is none.
    #[inline(always)]
    pub fn network(self) -> u64 {
        let Some(offset) = read::<u16>(self.0, global!(OFFS.skb_network_header)) else { return 0 };
        let head = read::<u64>(self.0, global!(OFFS.skb_head)).unwrap_or(0);
        // 0xffff: not set (`skb_reset_network_header` was never called).
        if offset == 0xffff || head == 0 { 0 } else { head + u64::from(offset) }
    }

    /// Namespace of the device, else of the socket (LOCAL_OUT packets have no device yet).
    #[inline(always)]
    pub fn netns(self) -> u32 {
        let dev = self.dev();
        if dev.exists() {
            return dev.net().inum();
        }
        let sk = self.sock();
        if sk.exists() { sk.net().inum() } else { ABSENT32 }
    }
}

impl Dev {
    #[inline(always)]
    pub fn net(self) -> Net {
        Net(read(self.0, global!(OFFS.dev_net)).unwrap_or(0))
    }

    #[inline(always)]
    pub fn ifindex(self) -> u32 {
        read(self.0, global!(OFFS.dev_ifindex)).unwrap_or(0)
    }

    #[inline(always)]
    pub fn flags(self) -> u32 {
        read(self.0, global!(OFFS.dev_flags)).unwrap_or(ABSENT32)
    }

    /// `net_device.state`, bit 0 is `__LINK_STATE_START`.
    #[inline(always)]
    pub fn state(self) -> Option<u64> {
        read(self.0, global!(OFFS.dev_state))
    }

    #[inline(always)]
    pub fn name(self, dst: &mut [u8; 16]) {
        read_str(self.0, global!(OFFS.dev_name), dst);
    }
}

impl Net {
    /// Inode number, or absent.
    #[inline(always)]
    pub fn inum(self) -> u32 {
        read(self.0, global!(OFFS.net_inum)).unwrap_or(ABSENT32)
    }
}

impl Task {
    #[inline(always)]
    pub fn current() -> Self {
        Self(unsafe { bpf_get_current_task() })
    }

    #[inline(always)]
    pub fn leader(self) -> Self {
        Self(read(self.0, global!(OFFS.task_group_leader)).unwrap_or(0))
    }

    #[inline(always)]
    pub fn parent(self) -> Self {
        Self(read(self.0, global!(OFFS.task_real_parent)).unwrap_or(0))
    }

    #[inline(always)]
    pub fn tgid(self) -> u32 {
        read(self.0, global!(OFFS.task_tgid)).unwrap_or(0)
    }

    #[inline(always)]
    pub fn tid(self) -> u32 {
        read(self.0, global!(OFFS.task_pid)).unwrap_or(0)
    }

    /// `dst` must be zeroed: before 5.17 what follows the NUL in `task->comm` is garbage.
    #[inline(always)]
    pub fn comm(self, dst: &mut [u8; COMM_LEN]) -> bool {
        read_str(self.0, global!(OFFS.task_comm), dst)
    }

    /// `task->nsproxy`; 0 after exit.
    #[inline(always)]
    pub fn nsproxy(self) -> u64 {
        read(self.0, global!(OFFS.task_nsproxy)).unwrap_or(0)
    }

    #[inline(always)]
    pub fn netns(self) -> u32 {
        nsproxy_netns(self.nsproxy())
    }

    /// kernfs id of the memory controller's cgroup, or absent.
    #[inline(always)]
    pub fn memory_cgroup(self) -> Option<u64> {
        let (subsys, index) = (global!(OFFS.css_set_subsys), global!(ENUMS.memory_cgrp_id));
        if subsys == ABSENT32 || index == ABSENT32 {
            return None;
        }
        let set = read::<u64>(self.0, global!(OFFS.task_cgroups))?;
        let css = read::<u64>(set, subsys + index * 8)?;
        let cgroup = read::<u64>(css, global!(OFFS.css_cgroup))?;
        let node = read::<u64>(cgroup, global!(OFFS.cgroup_kn))?;
        read(node, global!(OFFS.kernfs_id))
    }

    /// The socket behind a file descriptor of this task.
    #[inline(always)]
    pub fn socket(self, fd: u32) -> Option<Sock> {
        let files = read::<u64>(self.0, global!(OFFS.task_files))?;
        let table = read::<u64>(files, global!(OFFS.files_fdt))?;
        let array = read::<u64>(table, global!(OFFS.fdt_fd))?;
        let file = read::<u64>(array + u64::from(fd) * 8, 0)?;
        let socket = read::<u64>(file, global!(OFFS.file_private))?;
        read(socket, global!(OFFS.socket_sk)).map(Sock)
    }
}

/// Inode number of the network namespace of a `struct nsproxy`, or absent.
#[inline(always)]
pub fn nsproxy_netns(nsproxy: u64) -> u32 {
    Net(read(nsproxy, global!(OFFS.nsproxy_net)).unwrap_or(0)).inum()
}

/// Device of a `struct Qdisc`.
#[inline(always)]
pub fn qdisc_dev(qdisc: u64) -> Dev {
    let queue = read::<u64>(qdisc, global!(OFFS.qdisc_dev_queue)).unwrap_or(0);
    Dev(read(queue, global!(OFFS.queue_dev)).unwrap_or(0))
}

/// Path given to exec, of a `struct linux_binprm`.
#[inline(always)]
pub fn binprm_path<const N: usize>(binprm: u64, dst: &mut [u8; N]) -> bool {
    let name = read::<u64>(binprm, global!(OFFS.binprm_filename)).unwrap_or(0);
    read_str(name, 0, dst)
}
