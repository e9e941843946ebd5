//! The runs of a container, from its status.

use jiff::Timestamp;

use super::api;
use tracer_model::event::{Ended, Runs, Waiting};

/// The longest reason and message that are kept, in bytes.
const WORD_MAX: usize = 64;
const SENTENCE_MAX: usize = 256;

/// Reduces a status to what tracer needs. `to_wall_ns`: wall clock minus boot clock.
pub(super) fn runs_of(status: &api::ContainerStatus, to_wall_ns: i64) -> Runs {
    let running = status.state.running.as_ref();
    // Between two runs, `state` has the run that ended.
    let last = status.state.terminated.as_ref().or(status.last_state.terminated.as_ref());
    Runs {
        restarts: u32::try_from(status.restart_count).unwrap_or_default(),
        started_boot_ns: running.and_then(|it| boot_ns(it.started_at.as_deref(), to_wall_ns)),
        started_wall_ns: running.and_then(|it| wall_ns(it.started_at.as_deref())?.try_into().ok()),
        started: status.started,
        waiting: status.state.waiting.as_ref().and_then(waiting),
        last: last.map(|it| ended(it, to_wall_ns)),
    }
}

/// The id without the name of the runtime, as in `containerd://cd4a…`.
pub(super) fn container_id(id: Option<&str>) -> Option<String> {
    id?.split_once("://").map(|(_, id)| id.to_owned())
}

fn waiting(waiting: &api::Waiting) -> Option<Waiting> {
    let reason = cut(waiting.reason.as_deref()?, WORD_MAX);
    let message = waiting.message.as_deref().map(|text| cut(text, SENTENCE_MAX));
    // The messages of other reasons have paths and addresses, and nothing that a verdict needs.
    let message = message.filter(|_| reason == Waiting::BACK_OFF);
    Some(Waiting { reason, message })
}

fn ended(run: &api::Terminated, to_wall_ns: i64) -> Ended {
    Ended {
        id: container_id(run.container_id.as_deref()),
        exit_code: run.exit_code,
        reason: run.reason.as_deref().map(|text| cut(text, WORD_MAX)),
        started_boot_ns: boot_ns(run.started_at.as_deref(), to_wall_ns),
        finished_boot_ns: boot_ns(run.finished_at.as_deref(), to_wall_ns),
    }
}

fn cut(text: &str, most: usize) -> String {
    text[..text.floor_char_boundary(most)].to_owned()
}

/// A time of the API. `None` if it is before the boot of the node: some writers mean "unknown" by the year 1 or 1970.
fn boot_ns(text: Option<&str>, to_wall_ns: i64) -> Option<u64> {
    let boot = wall_ns(text)? - i128::from(to_wall_ns);
    u64::try_from(boot).ok().filter(|ns| *ns > 0)
}

/// Nanoseconds since 1970.
fn wall_ns(text: Option<&str>) -> Option<i128> {
    text?.parse().ok().map(Timestamp::as_nanosecond)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KUBELET: &str = include_str!("../../../testdata/kubelet-pods.json");
    /// The wall clock showed 2026-11-20T15:48:00Z when the node was booted.
    const BOOTED: i64 = 1_795_189_680_000_000_000;
    const SECOND: u64 = 1_000_000_000;

    fn runs(status: &str) -> Runs {
        runs_of(&serde_json::from_str(status).expect("a status"), BOOTED)
    }

    /// The status of a static pod after a liveness probe killed its container, as a kubelet 1.20 wrote it.
    #[test]
    fn the_history_of_a_real_kubelet() {
        let list: serde_json::Value = serde_json::from_str(KUBELET).expect("JSON");
        let status = |pod: usize| runs(&list["items"][pod]["status"]["containerStatuses"][0].to_string());
        let killed = status(0);
        assert_eq!((killed.restarts, killed.started_boot_ns), (1, Some(346 * SECOND)));
        let last = killed.last.expect("a run that ended");
        assert_eq!((last.exit_code, last.reason.as_deref()), (137, Some("Error")));
        assert_eq!((last.started_boot_ns, last.finished_boot_ns), (Some(8 * SECOND), Some(346 * SECOND)));
        assert_eq!(last.ran_ns(), Some(338 * SECOND));
        assert!(last.id.is_some_and(|id| id.starts_with("ff3c56a0cf5a")) && killed.waiting.is_none());
        let started_wall_ns = Some(BOOTED + 8 * SECOND.cast_signed());
        let started = Some(true);
        let never = Runs { started_boot_ns: Some(8 * SECOND), started_wall_ns, started, ..Runs::default() };
        assert_eq!(status(1), never);
    }

    #[test]
    fn a_container_in_back_off_and_why() {
        let text = r#"{"name":"app","restartCount":7,
            "state":{"waiting":{"reason":"CrashLoopBackOff","message":"back-off 5m0s restarting failed container=app pod=cart_shop(u)"}},
            "lastState":{"terminated":{"exitCode":137,"reason":"OOMKilled","message":"what it wrote itself","startedAt":"2026-11-20T15:50:00Z","finishedAt":"2026-11-20T15:50:31Z"}}}"#;
        let runs = runs(text);
        let (waiting, last) = (runs.waiting.expect("waits"), runs.last.expect("ended"));
        assert!(waiting.is_back_off() && waiting.message.is_some_and(|it| it.starts_with("back-off 5m0s")));
        assert!(last.is_out_of_memory());
        assert_eq!((runs.restarts, runs.started_boot_ns, last.ran_ns()), (7, None, Some(31 * SECOND)));
    }

    #[test]
    fn the_run_that_just_ended_is_the_last() {
        let text = r#"{"restartCount":3,"state":{"terminated":{"exitCode":1,"startedAt":"2026-11-20T15:51:00Z","finishedAt":"2026-11-20T15:51:02Z"}},
            "lastState":{"terminated":{"exitCode":2,"startedAt":"2026-11-20T15:50:00Z","finishedAt":"2026-11-20T15:50:01Z"}}}"#;
        assert_eq!(runs(text).last.map(|it| it.exit_code), Some(1));
    }

    #[test]
    fn what_is_unknown_is_absent_and_what_is_long_is_cut() {
        let unknown = runs(
            r#"{"restartCount":-1,"lastState":{"terminated":{"exitCode":137,"reason":"ContainerStatusUnknown","startedAt":null,"finishedAt":null}}}"#,
        );
        let last = unknown.last.expect("ended");
        let times = [last.started_boot_ns, last.finished_boot_ns, last.ran_ns()];
        assert_eq!((unknown.restarts, times), (0, [None; 3]));
        for before in ["0001-01-01T00:00:00Z", "1970-01-01T00:00:00Z", "2026-11-20T15:47:59Z", "yesterday"] {
            let text = format!(r#"{{"state":{{"running":{{"startedAt":"{before}"}}}}}}"#);
            assert_eq!(runs(&text).started_boot_ns, None, "{before}");
        }
        let long =
            format!(r#"{{"state":{{"waiting":{{"reason":"CrashLoopBackOff","message":"{}"}}}}}}"#, "ä".repeat(500));
        assert_eq!(runs(&long).waiting.and_then(|it| it.message).map(|it| it.len()), Some(SENTENCE_MAX));
        let other = runs(r#"{"state":{"waiting":{"reason":"ImagePullBackOff","message":"from a registry"}}}"#);
        assert_eq!(other.waiting.and_then(|it| it.message), None);
        assert_eq!(runs("{}"), Runs::default());
    }
}
