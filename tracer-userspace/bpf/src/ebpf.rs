//! Loads the programs, resolves offsets, attaches the hooks, and provides the ring and the kernel's names.

mod ahead;
mod attach;
pub mod btf;
#[cfg(test)]
mod budgets;
pub mod capabilities;
mod cgroup;
mod choice;
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
mod typed;

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
    choice::ProberHooksWhen,
    error::EbpfError,
    hook_state::{HookState, HookStatus, Tried},
    names::{HiddenFunctions, KernelNames},
    ring::Ring,
};
use tracer_model::event::{Loss, ProberHooks};
use tracer_node::clock;
use tracer_node::procfs::is_alive;

use self::{
    attach::Walk,
    choice::choose,
    hooks::{HOOKS, ProgramType, Row, When},
    prepare::Reads,
    prober_sockets::ProberSockets,
    refusal::Refusal,
};

#[derive(Clone, Debug, Default)]
pub struct LoadOptions {
    /// Names of processes that make probe attempts (a thread group leader's `comm`).
    pub probers: Vec<String>,
    pub all_connections: bool,
    /// Attach no `syscalls:*` tracepoints, which slow every system call of the node.
    pub no_syscall_hooks: bool,
    /// Watch probers at their own cgroups: this costs other processes less.
    pub prober_hooks: ProberHooksWhen,
    /// The names are those of `--prober`, not of kubelets: such processes may come and go.
    pub probers_are_named: bool,
    /// A file with the BTF of this kernel, for kernels without their own.
    pub btf: Option<PathBuf>,
    /// Size of the ring; absent for the default.
    pub ring_bytes: Option<u32>,
}

/// Hooks that every connection of the node passes, used if the probers' own cgroups are not watched.
const NODE_HOOKS: [Hook; 2] = [Hook::InetSockSetState, Hook::TcpConnect];

/// How long the connects of a pod are watched after its last failure, and a port after its last probe.
const WATCH_NS: u64 = 600_000_000_000;

/// Attached programs. Dropping it detaches them.
pub struct Loaded {
    pub ring: Ring,
    /// When the last hook was attached (CLOCK_BOOTTIME). Attempts that began before may lack events.
    pub attached_boot_ns: u64,
    /// Hooks attached and missing, as of the last change.
    pub status: HookReport,
    /// Whether the probers' own cgroups were watched at the start, and why.
    pub choice: ProberHooks,
    pub names: KernelNames,
    ebpf: Ebpf,
    walk: Walk,
    missed: missed::Missed,
    stats: PerCpuArray<MapData, u64>,
    tls_watch: HashMap<MapData, u16, u64>,
    skipped_cgroups: HashMap<MapData, u64, u8>,
    failing_pods: HashMap<MapData, u32, u64>,
    last_failed: BTreeMap<u32, u64>,
    ports: ports::Ports,
    /// When each watched port was touched last.
    tls_ports: BTreeMap<u16, u64>,
    /// Cgroups where answers are read.
    answer_cgroups: cgroup::Attached<program::Link>,
    /// Present if the probers' cgroups are watched instead of all sockets of the node.
    prober_sockets: Option<ProberSockets>,
}

/// Loads and attaches all programs that this kernel and these privileges allow.
///
/// Must be called inside a tokio runtime (the ring is registered with it).
///
/// # Errors
/// A required part is missing: see [`EbpfError`]. Other missing hooks are reported in [`Loaded::status`].
pub fn load(options: &LoadOptions) -> Result<Loaded, EbpfError> {
    prepare::raise_memlock();
    prepare::share_heap();
    match load_programs(options, Reads::Helper) {
        // A kernel without its own BTF has no ids of functions that programs may call.
        Err(EbpfError::Lockdown) if options.btf.is_none() => load_programs(options, Reads::Typed),
        done => done,
    }
}

