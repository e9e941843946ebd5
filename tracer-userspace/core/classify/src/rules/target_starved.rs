//! For most of the attempt no task of the target's container could run: they waited for a processor, disk or memory.

use super::*;
use tracer_case::halt::{Silence, silence};
use tracer_case::serving::{connection, name};
use tracer_case::stall::stall;
use tracer_case::throttling::throttling;
use tracer_case::unread_server::watch;

/// The rule. If the server had read the request, or may have slept, `slow_response` goes first, and this cause is in
/// `also`.
pub(super) fn find(case: &Case<'_>) -> Option<Finding> {
    starved(case, |_, _| true)
}

/// The request lay unread, and the server itself could not run: that is the cause, not a slow handler.
pub(super) fn is_cause(case: &Case<'_>) -> bool {
    starved(case, |unread, server_waited| unread && server_waited).is_some()
}

fn starved(case: &Case<'_>, fits: fn(bool, bool) -> bool) -> Option<Finding> {
    let Silence { end, .. } = silence(case)?;
    let (ended, _) = case.attempt.ended?;
    // Else the accept queue is full, so that the server has no connection to take.
    let is_taken = taken_and_silent(case).is_some();
    let connection = connection(case).filter(|_| is_taken);
    if is_taken && connection.is_none() {
        return None;
    }
    let unread = connection.is_none_or(|it| !it.accepted || it.unread > 0);
    let (readings, least) = watch(case, ended);
    let pid = connection.and_then(|it| it.pid);
    let (stall, reading) = stall(&readings, pid).filter(|(stall, _)| stall.for_ns >= least)?;
    if !fits(unread, stall.server_waited) || stall.is_throttling(throttling(case).map_or(0, |it| it.wall_us)) {
        return None;
    }
    let (server, words) = (name(&reading.processes), stall.describe());
    let request = match connection {
        Some(it) if unread => format!("{} of the request lie unread in {server}; ", counted(it.unread.into(), "byte")),
        Some(_) => format!("{server} has read the request, and "),
        None => format!("the accept queue of {server} is full; "),
    };
    let summary = format!("{}: {request}{words}{}", case.attempt.flow.dst, stall.on_node());
    let evidence = std::iter::once(stall.evidence(reading)).chain(unread.then_some(end)).collect();
    let found = Finding::likely(Cause::TargetStarved, evidence, summary, stall.resource.fix(&reading.processes));
    Some(if is_taken { found } else { found.rests_on_lost_packet() })
}

#[cfg(test)]
mod tests {
    use tracer_core::testing::*;

    /// What is read of a server so many milliseconds after the first reading.
    type Read = fn(u64) -> Serving;

    fn server(tasks: ServerTasks) -> Serving {
        Serving { processes: vec![ServerProcess { tasks, ..server_process(7, 0) }], ..Serving::default() }
    }

    fn under(pressure: Pressure) -> Serving {
        let node = Pressure { of: "node".into(), ..pressure.clone() };
        let tasks = ServerTasks { count: 1, blocked: 1, ..ServerTasks::default() };
        Serving { pressure: vec![Pressure { of: "/pod".into(), ..pressure }, node], ..server(tasks) }
    }

    /// Threads: how many there are, are ready to run, and wait for a disk; how long they have run and waited.
    fn threads([count, runnable, blocked]: [u32; 3], ran_us: u64, waited_us: u64) -> ServerTasks {
        let (ran_ns, waited_ns) = (Some(1 + ran_us * 1000), Some(waited_us * 1000));
        ServerTasks { count, runnable, blocked, ran_ns, waited_ns, ..ServerTasks::default() }
    }

    fn cpu(ms: u64) -> Serving {
        under(Pressure { cpu_us: Some(ms * 910), cpu_full_us: Some(ms * 800), ..Pressure::default() })
    }

    fn io(ms: u64) -> Serving {
        under(Pressure { io_us: Some(ms * 1000), io_full_us: Some(ms * 900), ..Pressure::default() })
    }

    fn verdict((unread, accepted): (u32, bool), read: Read) -> Verdict {
        verdict_after(300, (unread, accepted), read)
    }

    /// The prober closes so long after the last reading.
    fn verdict_after(more_ms: u64, connection: (u32, bool), read: Read) -> Verdict {
        verdict_with(more_ms, connection, read, 0)
    }

    /// The container was throttled for so many milliseconds in each 100.
    fn verdict_with(more_ms: u64, connection: (u32, bool), read: Read, throttled: u64) -> Verdict {
        verdict_throttled(more_ms, connection, read, |ms| (ms / 100, throttled * ms * 10))
    }

    /// How often the container was throttled in so many milliseconds, and for how many microseconds.
    fn verdict_throttled(
        more_ms: u64,
        (unread, accepted): (u32, bool),
        read: Read,
        throttled: impl Fn(u64) -> (u64, u64),
    ) -> Verdict {
        let mut stream = Stream::new().connect().established().wait_ms(200).clone();
        for ms in [0, 300, 600] {
            let serving = Serving { connection: Some(served(unread, accepted)), ..read(ms) };
            let (times, micros) = throttled(ms);
            let throttled = Throttled { cgroup: "/pod".into(), times, micros, period_us: None };
            stream.inspection(|reading| {
                reading.serving = Some(Box::new(serving));
                reading.throttled = vec![throttled];
            });
            stream.wait_ms(if ms == 600 { more_ms } else { 300 });
        }
        stream.closes((100, 101, 0));
        assert_eq!(stream.verdicts().len(), 1);
        stream.verdict()
    }

