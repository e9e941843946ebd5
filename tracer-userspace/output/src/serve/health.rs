//! What the pipeline reports about itself, and the health that follows: live, ready, degraded.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::sync::watch;

/// The pipeline reports progress once a second. Without progress for this time, it hangs.
const STALL: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
enum Stage {
    /// Hooks are being attached.
    Starting = 0,
    /// Hooks are attached and the start record is printed.
    Running = 1,
    /// The run is ending.
    Stopping = 2,
}

/// Shared between the pipeline, which writes, and the server, which reads.
#[derive(Debug)]
pub struct Health {
    since: Instant,
    /// When the pipeline last made progress, milliseconds after `since`.
    moved_ms: AtomicU64,
    stage: AtomicU8,
    hooks: AtomicU64,
    missing: AtomicU64,
    socket: AtomicBool,
    /// The problem of each part that does not work.
    degraded: watch::Sender<BTreeMap<String, String>>,
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

impl Default for Health {
    fn default() -> Self {
        Self {
            since: Instant::now(),
            moved_ms: AtomicU64::new(0),
            stage: AtomicU8::new(Stage::Starting as u8),
            hooks: AtomicU64::new(0),
            missing: AtomicU64::new(0),
            socket: AtomicBool::new(false),
            degraded: watch::Sender::default(),
        }
    }
}

impl Health {
    /// The pipeline made progress.
    pub fn progressed(&self) {
        self.moved_ms.store(self.now_ms(), Ordering::Relaxed);
    }

    /// The hooks are attached and the start record is printed.
    pub fn ready(&self, hooks: usize, missing: usize) {
        self.hooks.store(hooks as u64, Ordering::Relaxed);
        self.missing.store(missing as u64, Ordering::Relaxed);
        self.progressed();
        self.stage.store(Stage::Running as u8, Ordering::Release);
    }

    /// This many missing hooks are attached now, because their kernel module was loaded.
    pub fn gained(&self, hooks: usize) {
        let gained = hooks as u64;
        self.hooks.fetch_add(gained, Ordering::Relaxed);
        let less = |missing: u64| Some(missing.saturating_sub(gained));
        let _ = self.missing.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    pub fn stopping(&self) {
        self.stage.store(Stage::Stopping as u8, Ordering::Release);
    }

    /// Sets the problem of a part; `None`: the part works.
    pub fn degraded(&self, part: &str, problem: Option<String>) {
        self.degraded.send_if_modified(|parts| match problem {
            Some(problem) => parts.insert(part.to_owned(), problem.clone()).as_ref() != Some(&problem),
            None => parts.remove(part).is_some(),
        });
    }

    /// This process created the health socket, so it removes the socket at its end.
    pub(super) fn made_socket(&self) {
        self.socket.store(true, Ordering::Release);
    }

    pub(super) fn has_socket(&self) -> bool {
        self.socket.load(Ordering::Acquire)
    }

    pub fn report(&self) -> Report {
        let still = self.now_ms().saturating_sub(self.moved_ms.load(Ordering::Relaxed));
        let live = u128::from(still) < STALL.as_millis();
        let stage = self.stage.load(Ordering::Acquire);
        let reason = match stage {
            _ if !live => Some(format!("the pipeline has made no progress for {} s", still / 1000)),
            0 => Some("starting: the hooks are not attached yet".to_owned()),
            1 => None,
            _ => Some("stopping".to_owned()),
        };
        Report {
            live,
            ready: reason.is_none(),
            reason,
            progress_before_ms: still,
            hooks_attached: self.hooks.load(Ordering::Relaxed),
            hooks_missing: self.missing.load(Ordering::Relaxed),
            degraded: self.degraded.borrow().iter().map(|(part, problem)| format!("{part}: {problem}")).collect(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX)
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
        let since = Instant::now().checked_sub(Duration::from_secs(31)).expect("a machine that runs for a minute");
        let health = Health { since, ..Health::default() };
        let stalled = health.report();
        assert!(!stalled.live && !stalled.ready);
        assert!(stalled.reason.is_some_and(|why| why.contains("has made no progress for 31 s")));
        health.ready(1, 0);
        assert!(health.report().ready);
    }

    #[test]
    fn a_degraded_part_is_listed_until_it_works() {
        let health = Health::default();
        health.degraded("metrics", Some("127.0.0.1:1: in use".into()));
        assert_eq!(health.report().degraded, ["metrics: 127.0.0.1:1: in use"]);
        health.degraded("metrics", None);
        assert_eq!(health.report().degraded, Vec::<String>::new());
    }
}
