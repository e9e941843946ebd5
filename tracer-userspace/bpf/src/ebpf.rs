//! The kernel side: load, resolve offsets, attach, hand back the ring and the kernel's names.

mod ahead;
mod attach;
pub mod btf;
#[cfg(test)]
mod budgets;
mod capabilities;
mod cgroup;
mod error;
mod global;
mod hook_state;
pub mod hooks;
#[cfg(feature = "kernel-log")]
mod log;
mod lru;
mod missed;
mod names;
mod ports;
mod prepare;
mod prober_sockets;
mod program;
mod refusal;
mod ring;
mod runs;
pub mod switches;
mod tracefs;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;

use aya::{
    Ebpf,
    maps::{HashMap, MapData, PerCpuArray, RingBuf},
};
use tracer_common::{names::Hook, ports::PortUse, stats::Counter};

pub use self::{
    attach::HookReport,
    error::EbpfError,
    hook_state::{HookState, HookStatus, Tried},
    names::KernelNames,
    ring::Ring,
    runs::{Counting, count_runs},
};
use tracer_model::event::Loss;
use tracer_node::clock;
use tracer_node::procfs::is_alive;

use self::{
    attach::Walk,
    hooks::{Form, HOOKS, Row, When},
    prober_sockets::ProberSockets,
};

#[derive(Clone, Debug, Default)]
pub struct LoadOptions {
    /// Names of processes that make probe attempts (a thread group leader's `comm`).
    pub probers: Vec<String>,
    pub all_connections: bool,
    /// No `syscalls:*` tracepoints, which slow every system call of the node.
    pub no_syscall_hooks: bool,
    /// Probers are watched at their own cgroups, where each has one: other processes pay less.
    pub prober_hooks: bool,
    /// BTF of this kernel, where it has none of its own.
    pub btf: Option<PathBuf>,
    /// Size of the ring, where the usual one is not wanted.
    pub ring_bytes: Option<u32>,
}

/// Attached programs. Dropping it detaches them.
pub struct Loaded {
    pub ring: Ring,
    /// When the last of the hooks was attached, CLOCK_BOOTTIME: what began before was not wholly seen.
    pub attached_boot_ns: u64,
    /// Hooks attached and missing, as of the last change.
    pub status: HookReport,
    pub names: KernelNames,
    /// `None` once detached.
    ebpf: Option<Ebpf>,
    walk: Walk,
    missed: missed::Missed,
    stats: PerCpuArray<MapData, u64>,
    tls_watch: HashMap<MapData, u16, u64>,
    pretending: HashMap<MapData, u64, u8>,
    ports: ports::Ports,
    tls_ports: BTreeSet<u16>,
    /// Cgroups where answers are read.
    answer_cgroups: cgroup::Attached<program::CgroupLink>,
    /// In place of the hooks of the node.
    prober_sockets: Option<ProberSockets>,
}

/// Loads and attaches everything this kernel and these privileges allow.
///
/// Must be called inside a tokio runtime (the ring is registered with it).
///
/// # Errors
/// If nothing can be seen: see [`EbpfError`]. Hooks that are merely useful are reported in
/// [`Loaded::status`] instead.
pub fn load(options: &LoadOptions) -> Result<Loaded, EbpfError> {
    prepare::raise_memlock();
    let loader = prepare::loader();
    let mut layout = prepare::read_layout(options.btf.as_deref())?;
    let mut ebpf = prepare::load_object(loader, &layout, options)?;
    #[cfg(feature = "kernel-log")]
    log::follow(&mut ebpf);
    prepare::fill_probers(&mut ebpf, &options.probers)?;
    // A kernel without BTF has no trampolines; by another kernel's they would sit on other functions.
    let refused = [(options.no_syscall_hooks, Form::Tracepoint), (options.btf.is_some(), Form::Fentry)];
    let refused = refused.into_iter().filter_map(|(is_refused, form)| is_refused.then_some(form));
    let mut walk = Walk::without(refused, std::mem::take(&mut layout.functions));
    let prober_sockets = start_prober_sockets(&mut ebpf, &mut walk, options);
    tracefs::with(|| walk.start(&mut ebpf));
    let attached_boot_ns = clock::boot_ns();
    require(&walk)?;
    prepare::trim();
    layout.names.read_symbols();
    Ok(Loaded {
        ring: Ring::new(take(&mut ebpf, "EVENTS", RingBuf::try_from)?).map_err(EbpfError::Ring)?,
        stats: take(&mut ebpf, "STATS", PerCpuArray::try_from)?,
        tls_watch: take(&mut ebpf, "TLS_WATCH", HashMap::try_from)?,
        pretending: take(&mut ebpf, "PRETENDING", HashMap::try_from)?,
        ports: take(&mut ebpf, "PORTS", HashMap::try_from)?,
        tls_ports: BTreeSet::new(),
        answer_cgroups: cgroup::Attached::default(),
        prober_sockets,
        attached_boot_ns,
        status: walk.report(),
        names: layout.names,
        walk,
        missed: missed::Missed::default(),
        ebpf: Some(ebpf),
    })
}

