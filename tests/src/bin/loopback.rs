//! Stands in for the CNI plugin of the same name: see [`tracer_testbed::plugin::run`].

use anyhow::Result;
use tracer_testbed::helper::Role;

fn main() -> Result<()> {
    Role::Loopback.run(&std::env::args().skip(1).collect::<Vec<_>>())
}
