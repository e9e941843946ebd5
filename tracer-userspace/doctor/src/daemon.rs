//! Repeats the checks of `tracer doctor` while the daemon runs.

use std::time::Duration;

use tokio::sync::mpsc::Sender;
use tokio::time::{MissedTickBehavior, interval};

use super::{CHECKS, Options};
use tracer_model::event::{Findings, ObservationKind};

/// Time between two runs of the checks: with 50,000 rules they take a second of one CPU.
const INTERVAL: Duration = Duration::from_secs(300);

/// Checks that read the table of every socket (megabytes), that attach programs, or that other records of the daemon cover:
/// `port_pressure` and the missing hooks of the `start` record.
const SKIPPED: &[&str] = &["ephemeral_headroom", "listener_overlap", "tracer_hooks", "probe_budgets"];

/// Runs the checks until the receiver is dropped. They block, so each run is on a thread of tokio's blocking pool.
pub async fn repeat_checks(probers: Vec<String>, tx: Sender<ObservationKind>) {
    let checks = CHECKS.iter().map(|check| check.name.to_owned());
    let checks = checks.filter(|name| !SKIPPED.contains(&name.as_str())).collect();
    let options = Options { checks, probers, ..Options::default() };
    let mut tick = interval(INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = tick.tick() => {}
            () = tx.closed() => return,
        }
        let options = options.clone();
        let findings = match tokio::task::spawn_blocking(move || super::run(&options)).await {
            Ok(findings) => findings,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_) => return,
        };
        if tx.send(ObservationKind::Findings(Box::new(Findings { findings }))).await.is_err() {
            return;
        }
    }
}
