//! The output of tracer. [`sink`] makes numbered records of decisions, prints them and counts them as metrics. It sends them
//! to destinations (the cluster, OTLP), and defines the flags of those. [`serve`] is the daemon's HTTP server, [`schema`]
//! the JSON Schema of records, [`explain`] the pages of the causes, [`gzip`] reads compressed files.

pub mod explain;
pub mod gzip;
pub mod schema;
pub mod serve;
pub mod sink;
