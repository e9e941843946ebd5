//! A client that connects as fast as it can: see [`tracer::selftest::load`].

use anyhow::Result;
use clap::Parser as _;
use tracer::selftest::load::{Load, run};

fn main() -> Result<()> {
    run(&Load::parse())
}