/// `None` where nobody wants it, or it cannot be: then the hooks of the node see the probers' connections.
fn start_prober_sockets(ebpf: &mut Ebpf, walk: &mut Walk, options: &LoadOptions) -> Option<ProberSockets> {
    if !options.prober_hooks || options.all_connections {
        return None;
    }
    let started = ProberSockets::start(ebpf, walk, &options.probers);
    let refuse = |error| {
        ProberSockets::end(ebpf, walk);
        walk.no_cgroup(Hook::SockOps, error);
    };
    started.map_err(refuse).ok()
}

impl Loaded {
    /// Events that did not fit into the ring, connections that did not fit into a map, and events of which a cgroup made too
    /// many, since the start, by place.
    pub fn lost(&self) -> Vec<(&'static str, u64)> {
        let counters = [
            (Loss::RING, Counter::RingFull),
            (Loss::MAP, Counter::MapFull),
            (Loss::LISTEN, Counter::ListenHeld),
            (Loss::NAMESPACE, Counter::NamespaceHeld),
        ];
        counters.into_iter().map(|(place, counter)| (place, self.counter(counter))).collect()
    }

    /// Runs of programs that the kernel skipped, since the start: of those that tell of attempts and links, and of those that
    /// tell of namespaces, by place. Reads a file for each program: not for every batch.
    ///
    /// Programs that are attached and not called count as one run: how many it would have been, nobody knows.
    pub fn missed(&mut self) -> Vec<(&'static str, u64)> {
        let Some(ebpf) = &mut self.ebpf else { return Vec::new() };
        let silenced = switches::off().find(|switch| self.walk.has_form(switch.silences));
        self.missed.count(ebpf, silenced).to_vec()
    }

    pub fn is_attached(&self, hook: Hook) -> bool {
        self.ebpf.is_some() && self.walk.is_attached(hook)
    }

    /// Runs of each hook's programs and the seconds they took; empty where the kernel does not count them.
    pub fn program_runs(&self) -> BTreeMap<Hook, (u64, f64)> {
        runs::by_hook(self)
    }

    /// Use of ephemeral ports by process; with `take` it is counted again from now on.
    pub fn port_use(&mut self, take: bool) -> Vec<(u32, PortUse)> {
        ports::read(&mut self.ports, take)
    }

    /// Reads of kernel memory that failed, since the start: what they would have reported is absent.
    pub fn read_failures(&self) -> u64 {
        self.counter(Counter::ReadFailed)
    }

    fn counter(&self, counter: Counter) -> u64 {
        self.stats.get(&(counter as u32), 0).map(|cpus| cpus.iter().sum()).unwrap_or(0)
    }

    /// Makes the programs skip this cgroup: its processes are no probers, although they have the name of one.
    pub fn skip_cgroup(&mut self, cgroup: u64) {
        if self.pretending.insert(cgroup, 1, 0).is_err() {
            // The map is full, mostly of cgroups that are gone. Those that still connect are found again.
            let all: Vec<u64> = self.pretending.keys().flatten().collect();
            all.iter().for_each(|cgroup| _ = self.pretending.remove(cgroup));
            let _ = self.pretending.insert(cgroup, 1, 0);
        }
    }

    /// Takes every program off; what is in the ring can still be drained.
    pub fn detach(&mut self) {
        self.ebpf = None;
    }

    /// Reports TLS ClientHellos that arrive at this port from now on. Whether this kernel can is in
    /// [`Loaded::status`] from then on.
    ///
    /// The first call attaches the program that looks for them.
    pub fn watch_tls(&mut self, port: u16) {
        if self.tls_ports.contains(&port) {
            return;
        }
        let Some(ebpf) = &mut self.ebpf else { return };
        if !self.walk.was_tried(Hook::CgroupSkb) {
            self.walk.retry(ebpf, Hook::CgroupSkb);
            self.status = self.walk.report();
        }
        if self.walk.is_attached(Hook::CgroupSkb) && self.tls_watch.insert(port, 0, 0).is_ok() {
            self.tls_ports.insert(port);
        }
    }

