//! Locks that hold for the whole node.

pub mod instance;
