//! All processes that serve the target, or the one that accepted the connection, are frozen by their cgroup, stopped, or
//! held by a debugger.

use super::*;
use tracer_case::halt::{
    MIN_READINGS, Silence, halt, has_rested, has_run, max_gap_ns, pause, reading_before, servers, silence,
};
use tracer_case::serving::{name, other_port, other_queue, own_connection, readings_of_taker};

pub(super) fn find(case: &Case<'_>) -> Option<Finding> {
    until_the_end(case).or_else(|| for_most_of_the_time(case))
}

fn until_the_end(case: &Case<'_>) -> Option<Finding> {
    let Silence { end, until } = silence(case)?;
    let (mut readings, redirected) = readings_of_taker(case);
    let unread = own_connection(case, &readings);
    let holder = unread.and_then(|it| it.pid);
    // While many targets wait, each has few readings. One of an earlier attempt counts if no server has run since.
    let earlier =
        reading_before(case).filter(|(_, it)| readings.first().is_some_and(|(_, own)| has_rested(it, own, holder)));
    readings.splice(0..0, earlier);
    // A process that is held for a moment (by a debugger, a profiler) is no cause of silence.
    let since = readings.iter().rposition(|(_, reading)| halt(reading, holder).is_none()).map_or(0, |at| at + 1);
    let halted = readings.get(since..)?;
    let ran = halted.windows(2).rposition(|pair| has_run(pair[0].1, pair[1].1, holder)).map_or(0, |at| at + 1);
    let halted = halted.get(ran..)?;
    let (time, reading) = *halted.last()?;
    let is_near = until.is_none_or(|until| until.saturating_sub(time) <= max_gap_ns(case));
    let (servers, halt) = (servers(reading, holder), halt(reading, holder));
    let halt = halt.filter(|_| halted.len() >= MIN_READINGS && is_near)?;
    let dst = case.attempt.flow.dst;
    let unread = unread.filter(|it| it.unread > 0);
    let unread = unread.map(|it| format!(": {} of the request lie unread", counted(u64::from(it.unread), "byte")));
    let (who, how) = (name(servers), halt.description());
    let summary = match servers.len() < reading.processes.len() {
        true => format!("{dst}: {who} has accepted the connection, and {how}{}", unread.unwrap_or_default()),
        false => {
            let by = "the address translation of its network namespace";
            let redirected = redirected.map(|to| other_port(case, &to.to_string(), by));
            let place = redirected.or_else(|| other_queue(case));
            let place = place.map(|place| format!("; it listens on {place}")).unwrap_or_default();
            format!("{dst} is served by {who}, which {how}{}{place}", unread.unwrap_or_default())
        }
    };
    let (hook, place) = halt.evidence();
    let text = format!("{who} {how}{place}, at {}", counted(halted.len() as u64, "reading"));
    let pids: Vec<u32> = servers.iter().map(|it| it.pid).collect();
    let read = evidence_of(hook, time, text, json!({ "pids": pids, "readings": halted.len() }));
    Some(Finding::likely(Cause::TargetFrozen, vec![read, end], summary, halt.fix(case, servers)).rests_on_lost_packet())
}

/// The server runs again, and had too little time for its answer.
fn for_most_of_the_time(case: &Case<'_>) -> Option<Finding> {
    let (Silence { end, .. }, waited) = (silence(case)?, case.attempt.lasted()?);
    let pause = pause(case).filter(|it| it.for_ns > waited / 2)?;
    let summary = format!(
        "{}: {} of the {} that {} waited",
        case.attempt.flow.dst,
        pause.words(),
        ms(waited),
        client_name(case.attempt)
    );
    let fix = Remediation::from(format!("If the process runs again, {}", pause.halt.find_culprit()));
    let evidence = vec![pause.evidence(), end];
    Some(Finding::likely(Cause::TargetFrozen, evidence, summary, fix).rests_on_lost_packet())
}

#[cfg(test)]
mod tests {
    use tracer_core::testing::*;

