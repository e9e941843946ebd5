use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;

use super::*;
use tracer_bpf::ebpf::LoadOptions;
use tracer_core::testing::{POD, RuleVerdict, SYN, Stream, firewall, rule};
use tracer_model::event::{ConnId, ListFile, ListTrouble, Loss, Netns, Pods, Retransmit, TcpState};
use tracer_output::sink::{Format, SinkConfig};
use tracer_testing::{Scratch, soon};

/// Events from memory, a batch for each wake.
struct Memory {
    batches: VecDeque<Vec<Observation>>,
    lost: u64,
    answers: mpsc::Sender<ObservationKind>,
    /// The answer to a query for the firewall. It comes when the run waits for it.
    answer: Option<ObservationKind>,
    /// The ring breaks when all events are read.
    breaks: bool,
    /// New events come as fast as they are read.
    endless: bool,
}

impl EventSource for Memory {
    async fn readable(&mut self) -> io::Result<()> {
        if let Some(answer) = self.answer.take() {
            self.answers.try_send(answer).unwrap();
        }
        match self.batches.is_empty() && !self.endless {
            true if self.breaks => Err(io::ErrorKind::BrokenPipe.into()),
            true => std::future::pending().await,
            false => Ok(()),
        }
    }

    fn drain(&mut self, max: usize, into: &mut Vec<Observation>) -> usize {
        if self.endless {
            into.resize(max, retransmit(LATER));
            return max;
        }
        let Some(batch) = self.batches.pop_front() else { return 0 };
        into.extend_from_slice(&batch);
        batch.len()
    }

    fn lost(&self) -> Vec<(&'static str, u64)> {
        vec![(Loss::RING, self.lost)]
    }

    fn query(&mut self, query: Query) -> Option<ObservationKind> {
        if matches!(query, Query::Firewall(..)) {
            self.answer = Some(firewall(POD, vec![rule("INPUT", RuleVerdict::Drop)]));
        }
        None
    }
}

/// After any reading of the clock.
const LATER: u64 = u64::MAX / 2;

fn retransmit(time_boot_ns: u64) -> Observation {
    Observation {
        time_boot_ns,
        kind: ObservationKind::Retransmit(Retransmit {
            conn: ConnId(u64::MAX),
            state: TcpState::SynSent,
            payload: None,
            by_target: false,
        }),
    }
}

fn attached(batches: Vec<Vec<Observation>>, lost: u64) -> (Attached<Memory>, mpsc::Sender<ObservationKind>) {
    let (sender, changes) = mpsc::channel(8);
    let attached = Attached {
        events: Memory {
            batches: batches.into(),
            lost,
            answers: sender.clone(),
            answer: None,
            breaks: false,
            endless: false,
        },
        since_boot_ns: clock::boot_ns(),
        start: Start {
            hooks: vec![HookStatus { hook: "kfree_skb".into(), program_type: "raw_tracepoint".into() }],
            node_netns: Some(Netns(1)),
            ..Start::default()
        },
        prober_pids: vec![812],
        observations: vec![ObservationKind::Pods(Pods { pods: vec![] })],
        changes,
        problems: vec![],
    };
    (attached, sender)
}

fn config(scratch: &Scratch) -> LiveConfig {
    LiveConfig {
        output: SinkConfig::new(Format::Ndjson, Some(scratch.path("out"))),
        record: Some(scratch.path("recording")),
        duration: Some(Duration::from_secs(1)),
        load: LoadOptions { probers: vec!["kubelet".into()], ..LoadOptions::default() },
        node_name: "n1".into(),
        ..LiveConfig::default()
    }
}

