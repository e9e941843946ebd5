//! The cost of other tools that see connections: those of Debian's `bpftrace` and `libbpf-tools` that run on this
//! kernel. Rounds with and without the tool alternate.

use std::fs::{self, File};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tracer_testbed::net::die_with_parent;
use tracer_testbed::proc::Killed;
use tracer_testbed::watcher::without_settings;
use tracer_tests::stats::Sample;

use super::report::{Row, spread};
use super::stage::{Load, Made, Stage};
use super::subject::{cpu_seconds_of, memory_of};
use super::throughput::{SETTLE, alternate, ratios, rounds, steady_load};
use super::{PROBER, PROBER_HOOKS, Plan};

const PATIENCE: Duration = Duration::from_secs(20);

/// The name of each tool and its command. Only flags, or nothing: tracer.
const PEERS: [(&str, &[&str]); 8] = [
    ("tracer", &[]),
    ("tracer --prober-hooks --no-syscall-hooks", PROBER_HOOKS),
    ("bpftrace, nothing done", &["bpftrace", "-e", "tracepoint:sock:inet_sock_set_state { }"]),
    (
        "bpftrace, each connect printed",
        &[
            "bpftrace",
            "-e",
            "tracepoint:sock:inet_sock_set_state /args->newstate == 2/ { printf(\"%d %s %s %d\\n\", pid, comm, ntop(args->daddr), args->dport); }",
        ],
    ),
    ("bpftrace's tcplife.bt", &["tcplife.bt"]),
    ("bpftrace's tcpconnect.bt", &["tcpconnect.bt"]),
    ("libbpf-tools' tcplife", &["tcplife"]),
    ("libbpf-tools' tcpstates", &["tcpstates"]),
];

/// One round with a tool.
struct Round {
    made: Made,
    /// Processor time of the tool itself for each connection.
    own_us: f64,
    anonymous_mib: f64,
    file_mib: f64,
    lost: f64,
}

/// A row for each tool that runs here.
pub(super) fn rows(stage: &Stage, plan: Plan) -> Result<Vec<Row>> {
    let _prober = stage.prober_in_cgroup()?;
    let mut load = steady_load(stage)?;
    let mut rows = Vec::new();
    for (name, command) in PEERS {
        match row(stage, &mut load, plan, name, command) {
            Ok(row) => rows.push(row),
            Err(error) => eprintln!("{name}: not measured: {error:#}"),
        }
    }
    Ok(rows)
}

fn row(stage: &Stage, load: &mut Load, plan: Plan, name: &str, command: &[&str]) -> Result<Row> {
    // Fails early if the tool does not run here.
    round(stage, load, plan, command)?;
    let (without, with) = alternate(load, plan, |load| round(stage, load, plan, command))?;
    let rates = ratios(with.iter().map(|round| &round.made), &without, |made| made.per_second);
    let sample = |of: fn(&Round) -> f64| Sample::new(with.iter().map(of));
    let cpu = [sample(|round| round.made.cpu_us), Sample::new(without.iter().map(|made| made.cpu_us))];
    let (own, anonymous, file) =
        (sample(|round| round.own_us), sample(|round| round.anonymous_mib), sample(|round| round.file_mib));
    let lost = with.iter().fold(0.0, |sum, round| sum + round.lost);
    let detail = format!(
        "{}; {:.2} us of processor time for a connection, {:.2} without, and {:.2} of the tool; \
         {:.1} MiB anonymous, {:.1} of files; {lost:.0} events lost of {:.0} connections",
        rounds(&rates),
        cpu[0].median(),
        cpu[1].median(),
        own.median(),
        anonymous.median(),
        file.median(),
        with.iter().map(|round| round.made.connections).sum::<f64>(),
    );
    let [with_us, without_us] = cpu.each_ref().map(spread);
    let data = json!({"ratio": spread(&rates), "with_us": with_us, "without_us": without_us, "own_us": spread(&own),
        "anonymous_mib": anonymous.median(), "file_mib": file.median(), "lost": lost});
    Ok(Row::new(format!("connects/s beside {name}"), rates.median(), "").detail(detail).data(data))
}

fn round(stage: &Stage, load: &mut Load, plan: Plan, command: &[&str]) -> Result<Round> {
    let output = stage.file("peer");
    let mut tool = Tool::start(stage, command, File::create(&output).context("its output")?)
        .and_then(|mut tool| tool.attached().map(|()| tool))
        .with_context(|| last_line(&fs::read_to_string(&output).unwrap_or_default()))?;
    let before = cpu_seconds_of(tool.pid())?;
    let made = load.during(plan.seconds)?;
    let own_us = (cpu_seconds_of(tool.pid())? - before) * 1e6 / made.connections;
    let [anonymous_mib, file_mib] = ["RssAnon", "RssFile"].map(|field| memory_of(tool.pid(), field));
    tool.end()?;
    let lost = lost(&fs::read_to_string(&output)?);
    Ok(Round { made, own_us, anonymous_mib: anonymous_mib?, file_mib: file_mib?, lost })
}

struct Tool(Killed);

impl Tool {
    fn start(stage: &Stage, command: &[&str], output: File) -> Result<Self> {
        let mut tool = match command {
            [program, arguments @ ..] if !program.starts_with('-') => {
                let mut tool = Command::new(program);
                tool.args(arguments);
                tool
            }
            flags => {
                let mut tracer = stage.tracer();
                tracer.args(["attach", "-o", "json", "--prober", PROBER, "--pods"]).arg(&stage.pods).args(flags);
                tracer
            }
        };
        die_with_parent(without_settings(&mut tool));
        tool.stdin(Stdio::null()).stderr(output.try_clone()?).stdout(output);
        Ok(Self(Killed(tool.spawn().context("start it")?)))
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.0.id().cast_signed())
    }

    /// Waits until it has loaded a program, and fails if it ends soon after that.
    fn attached(&mut self) -> Result<()> {
        let begun = Instant::now();
        while !self.holds_a_program() {
            ensure!(self.0.try_wait()?.is_none(), "it ended");
            ensure!(begun.elapsed() < PATIENCE, "it loads no program");
            thread::sleep(Duration::from_millis(20));
        }
        thread::sleep(2 * SETTLE);
        ensure!(self.0.try_wait()?.is_none(), "it ended");
        Ok(())
    }

    /// Lets it print its losses. bpftrace did not end by its signal once.
    fn end(&mut self) -> Result<()> {
        kill(self.pid(), Signal::SIGINT)?;
        let begun = Instant::now();
        while self.0.try_wait()?.is_none() {
            ensure!(begun.elapsed() < PATIENCE, "it does not end");
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn holds_a_program(&self) -> bool {
        let files = fs::read_dir(format!("/proc/{}/fd", self.pid())).into_iter().flatten().flatten();
        files.filter_map(|file| fs::read_link(file.path()).ok()).any(|file| file.ends_with("anon_inode:bpf-prog"))
    }
}

fn last_line(text: &str) -> String {
    text.lines().last().unwrap_or("no output").to_owned()
}

/// The number of lost events, from the `stop` record or from lines such as `Lost 12 events`.
fn lost(output: &str) -> f64 {
    let stop: Option<Value> = serde_json::from_str(&last_line(output)).ok();
    let counted = stop.and_then(|stop| stop["lost_events"].as_f64());
    counted.unwrap_or_else(|| {
        let lines =
            output.lines().filter_map(|line| line.to_lowercase().split_once("lost ").map(|(_, rest)| rest.to_owned()));
        lines.filter_map(|rest| rest.split(' ').next()?.parse::<f64>().ok()).fold(0.0, |sum, lost| sum + lost)
    })
}
