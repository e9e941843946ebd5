use tracer_core::testing::*;

/// Refused attempts, one each second, of a pod that has only a liveness probe, with threshold 3.
fn refusals(count: u64) -> Stream {
    let mut stream = Stream::new().liveness(1, 3).netns_made(POD).clone();
    refuse(&mut stream, 100, count);
    stream
}

#[test]
fn the_refusal_that_reaches_the_threshold_spends_the_budget() {
    let stream = refusals(3);
    assert_eq!(stream.causes(), ["not_listening_yet", "not_listening_yet", "startup_budget_exceeded"]);
    let last = &stream.verdicts()[2].verdict;
    assert_has(&last.remediation, &["How long that takes is not known", "failureThreshold: 30} (allows 30 s)"]);
    assert_ends(&last.summary, "; the kubelet restarts it now");
    let mut of_job = Stream::new().liveness(1, 3).never_restarted().netns_made(POD).clone();
    refuse(&mut of_job, 100, 3);
    assert_ends(&of_job.verdicts()[2].verdict.summary, "does not start it again (restartPolicy Never)");
}

/// Something on the way drops the first SYN of each attempt. The second SYN is refused.
#[test]
fn a_refusal_after_a_dropped_syn_counts() {
    let mut stream = Stream::new().liveness(2, 3).clone();
    stream.last_pods().pods[0].containers[0].probes[0].timeout_s = 2;
    stream.netns_made(POD);
    for conn in 100..103 {
        stream.again(conn).connect().drop(SYN, "QDISC_DROP", NODE).wait_ms(1_000).syn_again().refused().wait_ms(1_000);
    }
    assert_eq!(stream.causes(), ["not_listening_yet", "not_listening_yet", "startup_budget_exceeded"]);
}

/// A connection may be one of the API server in the same process, so the verdict is likely only.
#[test]
fn with_an_api_server_in_the_process_the_budget_is_reported_too() {
    let mut stream = Stream::new().liveness(10, 3).runs(Runs::default()).netns_made(POD).clone();
    for conn in 100..103 {
        stream.again(conn).connect().prober_named("k3s-server").reset_sent(SYN, true, None).wait_ms(10_000);
    }
    assert_eq!(stream.causes(), ["not_listening_yet", "not_listening_yet", "startup_budget_exceeded"]);
    assert_eq!(stream.verdicts()[2].verdict.confidence, Confidence::Likely);
}

/// Whether this is the container's first run is not known: it may have crashed and been started again in between.
#[test]
fn a_start_that_only_the_namespace_shows_is_likely() {
    let mut first = Stream::new().liveness(1, 3).runs(Runs::default()).netns_made(POD).clone();
    refuse(&mut first, 100, 3);
    let confidence = |stream: &Stream| stream.verdicts()[2].verdict.confidence;
    assert_eq!((confidence(&first), confidence(&refusals(3))), (Confidence::Proven, Confidence::Likely));
    let mut named = Stream::new().liveness(1, 3).container_id("one").netns_made(POD).clone();
    refuse(&mut named, 100, 3);
    assert_eq!(confidence(&named), Confidence::Proven, "the same container throughout");
    named.container_id("two");
    refuse(&mut named, 200, 2);
    assert_eq!(named.causes()[3..], ["not_listening_yet"; 2], "another run");
}

/// The container exits by itself, and the status of its next run is not there yet.
#[test]
fn a_container_that_crashed_has_not_spent_its_budget() {
    let crashed = |runs: &dyn Fn(u64) -> Runs| {
        let mut stream = refusals(2);
        let now = stream.seconds_ago(0);
        stream.runs(runs(now));
        refuse(&mut stream, 200, 2);
        stream.causes().last().copied().map(str::to_owned)
    };
    let ended = |now: u64| Some(Ended { finished_boot_ns: Some(now), exit_code: 1, ..Ended::default() });
    let back_off = || Some(Waiting { reason: Waiting::BACK_OFF.into(), message: None });
    let again = crashed(&|now| Runs { restarts: 1, last: ended(now), ..Runs::default() });
    let waits = crashed(&|_| Runs { restarts: 1, waiting: back_off(), ..Runs::default() });
    assert_ne!(again.as_deref(), Some("startup_budget_exceeded"));
    assert_ne!(waits.as_deref(), Some("startup_budget_exceeded"));
}