fn load_programs(options: &LoadOptions, reads: Reads) -> Result<Loaded, EbpfError> {
    let loader = prepare::loader();
    let mut layout = prepare::read_layout(options.btf.as_deref(), reads)?;
    let mut choice = choose(options);
    let mut ebpf = prepare::load_object(loader, &layout, options, choice.used)?;
    #[cfg(feature = "kernel-log")]
    log::follow(&mut ebpf);
    prepare::fill_probers(&mut ebpf, &options.probers)?;
    let mut walk = Walk::without(excluded(options, reads), std::mem::take(&mut layout.functions));
    let prober_sockets = start_prober_sockets(&mut ebpf, &mut walk, options, &mut choice);
    tracefs::with(|| walk.start(&mut ebpf));
    let attached_boot_ns = clock::boot_ns();
    check_required(&walk)?;
    Ok(Loaded {
        ring: Ring::new(take(&mut ebpf, "EVENTS", RingBuf::try_from)?).map_err(EbpfError::Ring)?,
        stats: take(&mut ebpf, "STATS", PerCpuArray::try_from)?,
        tls_watch: take(&mut ebpf, "TLS_WATCH", HashMap::try_from)?,
        skipped_cgroups: take(&mut ebpf, "PRETENDING", HashMap::try_from)?,
        failing_pods: take(&mut ebpf, "FAILING_PODS", HashMap::try_from)?,
        last_failed: BTreeMap::new(),
        ports: ports::Ports {
            by_process: take(&mut ebpf, "PORTS", HashMap::try_from)?,
            slots: take(&mut ebpf, "PORT_SLOTS", PerCpuArray::try_from)?,
        },
        tls_ports: BTreeMap::new(),
        answer_cgroups: cgroup::Attached::default(),
        prober_sockets,
        attached_boot_ns,
        status: walk.report(),
        choice,
        names: layout.names,
        walk,
        missed: missed::Missed::default(),
        ebpf,
    })
}

/// The program types that the options or lockdown exclude.
fn excluded(options: &LoadOptions, reads: Reads) -> Vec<Refusal> {
    let switched_off = options.no_syscall_hooks.then(|| Refusal::excluded(ProgramType::Tracepoint, "switched off"));
    // A kernel without BTF has no trampolines, and with another kernel's BTF they would be attached to wrong functions.
    let by_file = options.btf.is_some().then(|| Refusal::excluded(ProgramType::Fentry, "not used with --btf"));
    let withheld = [ProgramType::Kprobe, ProgramType::Tracepoint].into_iter().filter(|_| reads == Reads::Typed);
    switched_off.into_iter().chain(by_file).chain(withheld.map(Refusal::by_lockdown)).collect()
}

/// Returns `None` if it is not chosen or fails. Then the hooks of the node see the probers' connections.
fn start_prober_sockets(
    ebpf: &mut Ebpf,
    walk: &mut Walk,
    options: &LoadOptions,
    choice: &mut ProberHooks,
) -> Option<ProberSockets> {
    if !choice.used {
        return None;
    }
    let started = ProberSockets::start(ebpf, walk, &options.probers);
    let refuse = |error: io::Error| {
        ProberSockets::end(walk);
        *choice = ProberHooks { used: false, reason: error.to_string() };
        // What tracer chose by itself, and cannot have, is not missing.
        if options.prober_hooks == ProberHooksWhen::Auto {
            walk.forget_refusals(Hook::SockOps);
        } else {
            walk.note_no_cgroup(Hook::SockOps, error);
        }
    };
    started.map_err(refuse).ok()
}

impl Loaded {
    /// Losses since the start, by place: events that did not fit into the ring, connections without an entry in a map, and
    /// events above the limit of a cgroup or of their connection.
    pub fn lost(&self) -> Vec<(&'static str, u64)> {
        let counters = [
            (Loss::RING, Counter::RingFull),
            (Loss::MAP, Counter::MapFull),
            (Loss::LISTEN, Counter::ListenHeld),
            (Loss::NAMESPACE, Counter::NamespaceHeld),
            (Loss::PROBER, Counter::ProberHeld),
            (Loss::LINK, Counter::LinkHeld),
            (Loss::CONNECTION, Counter::ConnectionHeld),
        ];
        counters.into_iter().map(|(place, counter)| (place, self.counter(counter))).collect()
    }

    /// Program runs that the kernel skipped since the start, by place: those of programs for attempts and links, and those of
    /// programs for namespaces. Reads a file for each program, so it must not be called for each batch.
    ///
    /// Programs that are attached but never called count as one skipped run, because the real number is unknown.
    pub fn missed(&mut self) -> Vec<(&'static str, u64)> {
        let silenced = switches::off().find(|switch| self.walk.has_form(switch.silences));
        self.missed.count(&mut self.ebpf, silenced).to_vec()
    }

