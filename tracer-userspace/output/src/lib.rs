//! The way out: decisions become numbered records ([`sink`]), printed for people or for machines, counted as metrics,
//! written to the cluster. [`serve`] is the pages of a daemon, [`schema`] the JSON Schema of records, and [`explain`] the
//! page of a cause.

pub mod explain;
pub mod schema;
pub mod serve;
pub mod sink;
