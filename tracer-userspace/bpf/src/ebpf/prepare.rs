//! Prepares what is needed before attaching: the kernel's layout, the object, its globals and maps.

use std::path::Path;
use std::thread::{self, JoinHandle};

use aya::{
    Ebpf, EbpfLoader,
    maps::{Array, HashMap},
    util::nr_cpus,
};
use nix::sys::resource::{RLIM_INFINITY, Resource, setrlimit};
use tracer_common::{
    ABSENT32,
    actor::{COMM_LEN, comm_bucket},
    conn::cpu_mask,
    offsets::{EnumValues, Offsets, Settings, Types},
};
use tracer_node::procfs::has_kernel_numbers;

use super::{
    EbpfError, KernelNames, LoadOptions,
    btf::Btf,
    capabilities,
    error::SIZE_OF_TCP_SOCK,
    global::Global,
    hooks::{HOOKS, ProgramType},
    lru, names, ports, refusal,
    typed::Typed,
};

macro_rules! object {
    () => {
        include_bytes!(concat!(env!("OUT_DIR"), "/tracer-ebpf.o"))
    };
}

/// The object has its own section, so that it can be compared with the source:
/// `objcopy -O binary --only-section=.tracer.ebpf` extracts it.
// SAFETY: plain bytes, in a section that neither a linker nor a loader knows.
#[unsafe(link_section = ".tracer.ebpf")]
static OBJECT_IN_SECTION: Aligned<[u8; object!().len()]> = Aligned(*object!());
pub(super) static OBJECT: &[u8] = &OBJECT_IN_SECTION.0;

/// The alignment that the ELF parser needs.
#[repr(C, align(32))]
struct Aligned<T>(T);
const BTF_PATH: &str = "/sys/kernel/btf/vmlinux";
const TCP_SOCK: &str = "tcp_sock";
/// Ring sizes. The whole ring counts twice as resident memory, because the kernel maps its pages twice in a row (6.18: 8 MiB for
/// 4 MiB). The programs filter events, so the probes of a node make a few hundred events a second: 1 MiB holds those of 15 seconds.
const RING_BYTES: u32 = 1 << 20;
const RING_BYTES_ALL: u32 = 16 << 20;

/// What is read from the running kernel's BTF.
pub(super) struct Layout {
    pub(super) offsets: Global<Offsets>,
    pub(super) enums: Global<EnumValues>,
    pub(super) names: KernelNames,
    /// BTF of the functions for trampolines.
    pub(super) functions: Vec<u8>,
    /// The programs of [`Reads::Typed`].
    typed: Option<Typed>,
}

/// How the programs read the kernel's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reads {
    Helper,
    /// On a kernel that withholds the helper.
    Typed,
}

/// Reads the kernel's BTF, or that of a file instead.
pub(super) fn read_layout(file: Option<&Path>, reads: Reads) -> Result<Layout, EbpfError> {
    let path = file.unwrap_or(Path::new(BTF_PATH));
    let bytes = std::fs::read(path).map_err(|error| EbpfError::NoBtf(path.into(), error))?;
    let mut wanted: Vec<&str> = Offsets::FIELDS.iter().map(|(name, _)| *name).collect();
    wanted.extend(names::ENUMS);
    wanted.extend(["cgroup_subsys_id", TCP_SOCK]);
    wanted.extend(Types::NAMES);
    let btf = Btf::parse(&bytes, &wanted).map_err(|error| EbpfError::Btf(path.into(), error))?;
    if file.is_some() {
        refuse_other_kernel(path, &btf)?;
    }
    let values: Vec<Option<u32>> = Offsets::FIELDS.iter().map(|(name, path)| btf.offset(name, path)).collect();
    for ((name, path), _) in Offsets::FIELDS.iter().zip(&values).filter(|(_, v)| v.is_none()) {
        tracing::info!("this kernel has no {name}.{path}");
    }
    let value = |kind: &str, name: &str| {
        btf.enum_values(kind).into_iter().find(|(n, _)| *n == name).map_or(ABSENT32, |(_, v)| v)
    };
    Ok(Layout {
        offsets: Global(Offsets::from_values(&values)),
        enums: Global(EnumValues {
            memory_cgrp_id: value("cgroup_subsys_id", "memory_cgrp_id"),
            skb_consumed: value("skb_drop_reason", "SKB_CONSUMED"),
            queue_purge: value("skb_drop_reason", "SKB_DROP_REASON_QUEUE_PURGE"),
        }),
        names: KernelNames::from_btf(&btf),
        functions: btf.functions(&fentry_targets()),
        typed: match reads {
            Reads::Helper => None,
            Reads::Typed => Some(Typed::new(&btf).ok_or(EbpfError::Lockdown)?),
        },
    })
}

