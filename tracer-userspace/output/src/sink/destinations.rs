//! Where decisions and records go besides the output.

use clap::Args;

use super::Sink;
use super::cluster::{ClusterFlags, ClusterOutput, ClusterSink};
use super::otlp::{OtlpConfig, OtlpFlags, OtlpSink};
use tracer_sources::Background;
use tracer_sources::cluster::Access;
use tracer_terminal::error::{self, Error};

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
