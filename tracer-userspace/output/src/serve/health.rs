//! What the pipeline reports about itself, and the health that follows: live, ready, degraded.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::sync::watch;

/// The pipeline reports progress once a second. Without progress for this time, it hangs.
const STALL: Duration = Duration::from_secs(30);

/// Shared between the pipeline, which writes, and the server, which reads.
#[derive(Debug, Default)]
pub struct Health(watch::Sender<State>);

#[derive(Debug)]
struct State {
    /// When the pipeline last made progress.
    moved: Instant,
    stage: Stage,
    hooks: u64,
    missing: u64,
    has_socket: bool,
    /// The problem of each part that does not work.
    degraded: BTreeMap<String, String>,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    /// Hooks are being attached.
    Starting,
    /// Hooks are attached and the start record is printed.
    Running,
    /// The run is ending.
    Stopping,
}

/// The answer, as JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The process answers, and its pipeline made progress lately.
    pub live: bool,
    /// Alive, the hooks are attached, and the start record is printed.
    pub ready: bool,
    /// Why it is not live or not ready; absent if it is both.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reason: Option<String>,
    /// Since the pipeline last made progress, milliseconds; it does so once a second.
    pub progress_before_ms: u64,
    /// Hooks attached that are attached at the start, or when their kernel module is loaded.
    pub hooks_attached: u64,
    /// Hooks that this kernel or these privileges do not give.
    pub hooks_missing: u64,
    /// What does not work while the rest does: `part: what, and what is done about it`.
    pub degraded: Vec<String>,
    pub version: String,
}

impl Default for State {
    fn default() -> Self {
        let (stage, degraded) = (Stage::Starting, BTreeMap::new());
        Self { moved: Instant::now(), stage, hooks: 0, missing: 0, has_socket: false, degraded }
    }
}

impl Health {
    /// The pipeline made progress.
    pub fn progressed(&self) {
        self.0.send_modify(|state| state.moved = Instant::now());
    }

    /// The hooks are attached and the start record is printed.
    pub fn ready(&self, hooks: usize, missing: usize) {
        self.0.send_modify(|state| {
            (state.hooks, state.missing) = (hooks as u64, missing as u64);
            (state.moved, state.stage) = (Instant::now(), Stage::Running);
        });
    }

    /// This many missing hooks are attached now, because their kernel module was loaded.
    pub fn gained(&self, hooks: usize) {
        self.0.send_modify(|state| {
            state.hooks += hooks as u64;
            state.missing = state.missing.saturating_sub(hooks as u64);
        });
    }

    pub fn stopping(&self) {
        self.0.send_modify(|state| state.stage = Stage::Stopping);
    }

    /// Sets the problem of a part; `None`: the part works.
    pub fn degraded(&self, part: &str, problem: Option<String>) {
        self.0.send_modify(|state| {
            match problem {
                Some(problem) => state.degraded.insert(part.to_owned(), problem),
                None => state.degraded.remove(part),
            };
        });
    }

    /// This process created the health socket, so it removes the socket at its end.
    pub(super) fn made_socket(&self) {
        self.0.send_modify(|state| state.has_socket = true);
    }

    pub(super) fn has_socket(&self) -> bool {
        self.0.borrow().has_socket
    }

    pub fn report(&self) -> Report {
        let state = self.0.borrow();
        let still = state.moved.elapsed();
        let live = still < STALL;
        let reason = match state.stage {
            _ if !live => Some(format!("the pipeline has made no progress for {} s", still.as_secs())),
            Stage::Starting => Some("starting: the hooks are not attached yet".to_owned()),
            Stage::Running => None,
            Stage::Stopping => Some("stopping".to_owned()),
        };
        Report {
            live,
            ready: reason.is_none(),
            reason,
            progress_before_ms: u64::try_from(still.as_millis()).unwrap_or(u64::MAX),
            hooks_attached: state.hooks,
            hooks_missing: state.missing,
            degraded: state.degraded.iter().map(|(part, problem)| format!("{part}: {problem}")).collect(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_ready_from_its_start_record_to_its_end() {
        let health = Health::default();
        let before = health.report();
        assert!(before.live && !before.ready && before.reason.is_some_and(|why| why.starts_with("starting")));
        health.ready(14, 2);
        let ready = health.report();
        assert!(ready.ready && ready.reason.is_none());
        assert_eq!((ready.hooks_attached, ready.hooks_missing), (14, 2));
        health.gained(1);
        assert_eq!((health.report().hooks_attached, health.report().hooks_missing), (15, 1));
        health.stopping();
        assert!(!health.report().ready && health.report().live);
    }

    #[test]
    fn a_pipeline_without_progress_is_not_live() {
        let health = Health::default();
        let moved = Instant::now().checked_sub(Duration::from_secs(31)).expect("a machine that runs for a minute");
        health.0.send_modify(|state| state.moved = moved);
        let stalled = health.report();
        assert!(!stalled.live && !stalled.ready);
        assert!(stalled.reason.is_some_and(|why| why.contains("has made no progress for 31 s")));
        health.ready(1, 0);
        assert!(health.report().ready);
    }
}
