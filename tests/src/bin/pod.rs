//! A pod's process: see [`tracer::selftest::server::run`].

use anyhow::Result;
use tracer::selftest::helper::Role;

fn main() -> Result<()> {
    Role::Pod.run(&std::env::args().skip(1).collect::<Vec<_>>())
}
