//! What the core hands to the sink, which numbers and prints records.

use crate::event::ConnId;
use crate::record::{Body, Cause, Outcome};

/// A decision of the core. The sink adds `seq`, `time` and `node_name` to make a record of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// CLOCK_BOOTTIME of the observation that decided it, nanoseconds.
    pub time_boot_ns: u64,
    pub attempt: Option<ConnId>,
    /// For a revision: the cause and the outcome of the verdict that it replaces.
    pub replaces: Option<(Cause, Outcome)>,
    /// The body of the record, without `timing`, `revises` and `repeated`: the sink fills these.
    pub body: Body,
}

impl Decision {
    /// A decision that replaces none.
    pub const fn new(time_boot_ns: u64, attempt: Option<ConnId>, body: Body) -> Self {
        Self { time_boot_ns, attempt, replaces: None, body }
    }
}
