//! A process that starts to listen late, or too late for its liveness probe.

use std::thread;
use std::time::Duration;

use anyhow::Result;
use tracer_model::record::Cause;

use super::{Fixture, Need, Scenario};
use crate::pods::{CRASHING, HTTP, SLOW_START, SLOW_START_PERIOD_S, SLOW_START_THRESHOLD, UNKNOWN_START, container_id};
use crate::probe::{Ending, Kind};
use crate::prober::Prober;

const NOT_YET: Option<Cause> = Some(Cause::NotListeningYet);
const TOO_LATE: Option<Cause> = Some(Cause::StartupBudgetExceeded);

pub(super) const ALL: &[Scenario] = &[
    Scenario::new("not_listening_yet", NOT_YET, new_pod).on_every_kernel().and_v6(),
    Scenario::new("not_listening_yet_revised", NOT_YET, listens_after_failure).own(),
    Scenario::new("not_listening_yet_loopback_first", NOT_YET, prepares_on_loopback),
    Scenario::new("not_listening_yet_kubelet_restarts", NOT_YET, too_late_for_one_kubelet),
    Scenario::new("startup_budget_exceeded", TOO_LATE, too_late).and_v6(),
    Scenario::new("startup_budget_exceeded_exec_probe", TOO_LATE, too_late_beside_commands)
        .own()
        .needs(&[Need::Freezer, Need::Shell]),
    Scenario::new("startup_budget_exceeded_start_unknown", Some(Cause::ConnectionRefused), listened_before).own(),
    // Its runs end after three seconds, before any process listens.
    Scenario::probed("connection_refused_ends_by_itself", Some(Cause::ConnectionRefused), "http", Ending::Refused)
        .without_server()
        .probe(Kind::Http, CRASHING)
        .names(&["container crash ended by itself", "with exit code 1 after 3 s"]),
    Scenario::new("app_status_failure_in_start", Some(Cause::AppStatusFailure), answers_in_start),
];

/// The pod is new, and its process does not listen yet.
fn new_pod(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.pod(HTTP)?;
    fixture.fails(Kind::Http, pod, Ending::Refused)?;
    fixture.serve(pod, "http", &format!("[::]:{HTTP}"))?;
    fixture.succeeds(Kind::Http, pod)
}

/// As the entrypoint of a database: it listens on 127.0.0.1 while it prepares, and then on all addresses.
fn prepares_on_loopback(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.pod(HTTP)?;
    fixture.serve(pod, "http", &format!("127.0.0.1:{HTTP}"))?;
    fixture.fails(Kind::Http, pod, Ending::Refused)?;
    fixture.pod_of(pod)?.stop();
    fixture.serve(pod, "http", &format!("[::]:{HTTP}"))?;
    fixture.succeeds(Kind::Http, pod)
}

/// The process listens at once and answers 503 until it is ready, which takes longer than its liveness probe allows.
fn answers_in_start(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("503", SLOW_START)?;
    each_period(|is_last| {
        fixture.also = is_last.then_some(Cause::StartupBudgetExceeded);
        fixture.fails(Kind::Http, pod, Ending::Status)
    })
}

/// Makes as many attempts as the failure threshold of the probe, each a period after the previous one: the time since
/// the start decides. The last one is called with true.
fn each_period(mut attempt: impl FnMut(bool) -> Result<()>) -> Result<()> {
    for _ in 1..SLOW_START_THRESHOLD {
        attempt(false)?;
        thread::sleep(Duration::from_secs(SLOW_START_PERIOD_S));
    }
    attempt(true)
}

/// The pod is older than the tracer. Only the later listener shows that the process was starting.
fn listens_after_failure(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.pod(HTTP)?;
    fixture.fails(Kind::Http, pod, Ending::Refused)?;
    fixture.serve(pod, "http", &format!("[::]:{HTTP}"))
}

/// As [`too_late`], but the kubelet restarts before the last attempt. It counts failures in memory: this is its first.
fn too_late_for_one_kubelet(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.pod(SLOW_START)?;
    each_period(|is_last| {
        if is_last {
            *fixture.prober = Prober::start(&fixture.node.node, fixture.options)?;
        }
        fixture.fails(Kind::Http, pod, Ending::Refused)
    })
}

/// The process listened, and ended before the tracer started. The status of its container is not known.
fn listened_before(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("http", UNKNOWN_START)?;
    fixture.pod_of(pod)?.stop();
    each_period(|_| fixture.fails(Kind::Http, pod, Ending::Refused))?;
    // A wrong revision would come in this time.
    thread::sleep(Duration::from_secs(SLOW_START_PERIOD_S));
    Ok(())
}

/// Its liveness probe fails as often as its failure threshold.
fn too_late(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.pod(SLOW_START)?;
    each_period(|is_last| {
        let claim = fixture.verdict(if is_last { Cause::StartupBudgetExceeded } else { Cause::NotListeningYet });
        fixture.attempt(Kind::Http, pod, Ending::Refused, claim)
    })
}

/// As [`too_late`], and a process enters the namespace after each attempt, as an exec probe does.
fn too_late_beside_commands(fixture: &mut Fixture<'_>) -> Result<()> {
    (fixture.watch)()?;
    let addr = fixture.pod(SLOW_START)?;
    let pod = fixture.pod_of(addr)?;
    pod.run_in_container(&container_id(&format!("pod-{}", pod.index)))?;
    each_period(|is_last| {
        let claim = fixture.verdict(if is_last { Cause::StartupBudgetExceeded } else { Cause::NotListeningYet });
        fixture.attempt(Kind::Http, addr, Ending::Refused, claim)?;
        fixture.inside(addr)?.enter(|| Ok(()))
    })
}
