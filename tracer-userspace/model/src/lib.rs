//! What the parts of the tracer hand to each other, as plain data: an observation ([`event`]), a question to the node
//! ([`query`]), a decision of the core ([`decision`]), and a record, with the table of causes ([`record`]). Nothing here
//! reads a clock, a file or a socket. The recorded form of an observation and the printed form of a record are these
//! types, so that a change here is a change of a public format.

pub mod decision;
pub mod event;
#[doc(hidden)]
pub mod fuzzing;
pub mod plural;
pub mod query;
pub mod recent;
pub mod record;
pub mod shell;