    fn process(pid: u32, fill: impl FnOnce(&mut ServerProcess)) -> ServerProcess {
        let mut process = server_process(pid, 2);
        fill(&mut process);
        process
    }

    fn stopped(pid: u32) -> ServerProcess {
        process(pid, |it| it.tasks.stopped = 2)
    }

    fn frozen(pid: u32) -> ServerProcess {
        process(pid, |it| it.frozen = Some("/sys/fs/cgroup/pod/cgroup.events".into()))
    }

    fn running(pid: u32) -> ServerProcess {
        process(pid, |_| ())
    }

    /// An attempt without an answer, and the processes of its server at each inspection.
    fn silent(inspections: &[&[ServerProcess]]) -> Stream {
        silent_for(900, inspections)
    }

    /// The attempt ends so long after the last inspection.
    fn silent_for(ms: u64, inspections: &[&[ServerProcess]]) -> Stream {
        let mut stream = Stream::new().connect().established().clone();
        for processes in inspections {
            let (processes, connection) = (processes.to_vec(), Some(served(100, false)));
            stream.wait_ms(300).serving(Serving { processes, connection, ..Serving::default() });
        }
        stream.wait_ms(ms).closes((100, 101, 0));
        stream
    }

    /// The server itself runs. Its pod redirects the port to a sidecar, which is stopped.
    #[test]
    fn a_proxy_that_the_pod_redirects_to_is_the_server() {
        let verdict_of = |proxy: ServerProcess, peer: &str| {
            let mut stream = Stream::new().connect().established().clone();
            for _ in 0..2 {
                let connection = Some(ServedConnection { peer: address(peer), ..served(100, false) });
                let processes = vec![proxy.clone()];
                let serving = Serving { processes, connection, ..Serving::default() };
                let redirect = Some(Box::new(RedirectedTo { to: address("10.88.0.2:15006"), serving }));
                let no_connection_of = Some(address("10.88.0.1:40000"));
                let processes = vec![running(8)];
                stream.wait_ms(300).serving(Serving { processes, no_connection_of, redirect, ..Serving::default() });
            }
            stream.wait_ms(900).closes((100, 101, 0)).verdict()
        };
        let verdict = |proxy| verdict_of(proxy, "10.88.0.1:40000");
        let frozen = verdict(stopped(7));
        assert_eq!((frozen.cause, frozen.confidence), (Cause::TargetFrozen, Confidence::Likely));
        let words = "app (pid 7), which is stopped by a signal: 100 bytes of the request lie unread; it listens on 10.88.0.2:15006 and not on port 8080: the address translation of its network namespace sends it there";
        assert_ends(&frozen.summary, words);
        assert_has(&frozen.remediation, &["kill -CONT 7"]);
        assert_eq!(verdict(running(7)).cause, Cause::SlowResponse);
        assert_eq!(verdict_of(stopped(7), "10.88.0.1:40001").cause, Cause::SlowResponse, "of another attempt");
    }

    #[test]
    fn a_reading_of_an_earlier_attempt_counts_if_the_server_has_not_run_since() {
        let second = |ran_ns: [u64; 2]| {
            let mut stream = Stream::new().connect().established().clone();
            for (attempt, ran_ns) in ran_ns.into_iter().enumerate() {
                if attempt > 0 {
                    stream.wait_ms(9_000).again(8).connect().established();
                }
                let server = process(7, |it| (it.tasks.stopped, it.tasks.ran_ns) = (2, Some(ran_ns)));
                stream.wait_ms(600).serving(Serving { processes: vec![server], ..Serving::default() });
                stream.wait_ms(400).closes((100, 101, 0));
            }
            stream.causes().pop()
        };
        assert_eq!(second([5, 5]), Some("target_frozen"));
        assert_eq!(second([5, 6]), Some("slow_response"));
    }

