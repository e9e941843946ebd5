//! A server that a signal, a debugger or its cgroup halts: by two readings of it.

use std::borrow::Cow;

use serde_json::json;

use crate::accept_queue::{dropped_request, fullest_queue, of_queue};
use crate::case::{Case, in_handshake};
use crate::evidence::{evidence_of, of_drop, of_state};
use crate::giving_up::taken_and_silent;
use crate::phrases::ms;
use crate::serving::{name, own_connection, readings_of_taker};
use tracer_model::event::{ListenQueue, ServerProcess, Serving};
use tracer_model::record::{Command, Evidence, Remediation};
use tracer_model::shell;

/// A part of the attempt in which the server was halted.
pub struct Pause<'a> {
    pub halt: Halt<'a>,
    pub servers: &'a [ServerProcess],
    /// The time between readings that found it halted, if it did not run between them.
    pub for_ns: u64,
    pub last: u64,
}

/// How long the server was halted before the end, by pairs of readings between which it did not run.
pub fn pause<'a>(case: &Case<'a>) -> Option<Pause<'a>> {
    let (ended, _) = case.attempt.ended?;
    let (mut readings, _) = readings_of_taker(case);
    let holder = own_connection(case, &readings)?.pid;
    readings.retain(|(time, _)| *time <= ended);
    let is_halted = |pair: &&[(u64, &Serving)]| {
        pair.iter().all(|(_, it)| halt(it, holder).is_some()) && has_rested(pair[0].1, pair[1].1, holder)
    };
    let pairs: Vec<_> = readings.windows(2).filter(is_halted).collect();
    let (last, reading) = pairs.last()?[1];
    let for_ns = pairs.iter().map(|pair| pair[1].0.saturating_sub(pair[0].0)).sum();
    Some(Pause { halt: halt(reading, holder)?, servers: servers(reading, holder), for_ns, last })
}

impl Pause<'_> {
    /// "nginx (pid 7) was frozen by its cgroup for at least 900.0 ms"
    pub fn words(&self) -> String {
        let how = self.halt.description().replacen("is ", "was ", 1);
        format!("{} {how} for at least {}", name(self.servers), ms(self.for_ns))
    }

    pub fn evidence(&self) -> Evidence {
        let (hook, place) = self.halt.evidence();
        let pids: Vec<u32> = self.servers.iter().map(|it| it.pid).collect();
        let fields = json!({ "pids": pids, "halted_ms": self.for_ns / 1_000_000 });
        evidence_of(hook, self.last, format!("{}{place}", self.words()), fields)
    }
}

/// How many readings must agree.
pub const MIN_READINGS: usize = 2;

/// What shows that the target is silent.
pub struct Silence {
    pub end: Evidence,
    /// When the silence ended, if the last reading must be near that.
    pub until: Option<u64>,
}

/// What shows that the target is silent: a full accept queue, a dropped request, or a request without an answer.
pub fn silence(case: &Case<'_>) -> Option<Silence> {
    if in_handshake(case) {
        let (time, _, listener) = fullest_queue(case)?;
        let dropped = case.settled || case.attempt.queue_full(ListenQueue::Accept).is_some();
        return dropped.then(|| Silence { end: of_queue(time, listener), until: None });
    }
    if let Some((time, drop)) = dropped_request(case) {
        return Some(Silence { end: of_drop(time, drop), until: case.attempt.ended.map(|(ended, _)| ended) });
    }
    let ended = taken_and_silent(case)?;
    Some(Silence { end: of_state(ended, case.attempt.last.as_ref()?), until: Some(ended) })
}

/// The last reading before the attempt.
pub fn reading_before<'a>(case: &Case<'a>) -> Option<(u64, &'a Serving)> {
    let mut all = case.node.targets.servings(case.attempt.netns?, case.attempt.flow.dst).rev();
    all.find(|(time, _)| *time < case.attempt.started)
}

/// A process of the server ran between two readings.
pub fn has_run(before: &Serving, after: &Serving, holder: Option<u32>) -> bool {
    let same = |it: &ServerProcess| before.processes.iter().find(|old| old.pid == it.pid).map(|old| old.tasks.ran_ns);
    servers(after, holder).iter().any(|it| it.tasks.ran_ns.zip(same(it).flatten()).is_some_and(|(now, old)| now > old))
}

/// No process of the server ran between two readings.
pub fn has_rested(before: &Serving, after: &Serving, holder: Option<u32>) -> bool {
    let same = |it: &ServerProcess| before.processes.iter().find(|old| old.pid == it.pid)?.tasks.ran_ns;
    servers(after, holder).iter().all(|it| it.tasks.ran_ns.is_some() && it.tasks.ran_ns == same(it))
}

/// How long before the end the last reading may be. A process that was halted only earlier ran again, and did not
/// answer.
pub fn max_gap_ns(case: &Case<'_>) -> u64 {
    1_000_000_000.max(case.attempt.lasted().unwrap_or_default() / 4)
}

