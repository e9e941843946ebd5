//! Replays every recording. Decisions are as before, each record keeps the contract, and each scenario gets its cause.
//!
//! Snapshots of fixtures (`tests/fixtures`) have all records. Snapshots of scenarios (`tests/recordings`) have a short
//! line for each verdict. `INSTA_UPDATE=always cargo test -p tracer-userspace --test recordings` updates them.
#![allow(clippy::unwrap_used, reason = "a test ends at the line that failed")]

#[path = "../common/mod.rs"]
mod common;
mod contract;
mod decisions;
mod schema;

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde_json::Value;
use tracer_model::record::{Cause, Trait};
use tracer_testbed::scenario::{Scenario, all};

use common::recorded::{Recording, fixtures, of_kernels, parsed, with_each};
use common::snapshots;

/// The fixtures in which nothing is wrong.
const HEALTHY: &str = "healthy";

/// Recordings of a node with a real kubelet. They belong to no scenario.
const WITH_A_KUBELET: &str = "kubelet-1.36";

/// A scenario without a cause, but its first attempt fails.
const FAILS_FIRST: &str = "fault_address_reused_healthy";

struct Replay {
    name: String,
    lines: Vec<String>,
    records: Vec<Value>,
}

impl Replay {
    fn of(recording: &Recording) -> Self {
        let lines = recording.records();
        let records = lines.iter().map(|line| parsed(line)).collect();
        Self { name: recording.name.clone(), lines, records }
    }

    /// `CAUSE` of a fixture or `KERNEL` of a scenario, and the rest of the name.
    fn names(&self) -> (&str, &str) {
        self.name.split_once('/').unwrap()
    }

    /// The verdicts without a later revision.
    fn last_verdicts(&self) -> impl Iterator<Item = &Value> {
        let replaced: BTreeSet<u64> = self.records.iter().filter_map(|record| record["revises"].as_u64()).collect();
        let verdicts = self.records.iter().filter(|record| record["type"] == "verdict");
        verdicts.filter(move |verdict| !replaced.contains(&verdict["seq"].as_u64().unwrap()))
    }
}

struct Replays {
    fixtures: Vec<Replay>,
    kernels: Vec<Replay>,
}

/// A check of all replays, and its name.
type Check = (&'static str, fn(&Replays));

const CHECKS: [Check; 7] = [
    ("fixtures_are_decided_as_before", fixtures_are_decided_as_before),
    ("every_cause_has_a_fixture_that_gets_it", every_cause_has_a_fixture_that_gets_it),
    ("every_record_keeps_the_contract", every_record_keeps_the_contract),
    ("records_match_the_schema", records_match_the_schema),
    ("the_schema_excludes_wrong_records", the_schema_excludes_wrong_records),
    ("each_kernel_decides_as_before", each_kernel_decides_as_before),
    ("each_scenario_gets_its_cause_on_each_kernel", each_scenario_gets_its_cause_on_each_kernel),
];

/// One test for all checks, so that each recording is replayed once. nextest runs each test in its own process.
#[test]
fn all_checks_hold() {
    let replays =
        Replays { fixtures: with_each(&fixtures(), Replay::of), kernels: with_each(&of_kernels(), Replay::of) };
    let fails = |(name, check): &Check| {
        println!("\n{name}");
        catch_unwind(AssertUnwindSafe(|| check(&replays))).err().map(|_| *name)
    };
    let failed: Vec<&str> = CHECKS.iter().filter_map(fails).collect();
    assert!(failed.is_empty(), "failed: {failed:?}");
}

fn fixtures_are_decided_as_before(replays: &Replays) {
    let text = |replay: &Replay| (replay.name.clone(), decisions::whole(&replay.records).join("\n"));
    snapshots::compare("decisions", &replays.fixtures.iter().map(text).collect());
}

fn every_cause_has_a_fixture_that_gets_it(replays: &Replays) {
    let mut seen = BTreeSet::new();
    for replay in &replays.fixtures {
        let cause = replay.names().0;
        let mut verdicts = replay.records.iter().filter(|record| record["type"] == "verdict");
        let got = if cause == HEALTHY {
            verdicts.next().is_none()
        } else {
            verdicts.any(|it| it["verdict"]["cause"] == cause)
        };
        assert!(got, "{}", replay.name);
        seen.insert(cause);
    }
    seen.remove(HEALTHY);
    // These causes are only in `also`.
    let own = Cause::ALL.iter().filter(|it| !it.has(Trait::AlsoOnly));
    let causes: BTreeSet<&str> = own.map(|cause| cause.name()).collect();
    assert_eq!(&seen ^ &causes, BTreeSet::new(), "a fixture for each cause, or a recorded scenario with its name");
}

fn every_record_keeps_the_contract(replays: &Replays) {
    assert!(replays.fixtures.len() > 50, "{}", replays.fixtures.len());
    for replay in replays.fixtures.iter().chain(&replays.kernels) {
        contract::check(&replay.lines, &replay.name);
    }
}

fn records_match_the_schema(replays: &Replays) {
    let schema = schema::schema();
    let mut seen = 0;
    for replay in &replays.fixtures {
        for record in &replay.records {
            assert_eq!(schema::fault(&schema, &schema, record), None, "{}: {record}", replay.name);
            seen += 1;
        }
    }
    assert!(seen > 100);
}

fn the_schema_excludes_wrong_records(replays: &Replays) {
    let schema = schema::schema();
    let mut records = replays.fixtures.iter().flat_map(|replay| &replay.records);
    let mut first = |kind: &str| records.find(|record| record["type"] == kind).unwrap();
    for record in schema::excluded(first("start"), first("verdict")) {
        assert!(schema::fault(&schema, &schema, &record).is_some(), "{record}");
    }
}

fn each_kernel_decides_as_before(replays: &Replays) {
    let mut texts: BTreeMap<String, String> = BTreeMap::new();
    for replay in &replays.kernels {
        let (kernel, scenario) = replay.names();
        let text = texts.entry(kernel.to_owned()).or_default();
        decisions::brief(&replay.records).iter().for_each(|line| *text += &format!("{scenario} | {line}\n"));
    }
    snapshots::compare("kernels", &texts);
}

fn each_scenario_gets_its_cause_on_each_kernel(replays: &Replays) {
    let scenarios: BTreeMap<&str, Scenario> = all().into_iter().map(|scenario| (scenario.name, scenario)).collect();
    let ran = || replays.kernels.iter().filter(|replay| replay.names().0 != WITH_A_KUBELET);
    assert!(ran().count() > 100, "{}", ran().count());
    let wrong: Vec<&str> =
        ran().filter(|replay| !is_right(replay, &scenarios)).map(|replay| replay.name.as_str()).collect();
    assert!(wrong.is_empty(), "not the cause of their scenario: {wrong:?}");
}

/// Whether the last verdicts have the cause of the scenario, or no failure if it has none.
fn is_right(replay: &Replay, scenarios: &BTreeMap<&str, Scenario>) -> bool {
    let Some(scenario) = scenarios.get(replay.names().1) else { return false };
    let mut verdicts = replay.last_verdicts().map(|record| &record["verdict"]);
    match scenario.cause {
        Some(cause) => verdicts.any(|it| it["cause"] == cause.name() && has_also(it, scenario.also)),
        None => verdicts.filter(|it| it["outcome"] == "failure").count() <= usize::from(scenario.name == FAILS_FIRST),
    }
}

fn has_also(verdict: &Value, also: Option<Cause>) -> bool {
    also.is_none_or(|also| verdict["also"].as_array().unwrap().iter().any(|it| it == also.name()))
}