/// Refuses BTF of another kernel: its offsets would read wrong fields. It compares the size of a struct, if the kernel shows it.
fn refuse_other_kernel(path: &Path, btf: &Btf<'_>) -> Result<(), EbpfError> {
    let text = std::fs::read_to_string(SIZE_OF_TCP_SOCK).ok();
    let Some(here) = text.and_then(|text| text.trim().parse().ok()) else { return Ok(()) };
    let there = btf.size(TCP_SOCK).unwrap_or(0);
    if there == here { Ok(()) } else { Err(EbpfError::OtherBtf { file: path.into(), there, here }) }
}

fn fentry_targets() -> Vec<&'static str> {
    let variants =
        HOOKS.iter().flat_map(|row| row.variants).filter(|variant| variant.program_type == ProgramType::Fentry);
    variants.flat_map(|variant| variant.programs).map(|(_, target)| *target).collect()
}

/// Creates aya's loader on a thread, in parallel: it always reads all types of the kernel.
pub(super) fn loader() -> JoinHandle<EbpfLoader<'static>> {
    thread::spawn(EbpfLoader::new)
}

pub(super) fn load_object(
    loader: JoinHandle<EbpfLoader<'static>>,
    layout: &Layout,
    options: &LoadOptions,
    prober_hooks: bool,
) -> Result<Ebpf, EbpfError> {
    let (port_first, port_last) = ports::range();
    let all_connections = u32::from(options.all_connections);
    let cpu_mask = cpu_mask(nr_cpus().unwrap_or(1));
    let prober_hooks = u32::from(prober_hooks);
    // No process has the number 0.
    let own_pid = if has_kernel_numbers() { std::process::id() } else { 0 };
    let settings = Global(Settings { own_pid, all_connections, port_first, port_last, cpu_mask, prober_hooks });
    let usual = if options.all_connections { RING_BYTES_ALL } else { RING_BYTES };
    let mut loader: EbpfLoader<'_> = loader.join().unwrap_or_default();
    loader
        .btf(None)
        .override_global("OFFS", &layout.offsets, true)
        .override_global("ENUMS", &layout.enums, true)
        .override_global("SETTINGS", &settings, true)
        .map_max_entries("EVENTS", options.ring_bytes.unwrap_or(usual));
    lru::size(&mut loader, options.all_connections);
    let mut object = OBJECT;
    if let Some(typed) = &layout.typed {
        loader.override_global("TYPES", &typed.types, true);
        object = &typed.object;
    }
    loader.load(object).map_err(|error| match refusal::errno(&error) {
        Some(libc::EPERM | libc::EACCES) => {
            EbpfError::MapPermission { missing: capabilities::missing_for_tracing(), answer: Box::new(error) }
        }
        _ => EbpfError::Object(Box::new(error)),
    })
}

