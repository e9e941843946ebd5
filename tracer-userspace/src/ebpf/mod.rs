//! The kernel side: load, resolve offsets, attach, hand back the ring and the kernel's names.

mod attach;
pub mod btf;
pub mod hooks;
mod names;
mod ring;
mod tracefs;

use std::io;

use aya::{
    Ebpf, EbpfLoader, Pod,
    maps::{HashMap, MapData, PerCpuArray, RingBuf},
};
use tracer_common::{
    ABSENT32,
    actor::COMM_LEN,
    names::Hook,
    offsets::{EnumValues, Offsets, Settings},
    stats::{COUNTERS, Counter},
};

pub use self::{attach::HookReport, names::KernelNames, ring::Ring};
use self::{
    attach::Walk,
    btf::{Btf, BtfError},
    hooks::{HOOKS, When},
};

const OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/tracer-ebpf.o"));
const BTF_PATH: &str = "/sys/kernel/btf/vmlinux";
/// Ring sizes. Filtered in the kernel, a node's own probes are a few hundred events a second; its
/// pages count as resident once they were touched, hence no more than is needed.
const RING_BYTES: u32 = 4 << 20;
const RING_BYTES_ALL: u32 = 16 << 20;
/// Entries for connections when every process's are tracked.
const FLOWS_ALL: u32 = 1 << 17;

/// What to track.
#[derive(Clone, Debug, Default)]
pub struct LoadOptions {
    /// Process names whose connections are probe attempts (a thread group leader's `comm`).
    pub probers: Vec<String>,
    /// Every process's connections.
    pub all_connections: bool,
}

/// Why nothing can be seen.
#[derive(Debug, thiserror::Error)]
pub enum EbpfError {
    /// No type information: the layout of kernel structs is not known.
    #[error("this kernel has no readable BTF at {BTF_PATH} ({0}): CONFIG_DEBUG_INFO_BTF is needed")]
    NoBtf(#[source] io::Error),
    /// Type information that cannot be understood.
    #[error("the BTF of this kernel cannot be read")]
    Btf(#[from] BtfError),
    /// A map cannot be created for lack of privileges.
    #[error(
        "the kernel refuses to create BPF maps: CAP_BPF is missing (or CAP_SYS_ADMIN before 5.8); before 5.11 also CAP_SYS_RESOURCE or a raised memlock limit"
    )]
    MapPermission(#[source] Box<aya::EbpfError>),
    /// Programs cannot be loaded for lack of privileges.
    #[error("the kernel refuses to load BPF programs: CAP_BPF and CAP_PERFMON (or CAP_SYS_ADMIN) are missing")]
    ProgramPermission,
    /// A hook without which nothing works.
    #[error("required hook {hook} is not in force: {reason}")]
    RequiredHook {
        /// Which.
        hook: &'static str,
        /// What was tried and the kernel's answer.
        reason: String,
    },
    /// The object or a map of it is refused for another reason.
    #[error("the BPF object cannot be loaded")]
    Object(#[source] Box<aya::EbpfError>),
    /// A map of the object is not what this program expects: they were not built together.
    #[error("BPF map {0} is missing or of another kind")]
    Map(&'static str),
    /// The ring cannot be polled.
    #[error("the ring buffer cannot be polled")]
    Ring(#[source] io::Error),
}

/// Programs in force. Dropping it detaches them.
pub struct Loaded {
    /// Events.
    pub ring: Ring,
    /// Hooks in force and missing, as of the last change.
    pub status: HookReport,
    /// Names of this kernel's numbers and addresses.
    pub names: KernelNames,
    /// `None` once detached.
    ebpf: Option<Ebpf>,
    walk: Walk,
    stats: PerCpuArray<MapData, u64>,
    tls_watch: HashMap<MapData, u16, u64>,
    tls_ports: std::collections::BTreeSet<u16>,
}

/// What the running kernel's BTF says.
struct Layout {
    offsets: Global<Offsets>,
    enums: Global<EnumValues>,
    names: KernelNames,
}

/// A wire struct as a global of the programs.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Global<T>(T);

// SAFETY: `repr(C)` structs of u32 only, valid for every bit pattern and without padding.
unsafe impl Pod for Global<Offsets> {}
// SAFETY: as above.
unsafe impl Pod for Global<EnumValues> {}
// SAFETY: as above.
unsafe impl Pod for Global<Settings> {}

/// Loads and attaches everything this kernel and these privileges allow.
///
/// Must be called inside a tokio runtime (the ring is registered with it).
///
/// # Errors
/// If nothing can be seen: see [`EbpfError`]. Hooks that are merely useful are reported in
/// [`Loaded::status`] instead.
pub fn load(options: &LoadOptions) -> Result<Loaded, EbpfError> {
    raise_memlock();
    let layout = read_layout()?;
    let mut ebpf = load_object(&layout, options)?;
    fill_probers(&mut ebpf, &options.probers)?;
    let mut walk = Walk::default();
    tracefs::with(|| walk.start(&mut ebpf));
    require(&walk)?;
    trim();
    Ok(Loaded {
        ring: Ring::new(take(&mut ebpf, "EVENTS", RingBuf::try_from)?).map_err(EbpfError::Ring)?,
        stats: take(&mut ebpf, "STATS", PerCpuArray::try_from)?,
        tls_watch: take(&mut ebpf, "TLS_WATCH", HashMap::try_from)?,
        tls_ports: std::collections::BTreeSet::new(),
        status: walk.report(),
        names: layout.names,
        walk,
        ebpf: Some(ebpf),
    })
}

impl Loaded {
    /// Events that did not fit into the ring, since the start.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.counter(Counter::RingFull)
    }

    /// All counters by name.
    #[must_use]
    pub fn counters(&self) -> [(&'static str, u64); COUNTERS as usize] {
        [
            ("ring_full", self.counter(Counter::RingFull)),
            ("read_failed", self.counter(Counter::ReadFailed)),
            ("map_full", self.counter(Counter::MapFull)),
            ("emitted", self.counter(Counter::Emitted)),
        ]
    }

    fn counter(&self, counter: Counter) -> u64 {
        self.stats.get(&(counter as u32), 0).map(|cpus| cpus.iter().sum()).unwrap_or(0)
    }

    /// Takes every program off; what is in the ring can still be drained.
    pub fn detach(&mut self) {
        self.ebpf = None;
    }

    /// Reports TLS ClientHellos that arrive at this port from now on. False if this kernel cannot.
    pub fn watch_tls(&mut self, port: u16) -> bool {
        if self.tls_ports.contains(&port) {
            return true;
        }
        let Some(ebpf) = &mut self.ebpf else { return false };
        if !self.walk.retry(ebpf, Hook::TcpProbe) || self.tls_watch.insert(port, 0, 0).is_err() {
            return false;
        }
        self.status = self.walk.report();
        self.tls_ports.insert(port)
    }

    /// Tries again to attach hooks whose functions live in a module; true if one is new. Cheap: call
    /// it every few seconds.
    pub fn retry_module_hooks(&mut self) -> bool {
        let Some(ebpf) = &mut self.ebpf else { return false };
        let mut new = false;
        for row in HOOKS.iter().filter(|r| r.when == When::ModuleLoaded) {
            if !self.walk.is_attached(row.hook) {
                new |= self.walk.retry(ebpf, row.hook);
            }
        }
        if new {
            self.status = self.walk.report();
        }
        new
    }

    /// File descriptors of the programs by name, for run statistics.
    pub fn program_infos(&self) -> impl Iterator<Item = (&str, aya::programs::ProgramInfo)> {
        self.ebpf.iter().flat_map(Ebpf::programs).filter_map(|(name, program)| Some((name, program.info().ok()?)))
    }
}

fn read_layout() -> Result<Layout, EbpfError> {
    let bytes = std::fs::read(BTF_PATH).map_err(EbpfError::NoBtf)?;
    let mut wanted: Vec<&str> = Offsets::FIELDS.iter().map(|(name, _)| *name).collect();
    wanted.extend(["skb_drop_reason", "sk_rst_reason", "cgroup_subsys_id"]);
    let btf = Btf::parse(&bytes, &wanted)?;
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
        }),
        names: KernelNames::from_btf(&btf),
    })
}

