//! Stands for the container runtime: see [`tracer::selftest::plugin::runtime`].

use anyhow::Result;
use tracer::selftest::helper::Role;

fn main() -> Result<()> {
    Role::Crio.run(&std::env::args().skip(1).collect::<Vec<_>>())
}