    #[test]
    fn a_server_that_cannot_run_is_the_cause_of_its_silence() {
        for (server, text, fix) in [
            (frozen(7), "app (pid 7), which is frozen by its cgroup", "echo 0 > /sys/fs/cgroup/pod/cgroup.freeze"),
            (
                process(7, |it| {
                    it.frozen = Some("/sys/fs/cgroup/freezer/slice/pod/freezer.state".into());
                    it.frozen_above = Some("/sys/fs/cgroup/freezer/slice".into());
                }),
                "which is frozen by a cgroup above its own (/sys/fs/cgroup/freezer/slice)",
                "echo THAWED > /sys/fs/cgroup/freezer/slice/freezer.state",
            ),
            (stopped(7), "app (pid 7), which is stopped by a signal", "kill -CONT 7"),
            (process(7, |it| it.tasks.traced = 2), "which is held by a debugger", "grep TracerPid /proc/7/status"),
        ] {
            let servers = [server];
            let stream = silent(&[&servers, &servers]);
            assert_eq!(stream.causes(), ["target_frozen"]);
            let verdict = stream.verdict();
            assert_eq!((verdict.confidence, verdict.also.as_slice()), (Confidence::Likely, [].as_slice()));
            assert_has(&verdict.summary, &[text]);
            assert_ends(&verdict.summary, ": 100 bytes of the request lie unread");
            assert_has(&verdict.remediation, &[fix]);
        }
    }

    /// Two processes listen on the port (SO_REUSEPORT), and the attempt waits in the queue of one of them.
    #[test]
    fn a_halted_process_among_several_is_named_in_slow_response() {
        let both: &[_] = &[running(7), stopped(8)];
        let verdict = silent(&[both, both]).verdict();
        let words = "; nobody had accepted it: it waited in the queue of app (pid 7) and 1 other; app (pid 8) is stopped by a signal";
        assert_eq!(verdict.cause.name(), "slow_response");
        assert!(verdict.summary.ends_with(words), "{}", verdict.summary);
    }

    /// A pre-fork server: the worker that accepted the connection is stopped, and another one runs.
    #[test]
    fn a_halted_worker_that_holds_the_connection_is_the_cause() {
        let decided = |holder: u32, unread: u32| {
            let mut stream = Stream::new().connect().established().clone();
            for _ in 0..2 {
                let connection = Some(ServedConnection { pid: Some(holder), ..served(unread, true) });
                let processes = vec![running(7), stopped(8)];
                stream.wait_ms(300).serving(Serving { processes, connection, ..Serving::default() });
            }
            stream.wait_ms(900).closes((100, 101, 0)).verdict()
        };
        let verdict = decided(8, 100);
        assert_eq!((verdict.cause.name(), verdict.confidence), ("target_frozen", Confidence::Likely));
        let words = ": app (pid 8) has accepted the connection, and is stopped by a signal: 100 bytes of the request lie unread";
        assert_ends(&verdict.summary, words);
        assert_has(&verdict.remediation, &["kill -CONT 8"]);
        assert_eq!(decided(8, 0).cause.name(), "target_frozen", "it was stopped after it had read the request");
        assert_eq!(decided(7, 100).cause.name(), "slow_response", "another worker is stopped");
        assert_eq!(decided(9, 100).cause.name(), "slow_response", "the holder was not read");
    }

    #[test]
    fn a_server_that_runs_or_was_held_for_a_moment_is_slow() {
        let both: &[_] = &[stopped(7), running(8)];
        let (held, free): (&[_], &[_]) = (&[stopped(7)], &[running(7)]);
        let partly: &[_] = &[process(7, |it| it.tasks.stopped = 1)];
        let inspections: [&[&[ServerProcess]]; 6] =
            [&[both, both], &[held], &[held, free], &[free, held], &[partly, partly], &[&[], &[]]];
        for inspections in inspections {
            assert_eq!(silent(inspections).causes(), ["slow_response"], "{inspections:?}");
        }
        assert_eq!(silent(&[free, held, held]).causes(), ["target_frozen"], "it was stopped meanwhile");
        let blocked: &[_] = &[process(7, |it| (it.tasks.blocked, it.tasks.ran_ns) = (2, Some(1)))];
        assert_eq!(silent_for(200, &[blocked, blocked]).causes(), ["target_starved"], "it waits for a disk");
    }