/// The container exits by itself and is started again at once. Its status comes a second later, after the attempt.
#[test]
fn a_process_that_enters_the_namespace_between_the_refusals_may_be_a_new_run() {
    let spent = |runs: fn(&mut Stream), entered_after: u64| {
        let mut stream = Stream::new().liveness(1, 3).wait_ms(5_000).netns_made(POD).clone();
        runs(&mut stream);
        stream.wait_ms(100);
        refuse(&mut stream, 100, entered_after);
        stream.netns_entered(POD).wait_ms(300);
        refuse(&mut stream, 200, 3 - entered_after);
        let last = stream.verdicts().remove(2).verdict;
        (last.cause.name(), last.confidence, last.summary.contains("entered its network namespace 300.0 ms before"))
    };
    let first: fn(&mut Stream) = |stream| _ = stream.runs(Runs::default());
    for runs in [first, |stream| run(stream, 0, None), |stream| _ = stream.container_id("one")] {
        assert_eq!(spent(runs, 2), ("startup_budget_exceeded", Confidence::Likely, true));
        assert_eq!(spent(runs, 0), ("startup_budget_exceeded", Confidence::Proven, false), "before all of them");
    }
}

/// An exec probe enters the namespace each second. tracer reads the container after each entry.
#[test]
fn a_container_that_runs_on_after_the_last_entry_was_not_started_again() {
    let spent = |listed_from: u64, read: &str, readings: u64| {
        let mut stream = Stream::new().liveness(1, 3).wait_ms(5_000).netns_made(POD).runs(Runs::default()).clone();
        for attempt in 0..3 {
            if attempt == listed_from {
                stream.container_id("one");
            }
            stream.again(attempt + 100).connect().refused().wait_ms(60).netns_entered(POD).wait_ms(100);
            if attempt < readings {
                stream.container_read(read);
            }
            stream.wait_ms(840);
        }
        let last = stream.verdicts().remove(2).verdict;
        (last.confidence, last.summary.contains("entered its network namespace"), last.evidence.len())
    };
    let likely = (Confidence::Likely, true, 2);
    assert_eq!(spent(0, "one", 2), (Confidence::Proven, false, 3));
    assert_eq!(spent(0, "one", 1), likely, "an entry came after the reading");
    assert_eq!(spent(0, "two", 2), likely, "another container");
    assert_eq!(spent(1, "one", 2), likely, "the first refusal may be of another one");
}

/// The readiness probe is refused for long before the liveness probe begins.
#[test]
fn refusals_of_the_readiness_probe_spend_no_liveness_budget() {
    let mut stream = Stream::new();
    stream.liveness_after(30, 10, 3).readiness_too().runs(Runs::default()).netns_made(POD);
    for conn in 100..105 {
        stream.again(conn).connect().reset_sent(SYN, true, None).wait_ms(10_000);
    }
    assert_eq!(stream.causes(), ["not_listening_yet"; 5], "40 s, of at least 50");
    // Both probes run now, and nothing names the probe of a refusal.
    for conn in 200..204 {
        stream.again(conn).connect().reset_sent(SYN, true, None).wait_ms(1_000);
        stream.again(conn + 10).connect().reset_sent(SYN, true, None).wait_ms(9_000);
    }
    assert_eq!(stream.causes(), ["not_listening_yet"; 13]);
}

/// Attempts of a liveness and a readiness probe of the port, each second, 20 ms apart. The kubelet names each of them.
fn named_refusals(stream: &mut Stream, from: u64, count: u64) {
    for conn in from..from + count {
        for (conn, kind) in [(conn, ProbeType::Liveness), (conn + 50, ProbeType::Readiness)] {
            stream.again(conn).connect().refused().wait_ms(1).kubelet_of(kind, ProbeOutput::Network).wait_ms(19);
        }
        stream.wait_ms(960);
    }
}

/// Seen beside a kubelet: the readiness probe is refused 20 ms after the attempt that spends the budget, and goes on
/// until the status of the next run comes.
#[test]
fn only_the_liveness_attempt_that_reaches_the_threshold_spends_the_budget() {
    let mut stream = Stream::new().liveness(1, 3).readiness_too().runs(Runs::default()).netns_made(POD).clone();
    named_refusals(&mut stream, 100, 3);
    for conn in 200..202 {
        stream.again(conn).connect().refused().wait_ms(1).kubelet(ProbeOutput::Network).wait_ms(980);
    }
    run(&mut stream, 1, Some(killed(3, "Error", 137)));
    named_refusals(&mut stream, 300, 3);
    let spent = |it: &&VerdictBody| it.verdict.cause == Cause::StartupBudgetExceeded;
    let verdicts = stream.verdicts();
    let spent: Vec<_> = verdicts.iter().filter(spent).map(|it| it.attempt_id.clone().unwrap_or_default()).collect();
    assert_eq!(spent, ["102", "302"]);
}