/// Runs it; returns the exit code, the printed lines, and the recorded lines.
fn ran(batches: Vec<Vec<Observation>>, lost: u64) -> (u8, Vec<serde_json::Value>, Vec<String>) {
    let scratch = Scratch::new();
    let config = config(&scratch);
    let (attached, sender) = attached(batches, lost);
    sender.try_send(ObservationKind::NodeSettings(tracer_model::event::NodeSettings::default())).unwrap();
    let code = run(&config, |_, _, _| Ok(attached)).unwrap();
    let [printed, recorded] = ["out", "recording"].map(|name| std::fs::read_to_string(scratch.path(name)).unwrap());
    let printed = printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    (code, printed, recorded.lines().map(str::to_owned).collect())
}

#[test]
fn a_run_starts_watches_and_stops() {
    let (code, records, _) = ran(vec![vec![retransmit(1), retransmit(2)], vec![retransmit(3)]], 0);
    assert_eq!(code, 0);
    let (first, last) = (records.first().unwrap(), records.last().unwrap());
    assert_eq!(
        (&first["type"], &first["prober_pids"][0], &first["node_name"]),
        (&"start".into(), &812.into(), &"n1".into())
    );
    assert_eq!((&last["type"], &last["reason"], &last["events"]), (&"stop".into(), &"duration".into(), &3.into()));
}

