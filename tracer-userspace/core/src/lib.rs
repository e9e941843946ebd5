//! The pure core: from an observation to a decision. `tracer-attempts` joins observations into attempts; here ordered rules
//! give each its cause ([`classify`]), [`node_events`] are those of the node by itself, and [`core`] says which verdicts
//! stand and when they are emitted. No clock, no I/O, no lock, no environment: `clippy.toml` of this folder bans them.
//! Time, loss and missing hooks are observations too, so that a recording replays to the same verdicts.

pub mod classify;
pub mod core;
pub mod node_events;
#[cfg(test)]
mod properties;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
