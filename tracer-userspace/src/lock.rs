//! Locks of the node.

pub mod instance;
