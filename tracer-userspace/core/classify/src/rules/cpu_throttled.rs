//! The CPU limit throttled the target's container while the prober waited for an answer. Goes to `also`.

use super::*;

pub(in super::super) fn find(case: &Case<'_>) -> Option<Finding> {
    let Throttling { cgroup, time, times, micros } = throttling(case)?;
    let text = format!(
        "{cgroup} was throttled {}, {:.1} ms in all, during the attempt",
        counted(times, "time"),
        micros as f64 / 1e3
    );
    let evidence =
        evidence_of("cpu.stat", time, text.clone(), json!({ "times": times, "throttled_ms": micros / 1000 }));
    Some(Finding::likely(Cause::CpuThrottled, vec![evidence], text, FIX))
}

/// How much a cgroup of the target was throttled between the first and the last reading, the latter at `time`.
pub(super) struct Throttling<'a> {
    cgroup: &'a str,
    time: u64,
    times: u64,
    pub(super) micros: u64,
}

pub(super) fn throttling<'a>(case: &Case<'a>) -> Option<Throttling<'a>> {
    let ended = taken_and_silent(case)?;
    let attempt = case.attempt;
    let readings = case.node.targets.throttling(attempt.netns?, attempt.flow.dst);
    let asked = sent_request_late(case).unwrap_or(attempt.started);
    let mut inside = readings.filter(|(time, _)| (asked..=ended).contains(time));
    let (_, first) = inside.next()?;
    let (time, last) = inside.last()?;
    last.iter().find_map(|now| {
        let before = first.iter().find(|before| before.cgroup == now.cgroup)?;
        let (times, micros) = (now.times.saturating_sub(before.times), now.micros.saturating_sub(before.micros));
        (times > 0).then_some(Throttling { cgroup: &now.cgroup, time, times, micros })
    })
}

const FIX: &str = "Raise the CPU limit of the container, or remove it: the container was throttled during the attempt";

#[cfg(test)]
mod tests {
    use tracer_core::testing::*;

    fn slow(times: u64) -> Verdict {
        let at = |times| vec![Throttled { cgroup: "/kubepods/pod1".into(), times, micros: times * 1000 }];
        let mut stream = Stream::new();
        stream.connect().established().wait_ms(200).inspection(|reading| reading.throttled = at(5));
        stream.wait_ms(400).inspection(|reading| reading.throttled = at(5 + times)).wait_ms(400).closes((100, 101, 0));
        assert_eq!(stream.causes(), ["slow_response"]);
        stream.verdict()
    }

    #[test]
    fn a_counter_that_rose_is_reported_beside_the_cause() {
        assert_eq!(slow(7).also, [Cause::CpuThrottled]);
        assert!(slow(0).also.is_empty());
    }

    #[test]
    fn throttling_comes_before_the_slow_response_in_evidence_and_fix() {
        let text = |verdict: &Verdict| verdict.evidence.iter().map(|row| row.text.clone()).collect::<Vec<_>>();
        let (held, free) = (slow(7), slow(0));
        assert_eq!(text(&held)[0], "/kubepods/pod1 was throttled 7 times, 7.0 ms in all, during the attempt");
        assert_eq!(text(&held)[1..], text(&free));
        let after = held.remediation.text.strip_prefix("Raise the CPU limit of the container, or remove it: ");
        assert!(after.is_some_and(|fix| fix.ends_with(&free.remediation.text)), "{}", held.remediation);
        assert_has(&text(&slow(1))[0], &[" throttled 1 time, "]);
    }
}
