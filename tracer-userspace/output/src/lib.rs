//! The output of tracer. [`sink`] makes numbered records of decisions, prints them, counts them as metrics, and writes them
//! to the cluster. [`serve`] is the daemon's HTTP server, [`schema`] the JSON Schema of records, [`explain`] the pages of
//! the causes.

pub mod explain;
pub mod schema;
pub mod serve;
pub mod sink;
