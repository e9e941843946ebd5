//! How long the tasks of a container could not run, between two readings, and what they waited for.

use serde_json::json;

use crate::evidence::evidence_of;
use crate::serving::name;
use crate::waits;
use tracer_model::event::{Pressure, ServerProcess, ServerTasks, Serving};
use tracer_model::record::{Command, Evidence, Remediation};
use tracer_model::shell;

/// The least time between the first and the last reading.
pub(crate) const MIN_SPAN_NS: u64 = 200_000_000;

/// What a task waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    Cpu,
    Io,
    Memory,
}

/// How long nothing could run.
#[derive(Clone, Debug)]
pub struct Stall<'a> {
    pub resource: Resource,
    /// How long no task could run, of how much time between two readings, nanoseconds.
    pub for_ns: u64,
    pub of_ns: u64,
    /// When the second reading was.
    pub at: u64,
    /// The cgroup that shows the stall by its pressure. Absent if threads show it.
    pub cgroup: Option<&'a str>,
    /// The share of that time in which some task of the node waited for the same resource, per cent.
    pub node: Option<u64>,
    /// The share of that time in which the hypervisor ran others on the node's processors, per cent.
    pub stolen: Option<u64>,
    /// How often limits of memory kept tasks from running, by the names in `memory.events`.
    pub memory_events: Vec<(&'a str, u64)>,
    /// The kernel function in which a thread waits for a disk.
    pub blocked_in: Option<&'a str>,
    /// The server itself waited for the resource, and did not sleep.
    pub server_waited: bool,
}

