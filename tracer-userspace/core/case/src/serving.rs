//! What tracer read of a target's server while an attempt waited for it.

use std::net::SocketAddr;

use crate::case::Case;
use crate::phrases::run_in;
use crate::waits;
use tracer_model::event::{Container, Pod, RedirectedTo, ServedConnection, ServerProcess, Serving, process_name};
use tracer_model::plural::counted;
use tracer_model::record::Command;

/// The readings while the attempt waited, oldest first.
pub fn readings<'a>(case: &Case<'a>) -> Vec<(u64, &'a Serving)> {
    let Some(from) = case.attempt.netns else { return Vec::new() };
    let all = case.node.targets.servings(from, case.attempt.flow.dst);
    all.filter(|(time, _)| case.attempt.overlaps(*time)).collect()
}

/// The same of the server that got the connection. The target's namespace may send it on to another listener, such as a
/// sidecar's: then the readings of that server, and where it listens.
pub fn readings_of_taker<'a>(case: &Case<'a>) -> (Vec<(u64, &'a Serving)>, Option<SocketAddr>) {
    let mut all = readings(case);
    // Several attempts may wait for the target, and each has readings of its own.
    let is_own = |it: &&RedirectedTo| {
        it.serving.connection.as_ref().is_some_and(|connection| connection.peer == case.attempt.flow.src)
    };
    let own = |it: &'a Serving| it.redirect.as_deref().filter(is_own);
    let to = all.iter().rev().find_map(|(_, it)| own(it)).map(|it| it.to);
    all.iter_mut().for_each(|(_, it)| *it = own(it).map_or(*it, |redirect| &redirect.serving));
    (all, to)
}

/// The target's end of this connection, by the last reading.
pub fn connection<'a>(case: &Case<'a>) -> Option<&'a ServedConnection> {
    own_connection(case, &readings(case))
}

/// The same by the last of these readings.
pub fn own_connection<'a>(case: &Case<'a>, readings: &[(u64, &'a Serving)]) -> Option<&'a ServedConnection> {
    let own =
        |(_, reading): &(u64, &'a Serving)| reading.connection.as_ref().filter(|it| it.peer == case.attempt.flow.src);
    readings.iter().rev().find_map(own)
}

/// The container of this process, by the cgroup in the last reading that has it.
pub fn container_of_process<'a>(case: &Case<'_>, pod: &'a Pod, pid: u32) -> Option<&'a Container> {
    let readings = readings(case);
    let mut processes = readings.iter().rev().flat_map(|(_, reading)| &reading.processes);
    let folder = processes.find_map(|it| it.cpu_cgroup.as_deref().filter(|_| it.pid == pid))?;
    let is_of = |it: &&Container| it.id.as_deref().is_some_and(|id| !id.is_empty() && folder.contains(id));
    pod.containers.iter().find(is_of)
}

/// "nginx (pid 7)", "nginx (pid 7) and 2 others"
pub fn name(processes: &[ServerProcess]) -> String {
    let Some(first) = processes.first() else { return "its process".to_owned() };
    let others = processes.len() - 1;
    let others = if others > 0 { format!(" and {}", counted(others as u64, "other")) } else { String::new() };
    process_name(&first.comm, first.pid) + &others
}

/// A clause about threads in state D, which nothing but the kernel can wake.
pub fn blocked(holder: &ServerProcess) -> Option<String> {
    let tasks = &holder.tasks;
    let function = tasks.blocked_in.as_deref();
    let what = match function {
        Some(function) => waits::describe(function).map(|what| format!(", which waits for {what}")).unwrap_or_default(),
        None => ", which waits for a disk or the like".to_owned(),
    };
    let place = function.map(|place| format!(", in {place} of the kernel")).unwrap_or_default();
    let threads = counted(tasks.blocked.into(), "thread");
    (tasks.blocked > 0).then(|| format!("{threads} of it in state D{what}{place}"))
}

/// The same of the processes of a reading, if all of their threads are in that state, in a known function.
pub fn all_blocked(reading: &Serving) -> Option<String> {
    let first = reading.processes.first()?;
    let words = blocked(first)?;
    (first.tasks.blocked_in.is_some() && is_blocked(reading))
        .then(|| format!("{}: {words}", name(std::slice::from_ref(first))))
}

/// "nginx (pid 7) has crashed, and the kernel writes its core dump". Without a pid, of any process that serves.
pub fn crashed(reading: &Serving, pid: Option<u32>) -> Option<String> {
    let mut own = reading.processes.iter().filter(|it| pid.is_none_or(|pid| pid == it.pid));
    let server = own.find(|it| it.core_dumping)?;
    Some(format!("{} has crashed, and the kernel writes its core dump", process_name(&server.comm, server.pid)))
}

/// "nginx (pid 7)"
pub fn first_name(reading: &Serving) -> String {
    name(&reading.processes[..reading.processes.len().min(1)])
}

/// "0.0.0.0:15006 and not on port 8080: a transparent proxy (TPROXY) …" if the connection waits at another port.
pub fn other_queue(case: &Case<'_>) -> Option<String> {
    let connection = connection(case).filter(|it| !it.waits_at.is_empty())?;
    Some(other_port(case, &places(connection), "a transparent proxy (TPROXY) or a program at sk_lookup"))
}

/// "10.88.0.2:15006 and not on port 8080: the address translation of its network namespace sends it there"
pub fn other_port(case: &Case<'_>, place: &str, by: &str) -> String {
    format!("{place} and not on port {}: {by} sends it there", case.attempt.flow.dst.port())
}

/// An inspection takes less: it began after an event if its answer came this long after it.
pub const INSPECTION_NS: u64 = 100_000_000;

/// Commands that show where an address translation led the connection.
pub fn show_translation(case: &Case<'_>) -> [Command; 3] {
    let conntrack = format!("conntrack -L -p tcp --dport {}", case.attempt.flow.dst.port());
    [conntrack, "iptables-save -t nat".to_owned(), "nft list ruleset".to_owned()]
        .map(|command| run_in(case, case.attempt.netns, command))
}

/// "0.0.0.0:15006"
pub fn places(connection: &ServedConnection) -> String {
    connection.waits_at.iter().map(ToString::to_string).collect::<Vec<_>>().join(" or ")
}

/// All threads of the server are in state D. One reading does not show for how long.
pub fn is_blocked(reading: &Serving) -> bool {
    let blocked = |it: &ServerProcess| !it.tasks.incomplete && it.tasks.count > 0 && it.tasks.blocked == it.tasks.count;
    !reading.processes.is_empty() && reading.processes.iter().all(blocked)
}
