//! What the pure side hands to whoever numbers and prints records.

use crate::event::ConnId;
use crate::record::Body;

/// What the core decided; the sink side adds `seq`, `time` and `node_name` and makes it a record.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// CLOCK_BOOTTIME of the observation that decided it, nanoseconds.
    pub time_boot_ns: u64,
    /// The attempt it is about. A second verdict on the same attempt revises the first: whoever
    /// numbers the records fills `revises`.
    pub attempt: Option<ConnId>,
    /// The body of the record. `timing` and `revises` are left to whoever prints it.
    pub body: Body,
}