/// For at least half of the time no task of the container ran and some waited. The pressure of its cgroup shows that;
/// if the kernel has none, the threads of the processes that serve. `pid` has accepted the connection. Of many
/// processes tracer reads some, and their pressure is that of all.
///
/// The pressure of the disk lacks waits outside of `io_schedule`: for a network or a frozen file system, or for a lock of
/// one. So threads that are all in state D and never run count, too, if they wait in a function of a file system.
pub fn stall<'a>(readings: &[(u64, &'a Serving)], pid: Option<u32>) -> Option<(Stall<'a>, &'a Serving)> {
    let found: Vec<_> = readings.iter().filter(|(_, reading)| !reading.processes.is_empty()).collect();
    let ((began, first), (at, last)) = (found.first()?, found.last()?);
    let of_ns = at.saturating_sub(*began);
    if of_ns < MIN_SPAN_NS || last.processes.iter().any(|it| it.frozen.is_some() || it.core_dumping) {
        return None;
    }
    let node = Waits::between(first, last, NODE);
    let own = last.pressure.iter().filter(|it| it.of != NODE);
    let own: Vec<_> = own.filter_map(|it| Some((Waits::between(first, last, &it.of)?, it.of.as_str()))).collect();
    let by_pressure = own.iter().filter_map(|(waits, of)| {
        let (resource, for_ns) = waits.longest_full()?;
        Some((resource, for_ns, Some(*of)))
    });
    let longest = by_pressure.max_by_key(|(_, for_ns, _)| *for_ns).filter(|(_, for_ns, _)| *for_ns >= of_ns / 2);
    let threads = Threads::of(found.iter().map(|(_, reading)| *reading), pid);
    // `full` of the CPU is counted since 5.13.
    let not_counted = |resource: &Resource| own.iter().all(|(waits, _)| waits.full(*resource).is_none());
    let blocked_in = last.processes.iter().find_map(|it| it.tasks.blocked_in.as_deref());
    // State D alone is no wait for a disk: a parent in vfork() is in it, too.
    let node_io = node.as_ref().and_then(|node| node.some(Resource::Io));
    let is_of_disk = || match blocked_in {
        Some(function) => waits::is_of_file_system(function) || node_io.is_some_and(|ns| ns >= of_ns / 2),
        None => node_io.is_none_or(|ns| ns >= of_ns / 10),
    };
    let by_threads = || {
        let threads = threads.as_ref()?;
        let is_stuck = |resource: &Resource| *resource == Resource::Io && threads.hardly_ran(of_ns);
        let (resource, for_ns) = threads.stall(of_ns).filter(|(it, _)| not_counted(it) || is_stuck(it))?;
        (resource != Resource::Io || is_of_disk()).then_some((resource, for_ns, None))
    };
    let (resource, for_ns, cgroup) = longest.or_else(by_threads)?;
    let server_waited = threads.is_some_and(|it| it.none_slept() || resource == Resource::Cpu && it.never_ran(of_ns));
    // The node's pressure lacks the same waits.
    let node = node.filter(|_| cgroup.is_some() || not_counted(&resource));
    let node = node.and_then(|node| Some(node.some(resource)?.saturating_mul(100) / of_ns));
    let stolen = Waits::both(first, last, NODE).filter(|_| resource == Resource::Cpu).and_then(|(before, after)| {
        Some(after.steal_us?.checked_sub(before.steal_us?)?.saturating_mul(100_000) / of_ns)
    });
    let memory_events = cgroup.filter(|_| resource == Resource::Memory).and_then(|of| Waits::both(first, last, of));
    let memory_events = memory_events.map_or_else(Vec::new, |(before, after)| {
        let rose =
            |(name, now): (&'a String, &u64)| Some((name.as_str(), now.checked_sub(*before.memory_events.get(name)?)?));
        after.memory_events.iter().filter_map(rose).filter(|(_, more)| *more > 0).collect()
    });
    let stall = Stall {
        resource,
        for_ns: for_ns.min(of_ns),
        of_ns,
        at: *at,
        cgroup,
        node,
        stolen: stolen.filter(|percent| *percent >= LEAST_STOLEN),
        memory_events,
        blocked_in,
        server_waited,
    };
    (for_ns >= of_ns / 2).then_some((stall, *last))
}

/// The pressure of the whole node, in place of a cgroup.
pub const NODE: &str = "node";

/// Less of it, per cent, is usual on a shared host.
const LEAST_STOLEN: u64 = 10;

/// How long tasks of a cgroup waited between two readings, nanoseconds: some of them, or all that did not sleep. The
/// kernel does not count tasks that sleep (`test_states`, kernel/sched/psi.c), such as a server that waits for a lock.
pub struct Waits {
    some: [Option<u64>; 3],
    full: [Option<u64>; 3],
}

const ALL: [Resource; 3] = [Resource::Cpu, Resource::Io, Resource::Memory];

impl Waits {
    fn both<'a>(first: &'a Serving, last: &'a Serving, of: &str) -> Option<(&'a Pressure, &'a Pressure)> {
        let find = |reading: &'a Serving| reading.pressure.iter().find(|it| it.of == of);
        find(first).zip(find(last))
    }

    fn between(first: &Serving, last: &Serving, of: &str) -> Option<Self> {
        let (before, after) = Self::both(first, last, of)?;
        let since = |get: fn(&Pressure, Resource) -> Option<u64>| {
            ALL.map(|it| Some(get(after, it)?.checked_sub(get(before, it)?)?.saturating_mul(1000)))
        };
        Some(Self { some: since(|it, of| of.totals(it).0), full: since(|it, of| of.totals(it).1) })
    }

    fn some(&self, resource: Resource) -> Option<u64> {
        self.some[resource as usize]
    }

    fn full(&self, resource: Resource) -> Option<u64> {
        self.full[resource as usize]
    }

    /// The resource that all tasks waited for longest.
    fn longest_full(&self) -> Option<(Resource, u64)> {
        ALL.into_iter().zip(self.full).filter_map(|(it, ns)| Some((it, ns?))).max_by_key(|(_, ns)| *ns)
    }
}

/// The threads of the server at each reading: of the process that has accepted the connection, else of all that listen.
pub struct Threads<'a> {
    readings: Vec<Vec<&'a ServerTasks>>,
    /// How long they ran, and waited in the run queue, between the first and the last reading, nanoseconds. Absent if
    /// not known.
    ran: Option<u64>,
    waited: Option<u64>,
}