    const UNREAD: (u32, bool) = (100, false);
    const READ: (u32, bool) = (0, true);

    #[test]
    fn what_the_limits_of_memory_did_meanwhile_is_evidence() {
        let verdict = verdict(UNREAD, |ms| {
            let memory_events = [("max", 7 + ms), ("high", 9)].map(|(name, count)| (name.to_owned(), count)).into();
            under(Pressure { memory_full_us: Some(ms * 900), memory_events, ..Pressure::default() })
        });
        let row = verdict.evidence.iter().find(|it| it.hook == "memory.pressure").expect("evidence");
        assert_ends(&row.text, "they waited for memory; memory.events: max 600");
    }

    #[test]
    fn a_container_that_cannot_run_is_starved() {
        let cases: [(Read, &str); 8] = [
            (
                cpu,
                "for 0.48 s of 0.60 s none of its tasks could run: they waited for a processor; on the node tasks waited for a processor 90 %",
            ),
            (io, "they waited for the disk"),
            (
                |ms| {
                    under(Pressure {
                        memory_us: Some(ms * 1000),
                        memory_full_us: Some(ms * 900),
                        ..Pressure::default()
                    })
                },
                "they waited for memory",
            ),
            (|ms| server(threads([1, 1, 0], ms * 10, ms * 980)), "they waited for a processor"),
            (|_| server(threads([1, 1, 0], 0, 0)), "for 0.60 s of 0.60 s none of its tasks could run"),
            (
                |ms| {
                    let before_5_13 = Pressure { cpu_us: Some(ms * 1000), io_full_us: Some(0), ..Pressure::default() };
                    Serving { pressure: under(before_5_13).pressure, ..server(threads([9, 1, 0], 0, 0)) }
                },
                "none of its tasks could run: they waited for a processor; on the node tasks waited for a processor 99 %",
            ),
            (
                |ms| Serving { pressure: cpu(ms).pressure, ..server(threads([9, 1, 0], 5, 0)) },
                "none of its tasks could run: they waited for a processor",
            ),
            (
                |ms| {
                    let blocked_in = Some("rpc_wait_bit_killable".into());
                    server(ServerTasks { blocked_in, ..threads([1, 0, 1], ms, 0) })
                },
                "(rpc_wait_bit_killable)",
            ),
        ];
        for (read, words) in cases {
            let verdict = verdict(UNREAD, read);
            assert_eq!((verdict.cause.name(), verdict.confidence), ("target_starved", Confidence::Likely), "{words}");
            assert_has(&verdict.summary, &[words, "100 bytes of the request lie unread in app (pid 7)"]);
            assert!(verdict.also.is_empty(), "{:?}", verdict.also);
        }
    }

    /// The kernel does not count a wait for a lock, or for a network or a frozen file system, as pressure of the disk.
    #[test]
    fn threads_that_stay_in_state_d_wait_for_a_file_system() {
        fn unpressed(tasks: ServerTasks) -> Serving {
            let pressure = under(Pressure { io_us: Some(0), io_full_us: Some(0), ..Pressure::default() }).pressure;
            Serving { pressure, ..server(ServerTasks { blocked_in: Some("percpu_rwsem_wait".into()), ..tasks }) }
        }
        let stuck = verdict(UNREAD, |_| unpressed(threads([1, 0, 1], 0, 0)));
        assert_eq!((stuck.cause.name(), stuck.confidence), ("target_starved", Confidence::Likely));
        let words = "for 0.60 s of 0.60 s none of its tasks could run: they waited for the disk or a network file system (percpu_rwsem_wait)";
        assert_ends(&stuck.summary, words);
        let reads: [Read; 2] =
            [|ms| unpressed(threads([1, 0, 1], ms * 100, 0)), |_| unpressed(threads([2, 0, 1], 0, 0))];
        for read in reads {
            assert_eq!(verdict(UNREAD, read).cause.name(), "slow_response", "it ran, or a thread slept");
        }
    }

    /// The processors are busy as well: what kept the container from running is its own limit.
    #[test]
    fn a_container_at_its_cpu_limit_is_throttled_and_not_starved() {
        let verdict = verdict_with(300, UNREAD, cpu, 60);
        assert_eq!(
            (verdict.cause.name(), verdict.also.as_slice()),
            ("slow_response", [Cause::CpuThrottled].as_slice())
        );
        assert_starts(&verdict.remediation.text, "Raise the CPU limit of the container");
        assert_eq!(verdict_with(300, UNREAD, cpu, 2).cause, Cause::TargetStarved);
    }

