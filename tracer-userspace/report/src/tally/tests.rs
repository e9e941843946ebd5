use proptest::prelude::*;

use super::*;
use crate::line;
use crate::tests::{at, attempt, verdict};
use tracer_model::record::{Cause, LossBody};

fn tally(filter: Filter, lines: &[String]) -> Tally {
    let mut tally = Tally::new(filter);
    for text in lines {
        tally.push(line::read(text.as_bytes()).unwrap(), text.as_bytes());
    }
    tally
}

/// Verdicts that stand, by cause.
fn counts(tally: Tally) -> BTreeMap<Cause, u64> {
    let mut counts = BTreeMap::new();
    for (group, lane) in tally.pods.into_pods().flat_map(|(_, pod)| pod.lanes) {
        *counts.entry(group.cause).or_default() += lane.count;
    }
    counts
}

#[test]
fn a_verdict_that_was_replaced_is_not_counted() {
    let lines = [
        verdict(1, "unexplained", "cart", None),
        verdict(2, "unexplained", "cart", None),
        verdict(3, "firewall_drop", "cart", Some(1)),
        verdict(4, "connection_refused", "cart", Some(3)),
    ];
    let tally = tally(Filter::default(), &lines);
    assert_eq!((tally.revised, tally.unmatched), (2, 0));
    assert_eq!(counts(tally), [(Cause::ConnectionRefused, 1), (Cause::Unexplained, 1)].into());
}

#[test]
fn a_revision_that_the_filter_leaves_out_still_takes_the_old_one_back() {
    let lines = [verdict(1, "unexplained", "cart", None), verdict(2, "firewall_drop", "cart", Some(1))];
    let filter = Filter { causes: vec![Cause::Unexplained], ..Filter::default() };
    let tally = tally(filter, &lines);
    assert_eq!((tally.filtered, counts(tally)), (1, BTreeMap::new()));
}

#[test]
fn numbers_belong_to_a_run_and_a_node() {
    let other = verdict(2, "firewall_drop", "cart", Some(1)).replace("\"n1\"", "\"n2\"");
    let lines = [verdict(1, "unexplained", "cart", None), other];
    assert_eq!(counts(tally(Filter::default(), &lines)).len(), 2);
    let next_run = [
        verdict(1, "unexplained", "cart", None),
        verdict(0, "unexplained", "cart", None),
        verdict(2, "firewall_drop", "cart", Some(1)),
    ];
    assert_eq!(counts(tally(Filter::default(), &next_run)).values().sum::<u64>(), 3);
}

#[test]
fn a_revision_of_a_forgotten_verdict_is_counted_as_unmatched() {
    let mut lines: Vec<_> = (0..9000).map(|seq| verdict(seq, "unexplained", "cart", None)).collect();
    lines.push(verdict(9000, "firewall_drop", "cart", Some(3)));
    assert_eq!(tally(Filter::default(), &lines).unmatched, 1);
}

#[test]
fn the_first_and_the_last_verdict_are_kept() {
    let lines: Vec<_> = (0..50).map(|seq| verdict(seq, "unexplained", "cart", None)).collect();
    let tally = tally(Filter::default(), &lines);
    let (_, pod) = tally.pods.into_pods().next().unwrap();
    let lane = pod.lanes.into_values().next().unwrap();
    let of = |example: &Option<std::rc::Rc<Example>>| {
        example.as_ref().map(|it| String::from_utf8_lossy(&it.line).into_owned())
    };
    assert_eq!((lane.count, of(&lane.first), of(&lane.last)), (50, Some(lines[0].clone()), Some(lines[49].clone())));
}