    /// A profiler that stops the server for a moment, again and again: between the readings it ran.
    #[test]
    fn a_server_that_ran_between_two_readings_is_slow() {
        let after = |ran_ns| {
            let held = |ran_ns| [process(7, |it| (it.tasks.stopped, it.tasks.ran_ns) = (2, Some(ran_ns)))];
            silent(&[&held(5), &held(ran_ns)]).causes()
        };
        assert_eq!((after(5), after(6)), (vec!["target_frozen"], vec!["slow_response"]));
    }

    /// A debugger or a checkpoint held the server at first. Then it ran, and waited for its database.
    #[test]
    fn a_server_that_resumed_long_before_the_end_is_slow() {
        let held: &[_] = &[stopped(7)];
        assert_eq!(silent(&[held, held]).causes(), ["target_frozen"]);
        assert_eq!(silent_for(24_000, &[held; 8]).causes(), ["slow_response"]);
        assert_eq!(silent_for(1_100, &[held; 8]).causes(), ["slow_response"]);
        assert_eq!(silent_for(1_100, &[held; 16]).causes(), ["target_frozen"], "a quarter of its time");
    }

    /// Found in a run: the container was frozen for 1.4 s of 2 s, and needed 0.7 s for its answer.
    #[test]
    fn a_server_that_was_halted_meanwhile_had_less_time() {
        let was = |halted: u32, ran: u32, count: bool| {
            let state = |at: u32, is_halted: bool| {
                vec![process(7, |it| {
                    it.frozen = is_halted.then(|| "/sys/fs/cgroup/pod/cgroup.events".into());
                    it.tasks.ran_ns = count.then(|| if is_halted { 5 } else { 6 + u64::from(at) });
                })]
            };
            let mut stream = Stream::new().connect().established().clone();
            for at in 0..halted + ran {
                let connection = Some(ServedConnection { pid: Some(7), ..served(0, true) });
                let processes = state(at, at < halted);
                stream.wait_ms(300).serving(Serving { processes, connection, ..Serving::default() });
            }
            stream.wait_ms(100).closes((100, 101, 0)).verdict()
        };
        let most = was(5, 2, true);
        assert_eq!((most.cause.name(), most.confidence), ("target_frozen", Confidence::Likely));
        assert_has(
            &most.summary,
            &["app (pid 7) was frozen by its cgroup for at least 1200.0 ms of the 2200.0 ms that"],
        );
        assert_has(&most.remediation, &["If the process runs again, find who paused it"]);
        let part = was(3, 5, true);
        assert_eq!((part.cause.name(), part.confidence), ("slow_response", Confidence::Likely));
        assert_has(&part.summary, &["; app (pid 7) was frozen by its cgroup for at least 600.0 ms of that time; app"]);
        assert_ends(&part.summary, "had read it: its handler is slow, or that pause was too long");
        assert_has(&part.remediation, &["a person (ctr tasks pause, docker pause). If that does not help: Raise"]);
        assert_lacks(&was(1, 6, true).summary, &["frozen"]);
        assert_lacks(&was(5, 2, false).summary, &["frozen"]);
    }

    #[test]
    fn threads_that_were_not_read_may_run() {
        for server in [stopped(7), process(7, |it| it.tasks.traced = 2)] {
            let mut more = server.clone();
            more.tasks.incomplete = true;
            assert_eq!(silent(&[std::slice::from_ref(&more); 2]).causes(), ["slow_response"]);
            assert_eq!(silent(&[std::slice::from_ref(&server); 2]).causes(), ["target_frozen"]);
        }
        let mut frozen = frozen(7);
        frozen.tasks.incomplete = true;
        assert_eq!(
            silent(&[std::slice::from_ref(&frozen); 2]).causes(),
            ["target_frozen"],
            "a cgroup freezes all threads"
        );
    }

    #[test]
    fn a_process_that_was_not_read_may_hold_the_socket_too() {
        let mut stream = Stream::new().connect().established().clone();
        for _ in 0..2 {
            let processes = vec![stopped(7)];
            stream.wait_ms(300).serving(Serving { processes, incomplete: true, ..Serving::default() });
        }
        stream.wait_ms(1_000).closes((100, 101, 0));
        assert_eq!(stream.causes(), ["slow_response"]);
    }

