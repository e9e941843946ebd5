//! The pure core: from an observation to a decision. `tracer-attempts` joins observations into attempts. The rules of
//! `tracer-classify` give each failed attempt its cause. Here [`core`] decides which verdicts stand and when to emit
//! them. `kubelet` gives a cause to failures of which only the kubelet's messages are known, and [`node_events`]
//! reports changes of the node itself. No clock, no I/O, no lock, no environment:
//! `clippy.toml` bans them. Time, loss and missing hooks are observations, so that a recording replays to the same
//! verdicts.

pub mod core;
mod kubelet;
pub mod node_events;
#[cfg(test)]
mod properties;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