    /// Returns the memory of the start to the kernel, and reads the kernel's symbols for the first drop. This takes 50 ms of a CPU,
    /// which the start needs.
    pub fn tidy(&mut self) {
        names::trim();
        self.names.read_ahead();
    }

    pub fn is_attached(&self, hook: Hook) -> bool {
        self.walk.is_attached(hook)
    }

    /// Starts or stops counting the use of ephemeral ports. Returns whether it starts now. Has no effect where a hook counts it
    /// that is always attached.
    pub fn count_ports(&mut self, wanted: bool) -> bool {
        let hook = Hook::PortUse;
        match (wanted, self.walk.is_attached(hook)) {
            (true, false) if self.walk.refusals(hook).is_empty() => _ = self.walk.retry(&mut self.ebpf, hook),
            (false, true) => self.walk.detach(hook),
            _ => return false,
        }
        self.status = self.walk.report();
        self.walk.is_attached(hook)
    }

    /// Use of ephemeral ports by process; `take` also resets the counters.
    pub fn port_use(&mut self, take: bool) -> Vec<(u32, PortUse)> {
        self.ports.read(take)
    }

    fn counter(&self, counter: Counter) -> u64 {
        self.stats.get(&(counter as u32), 0).map(|cpus| cpus.iter().sum()).unwrap_or(0)
    }

    /// Makes the programs skip this cgroup: its processes are no probers, although they have the name of one.
    pub fn skip_cgroup(&mut self, cgroup: u64) {
        if self.skipped_cgroups.insert(cgroup, 1, 0).is_err() {
            // The map is full, mostly of cgroups that are gone. Those that still connect are found again.
            let all: Vec<u64> = self.skipped_cgroups.keys().flatten().collect();
            all.iter().for_each(|cgroup| _ = self.skipped_cgroups.remove(cgroup));
            let _ = self.skipped_cgroups.insert(cgroup, 1, 0);
        }
    }

    /// Reports failed connects in the network namespace of a pod, until ten minutes have passed without another call for it.
    ///
    /// The first call attaches the program for it.
    pub fn watch_pod_connects(&mut self, netns: u32) {
        self.try_on_demand(Hook::SkErrorReport);
        let now = clock::boot_ns();
        for (recovered, _) in self.last_failed.extract_if(.., |_, last| now.saturating_sub(*last) > WATCH_NS) {
            let _ = self.failing_pods.remove(&recovered);
        }
        // A full map has hundreds of failing pods: this one is not watched.
        if self.last_failed.contains_key(&netns) || self.failing_pods.insert(netns, 0, 0).is_ok() {
            self.last_failed.insert(netns, now);
        }
    }

    /// From now on reports TLS ClientHellos that arrive at this port. [`Loaded::status`] shows whether this kernel can do this.
    ///
    /// The first call attaches the program for it. See [`Self::forget_tls`].
    pub fn watch_tls(&mut self, port: u16) {
        self.try_on_demand(Hook::CgroupSkb);
        let is_attached = self.walk.is_attached(Hook::CgroupSkb);
        if is_attached && (self.tls_ports.contains_key(&port) || self.tls_watch.insert(port, 0, 0).is_ok()) {
            self.tls_ports.insert(port, clock::boot_ns());
        }
    }

    /// Forgets the ports of which [`Self::watch_tls`] was not called for ten minutes. With the last one the program is
    /// detached, since it runs for every packet that a socket of the node gets.
    pub fn forget_tls(&mut self) {
        let now = clock::boot_ns();
        let mut forgotten = self.tls_ports.extract_if(.., |_, last| now.saturating_sub(*last) > WATCH_NS).peekable();
        if forgotten.peek().is_none() {
            return;
        }
        forgotten.for_each(|(port, _)| _ = self.tls_watch.remove(&port));
        if self.tls_ports.is_empty() {
            self.walk.detach(Hook::CgroupSkb);
            self.status = self.walk.report();
        }
    }

    fn try_on_demand(&mut self, hook: Hook) {
        if !self.walk.was_tried(hook) {
            self.walk.retry(&mut self.ebpf, hook);
            self.status = self.walk.report();
        }
    }

