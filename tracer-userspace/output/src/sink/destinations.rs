//! Where decisions and records go besides the output.

use std::fmt::Debug;

use clap::Args;

use super::Sink;
use super::cluster::{ClusterFlags, ClusterOutput, ClusterSink};
use super::otlp::{OtlpConfig, OtlpFlags, OtlpSink};
use tracer_model::decision::Decision;
use tracer_model::record::Record;
use tracer_sources::Background;
use tracer_sources::cluster::Access;
use tracer_terminal::error::{self, Error};

/// Only `finish` may wait.
pub trait Destination: Debug + Send {
    /// Its name in `loss` records and in the metric of dropped records.
    fn name(&self) -> &'static str;

    /// Takes each decision. `is_printed`: the filters let it pass.
    fn take_decision(&self, _decision: &Decision, _is_printed: bool) {}

    /// Takes each printed record.
    fn take_record(&self, _record: &Record) {}

    /// What it dropped since the start.
    fn dropped(&self) -> u64;

    /// What it dropped since the last call, and may be reported now.
    fn take_dropped(&mut self) -> u64;

    /// The run ends; the `stop` record follows.
    fn end(&mut self) {}

    /// Delivers what is queued. Gives whether every record arrived.
    fn finish(&mut self) -> bool;
}

/// The flags of all destinations, in the order of the help.
#[derive(Debug, Args)]
pub struct DestinationFlags {
    #[command(flatten)]
    cluster: ClusterFlags,
    #[command(flatten)]
    otlp: OtlpFlags,
}

impl DestinationFlags {
    /// The destinations that they ask for. Some need `access` to the cluster API.
    pub fn destinations(self, access: Option<Access>, node_name: &str) -> Result<Destinations, Error> {
        Ok(Destinations { cluster: self.cluster.output(access, node_name)?, otlp: self.otlp.config() })
    }
}

#[derive(Clone, Debug, Default)]
pub struct Destinations {
    pub cluster: Option<ClusterOutput>,
    pub otlp: Option<OtlpConfig>,
}

impl Destinations {
    pub fn start(&self, sink: &mut Sink, services: &Background, api: &Background) -> Result<(), Error> {
        if let Some(to) = self.otlp.clone() {
            sink.add(OtlpSink::start(to, services)?);
        }
        // The last one, since at the end of a run it may wait for a program that provides credentials.
        if let Some(to) = self.cluster.clone() {
            sink.add(ClusterSink::start(to, api).map_err(|error| Error::Source(error::chain(&error)))?);
        }
        Ok(())
    }
}