/// What keeps a process from running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Halt<'a> {
    /// By this file, and by the cgroup above its own that was frozen.
    Frozen(&'a str, Option<&'a str>),
    Stopped,
    Traced,
}

/// The processes that can answer: the one that alone holds the accepted connection, else all that listen.
pub fn servers(reading: &Serving, holder: Option<u32>) -> &[ServerProcess] {
    let processes = &reading.processes;
    let at = processes.iter().position(|it| holder == Some(it.pid));
    at.map_or(processes, |at| std::slice::from_ref(&processes[at]))
}

/// What keeps all of these processes from running, as the first of them shows it. Absent if one of them can run.
pub fn halt(reading: &Serving, holder: Option<u32>) -> Option<Halt<'_>> {
    let halts: Option<Vec<Halt<'_>>> = servers(reading, holder).iter().map(halt_of).collect();
    halts.filter(|_| !reading.incomplete)?.first().copied()
}

/// No process of the server can run.
pub fn is_halted(reading: &Serving) -> bool {
    halt(reading, reading.connection.as_ref().and_then(|it| it.pid)).is_some()
}

/// What keeps this process from running; `None` if a thread can run, or if not all threads were read.
pub fn halt_of(process: &ServerProcess) -> Option<Halt<'_>> {
    let tasks = &process.tasks;
    let all = |halted: u32| tasks.count > 0 && halted == tasks.count && !tasks.incomplete;
    match &process.frozen {
        Some(file) => Some(Halt::Frozen(file, process.frozen_above.as_deref())),
        None if all(tasks.stopped) => Some(Halt::Stopped),
        None if all(tasks.stopped + tasks.traced) => Some(Halt::Traced),
        None => None,
    }
}

impl Halt<'_> {
    /// "is frozen by its cgroup": follows the name of the process.
    pub fn description(self) -> Cow<'static, str> {
        match self {
            Self::Frozen(_, None) => "is frozen by its cgroup".into(),
            Self::Frozen(_, Some(above)) => format!("is frozen by a cgroup above its own ({above})").into(),
            Self::Stopped => "is stopped by a signal".into(),
            Self::Traced => "is held by a debugger".into(),
        }
    }

    /// Where the state was read: the name of the file, and its path or its content.
    pub fn evidence(self) -> (&'static str, String) {
        match self {
            Self::Frozen(file, _) if file.ends_with("freezer.state") => ("freezer.state", format!(" ({file})")),
            Self::Frozen(file, _) => ("cgroup.events", format!(" ({file})")),
            Self::Stopped => ("proc", " (all its threads in state T)".to_owned()),
            Self::Traced => ("proc", " (all its threads in state t or T)".to_owned()),
        }
    }

    /// How to find the culprit, in words.
    pub const fn find_culprit(self) -> &'static str {
        match self {
            Self::Frozen(_, None) => {
                "find who paused it: a checkpoint, a backup, a debugger or a person (ctr tasks pause, docker pause)"
            }
            Self::Frozen(_, Some(_)) => "find who froze it: systemctl freeze, a checkpoint, a backup or a person",
            Self::Stopped => "find out who sent SIGSTOP or SIGTSTP: a script, job control or a debugger",
            Self::Traced => "find who debugged it",
        }
    }

    /// How to let these processes run again.
    pub fn fix(self, case: &Case<'_>, processes: &[ServerProcess]) -> Remediation {
        let pids = processes.iter().map(|it| it.pid.to_string()).collect::<Vec<_>>().join(" ");
        match self {
            Self::Frozen(file, above) => {
                let folder = || file.rsplit_once('/').map_or(file, |(folder, _)| folder);
                let folder = shell::cgroup(above.unwrap_or_else(folder));
                let thaw = if file.ends_with("freezer.state") {
                    format!("echo THAWED > {folder}/freezer.state")
                } else {
                    format!("echo 0 > {folder}/cgroup.freeze")
                };
                if above.is_some() {
                    let text = format!(
                        "Thaw that cgroup. Then {}. Resuming the container does not help. If the process stays frozen, a cgroup further up is frozen, too",
                        self.find_culprit()
                    );
                    return Remediation::from(text).run([Command::on_node(thaw)]);
                }
                let text = format!(
                    "Resume the container by its runtime, or by its cgroup. If that does not help, a cgroup above it is frozen, too. Then {}",
                    self.find_culprit()
                );
                let probed = case.matched.probed_container().and_then(|(_, container)| container.id.clone());
                let container = shell::plain(probed.as_deref().unwrap_or_default(), "CONTAINER-ID");
                Remediation::from(text)
                    .run([format!("ctr -n k8s.io tasks resume {container}"), thaw].map(Command::on_node))
            }
            Self::Stopped => Remediation::from(format!("Resume the process. Then {}", self.find_culprit()))
                .run([Command::on_node(format!("kill -CONT {pids}"))]),
            Self::Traced => {
                let first = processes.first().map(|it| it.pid).unwrap_or_default();
                let show = Command::on_node(format!("grep TracerPid /proc/{first}/status"));
                Remediation::from("Detach the debugger. Its pid is TracerPid").run([show])
            }
        }
    }
}
