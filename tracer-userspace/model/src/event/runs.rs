//! How a container has run: what the kubelet tells the API of its starts and ends.

use serde::{Deserialize, Serialize};

/// The runs of a container, as its pod's status has them. Times are whole seconds there: each is the second that the
/// event lies in, from its beginning.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Runs {
    #[serde(default)]
    pub restarts: u32,
    /// When the run that is going on began, CLOCK_BOOTTIME nanoseconds; absent while it does not run.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub started_boot_ns: Option<u64>,
    /// The same by the wall clock, nanoseconds since 1970: the kubelet compares it with what that clock shows now.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub started_wall_ns: Option<i64>,
    /// Why it does not run now.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub waiting: Option<Waiting>,
    /// The run that ended last.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub last: Option<Ended>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    /// The kubelet's word: `CrashLoopBackOff`, `ContainerCreating`, …
    pub reason: String,
    /// Its sentence, of `CrashLoopBackOff` only: how long it waits.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub message: Option<String>,
}

impl Waiting {
    /// It was restarted so often that the kubelet waits before it does so again.
    pub fn is_back_off(&self) -> bool {
        self.reason == Self::BACK_OFF
    }

    /// The kubelet's word for it.
    pub const BACK_OFF: &str = "CrashLoopBackOff";
}

/// A run that is over. What the container itself wrote about its end is not kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// Id of the container that ran.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub id: Option<String>,
    /// Exit code; 128 and the number of the signal for a process that was killed.
    pub exit_code: i32,
    /// The runtime's word: `Error`, `Completed`, `OOMKilled`, …
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reason: Option<String>,
    /// When it began, CLOCK_BOOTTIME nanoseconds; absent if that was before the node was booted, or nobody knows.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub started_boot_ns: Option<u64>,
    /// When it ended, CLOCK_BOOTTIME nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub finished_boot_ns: Option<u64>,
}

impl Ended {
    /// Its memory was used up and the kernel ended it. A probe is not to blame.
    pub fn is_out_of_memory(&self) -> bool {
        self.reason.as_deref() == Some("OOMKilled")
    }

    /// How long it ran, nanoseconds; a second more or less.
    pub fn ran_ns(&self) -> Option<u64> {
        Some(self.finished_boot_ns?.saturating_sub(self.started_boot_ns?))
    }
}
