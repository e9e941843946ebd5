//! The starts and ends of a container, as the kubelet reports them to the API.

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

/// The runs of a container, from its pod's status. Times are whole seconds, rounded down.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Runs {
    #[serde(default)]
    pub restarts: u32,
    /// When the current run began, CLOCK_BOOTTIME nanoseconds; absent while it does not run.
    pub started_boot_ns: Option<u64>,
    /// When the current run began, nanoseconds since 1970: the kubelet compares it with the wall clock.
    pub started_wall_ns: Option<i64>,
    /// Its startup probe has succeeded, or it has none; absent in older recordings.
    pub started: Option<bool>,
    /// Why it does not run now.
    pub waiting: Option<Waiting>,
    /// The run that ended last.
    pub last: Option<Ended>,
}

#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    /// The kubelet's reason: `CrashLoopBackOff`, `ContainerCreating`, …
    pub reason: String,
    /// The kubelet's message, for `CrashLoopBackOff` only: how long it waits.
    pub message: Option<String>,
}

impl Waiting {
    /// The container was restarted so often that the kubelet waits before the next restart.
    pub fn is_back_off(&self) -> bool {
        self.reason == Self::BACK_OFF
    }

    pub const BACK_OFF: &str = "CrashLoopBackOff";
}

/// A run that is over, without the termination message of the container.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// Id of the container that ran.
    pub id: Option<String>,
    /// Exit code; for a process that was killed: 128 plus the number of the signal.
    pub exit_code: i32,
    /// The runtime's reason: `Error`, `Completed`, `OOMKilled`, …
    pub reason: Option<String>,
    /// When it began, CLOCK_BOOTTIME nanoseconds; absent if that was before the boot of the node, or is not known.
    pub started_boot_ns: Option<u64>,
    /// When it ended, CLOCK_BOOTTIME nanoseconds.
    pub finished_boot_ns: Option<u64>,
}

impl Ended {
    /// The kernel ended it for lack of memory: no probe was the reason.
    pub fn is_out_of_memory(&self) -> bool {
        self.reason.as_deref() == Some("OOMKilled")
    }

    /// How long it ran, nanoseconds; exact to a second.
    pub fn ran_ns(&self) -> Option<u64> {
        Some(self.finished_boot_ns?.saturating_sub(self.started_boot_ns?))
    }
}