/// One probe: after the attempt that spends the budget, the next refusal is of the next run.
#[test]
fn a_budget_is_spent_once() {
    let spent = |count| refusals(count).causes().into_iter().filter(|it| *it == "startup_budget_exceeded").count();
    assert_eq!([3, 4, 5, 6].map(spent), [1, 1, 1, 2]);
}

/// The kubelet outcome identifies this attempt as the second of the liveness probe. Two refusals before were of another
/// probe of the port, of the same container or of another one.
#[test]
fn an_identified_liveness_attempt_does_not_count_those_of_other_probes() {
    let others: [fn(&mut Stream) -> &mut Stream; 2] =
        [Stream::readiness_too, |stream| stream.probed_container_too("b")];
    for other in others {
        let mut stream = Stream::new();
        other(stream.liveness_after(0, 10, 3)).runs(Runs::default()).netns_made(POD);
        // The other probe, liveness, the other; then liveness.
        for (conn, until_next) in [(100, 9_800), (101, 200), (102, 9_800)] {
            stream.again(conn).connect().reset_sent(SYN, true, None).wait_ms(until_next);
        }
        stream.again(200).connect().refused().wait_ms(1).kubelet_of(ProbeType::Liveness, ProbeOutput::Network);
        let confidence = |v: &tracer_model::record::VerdictBody| {
            v.verdict.cause.name() == "startup_budget_exceeded" && v.verdict.confidence == Confidence::Proven
        };
        assert!(!stream.verdicts().iter().any(confidence), "{:?}", stream.causes());
    }
}

#[test]
fn a_liveness_probe_after_a_startup_probe_spends_no_startup_budget() {
    let mut stream = Stream::new().liveness(1, 3).exec_startup_too().netns_made(POD).clone();
    refuse(&mut stream, 100, 3);
    assert!(!stream.causes().contains(&"startup_budget_exceeded"), "{:?}", stream.causes());
}

#[test]
fn a_process_that_listens_on_any_port_has_started() {
    let refused_after = |listens: fn(&mut Stream)| {
        let mut stream = refusals(2);
        listens(&mut stream);
        refuse(&mut stream, 200, 2);
        stream.causes()[2..].to_vec()
    };
    assert_eq!(refused_after(|stream| _ = stream.listens(POD, 9090, true)), ["connection_refused"; 2]);
    let ends = |stream: &mut Stream| _ = stream.listens(POD, 8080, true).listens(POD, 8080, false);
    assert_eq!(refused_after(ends), ["connection_refused"; 2]);
    // With two containers, the other one may listen.
    let mut two = Stream::new();
    two.liveness(1, 3).second_container().runs(Runs::default()).netns_made(POD).listens(POD, 9090, true);
    refuse(&mut two, 100, 3);
    assert_eq!(two.all_decided()[2], ("startup_budget_exceeded", Confidence::Likely));
}

/// The port belongs to the sidecar, which is gone; this container was restarted because of it.
#[test]
fn the_port_of_another_container_is_no_start() {
    let mut stream = Stream::new();
    stream.liveness(1, 3).second_container().wait_ms(5_000).listens(POD, 8080, true).listens(POD, 8080, false);
    run(&mut stream, 1, None);
    refuse(&mut stream, 100, 4);
    assert_eq!(stream.causes(), ["connection_refused"; 4]);
}

#[test]
fn lost_events_make_an_absent_listener_less_sure() {
    let spent = |place: &str, runs: Option<Runs>| {
        let mut stream = Stream::new().liveness(1, 3).netns_made(POD).clone();
        runs.map(|runs| stream.runs(runs));
        refuse(&mut stream, 100, 1);
        stream.lost_in(place, 1).wait_ms(1000);
        refuse(&mut stream, 200, 3);
        stream.all_decided()[2]
    };
    let known = || Some(Runs::default());
    assert_eq!(spent("ring", None), ("connection_refused", Confidence::Proven));
    assert_eq!(spent("ring", known()), ("startup_budget_exceeded", Confidence::Likely));
    assert_eq!(spent("program", known()), ("startup_budget_exceeded", Confidence::Likely));
    assert_eq!(spent("map", known()), ("startup_budget_exceeded", Confidence::Proven));
}

/// A container that was restarted several times. Its sandbox is older than tracer, and its status is known.
fn restarted(restarts: u32, last: Option<Ended>) -> Stream {
    let mut stream = Stream::new().liveness(1, 3).wait_ms(5_000).clone();
    run(&mut stream, restarts, last);
    stream
}

