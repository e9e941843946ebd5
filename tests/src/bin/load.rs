//! A client that connects as fast as it can: see [`tracer_testbed::load`].

use anyhow::Result;
use clap::Parser as _;
use tracer_testbed::load::{Load, run};

fn main() -> Result<()> {
    run(&Load::parse())
}