impl<'a> Threads<'a> {
    /// `None` if the processes are not the same at each reading, or some of them or of their threads were not read.
    fn of(all: impl Iterator<Item = &'a Serving>, pid: Option<u32>) -> Option<Self> {
        let (mut pids, mut readings) = (None, Vec::new());
        for reading in all {
            let own: Vec<_> = reading.processes.iter().filter(|it| pid.is_none_or(|pid| it.pid == pid)).collect();
            let now: Vec<u32> = own.iter().map(|it| it.pid).collect();
            let others_may_serve = reading.incomplete && pid.is_none();
            if now.is_empty() || others_may_serve || own.iter().any(|it| it.tasks.incomplete || it.tasks.count == 0) {
                return None;
            }
            if *pids.get_or_insert_with(|| now.clone()) != now {
                return None;
            }
            readings.push(own.iter().map(|it| &it.tasks).collect::<Vec<_>>());
        }
        let (first, last) = (readings.first()?, readings.last()?);
        // The time of a thread that ended is no longer in the total.
        let same = total(first, |it| Some(it.count.into())) == total(last, |it| Some(it.count.into()));
        let since =
            |get: fn(&ServerTasks) -> Option<u64>| total(last, get)?.checked_sub(total(first, get)?).filter(|_| same);
        let (ran, waited) = (since(|it| it.ran_ns), since(|it| it.waited_ns));
        Some(Self { readings, ran, waited })
    }

    fn always(&self, fits: fn(&ServerTasks) -> bool) -> bool {
        self.readings.iter().all(|tasks| tasks.iter().any(|it| fits(it)))
    }

    /// At each reading all threads were ready to run, or waited for a disk.
    fn none_slept(&self) -> bool {
        self.readings.iter().flatten().all(|it| it.runnable.saturating_add(it.blocked) == it.count)
    }

    /// At each reading a thread was ready to run, and none ran. A thread that the request woke would be among those.
    fn never_ran(&self, of_ns: u64) -> bool {
        self.always(|it| it.runnable > 0) && self.hardly_ran(of_ns)
    }

    fn hardly_ran(&self, of_ns: u64) -> bool {
        self.ran.is_some_and(|ran| ran <= of_ns / 100)
    }

    /// What the threads waited for, and how long. A thread that runs is in state R, too, so only the time in the run
    /// queue counts. For the disk there is no such time, so no thread may have slept.
    fn stall(&self, of_ns: u64) -> Option<(Resource, u64)> {
        let idle = of_ns.saturating_sub(self.ran?);
        if self.never_ran(of_ns) {
            // The kernel adds the time in the run queue when the thread leaves it (`sched_info_arrive`,
            // kernel/sched/stats.h), so it is not in the total yet.
            return Some((Resource::Cpu, idle));
        }
        if self.always(|it| it.runnable > 0) {
            let count = total(self.readings.last()?, |it| Some(it.count.into()))?;
            // All threads may have waited at the same time.
            return Some((Resource::Cpu, idle.min(self.waited?.checked_div(count)?)));
        }
        (self.none_slept() && self.always(|it| it.blocked > 0)).then_some((Resource::Io, idle))
    }
}

fn total(tasks: &[&ServerTasks], get: fn(&ServerTasks) -> Option<u64>) -> Option<u64> {
    tasks.iter().try_fold(0_u64, |sum, it| Some(sum.saturating_add(get(it)?)))
}