    /// Reads the first bytes of the answers that these processes get, from now on: attaches to their
    /// cgroups. For a process in the root cgroup, that is every process. A process without a known cgroup is skipped;
    /// [`Loaded::status`] shows it then.
    pub fn watch_answers(&mut self, pids: &[u32]) {
        if self.ebpf.is_none() {
            return;
        }
        let cgroups = pids.iter().map(|pid| (*pid, cgroup::of(*pid)));
        // A process that has ended since gets no answers.
        let (found, lost): (Vec<_>, Vec<_>) =
            cgroups.filter(|(pid, of)| of.is_ok() || is_alive(*pid)).map(|(_, of)| of).partition(Result::is_ok);
        let folders: BTreeSet<Option<PathBuf>> = found.into_iter().flatten().collect();
        let refused = folders.into_iter().filter_map(|folder| self.watch_cgroup(folder).err()).collect::<Vec<_>>();
        for error in refused.into_iter().chain(lost.into_iter().filter_map(Result::err)) {
            self.walk.no_cgroup(Hook::CgroupAnswer, error);
        }
        self.status = self.walk.report();
    }

    /// Watches the sockets of these processes, where only those of probers are watched.
    pub fn watch_sockets(&mut self, pids: &[u32]) {
        if let (Some(ebpf), Some(sockets)) = (&mut self.ebpf, &mut self.prober_sockets) {
            sockets.meet(ebpf, &mut self.walk, pids);
        }
    }

    /// Attaches the hooks of the node if the sockets of a prober cannot be watched otherwise; true if it did.
    pub fn retry_prober_sockets(&mut self) -> bool {
        let (Some(ebpf), Some(sockets)) = (&mut self.ebpf, &mut self.prober_sockets) else { return false };
        let walk = &mut self.walk;
        let Err(error) = sockets.retry(ebpf, walk) else { return false };
        self.prober_sockets = None;
        ProberSockets::end(ebpf, walk);
        for hook in [Hook::InetSockSetState, Hook::TcpConnect] {
            walk.retry(ebpf, hook);
        }
        walk.no_cgroup(Hook::SockOps, error);
        self.status = walk.report();
        true
    }

    fn watch_cgroup(&mut self, folder: Option<PathBuf>) -> io::Result<()> {
        let Some(ebpf) = &mut self.ebpf else { return Ok(()) };
        let file = match self.answer_cgroups.open(folder.as_deref()) {
            Ok(Some(file)) => file,
            Ok(None) => return Ok(()),
            // It has ended since.
            Err(_) if folder.is_some() => return Ok(()),
            Err(error) => return Err(error),
        };
        for link in self.answer_cgroups.take_gone() {
            program::detach_from(ebpf, link);
        }
        self.answer_cgroups.room()?;
        if let Some(link) = self.walk.cgroup(ebpf, Hook::CgroupAnswer, &file) {
            self.answer_cgroups.insert(&file, folder, link);
        }
        Ok(())
    }

    /// Tries again to attach hooks on functions of a module; true if one is new. Cheap: call
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

fn take<M, E>(
    ebpf: &mut Ebpf,
    name: &'static str,
    convert: impl FnOnce(aya::maps::Map) -> Result<M, E>,
) -> Result<M, EbpfError> {
    let map = ebpf.take_map(name).ok_or(EbpfError::Map(name))?;
    convert(map).map_err(|_| EbpfError::Map(name))
}

fn require(walk: &Walk) -> Result<(), EbpfError> {
    let lacks = |row: &&Row| row.required && !walk.is_attached(row.hook) && !walk.spares(row);
    let Some(row) = HOOKS.iter().find(lacks) else { return Ok(()) };
    let refusals = walk.refusals(row.hook);
    if refusals.iter().all(refusal::Refusal::is_permission) {
        return Err(EbpfError::ProgramPermission(capabilities::missing_for_tracing()));
    }
    if refusals.iter().any(refusal::Refusal::is_lockdown) {
        return Err(EbpfError::Lockdown);
    }
    Err(EbpfError::RequiredHook { hook: row.hook.name(), reason: walk.explain(refusals) })
}