pub(super) fn fill_probers(ebpf: &mut Ebpf, probers: &[String]) -> Result<(), EbpfError> {
    let keys: Vec<_> = probers.iter().map(|name| comm(name)).collect();
    let map = ebpf.map_mut("PROBERS").ok_or(EbpfError::Map("PROBERS"))?;
    let mut map: HashMap<_, [u8; COMM_LEN], u8> = HashMap::try_from(map).map_err(|_| EbpfError::Map("PROBERS"))?;
    for (key, name) in keys.iter().zip(probers) {
        if map.insert(key, 1, 0).is_err() {
            tracing::warn!("--prober {name}: too many names; tracer does not watch this process");
        }
    }
    const BUCKETS: &str = "PROBER_BUCKETS";
    let buckets = ebpf.map_mut(BUCKETS).ok_or(EbpfError::Map(BUCKETS))?;
    let mut buckets: Array<_, u8> = Array::try_from(buckets).map_err(|_| EbpfError::Map(BUCKETS))?;
    keys.iter().try_for_each(|key| buckets.set(comm_bucket(head(key)), 1, 0)).map_err(|_| EbpfError::Map(BUCKETS))
}

fn head(comm: &[u8; COMM_LEN]) -> u64 {
    comm.first_chunk().map_or(0, |head| u64::from_ne_bytes(*head))
}

/// A process name as the kernel keeps it, cut to 15 bytes.
fn comm(name: &str) -> [u8; COMM_LEN] {
    let mut comm = [0u8; COMM_LEN];
    for (to, from) in comm.iter_mut().zip(name.bytes().take(COMM_LEN - 1)) {
        *to = from;
    }
    comm
}

/// Before 5.11 maps count against RLIMIT_MEMLOCK. Without CAP_SYS_RESOURCE this fails, and the creation of maps then reports an
/// error.
pub(super) fn raise_memlock() {
    let _ = setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY);
}

/// Makes glibc use one heap for all threads: that of each thread would keep 0.3 MB or more after the thread's end.
pub(super) fn share_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes no pointers, may be called at any time.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// These offsets have not changed since 5.6 (`struct sock_common`, `struct nsproxy`). A table with mixed-up names, or a reader
    /// that is off by one, gives other numbers.
    #[test]
    fn offsets_of_known_fields_are_right() {
        if !std::fs::exists(BTF_PATH).unwrap() {
            return;
        }
        let Global(offsets) = read_layout(None, Reads::Helper).unwrap().offsets;
        let of_socket = [
            (offsets.sk_daddr, 0),
            (offsets.sk_rcv_saddr, 4),
            (offsets.sk_dport, 12),
            (offsets.sk_num, 14),
            (offsets.sk_family, 16),
            (offsets.sk_state, 18),
            (offsets.sk_net, 48),
            (offsets.sk_v6_daddr, 56),
            (offsets.sk_v6_rcv_saddr, 72),
        ];
        let of_namespaces = [
            (offsets.nsproxy_uts, 8),
            (offsets.nsproxy_ipc, 16),
            (offsets.nsproxy_mnt, 24),
            (offsets.nsproxy_pid, 32),
            (offsets.nsproxy_net, 40),
            (offsets.nsproxy_cgroup, 64),
        ];
        for (n, (found, expected)) in of_socket.into_iter().chain(of_namespaces).enumerate() {
            assert_eq!(found, expected, "field {n}");
        }
    }

    /// A field that is twice in the table is a mistake.
    #[test]
    fn no_field_is_twice_in_the_table() {
        let fields = Offsets::FIELDS;
        assert!(fields.iter().enumerate().all(|(n, field)| !fields[..n].contains(field)));
        let values: Vec<Option<u32>> = (0..fields.len() as u32).map(Some).collect();
        let offsets = Offsets::from_values(&values);
        assert_eq!((offsets.sk_family, offsets.skb_nfct), (0, fields.len() as u32 - 1), "in the order of the table");
    }

    #[test]
    fn bytes_after_the_nul_do_not_change_the_bucket() {
        let left_over = u64::from_ne_bytes(*b"k0s\0let\0");
        assert_eq!(comm_bucket(left_over), comm_bucket(head(&comm("k0s"))));
        assert_ne!(comm_bucket(head(&comm("kubelet"))), comm_bucket(head(&comm("load"))));
        assert_eq!(comm_bucket(head(&comm("k3s-server"))), comm_bucket(u64::from_ne_bytes(*b"k3s-serv")));
        assert_eq!(comm_bucket(0), comm_bucket(u64::from_ne_bytes(*b"\0\x01\x80ab\0cd")));
    }
}
