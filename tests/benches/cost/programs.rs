//! Nanoseconds per program run, by the kernel's own statistics (`kernel.bpf_stats_enabled`) during untracked
//! connections. The numbers are from `/proc/PID/fdinfo` of tracer, the names from the kernel. They
//! include the cost of reading the clock: 6.18 in a virtual machine charges 88 ns for a program of five instructions.

use std::collections::BTreeMap;
use std::fs;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use aya::programs::loaded_programs;
use nix::unistd::Pid;
use serde_json::json;

use super::report::Row;
use super::stage::Stage;
use super::subject::Subject;
use super::{PROBER, PROBER_HOOKS, Plan, UNTRACKED};

const SWITCH: &str = "/proc/sys/kernel/bpf_stats_enabled";

/// Switches the kernel's statistics on or off, and restores the setting on drop.
pub(super) struct Statistics(String);

impl Statistics {
    pub(super) fn set(on: bool) -> Result<Self> {
        let before = fs::read_to_string(SWITCH).with_context(|| format!("read {SWITCH}"))?;
        fs::write(SWITCH, if on { "1" } else { "0" }).with_context(|| format!("write {SWITCH}"))?;
        Ok(Self(before))
    }
}

impl Drop for Statistics {
    fn drop(&mut self) {
        let _ = fs::write(SWITCH, self.0.trim());
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Runs {
    count: u64,
    ns: u64,
}

/// A row with the sum for each connection, and a row for each program that ran.
pub(super) fn rows(stage: &Stage, plan: Plan) -> Result<Vec<Row>> {
    let _statistics = Statistics::set(true)?;
    let mut rows = case(stage, plan, UNTRACKED, "untracked", &[])?;
    // Only the sum for a prober's own connections, because other connections are far more frequent.
    rows.push(case(stage, plan, PROBER, "prober's", &[])?.swap_remove(0));
    let _prober = stage.prober_in_cgroup()?;
    rows.extend(case(stage, plan, UNTRACKED, "untracked --prober-hooks", PROBER_HOOKS)?);
    Ok(rows)
}

fn case(stage: &Stage, plan: Plan, comm: &str, name: &str, flags: &[&str]) -> Result<Vec<Row>> {
    let tracer = Subject::start(stage, "attach", flags)?;
    thread::sleep(Duration::from_millis(300));
    let before = programs(tracer.pid())?;
    let made = stage.load(comm, plan.seconds)?.finish()?;
    let after = programs(tracer.pid())?;
    let names = names();
    tracer.stop()?;
    let ran: Vec<(String, Runs)> = after
        .iter()
        .map(|(id, now)| {
            (names.get(id).cloned().unwrap_or_else(|| format!("program {id}")), since(before.get(id), *now))
        })
        .filter(|(_, runs)| runs.count > 0)
        .collect();
    Ok(case_rows(name, made.connections, ran))
}

fn since(before: Option<&Runs>, now: Runs) -> Runs {
    let before = before.copied().unwrap_or_default();
    Runs { count: now.count.saturating_sub(before.count), ns: now.ns.saturating_sub(before.ns) }
}

fn case_rows(name: &str, connections: f64, mut ran: Vec<(String, Runs)>) -> Vec<Row> {
    ran.sort_by_key(|(_, runs)| std::cmp::Reverse(runs.ns));
    let (ns, count) = ran.iter().fold((0, 0), |(ns, count), (_, runs)| (ns + runs.ns, count + runs.count));
    let sum = Row::new(format!("programs, per {name} connection"), ns as f64 / connections, "ns");
    let detail = format!(
        "{:.1} runs of {} programs, {:.0} ns each",
        count as f64 / connections,
        ran.len(),
        ns as f64 / count as f64
    );
    let each = ran.into_iter().map(|(program, runs)| {
        let share = format!("{:.2} runs per connection", runs.count as f64 / connections);
        let data = json!({"run_cnt": runs.count, "run_time_ns": runs.ns});
        Row::new(format!("  {program}"), runs.ns as f64 / runs.count as f64, "ns/run").detail(share).data(data)
    });
    std::iter::once(sum.detail(detail)).chain(each).collect()
}

/// The BPF programs that a process has open.
fn programs(pid: Pid) -> Result<BTreeMap<u64, Runs>> {
    let directory = format!("/proc/{pid}/fdinfo");
    let entries = fs::read_dir(&directory).with_context(|| format!("read {directory}"))?;
    // The process may close a descriptor meanwhile.
    let texts = entries.flatten().filter_map(|entry| fs::read_to_string(entry.path()).ok());
    Ok(texts.filter_map(|text| program(&text)).collect())
}

/// Id and runs, if the descriptor is a program.
fn program(fdinfo: &str) -> Option<(u64, Runs)> {
    let field = |name: &str| {
        let line = fdinfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|value| value.trim().parse::<u64>().ok())
    };
    Some((field("prog_id")?, Runs { count: field("run_cnt")?, ns: field("run_time_ns")? }))
}

/// Names of programs by id: their first 15 bytes.
fn names() -> BTreeMap<u64, String> {
    let loaded = loaded_programs().flatten();
    loaded.filter_map(|program| Some((program.id().into(), program.name_as_str()?.to_owned()))).collect()
}