#[test]
fn pods_beyond_the_bound_are_one() {
    let lines: Vec<_> = (0..3000).map(|n| verdict(n, "unexplained", &format!("pod-{n}"), None)).collect();
    let tally = tally(Filter::default(), &lines);
    assert!(tally.pods.too_many);
    let pods: Vec<_> = tally.pods.into_pods().collect();
    let others = pods.iter().find(|(key, _)| key.name == "all other pods").map(|(_, pod)| pod.lanes.len());
    assert_eq!((pods.len(), others), (2049, Some(1)));
    let total: u64 = pods.iter().flat_map(|(_, pod)| pod.lanes.values()).map(|lane| lane.count).sum();
    assert_eq!(total, 3000);
}

#[test]
fn attempts_that_passed_are_counted_by_pod() {
    let lines = [attempt(1, "cart", "success"), attempt(2, "cart", "success"), attempt(3, "cart", "failure")];
    let tally = tally(Filter::default(), &lines);
    assert_eq!(tally.attempts(), Some(3));
    assert_eq!(tally.pods.into_pods().map(|(_, pod)| pod.passed).sum::<u64>(), 2);
}

/// Without `--attempts` only those have a record that were open at the end.
#[test]
fn an_attempt_that_was_open_at_the_end_is_no_count_of_all() {
    let open = tally(Filter::default(), &[attempt(1, "cart", "open")]);
    assert_eq!((open.attempts_by_record, open.attempts()), (0, None));
}

#[test]
fn port_usages_beyond_the_limit_are_counted() {
    let pressure = |n: u64| {
        format!(
            r#"{{"schema":"tracer/1","type":"node","time":"2026-01-02T03:04:05Z","time_boot_ns":0,"seq":1,"node_name":"n{n}","event":"port_pressure","summary":""}}"#
        )
    };
    let lines: Vec<_> = (0..70).map(pressure).collect();
    let tally = tally(Filter::default(), &lines);
    assert_eq!((tally.events.ports.len(), tally.events.ports_left_out), (64, 6));
}

#[test]
fn gaps_that_touch_are_one_and_many_are_merged() {
    let mut losses = Losses::default();
    let loss = |from: u64, to: u64| LossBody { where_: "ring".into(), count: 1, from_boot_ns: from, to_boot_ns: to };
    for n in 0..2000_u64 {
        losses.push(&loss(n * 10_000_000_000, n * 10_000_000_000 + 1000), 20_000_000_000_000, 30_000_000_000);
    }
    losses.push(&LossBody { where_: "otlp".into(), ..loss(0, 5) }, 5, 5);
    assert_eq!(losses.counts.len(), 1, "what the collector lacks is here");
    assert_eq!(losses.counts.get("ring"), Some(&2000));
    assert!(losses.into_gaps().len() <= 512);
    let mut far = Losses::default();
    far.push(&loss(0, u64::MAX), 5, i64::MIN + 1);
    assert!(far.into_gaps().iter().all(|(from, to)| from <= to));
}

proptest! {
    /// For any revisions in any order, the counts are all verdicts minus the revised ones.
    #[test]
    fn counts_are_what_stands(revised in prop::collection::vec(prop::option::of(0_u64..40), 1..40)) {
        let causes = ["unexplained", "firewall_drop", "connection_refused"];
        let lines: Vec<_> = revised.iter().enumerate().map(|(seq, revises)| {
            verdict(seq as u64, causes[seq % 3], ["a", "b"][seq % 2], revises.filter(|&it| it < seq as u64))
        }).collect();
        let tally = tally(Filter::default(), &lines);
        let expected = lines.len() as u64 - tally.revised;
        prop_assert_eq!(counts(tally).values().sum::<u64>(), expected);
    }

    #[test]
    fn times_in_any_order_are_counted(times in prop::collection::vec(0_i64..253_000_000_000, 1..100)) {
        let lines: Vec<_> = times.iter().map(|&s| at(&verdict(1, "unexplained", "cart", None), s)).collect();
        let tally = tally(Filter::default(), &lines);
        prop_assert_eq!(counts(tally).values().sum::<u64>(), times.len() as u64);
    }
}
