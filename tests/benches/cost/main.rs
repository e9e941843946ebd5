//! What tracer costs, and how fast its verdicts are.
//!
//! `cargo xtask bench` runs it. So does `cargo bench -p tracer-tests -- --quick` if there is a release build of tracer.
//! This is no test: it names missed targets, but the exit code is 0.
//!
//! ```text
//! stage       the network namespaces, the load, the prober
//! subject     the tracer, and the time of each line
//! throughput  connections per second with and without it; events per second through the ring
//! programs    nanoseconds per run, by the kernel's own statistics
//! latency     from the deciding event to the printed line
//! footprint   start to attached; memory
//! node        the daemon's processor time and memory on a full node
//! peers       other tools that see connections, with the same load: only with `--only peers`
//! growth      how the cost grows with the node, at three sizes of each part of it: only with `--only growth`
//! plot        its curves as SVG
//! report      the table, the JSON
//! ```

mod footprint;
mod growth;
mod latency;
mod node;
mod peers;
mod plot;
mod programs;
mod report;
mod stage;
mod subject;
mod throughput;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result};
use clap::Parser as _;
use clap::builder::PossibleValuesParser;

use report::Row;
use stage::Stage;

/// How to measure.
#[derive(clap::Parser)]
struct Args {
    /// Fewer and shorter rounds: to try it out
    #[arg(long)]
    quick: bool,
    /// Where the numbers go [default: target/bench.json]
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
    /// Where the plots of the part `growth` go
    #[arg(long, value_name = "PATH")]
    plot: Option<PathBuf>,
    /// Only these parts; growth and peers run only if they are named
    #[arg(long, value_delimiter = ',', value_parser = PossibleValuesParser::new(PARTS.map(|(name, ..)| name)))]
    only: Vec<String>,
    /// Cargo's own
    #[arg(long, hide = true)]
    bench: bool,
}

/// A part of the measurement: its name, what it measures, and whether it runs only if it is named.
type Part = (&'static str, &'static str, bool, fn(&Stage, Plan) -> Result<Vec<Row>>);

const PARTS: [Part; 8] = [
    ("rate", "connections per second with and without the tracer", false, throughput::rates),
    ("events", "events per second through the ring", false, throughput::events),
    ("programs", "nanoseconds per program run", false, programs::rows),
    ("latency", "from the event to the line", false, latency::rows),
    ("footprint", "start and memory", false, footprint::rows),
    ("node", "a full node: 250 pods, 75 attempts a second", false, node::rows),
    ("growth", "how the cost grows with pods, rules, sockets and more", true, growth::rows),
    ("peers", "other tools, in place of the tracer", true, peers::rows),
];

/// How long and how often to measure. Rounds are short and many, because other load on the machine changes within
/// seconds.
#[derive(Clone, Copy)]
struct Plan {
    rounds: usize,
    seconds: f64,
    attempts: usize,
    starts: usize,
}

const FULL: Plan = Plan { rounds: 31, seconds: 0.7, attempts: 500, starts: 10 };
const QUICK: Plan = Plan { rounds: 5, seconds: 0.7, attempts: 100, starts: 3 };

/// Name of a process that is no prober.
const UNTRACKED: &str = "load";
/// With these flags only probers pay for the hooks, as far as the kernel allows.
const PROBER_HOOKS: &[&str] = &["--prober-hooks", "--no-syscall-hooks"];
/// Name of the prober. No test that runs at the same time uses it.
const PROBER: &str = "trbprober";

fn main() -> Result<()> {
    let args = Args::parse();
    let plan = if args.quick { QUICK } else { FULL };
    let machine = report::machine();
    warn_of_others();
    let rows = measure(&args, plan)?;
    let default = || Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("bench.json");
    let path = args.json.unwrap_or_else(default);
    report::write(&path, &machine, &rows)?;
    let curves: Vec<_> = rows.iter().filter_map(|row| row.curve.as_ref()).collect();
    if !curves.is_empty() {
        println!("{}", growth::table(&curves));
    }
    if let (Some(path), Some(svg)) = (args.plot, plot::svg(&curves)) {
        std::fs::write(&path, svg).with_context(|| format!("write {}", path.display()))?;
    }
    print!("{}", report::table(&machine, &rows));
    eprintln!("numbers in {}", path.display());
    Ok(())
}

fn measure(args: &Args, plan: Plan) -> Result<Vec<Row>> {
    let stage = Stage::new()?;
    // The kernel's statistics cost about 10 ns a run, so they are on only for the part that needs them.
    let _statistics = programs::Statistics::set(false)?;
    let mut rows = Vec::new();
    let is_wanted = |(name, _, on_request, _): &&Part| match args.only.as_slice() {
        [] => !on_request,
        only => only.iter().any(|part| part == name),
    };
    for (_, what, _, work) in PARTS.iter().filter(is_wanted) {
        let begun = Instant::now();
        rows.extend(work(&stage, plan)?);
        eprintln!("{what}: {:.1} s", begun.elapsed().as_secs_f64());
    }
    Ok(rows)
}

/// Warns about other tracers, because their programs run for these connections, too.
fn warn_of_others() {
    let names = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let comm = |entry: std::fs::DirEntry| std::fs::read_to_string(entry.path().join("comm")).ok();
    let others = names.filter_map(comm).filter(|comm| comm.trim() == "tracer").count();
    if others > 0 {
        eprintln!("{others} other tracer(s) run on this machine: the numbers will be too high");
    }
}
