//! The pure core: from an observation to a decision. Observations are joined into attempts ([`correlate`]), attempts get
//! the names of their pods and probes ([`enrich`]), ordered rules give each its cause ([`classify`]), and [`core`] says
//! which verdicts stand and when they are emitted. No clock, no I/O, no lock, no environment: `clippy.toml` of this crate
//! bans them. Time, loss and missing hooks are observations too, so that a recording replays to the same verdicts.

pub mod classify;
pub mod core;
pub mod correlate;
pub mod enrich;
pub mod node_events;
#[cfg(test)]
mod properties;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
