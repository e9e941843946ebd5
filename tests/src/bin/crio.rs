//! Stands in for the container runtime: see [`tracer_testbed::plugin::runtime`].

use anyhow::Result;
use tracer_testbed::helper::Role;

fn main() -> Result<()> {
    Role::Crio.run(&std::env::args().skip(1).collect::<Vec<_>>())
}
