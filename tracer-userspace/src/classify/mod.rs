//! Ordered rules from an attempt to its label.
pub mod label;
