//! Starts and ends of containers, as a pod's status shows them one after another.

use super::*;
use tracer_model::event::Runs;

/// A pod with a container in this status.
fn with_status(version: u32, status: &str, ready: &str) -> String {
    let statuses = format!(
        r#""conditions":[{{"type":"Ready","status":"{ready}"}}],"containerStatuses":[{{"name":"web",{status}}}],"#
    );
    pod("a", version, "10.0.0.1").replace("\"phase\"", &format!("{statuses}\"phase\""))
}

const FIRST: &str =
    r#""restartCount":0,"containerID":"containerd://one","state":{"running":{"startedAt":"2499-01-01T00:00:00Z"}}"#;
const BACK_OFF: &str = r#""restartCount":1,"containerID":"containerd://one","state":{"waiting":{"reason":"CrashLoopBackOff","message":"back-off 10s restarting failed container=web"}},
    "lastState":{"terminated":{"exitCode":137,"reason":"OOMKilled","containerID":"containerd://one","startedAt":"2499-01-01T00:00:00Z","finishedAt":"2499-01-01T00:00:31Z"}}"#;

fn runs(view: &View) -> Option<&Runs> {
    view.pods.first()?.containers.first()?.runs.as_ref()
}

#[tokio::test(flavor = "local")]
async fn a_restart_is_one_change_and_what_else_a_status_says_is_none() {
    let (mut api, mut followed) = Followed::pods().await;
    let mut watch = api.next().await.stream().await;
    watch.event("ADDED", &with_status(1, FIRST, "False")).await;
    watch.synced(1).await;
    let first = followed.until("complete", |view| view.is_complete() && runs(view).is_some()).await;
    let started = runs(&first).and_then(|runs| runs.started_boot_ns);
    assert!(started.is_some() && runs(&first).is_some_and(|runs| runs.restarts == 0));

    // Ready now: the same runs, to the nanosecond.
    followed.view.mark_unchanged();
    watch.event("MODIFIED", &with_status(2, FIRST, "True")).await;
    watch.end().await;
    let again = api.next().await;
    assert!(again.has("resourceVersion=2") && !followed.view.has_changed().expect("followers"));

    let mut watch = again.stream().await;
    watch.event("MODIFIED", &with_status(3, &BACK_OFF.replace('\n', ""), "False")).await;
    let ended = followed.until("back-off", |view| runs(view).is_some_and(|runs| runs.restarts == 1)).await;
    let runs = runs(&ended).expect("runs");
    assert!(
        runs.waiting.as_ref().is_some_and(tracer_model::event::Waiting::is_back_off) && runs.started_boot_ns.is_none()
    );
    let last = runs.last.as_ref().expect("a run that ended");
    assert!(last.is_out_of_memory() && last.started_boot_ns == started && last.ran_ns() == Some(31_000_000_000));
}