    /// The kernel sums the time over processors: 32 ms on each of ten, in one period of 100 ms.
    #[test]
    fn throttling_on_many_processors_is_no_longer_than_its_periods() {
        let decided = |times: u64, cpu_full: u64| {
            let read: Read = if cpu_full == 0 { |ms| server(threads([1, 1, 0], ms, ms * 980)) } else { cpu };
            let verdict = verdict_throttled(300, UNREAD, read, |ms| (times * ms / 600, 320 * ms / 600 * 1000));
            verdict.cause.name()
        };
        assert_eq!(decided(1, 0), "target_starved", "100 of 600 ms at most");
        assert_eq!(decided(6, 0), "slow_response", "320 of 600 ms");
        assert_eq!(decided(1, 800), "target_starved");
    }

    #[test]
    fn a_request_that_was_read_is_slow_and_the_pressure_is_in_also() {
        let verdict = verdict(READ, cpu);
        assert_eq!(
            (verdict.cause.name(), verdict.also.as_slice()),
            ("slow_response", [Cause::TargetStarved].as_slice())
        );
        assert_ends(&verdict.summary, "; app (pid 7) had read it: its handler is slow");
    }

    /// The workers of the server wait for a lock, or for each other. Other tasks of the container or the node are busy
    /// meanwhile.
    #[test]
    fn a_blocked_worker_pool_is_not_starved() {
        let reads: [Read; 11] = [
            |_| server(ServerTasks { count: 8, ..ServerTasks::default() }),
            |ms| under(Pressure { cpu_us: Some(ms * 1000), cpu_full_us: Some(ms * 100), ..Pressure::default() }),
            |ms| server(threads([8, 1, 0], ms * 1000, 0)),
            |ms| server(threads([8, u32::from(ms == 300), 0], 0, 0)),
            // A thread that computes, and gets a processor whenever it is ready. It sleeps for the rest of the time.
            |ms| server(threads([8, 1, 0], ms * 400, ms)),
            |ms| server(threads([1, 1, 0], ms * 400, ms)),
            // A thread that writes a log to a slow disk.
            |_| server(threads([8, 0, 1], 0, 0)),
            // Two threads that wait for a processor at the same time. The others sleep.
            |ms| server(threads([8, 2, 0], ms * 100, ms * 1200)),
            // How long the threads ran was not read, or the kernel does not count it.
            |_| server(ServerTasks { count: 8, runnable: 1, ..ServerTasks::default() }),
            |_| server(ServerTasks { count: 1, blocked: 1, ..ServerTasks::default() }),
            |ms| server(ServerTasks { incomplete: true, ..threads([1, 1, 0], 0, ms * 900) }),
        ];
        for read in reads {
            let verdict = verdict(UNREAD, read);
            assert_eq!((verdict.cause.name(), verdict.also.as_slice()), ("slow_response", [].as_slice()));
            assert_ends(&verdict.summary, "; nobody had accepted it: it waited in the queue of app (pid 7)");
            assert_has(&verdict.remediation, &["no file descriptors left. If it is only slow: Raise "]);
        }
    }

    /// The kernel counts the pressure of a background thread, while the thread that is to accept waits for a lock.
    #[test]
    fn pressure_of_others_is_in_also_if_the_server_sleeps() {
        let reads: [Read; 4] = [
            |ms| Serving { incomplete: true, ..cpu(ms) },
            |ms| Serving { pressure: io(ms).pressure, ..server(threads([8, 0, 1], ms * 10, 0)) },
            |ms| Serving { pressure: cpu(ms).pressure, ..server(threads([8, 1, 0], ms * 100, ms * 800)) },
            |ms| Serving {
                pressure: cpu(ms).pressure,
                ..server(ServerTasks { incomplete: true, ..threads([8, 8, 0], 0, 0) })
            },
        ];
        for read in reads {
            let verdict = verdict(UNREAD, read);
            assert_eq!(
                (verdict.cause.name(), verdict.also.as_slice()),
                ("slow_response", [Cause::TargetStarved].as_slice())
            );
            let words = "; nobody had accepted it: it waited in the queue of app (pid 7)";
            assert_ends(&verdict.summary, words);
        }
    }

    /// Of a server with many processes tracer reads the one that has accepted in any case.
    #[test]
    fn the_threads_of_the_process_that_accepted_are_enough() {
        let decided = |pid: Option<u32>| {
            let mut stream = Stream::new().connect().established().clone();
            for _ in 0..2 {
                let connection = Some(ServedConnection { pid, ..served(100, true) });
                let starved = server(threads([1, 1, 0], 0, 0));
                stream.wait_ms(450).serving(Serving { incomplete: true, connection, ..starved });
            }
            stream.wait_ms(100).closes((100, 101, 0)).verdict().cause.name()
        };
        assert_eq!([Some(7), None].map(decided), ["target_starved", "slow_response"]);
    }

    #[test]
    fn a_server_that_was_starved_for_the_smaller_part_of_an_attempt_is_slow() {
        let causes = |ms| {
            let verdict = verdict_after(ms, UNREAD, cpu);
            (verdict.cause.name(), verdict.also)
        };
        assert_eq!(causes(600), ("target_starved", vec![]));
        assert_eq!(causes(1_000), ("slow_response", vec![]));
        assert_eq!(causes(28_000), ("slow_response", vec![]));
    }
}
