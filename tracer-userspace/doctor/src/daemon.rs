//! The checks of `tracer doctor`, again and again while a daemon runs.

use std::time::Duration;

use tokio::sync::mpsc::Sender;
use tokio::time::{MissedTickBehavior, interval};

use super::{CHECKS, Options};
use tracer_model::event::{Findings, ObservationKind};

/// Between two looks at the node: with 50,000 rules the checks take a second of one CPU.
const EVERY: Duration = Duration::from_secs(300);

/// Checks that read tables of megabytes (every socket), attach programs, or need what a daemon knows otherwise: `port_pressure`
/// and the missing hooks of the `start` record have it.
const LEFT_OUT: &[&str] = &["ephemeral_headroom", "listener_overlap", "tracer_hooks", "probe_budgets"];

/// Checks the node, until nobody takes the facts. On a thread of the pool for what blocks.
pub async fn checkup(probers: Vec<String>, tx: Sender<ObservationKind>) {
    let checks = CHECKS.iter().map(|check| check.name.to_owned());
    let checks = checks.filter(|name| !LEFT_OUT.contains(&name.as_str())).collect();
    let options = Options { checks, probers, ..Options::default() };
    let mut tick = interval(EVERY);
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