/// The container was started just now.
fn run(stream: &mut Stream, restarts: u32, last: Option<Ended>) {
    let started_boot_ns = Some(stream.seconds_ago(0));
    stream.runs(Runs { restarts, started_boot_ns, last, ..Runs::default() }).wait_ms(200);
}

fn refuse(stream: &mut Stream, from: u64, count: u64) {
    for conn in from..from + count {
        stream.again(conn).connect().refused().wait_ms(1000);
    }
}

fn killed(ran_s: u64, reason: &str, exit_code: i32) -> Ended {
    let (started_boot_ns, finished_boot_ns) = (Some(1_000_000_000), Some((ran_s + 1) * 1_000_000_000));
    Ended { exit_code, reason: Some(reason.into()), started_boot_ns, finished_boot_ns, id: None }
}

#[test]
fn a_start_that_the_status_shows_is_proven_and_begins_there() {
    let mut stream = restarted(4, Some(killed(3, "Error", 137)));
    refuse(&mut stream, 100, 3);
    let verdicts = stream.verdicts();
    let last = &verdicts[2].verdict;
    assert_eq!((last.cause.name(), last.confidence), ("startup_budget_exceeded", Confidence::Proven));
    assert_has(&last.summary, &["is not listening after 2 s in"]);
    assert_has(&last.summary, &["the run before ended in the same way, after 3 s"]);
    assert_eq!(last.evidence[0].hook, "container_status");
    assert_has(&last.remediation, &["failureThreshold: 30} (allows 30 s). Copy httpHeaders"]);
}

/// The kernel killed the run before, or it exited by itself, at the time at which its budget was over.
#[test]
fn a_run_that_ended_otherwise_is_not_counted_to_the_budget() {
    for last in [killed(3, "OOMKilled", 137), killed(3, "Error", 1)] {
        let mut stream = restarted(4, Some(last));
        refuse(&mut stream, 100, 3);
        let verdicts = stream.verdicts();
        let verdict = &verdicts[2].verdict;
        assert_eq!(verdict.cause.name(), "startup_budget_exceeded", "this run counts by itself");
        assert_lacks(&verdict.summary, &["the run before"]);
    }
}

/// Each run has a budget of its own: refusals of the run before do not count.
#[test]
fn a_restart_begins_a_new_count() {
    let mut stream = restarted(4, None);
    refuse(&mut stream, 100, 3);
    run(&mut stream, 5, Some(killed(3, "Error", 137)));
    refuse(&mut stream, 200, 3);
    let run = ["not_listening_yet", "not_listening_yet", "startup_budget_exceeded"];
    assert_eq!(stream.causes(), [run, run].concat());
}

/// A server with a listener for each worker (SO_REUSEPORT) may close one of them.
#[test]
fn a_run_that_has_listened_has_started() {
    for (port, begin, end) in [(8080, 1, 1), (9090, 1, 0), (9090, 2, 0), (9090, 2, 1)] {
        let mut stream = restarted(4, None);
        (0..begin).for_each(|_| _ = stream.listens(POD, port, true));
        (0..end).for_each(|_| _ = stream.listens(POD, port, false));
        refuse(&mut stream, 100, 3);
        assert_eq!(stream.causes(), ["connection_refused"; 3], "{port} {begin} {end}");
    }
}

/// A run that began before tracer started may have listened then. On the host's network its port may be wrong: among all
/// listeners on the node its own cannot be identified.
#[test]
fn a_start_before_the_tracer_or_on_the_hosts_network_is_likely() {
    let third = |stream: &mut Stream| {
        refuse(stream, 100, 3);
        stream.all_decided()[2]
    };
    let before = Runs { restarts: 4, started_boot_ns: Some(1), ..Runs::default() };
    let likely = ("startup_budget_exceeded", Confidence::Likely);
    assert_eq!(third(Stream::new().liveness(1, 3).runs(before)), likely);
    assert_eq!(third(restarted(4, None).on_host_network().listens(POD, 38_211, true)), likely);
}

/// The process may have listened, and ended before tracer started.
#[test]
fn without_any_known_start_the_port_is_refused() {
    for runs in [None, Some(Runs::default())] {
        let mut stream = Stream::new().liveness(1, 3).clone();
        runs.into_iter().for_each(|runs| _ = stream.runs(runs));
        refuse(&mut stream, 100, 4);
        assert_eq!(stream.causes(), ["connection_refused"; 4]);
        assert!(stream.verdicts().iter().all(|it| it.verdict.also.is_empty()));
    }
}