#[test]
fn a_ring_that_breaks_still_ends_the_run_with_its_records() {
    let scratch = Scratch::new();
    let config = config(&scratch);
    let (mut attached, _sender) = attached(vec![vec![retransmit(1)]], 0);
    attached.events.breaks = true;
    assert_eq!(run(&config, |_, _, _| Ok(attached)).unwrap_err().exit_code(), 3);
    let printed = std::fs::read_to_string(scratch.path("out")).unwrap();
    assert!(printed.lines().last().is_some_and(|last| last.contains(r#""reason":"error""#)), "{printed}");
}

#[test]
fn a_run_that_cannot_begin_leaves_no_empty_file() {
    let scratch = Scratch::new();
    let config = config(&scratch);
    let begin = || run::<Memory, _>(&config, |_, _, _| Err(Error::Kernel("no BTF".into()))).unwrap_err().exit_code();
    let left = || ["out", "recording"].map(|name| std::fs::read_to_string(scratch.path(name)).ok());
    assert_eq!((begin(), left()), (3, [None, None]));
    std::fs::write(scratch.path("recording"), "an earlier one").unwrap();
    assert_eq!((begin(), left()), (2, [None, Some("an earlier one".into())]));
    std::fs::remove_file(scratch.path("recording")).unwrap();
    std::fs::write(scratch.path("out"), "").unwrap();
    assert_eq!((begin(), left()), (3, [Some(String::new()), None]));
}

#[test]
fn a_batch_is_recorded_in_the_order_of_time() {
    let (_, _, lines) = ran(vec![vec![retransmit(20), retransmit(10)]], 0);
    let times: Vec<_> = lines.iter().filter(|line| line.contains("retransmit")).map(|line| &line[..18]).collect();
    assert_eq!(times, [r#"{"time_boot_ns":10"#, r#"{"time_boot_ns":20"#]);
    let count = |word: &str| lines.iter().filter(|line| line.contains(word)).count();
    assert_eq!(
        (
            count(r#""observation":"start""#),
            count(r#""observation":"pods""#),
            count(r#""observation":"node_settings""#)
        ),
        (1, 1, 1)
    );
    assert!(lines.last().unwrap().starts_with(r#"{"end":true,"observations":5,"#), "{lines:?}");
}

/// The first packet is dropped when the run ends.
#[test]
fn the_end_of_a_run_waits_for_the_rule_that_dropped_a_packet() {
    let scratch = Scratch::new();
    let config = LiveConfig { duration: Some(Duration::ZERO), ..config(&scratch) };
    let mut stream = Stream::new().connect().filtered(SYN, POD).clone();
    stream.observations.iter_mut().for_each(|it| it.time_boot_ns = clock::boot_ns());
    let (attached, _sender) = attached(vec![stream.observations.split_off(1)], 0);
    assert_eq!(run(&config, |_, _, _| Ok(attached)).unwrap(), 0);
    let records = std::fs::read_to_string(scratch.path("out")).unwrap();
    let verdict = records.lines().find(|line| line.contains(r#""type":"verdict""#)).unwrap();
    assert!(verdict.contains("it is the rule"), "{verdict}");
}

#[test]
fn lost_events_are_reported_with_their_time() {
    let (_, records, lines) = ran(vec![], 7);
    assert_eq!(records.last().unwrap()["lost_events"], 7);
    let loss = lines.iter().find(|line| line.contains(r#""observation":"loss""#)).unwrap();
    assert!(loss.contains(r#""where_":"ring","count":7"#), "{loss}");
}

#[test]
fn a_list_that_cannot_be_read_is_in_the_health_report() {
    let scratch = Scratch::new();
    let (socket, mut config) = (scratch.path("health"), config(&scratch));
    config.serve =
        Some(serve::Serve { metrics_listen: None, health_socket: socket.clone(), metrics_pod_labels: false });
    config.duration = Some(Duration::from_secs(5));
    let (attached, sender) = attached(vec![], 0);
    let trouble = ListTrouble { list: ListFile::Pods, problem: Some("--pods x: gone".into()) };
    sender.try_send(ObservationKind::ListTrouble(trouble)).unwrap();
    let asking = std::thread::spawn(move || {
        soon("a problem", || {
            serve::ask::ask(&socket).ok().map(|(report, _)| report.degraded).filter(|it| !it.is_empty())
        })
    });
    assert_eq!(run(&config, |_, _, _| Ok(attached)).unwrap(), 0);
    assert_eq!(asking.join().unwrap(), ["pods: --pods x: gone"]);
}

/// A daemon without one of its parts would look healthy but work incorrectly. So it ends, and Kubernetes restarts it.
#[test]
fn a_part_that_panics_ends_the_run() {
    type Start = fn(&Background, &Supervisor);
    let parts: [(&str, Start); 3] = [
        ("thread", |_, supervisor| supervisor.thread("thread", || panic!("on purpose")).unwrap()),
        ("cluster-api", |api, _| drop(api.run(|| async { panic!("on purpose") }).unwrap())),
        ("task", |_, supervisor| {
            drop(tokio::task::spawn_local(supervisor.task("task", async { panic!("on purpose") })));
        }),
    ];
    for (part, start) in parts {
        let scratch = Scratch::new();
        let config = LiveConfig { duration: Some(Duration::from_secs(60)), ..config(&scratch) };
        let (attached, _sender) = attached(vec![], 0);
        let ended = run(&config, |_, api, supervisor| {
            start(api, supervisor);
            Ok(attached)
        });
        let error = ended.unwrap_err();
        assert!(error.exit_code() == 101 && error.to_string().contains(part), "{part}: {error}");
        let records = std::fs::read_to_string(scratch.path("out")).unwrap();
        assert!(records.lines().last().unwrap().contains(r#""reason":"panic""#), "{part}: {records}");
    }
}

/// On a busy node, events come faster than tracer reads them.
#[test]
fn a_run_ends_though_there_are_always_events() {
    let scratch = Scratch::new();
    let config = LiveConfig { record: None, ..config(&scratch) };
    let (mut attached, _sender) = attached(vec![], 0);
    attached.events.endless = true;
    let ended = run(&config, |_, _, supervisor| {
        let task = AssertUnwindSafe(|| {
            pin!(supervisor.task("task", async { panic!("on purpose") })).poll(&mut Context::from_waker(Waker::noop()))
        });
        assert!(catch_unwind(task).is_err());
        Ok(attached)
    });
    assert_eq!(ended.unwrap_err().exit_code(), 101);
    let records = std::fs::read_to_string(scratch.path("out")).unwrap();
    let stop: serde_json::Value = serde_json::from_str(records.lines().last().unwrap()).unwrap();
    // One read after the wake-up, one at the end.
    assert_eq!((&stop["type"], &stop["events"]), (&"stop".into(), &(2 * (1 << 13)).into()));
}
