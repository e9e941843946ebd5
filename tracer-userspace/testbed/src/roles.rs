//! Runs the process of each role.

use anyhow::Result;
use clap::Parser as _;

use super::helper::Role;
use super::load::Load;
use super::{load, plugin, prober, server};

impl Role {
    /// Runs until the process is ended.
    pub fn run(self, args: &[String]) -> Result<()> {
        match self {
            Self::Kubelet => prober::serve(),
            // Whoever starts a pod reads its stdout.
            Self::Pod => server::run(args).inspect_err(|error| println!("{error:#}")),
            Self::Crio => plugin::runtime(),
            Self::Loopback => plugin::run(args.first().map(String::as_str)),
            Self::Load => {
                load::run(&Load::try_parse_from(std::iter::once("load").chain(args.iter().map(String::as_str)))?)
            }
        }
    }
}
