//! A pod's process: see [`tracer_testbed::server::run`].

use anyhow::Result;
use tracer_testbed::helper::Role;

fn main() -> Result<()> {
    Role::Pod.run(&std::env::args().skip(1).collect::<Vec<_>>())
}