/// The container had listened for days, and stopped before tracer started.
#[test]
fn a_container_that_outlived_its_budget_once_has_not_spent_it_now() {
    let refused = |started_s_ago: u64| {
        let mut stream = Stream::new();
        stream.wait_ms(1_000_000).push(ObservationKind::Start(Box::new(tracer_core::testing::start())));
        let started_boot_ns = Some(stream.seconds_ago(started_s_ago));
        stream.liveness(1, 3).runs(Runs { started_boot_ns, ..Runs::default() });
        refuse(&mut stream, 100, 3);
        stream.causes().last().copied()
    };
    assert_eq!((refused(600), refused(2)), (Some("connection_refused"), Some("startup_budget_exceeded")));
}

/// A liveness probe of 1 s with threshold 3 gets these answers, one each second.
fn answered(stream: &mut Stream, answers: &[u16]) {
    for (number, status) in answers.iter().enumerate() {
        stream.again(100 + number as u64).connect().established().answers(*status).wait_ms(1000);
    }
}

/// Such a server listens at once, and answers 404 or 503 until it is ready.
#[test]
fn a_start_that_answers_with_failures_until_its_budget_ends_is_in_also() {
    let also = |stream: &Stream| stream.verdicts().iter().map(|it| !it.verdict.also.is_empty()).collect::<Vec<_>>();
    let mut stream = restarted(4, None);
    answered(&mut stream, &[503, 404, 404]);
    assert_eq!(stream.causes(), ["app_status_failure"; 3]);
    assert_eq!(also(&stream), [false, false, true]);
    let last = stream.verdicts().remove(2).verdict;
    assert_eq!((last.also, last.confidence), (vec![Cause::StartupBudgetExceeded], Confidence::Proven));
    assert_starts(
        &last.remediation,
        "If it is still starting: Add a startupProbe that covers the start. How long that takes is not known",
    );
    assert_has(&last.remediation, &["Otherwise: The network from the kubelet", "correct the probe's path"]);
    assert_has(&last.summary, &["; its liveness probe has failed since its start 2 s before, and allows 2-3 s"]);
    let mut again = restarted(4, Some(killed(3, "Error", 143)));
    answered(&mut again, &[404]);
    assert_eq!(also(&again), [true], "the run before ended so");
    let mut ready = restarted(4, None);
    answered(&mut ready, &[200, 404, 404, 404]);
    assert_eq!(also(&ready), [false; 3], "it was ready");
    let mut old = restarted(4, None);
    answered(old.wait_ms(60_000), &[404, 404, 404]);
    assert_eq!(also(&old), [false; 3], "its first attempts were not seen");
    let mut readiness = Stream::new().http_readiness().wait_ms(5_000).clone();
    run(&mut readiness, 4, None);
    answered(&mut readiness, &[404, 404, 404, 404]);
    assert_eq!(also(&readiness), [false; 4]);
}

/// The application of a pod with a sidecar listens, and its probe asks another port.
#[test]
fn the_containers_own_listener_ends_its_start() {
    let spent = |container: &str| {
        let mut stream = Stream::new();
        stream.liveness(1, 3).second_container().container_id("one").runs(Runs::default()).netns_made(POD).pod_in(POD);
        stream.listens(POD, 9090, true);
        refuse(&mut stream, 100, 1);
        let server = Listener { pid: 7, comm: "app".into() };
        let at = ListenerAt { addr: address("0.0.0.0:9090"), device: None, server, container: Some(container.into()) };
        stream.pod_sockets(|reading| reading.elsewhere = vec![at]);
        refuse(&mut stream, 200, 2);
        stream.causes().last().copied().map(str::to_owned)
    };
    assert_eq!(spent("one").as_deref(), Some("connection_refused"));
    assert_eq!(spent("another").as_deref(), Some("startup_budget_exceeded"));
}

/// A second namespace got the pod's address, and refuses. The pod has listened since before tracer began.
#[test]
fn a_start_of_another_namespace_is_not_the_pods() {
    let other = Netns(7);
    let causes = |holders: &[Netns]| {
        let mut stream = Stream::new().liveness(1, 3).netns_made(other).pod_in(POD).clone();
        for conn in 100..103 {
            let accepts = Some(address("0.0.0.0:8080"));
            stream
                .again(conn)
                .connect()
                .refused_in(other)
                .wait_ms(7)
                .pod_sockets(|reading| (reading.holders, reading.accepts) = (holders.to_vec(), accepts));
            stream.wait_ms(993).tick();
        }
        stream.causes()
    };
    assert_eq!(causes(&[POD, other]), ["connection_refused"; 3]);
    assert_eq!(causes(&[]).last(), Some(&"startup_budget_exceeded"), "the sandbox was made again");
}
