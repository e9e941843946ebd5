//! Runs each scenario on this kernel, and checks the verdicts of tracer. Prints one line for each scenario. The exit
//! code is 1 if one failed.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Parser;
use tracer_testbed::helper::Programs;
use tracer_testbed::node::sweep::sweep;
use tracer_testbed::options::{Options, Scratch};
use tracer_testbed::row::{Row, RowOutcome};
use tracer_testbed::runner::{Plan, run, write_lines};
use tracer_testbed::scenario::{Scenario, Suite, all, needs};
use tracer_testbed::watcher::Tracer;

#[derive(Parser)]
struct Args {
    /// The tracer under test; default: the one beside this program.
    #[arg(long)]
    tracer: Option<PathBuf>,
    /// Only scenarios with a name that begins with one of these.
    #[arg(long, num_args = 1..)]
    only: Vec<String>,
    /// The names after `--only` are whole names.
    #[arg(long, requires = "only")]
    exact: bool,
    /// Only this selection.
    #[arg(long, value_enum, default_value_t = Suite::All, conflicts_with = "only")]
    suite: Suite,
    /// Record each and store observations and records here.
    #[arg(long)]
    record: Option<PathBuf>,
    /// Write the results here, one JSON object a line.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Only list the scenarios.
    #[arg(long)]
    list: bool,
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    let chosen = choose(&args)?;
    if args.list {
        chosen.iter().for_each(|s| println!("{}", s.name));
        return Ok(ExitCode::SUCCESS);
    }
    for name in sweep() {
        println!("removed left-over {name}");
    }
    needs::prepare_machine();
    let _scratch = Scratch::new()?;
    let plan = plan(&args)?;
    let write = |rows: &[Row]| args.json.as_ref().map_or(Ok(()), |path| write_lines(path, rows));
    let mut so_far: Vec<Row> = Vec::new();
    let rows = run(&plan, &chosen, &mut |row| {
        print_row(row);
        so_far.retain(|r| r.scenario != row.scenario);
        so_far.push(row.clone());
        // Written after each row, so that a killed run leaves its results.
        let _ = write(&so_far);
    });
    write(&rows)?;
    Ok(summary(&rows))
}

fn choose(args: &Args) -> Result<Vec<Scenario>> {
    let fits = |s: &Scenario, only: &str| if args.exact { s.name == only } else { s.name.starts_with(only) };
    let wanted = |s: &Scenario| args.only.is_empty() || args.only.iter().any(|only| fits(s, only));
    if let Some(unknown) = args.only.iter().find(|only| !all().iter().any(|s| fits(s, only))) {
        bail!("no scenario's name begins with {unknown}: --list prints all names");
    }
    Ok(all().into_iter().filter(|s| s.suite >= args.suite && wanted(s)).collect())
}

fn plan(args: &Args) -> Result<Plan> {
    let options = Options::detect(Programs::beside()?).with_own_prober();
    if let Some(dir) = &args.record {
        fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
    }
    let program = args.tracer.clone().unwrap_or_else(|| options.programs.tracer());
    let tracer = Tracer::new(&options, program)?;
    Ok(Plan { options, tracer, record: args.record.clone() })
}

fn print_row(row: &Row) {
    let reason = row.reason.as_deref().unwrap_or_default();
    let result = match row.result {
        RowOutcome::Pass => "pass",
        RowOutcome::Fail => "FAIL",
        RowOutcome::Cannot => "cannot",
    };
    let colon = if reason.is_empty() { "" } else { ": " };
    println!("{result:6} {:34} {:6} ms{colon}{reason}", row.scenario, row.ms);
}

fn summary(rows: &[Row]) -> ExitCode {
    let count = |result| rows.iter().filter(|r| r.result == result).count();
    println!(
        "{} passed, {} failed, {} cannot on this kernel",
        count(RowOutcome::Pass),
        count(RowOutcome::Fail),
        count(RowOutcome::Cannot)
    );
    ExitCode::from(u8::from(count(RowOutcome::Fail) > 0))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::collections::BTreeSet;
    use std::path::Path;

    use serde_json::Value;
    use tracer_testbed::scenario::Need;
    use tracer_tests::recording::{file, unpacked};

    use super::*;

    /// Observations that need a real kubelet or come from the cluster API, and what tracer reads in the same way on each
    /// kernel.
    const NOT_IN_SCENARIOS: &[&str] =
        &["kubelet_probe", "sandbox_failure", "links", "limits", "node_ports", "service_endpoints"];

    #[test]
    fn each_kind_of_event_has_a_scenario_on_every_kernel() {
        let all = all();
        for (folder, recordings) in recordings() {
            let mut missing: BTreeMap<String, Vec<String>> = BTreeMap::new();
            let mut shown = BTreeSet::new();
            for (scenario, recording) in recordings {
                let kernels = all.iter().any(|s| s.name == scenario && s.suite >= Suite::Kernels);
                for event in kinds(&recording) {
                    if kernels {
                        shown.insert(event);
                    } else {
                        missing.entry(event).or_default().push(scenario.clone());
                    }
                }
            }
            missing.retain(|event, _| !shown.contains(event));
            assert!(missing.is_empty(), "{}: add `.on_every_kernel()` for {missing:?}", folder.display());
            assert!(!shown.is_empty(), "{}: no scenario's recording", folder.display());
        }
    }

    /// A short run fails if a cause cannot be shown on this kernel, nor in one of its virtual machines.
    #[test]
    fn scenarios_for_an_own_machine_run_on_every_kernel() {
        let own = |s: &&Scenario| s.needs.contains(&Need::OwnMachine);
        let missing: Vec<_> = all().iter().filter(own).filter(|s| s.suite < Suite::Kernels).map(|s| s.name).collect();
        assert!(missing.is_empty(), "add `.on_every_kernel()`: {missing:?}");
    }

    #[test]
    fn the_selections_stay_small() {
        let count = |suite| all().iter().filter(|s| s.suite >= suite).count();
        assert!((1..=10).contains(&count(Suite::Smoke)) && count(Suite::Kernels) <= 59);
    }

    /// The kinds of events in a recording: kind, address family, hook and operation. For rules, the backend.
    fn kinds(recording: &str) -> BTreeSet<String> {
        let mut kinds = BTreeSet::new();
        for line in recording.lines().map(|line| serde_json::from_str::<Value>(line).expect("an observation")) {
            let Some(kind) = line["observation"].as_str().filter(|kind| !NOT_IN_SCENARIOS.contains(kind)) else {
                continue;
            };
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let family = match text(&line["flow"]["dst"]) {
                dst if dst.is_empty() => "",
                dst if dst.starts_with('[') => "v6",
                _ => "v4",
            };
            kinds.insert([kind, family, &text(&line["hook"]), &text(&line["op"])].join(" "));
            let rules = line["rules"].as_array().into_iter().flatten();
            kinds.extend(rules.map(|rule| format!("{kind} {}", text(&rule["backend"]))));
        }
        kinds
    }

    /// For each kernel: the folder, and the recordings by scenario.
    fn recordings() -> Vec<(PathBuf, Vec<(String, String)>)> {
        let mut folders = Vec::new();
        let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("recordings");
        for folder in fs::read_dir(place).into_iter().flatten().flatten().map(|entry| entry.path()) {
            let of = |s: &Scenario| Some((s.name.to_owned(), unpacked(&file(&folder, s.name)).ok()?));
            let recordings: Vec<_> = all().iter().filter_map(of).collect();
            if !recordings.is_empty() {
                folders.push((folder, recordings));
            }
        }
        folders
    }
}