impl Resource {
    /// "none of its tasks could run: they waited for …"
    const fn words(self) -> &'static str {
        match self {
            Self::Cpu => "a processor",
            Self::Io => "the disk or a network file system",
            Self::Memory => "memory",
        }
    }

    const fn file(self) -> &'static str {
        match self {
            Self::Cpu => "cpu.pressure",
            Self::Io => "io.pressure",
            Self::Memory => "memory.pressure",
        }
    }

    /// What to do about tasks that wait for this.
    pub fn fix(self, servers: &[ServerProcess]) -> Remediation {
        let pods = || Command::in_cluster("kubectl top pod -A");
        match self {
            Self::Cpu => Remediation::from(
                "Find what takes the processors: the container itself, if nr_throttled in cpu.stat of its cgroup grows, or its neighbours. Raise its CPU limit or request, or move a neighbour. A longer timeoutSeconds only hides it",
            )
            .run(show_throttling(servers))
            .run([Command::in_cluster("kubectl top node"), pods()]),
            Self::Io => Remediation::from(
                "Find what uses the disk, what the tasks wait for, and whether a network file system hangs. Move the log or the volume off that disk, or raise its limits",
            )
            .run([Command::on_node("iostat -x 1 3")])
            .run(waits::show(servers))
            .run([Command::on_node("nfsstat -c")]),
            Self::Memory => Remediation::from(
                "Raise the memory limit of the container, or let it use less: compare memory.current with memory.max and memory.high in its cgroup. If the node itself lacks memory, find who uses it",
            )
            .run([Command::on_node("free -m"), pods()]),
        }
    }

    /// Totals of `some` and `full`.
    const fn totals(self, pressure: &Pressure) -> (Option<u64>, Option<u64>) {
        match self {
            Self::Cpu => (pressure.cpu_us, pressure.cpu_full_us),
            Self::Io => (pressure.io_us, pressure.io_full_us),
            Self::Memory => (pressure.memory_us, pressure.memory_full_us),
        }
    }
}

/// Shows nr_throttled of the cgroup of these processes, if it is known.
pub(crate) fn show_throttling(servers: &[ServerProcess]) -> Option<Command> {
    let cgroup = servers.iter().find_map(|it| it.cpu_cgroup.as_deref())?;
    Some(Command::on_node(format!("cat {}/cpu.stat", shell::cgroup(cgroup))))
}

/// Seconds with two decimals.
pub fn seconds(ns: u64) -> String {
    format!("{:.2} s", ns as f64 / 1e9)
}

impl Stall<'_> {
    /// The tasks could not run since their CPU limit was used up. The kernel counts that as pressure, too (throttled tasks
    /// stay runnable), but no neighbour is to blame: that is the cause `cpu_throttled`.
    pub fn is_throttling(&self, throttled_us: u64) -> bool {
        self.resource == Resource::Cpu && throttled_us.saturating_mul(1000) >= self.for_ns / 2
    }

    /// "for 1.90 s of 2.00 s: they waited for a processor", with what the tasks did.
    pub fn describe(&self) -> String {
        let place = self.blocked_in.filter(|_| self.resource == Resource::Io).map(|it| format!(" ({it})"));
        format!(
            "for {} of {} {}: they waited for {}{}",
            seconds(self.for_ns),
            seconds(self.of_ns),
            if self.server_waited { "none of its tasks could run" } else { "none of its tasks ran and some waited" },
            self.resource.words(),
            place.unwrap_or_default()
        )
    }

    /// How much tasks of the node waited meanwhile, as a clause.
    pub fn on_node(&self) -> String {
        let waited = self.node.map(|it| {
            format!("; on the node tasks waited for {} {} % of that time", self.resource.words(), it.min(100))
        });
        let stolen = self.stolen.map(|it| format!("; the hypervisor ran others for {it} % of that time (steal)"));
        waited.into_iter().chain(stolen).collect()
    }

    /// "; memory.events: max 40, oom_kill 1"
    pub fn events(&self) -> String {
        let all: Vec<String> = self.memory_events.iter().map(|(name, more)| format!("{name} {more}")).collect();
        if all.is_empty() { String::new() } else { format!("; memory.events: {}", all.join(", ")) }
    }

    pub fn evidence(&self, reading: &Serving) -> Evidence {
        let (hook, of) = match self.cgroup {
            Some(cgroup) => (self.resource.file(), cgroup.to_owned()),
            None => ("proc", name(&reading.processes)),
        };
        let ms = |ns: u64| ns / 1_000_000;
        let fields = json!({ "stalled_ms": ms(self.for_ns), "of_ms": ms(self.of_ns), "node_percent": self.node, "steal_percent": self.stolen, "blocked_in": self.blocked_in });
        evidence_of(hook, self.at, format!("{of}: {}{}", self.describe(), self.events()), fields)
    }
}
