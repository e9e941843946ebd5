//! The first part of the pure core. [`correlate`] joins observations into attempts and keeps the state of the node.
//! [`enrich`] finds the pod, probe and namespace of an attempt, and whether it failed as that probe. The crate lies
//! below `core/`, so that the bans of that crate's `clippy.toml` hold here, too.

pub mod correlate;
pub mod enrich;