    /// An inspection finds the queue of the target full, and this process at its socket.
    fn inspect_full(stream: &mut Stream, server: &ServerProcess) {
        stream.inspection(|reading| {
            reading.listeners = Some(vec![listener(2, 1)]);
            reading.serving = Some(Box::new(Serving { processes: vec![server.clone()], ..Serving::default() }));
        });
    }

    #[test]
    fn a_full_queue_of_a_stopped_server_is_target_frozen() {
        let verdict_of = |servers: &[ServerProcess], is_seen: bool| {
            let mut stream = Stream::new();
            stream.connect();
            if is_seen {
                stream.queue_full(ListenQueue::Accept);
            }
            for server in servers {
                inspect_full(stream.wait_ms(200), server);
            }
            stream.gives_up().verdict()
        };
        let cause_of = |servers: &[ServerProcess], is_seen| verdict_of(servers, is_seen).cause.name();
        for is_seen in [false, true] {
            let held = [stopped(7), stopped(7)];
            assert_eq!(cause_of(&held, is_seen), "target_frozen", "a hook showed the full queue: {is_seen}");
            assert_eq!(cause_of(&[running(7), running(7)], is_seen), "accept_queue_overflow");
            let once = verdict_of(&held[..1], is_seen);
            assert_eq!(once.cause.name(), "accept_queue_overflow", "a debugger may hold it for a moment");
            // The hook decided before the reading came.
            let words = "; at one reading, app (pid 7) is stopped by a signal";
            assert_eq!(once.summary.ends_with(words), !is_seen, "{}", once.summary);
        }
    }

    /// The queue had room for the SYN, and filled up before the end of the handshake.
    #[test]
    fn a_queue_of_a_stopped_server_that_fills_up_after_the_syn_is_target_frozen() {
        let cause_of = |server: ServerProcess| {
            let mut stream = Stream::new();
            stream.connect().established().drop(TcpFlags(0x18), "TCP_LISTEN_OVERFLOW", tracer_core::testing::POD);
            for _ in 0..2 {
                inspect_full(stream.wait_ms(300), &server);
            }
            stream.wait_ms(400).closes((100, 1, 0)).settles().causes()
        };
        assert_eq!(cause_of(stopped(7)), ["target_frozen"]);
        assert_eq!(cause_of(running(7)), ["accept_queue_overflow"]);
    }

    /// Seen on 6.12: the rule is removed before the next SYN, which meets the full queue.
    #[test]
    fn a_full_queue_of_a_stopped_server_replaces_a_rule_that_dropped_an_earlier_syn() {
        let cause_if = |is_met: bool| {
            let mut stream = Stream::new();
            stream.connect().filtered(SYN, NODE).push(firewall(NODE, vec![rule("OUTPUT", RuleVerdict::Drop)]));
            for _ in 0..2 {
                inspect_full(stream.wait_ms(300), &stopped(7));
            }
            stream.wait_ms(400).syn_again();
            if is_met {
                stream.queue_full(ListenQueue::Accept);
            }
            stream.gives_up().causes()
        };
        assert_eq!(cause_if(true), ["target_frozen"]);
        assert_eq!(cause_if(false), ["target_frozen"], "the rule did not drop the later SYN");
    }

    #[test]
    fn a_halted_server_with_a_full_queue_is_inspected_again() {
        let next = |server: ServerProcess| {
            let mut core = tracer_core::core::Core::default();
            let mut stream = Stream::new().connect().wait_ms(200).tick().clone();
            inspect_full(&mut stream, &server);
            stream.observations.iter().for_each(|it| core.push(it, &mut Vec::new()));
            core.take_queries();
            stream.wait_ms(400).tick();
            core.push(stream.observations.last().expect("a tick"), &mut Vec::new());
            core.take_queries().len()
        };
        assert_eq!((next(stopped(7)), next(running(7))), (1, 0));
    }
}
