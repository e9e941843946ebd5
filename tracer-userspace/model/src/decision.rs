//! What the pure side hands to whoever numbers and prints records.

use crate::event::ConnId;
use crate::record::{Body, Cause};

/// What the core decided; the sink side adds `seq`, `time` and `node_name` and makes it a record.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// CLOCK_BOOTTIME of the observation that decided it, nanoseconds.
    pub time_boot_ns: u64,
    pub attempt: Option<ConnId>,
    /// The cause of the verdict on the same attempt that this one replaces: it is a revision.
    pub replaces: Option<Cause>,
    /// The body of the record. `timing`, `revises` and `repeated` are left to whoever prints it.
    pub body: Body,
}

impl Decision {
    /// A decision that replaces none.
    pub const fn new(time_boot_ns: u64, attempt: Option<ConnId>, body: Body) -> Self {
        Self { time_boot_ns, attempt, replaces: None, body }
    }
}