    /// From now on reads the first bytes of the answers to these processes: attaches to their cgroups. For a process in the root
    /// cgroup, these are the answers to all processes. A process with an unknown cgroup is skipped, and [`Loaded::status`] shows
    /// that.
    pub fn watch_answers(&mut self, pids: &[u32]) {
        let cgroups = pids.iter().map(|pid| (*pid, cgroup::of_process(*pid)));
        // A process that has exited gets no answers.
        let (found, lost): (Vec<_>, Vec<_>) =
            cgroups.filter(|(pid, of)| of.is_ok() || is_alive(*pid)).map(|(_, of)| of).partition(Result::is_ok);
        let folders: BTreeSet<Option<PathBuf>> = found.into_iter().flatten().collect();
        let refused = folders.into_iter().filter_map(|folder| self.watch_cgroup(folder).err()).collect::<Vec<_>>();
        for error in refused.into_iter().chain(lost.into_iter().filter_map(Result::err)) {
            self.walk.note_no_cgroup(Hook::CgroupAnswer, error);
        }
        self.status = self.walk.report();
    }

    /// Watches the sockets of these processes, if only the cgroups of probers are watched.
    pub fn watch_sockets(&mut self, pids: impl IntoIterator<Item = u32>) {
        if let Some(sockets) = &mut self.prober_sockets {
            sockets.watch_all(&mut self.ebpf, &mut self.walk, pids);
        }
    }

    /// Attaches the hooks of the node if the cgroup of a prober cannot be watched. Returns true if it did.
    pub fn retry_prober_sockets(&mut self) -> bool {
        let Some(sockets) = &mut self.prober_sockets else { return false };
        let (ebpf, walk) = (&mut self.ebpf, &mut self.walk);
        let Err(error) = sockets.retry(ebpf, walk) else { return false };
        // The verifier takes milliseconds, in which nothing would see the probers.
        NODE_HOOKS.iter().for_each(|hook| walk.prepare(ebpf, *hook));
        self.prober_sockets = None;
        ProberSockets::end(walk);
        NODE_HOOKS.iter().for_each(|hook| _ = walk.retry(ebpf, *hook));
        walk.note_no_cgroup(Hook::SockOps, error);
        self.status = walk.report();
        true
    }

    fn watch_cgroup(&mut self, folder: Option<PathBuf>) -> io::Result<()> {
        let file = match self.answer_cgroups.open(folder.as_deref()) {
            Ok(Some(file)) => file,
            Ok(None) => return Ok(()),
            // The cgroup is gone.
            Err(_) if folder.is_some() => return Ok(()),
            Err(error) => return Err(error),
        };
        let attach = || self.walk.attach_cgroup(&mut self.ebpf, Hook::CgroupAnswer, &file);
        self.answer_cgroups.add(&file, folder, attach).map(drop)
    }

    /// Retries hooks on functions of a module. Returns true if one is newly attached. It is cheap enough for every few seconds.
    /// [`Loaded::status`] shows a hook that the kernel refuses although its module is loaded now.
    pub fn retry_module_hooks(&mut self) -> bool {
        let mut new = false;
        for row in HOOKS.iter().filter(|r| matches!(r.when, When::ModuleLoaded(_))) {
            if !self.walk.is_attached(row.hook) {
                new |= self.walk.retry(&mut self.ebpf, row.hook);
            }
        }
        self.status = self.walk.report();
        new
    }

    /// The kernel's information about each program, by name.
    pub fn program_infos(&self) -> impl Iterator<Item = (&str, aya::programs::ProgramInfo)> {
        self.ebpf.programs().filter_map(|(name, program)| Some((name, program.info().ok()?)))
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

fn check_required(walk: &Walk) -> Result<(), EbpfError> {
    let is_lacking = |row: &&Row| row.required && !walk.is_attached(row.hook) && !walk.makes_needless(row);
    let Some(row) = HOOKS.iter().find(is_lacking) else { return Ok(()) };
    let refusals = walk.refusals(row.hook);
    if refusals.iter().all(Refusal::is_permission) {
        return Err(EbpfError::ProgramPermission(capabilities::missing_for_tracing()));
    }
    if refusals.iter().any(Refusal::is_lockdown) {
        return Err(EbpfError::Lockdown);
    }
    Err(EbpfError::RequiredHook { hook: row.hook.name(), reason: walk.explain(refusals) })
}
