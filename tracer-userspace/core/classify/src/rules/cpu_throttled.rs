//! The CPU limit throttled the target's container while the prober waited for an answer. Goes to `also`.

use super::*;
use tracer_case::throttling::throttling;

pub(super) fn find(case: &Case<'_>) -> Option<Finding> {
    throttling(case).map(|it| it.finding())
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use tracer_core::testing::*;

    const APP: &str = "/kubepods/pod1";

    fn slow(times: u64) -> Verdict {
        slow_as(APP, times, None)
    }

    fn slow_as(cgroup: &str, times: u64, server: Option<&str>) -> Verdict {
        slow_in(&mut Stream::new(), cgroup, times, server)
    }

    /// The cgroup is throttled 10 ms each time. The processes of `server` listen.
    fn slow_in(stream: &mut Stream, cgroup: &str, times: u64, server: Option<&str>) -> Verdict {
        let processes =
            server.map(|cgroup| vec![ServerProcess { cpu_cgroup: Some(cgroup.to_owned()), ..server_process(7, 0) }]);
        let read = |reading: &mut Inspection, times: u64| {
            let counted = |cgroup: &str, times| Throttled {
                cgroup: cgroup.into(),
                times,
                micros: times * 10_000,
                period_us: None,
            };
            reading.throttled = vec![counted("/kubepods/pod0", 3), counted(cgroup, times)];
            let processes = processes.clone();
            reading.serving = processes.map(|processes| Box::new(Serving { processes, ..Serving::default() }));
        };
        stream.connect().established().wait_ms(200).inspection(|reading| read(reading, 5));
        stream.wait_ms(400).inspection(|reading| read(reading, 5 + times)).wait_ms(400).closes((100, 101, 0));
        assert_eq!(stream.causes(), ["slow_response"]);
        stream.verdict()
    }

    #[test]
    fn a_counter_that_rose_is_reported_beside_the_cause() {
        assert_eq!(slow(7).also, [Cause::CpuThrottled]);
        assert!(slow(0).also.is_empty());
        assert!(slow(3).also.is_empty(), "30 of 400 ms");
    }

    #[test]
    fn only_the_limit_of_the_server_counts() {
        assert_eq!(slow_as(APP, 7, Some(APP)).also, [Cause::CpuThrottled]);
        assert!(slow_as("/kubepods/sidecar", 30, Some(APP)).also.is_empty());
        let mut by_agent = Stream::new();
        by_agent.asked_by_pilot_agent();
        assert_eq!(slow_in(&mut by_agent, APP, 30, Some("/kubepods/agent")).also, [Cause::CpuThrottled]);
    }

    /// A limit of the pod's own resources, or of a service that has the server in a child cgroup.
    #[test]
    fn the_limit_of_a_parent_cgroup_counts() {
        for (cgroup, server, fix) in [
            (APP, "/kubepods/pod1/app", "Raise the CPU limits of the pod's containers, or remove them: "),
            (
                "/kubepods.slice/kubepods-pod1.slice",
                "/kubepods.slice/kubepods-pod1.slice/cri-1.scope",
                "Raise the CPU limits of the pod's containers, or remove them: ",
            ),
            (
                "/web.slice",
                "/web.slice/a",
                "Raise the CPU limit of /web.slice, a cgroup above the container's, or remove it: ",
            ),
            ("/podman.service", "/podman.service/a", "Raise the CPU limit of /podman.service, a cgroup above the "),
        ] {
            let held = slow_as(cgroup, 7, Some(server));
            assert_eq!(held.also, [Cause::CpuThrottled]);
            assert_starts(&held.remediation.text, fix);
        }
        assert!(slow_as(APP, 7, Some("/kubepods/pod12")).also.is_empty(), "its name only begins in the same way");
    }

    /// The node has many pods below one limit. Most of them are not read in time.
    #[test]
    fn a_limit_above_many_pods_is_known_by_the_others() {
        let held = |is_read_again: bool| {
            let above = "/kubepods";
            let mut stream = Stream::new().http_readiness().clone();
            let read = |stream: &mut Stream, pod: u8, times: u64| {
                stream.inspection(|reading| {
                    reading.target = SocketAddr::from(([10, 88, 0, pod], 8080));
                    let counted = |cgroup: String| Throttled { cgroup, times, micros: times * 10_000, period_us: None };
                    reading.throttled = vec![counted(above.into()), counted(format!("{above}/pod{pod}"))];
                });
            };
            read(&mut stream, 2, 1);
            stream.wait_ms(9_000).connect().established().wait_ms(200);
            read(&mut stream, 3, 5);
            stream.wait_ms(400);
            if is_read_again {
                read(&mut stream, 4, 30);
            }
            stream.wait_ms(400).closes((100, 101, 0)).wait_ms(5).tick().verdict()
        };
        assert!(held(false).also.is_empty(), "one reading");
        let verdict = held(true);
        assert_eq!(
            (verdict.cause.name(), verdict.also.as_slice()),
            ("slow_response", [Cause::CpuThrottled].as_slice())
        );
        assert_starts(&verdict.remediation.text, "Raise the CPU limit of /kubepods, a cgroup above the container's");
        assert_starts(&verdict.evidence[0].text, "/kubepods was throttled 25 times");
    }

    /// Of the target, one reading is from before the attempt. Then other targets were read, `apart_ms` after each other.
    fn held_by_others(apart_ms: u64, cgroup: &str, is_new: bool) -> Vec<Cause> {
        let mut stream = Stream::new().http_readiness().clone();
        let read = |stream: &mut Stream, port: u16, times: u64| {
            stream.inspection(|reading| {
                reading.target.set_port(port);
                let counted = |it: &str| {
                    let times = if it == cgroup { times } else { 1 };
                    Throttled { cgroup: it.into(), times, micros: times * 10_000, period_us: None }
                };
                reading.throttled = ["/pod", "/pod/app", "/pod/sidecar"].map(counted).into();
            });
        };
        read(&mut stream, 8080, 1);
        if is_new {
            stream.netns_ends(POD).netns_made(POD);
        }
        stream.wait_ms(9_000).connect().established().wait_ms(200);
        read(&mut stream, 9090, 5);
        read(stream.wait_ms(apart_ms), 9090, 30);
        stream.wait_ms(800 - apart_ms).closes((100, 101, 0)).wait_ms(5).tick().last_verdict().also
    }

    #[test]
    fn readings_of_others_are_of_a_limit_above_the_server_for_some_time() {
        assert_eq!(held_by_others(400, "/pod", false), [Cause::CpuThrottled]);
        for (apart_ms, cgroup, is_new) in
            [(3, "/pod", false), (400, "/pod/sidecar", false), (400, "/pod/app", false), (400, "/pod", true)]
        {
            assert!(held_by_others(apart_ms, cgroup, is_new).is_empty(), "{apart_ms} {cgroup} {is_new}");
        }
    }

    #[test]
    fn throttling_comes_before_the_slow_response_in_evidence_and_fix() {
        let text = |verdict: &Verdict| verdict.evidence.iter().map(|row| row.text.clone()).collect::<Vec<_>>();
        let (held, free) = (slow(7), slow(0));
        assert_eq!(
            text(&held)[0],
            "/kubepods/pod1 was throttled 7 times, 70.0 ms summed over its processors, during the attempt"
        );
        assert_eq!(text(&held)[1..], text(&free));
        assert_ends(
            &held.summary,
            "; its CPU limit throttled the container 7 times, 70.0 ms summed over its processors",
        );
        let after = held.remediation.text.strip_prefix("Raise the CPU limit of the container, or remove it: ");
        assert!(after.is_some_and(|fix| fix.ends_with(&free.remediation.text)), "{}", held.remediation);
    }
}