fn load_object(layout: &Layout, options: &LoadOptions) -> Result<Ebpf, EbpfError> {
    let settings =
        Global(Settings { own_pid: std::process::id(), all_connections: u32::from(options.all_connections) });
    let mut loader = EbpfLoader::new();
    loader
        .btf(None)
        .override_global("OFFS", &layout.offsets, true)
        .override_global("ENUMS", &layout.enums, true)
        .override_global("SETTINGS", &settings, true)
        .map_max_entries("EVENTS", if options.all_connections { RING_BYTES_ALL } else { RING_BYTES });
    if options.all_connections {
        for name in ["CONNS", "FLOWS", "PENDING", "DESTS"] {
            loader.map_max_entries(name, FLOWS_ALL);
        }
    }
    loader.load(OBJECT).map_err(|error| match attach::errno(&error) {
        Some(libc::EPERM | libc::EACCES) => EbpfError::MapPermission(Box::new(error)),
        _ => EbpfError::Object(Box::new(error)),
    })
}

fn fill_probers(ebpf: &mut Ebpf, probers: &[String]) -> Result<(), EbpfError> {
    let map = ebpf.map_mut("PROBERS").ok_or(EbpfError::Map("PROBERS"))?;
    let mut map: HashMap<_, [u8; COMM_LEN], u8> = HashMap::try_from(map).map_err(|_| EbpfError::Map("PROBERS"))?;
    for name in probers {
        // The kernel cuts names to 15 bytes.
        let mut key = [0u8; COMM_LEN];
        for (to, from) in key.iter_mut().zip(name.bytes().take(COMM_LEN - 1)) {
            *to = from;
        }
        if map.insert(key, 1, 0).is_err() {
            tracing::warn!(name, "too many prober names");
        }
    }
    Ok(())
}

fn take<M, E>(
    ebpf: &mut Ebpf,
    name: &'static str,
    convert: impl FnOnce(aya::maps::Map) -> Result<M, E>,
) -> Result<M, EbpfError> {
    let map = ebpf.take_map(name).ok_or(EbpfError::Map(name))?;
    convert(map).map_err(|_| EbpfError::Map(name))
}

fn require(walk: &Walk) -> Result<(), EbpfError> {
    for row in HOOKS.iter().filter(|r| r.required && !walk.is_attached(r.hook)) {
        let refusals = walk.refusals(row.hook);
        if refusals.iter().all(attach::Refusal::is_permission) {
            return Err(EbpfError::ProgramPermission);
        }
        return Err(EbpfError::RequiredHook { hook: row.hook.name(), reason: walk.explain(refusals) });
    }
    Ok(())
}

/// Before 5.11 maps count against RLIMIT_MEMLOCK. Without CAP_SYS_RESOURCE this fails, and map
/// creation then says so.
fn raise_memlock() {
    let limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the pointer is to a live struct that is only read.
    unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit) };
}

/// Gives the memory of BTF parsing (20 MB) back to the kernel.
fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes no pointers, may be called at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}
