//! The pure core: from an observation to a decision. `tracer-attempts` joins observations into attempts. Here ordered
//! rules give each failed attempt its cause ([`classify`]). [`node_events`] reports changes of the node itself.
//! [`core`] decides which verdicts stand and when to emit them. No clock, no I/O, no lock, no environment:
//! `clippy.toml` bans them. Time, loss and missing hooks are observations, so that a recording replays to the same
//! verdicts.

pub mod classify;
pub mod core;
pub mod node_events;
#[cfg(test)]
mod properties;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
