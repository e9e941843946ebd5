//! Stands for the CNI plugin of the same name: see [`tracer::selftest::plugin::run`].

use anyhow::Result;
use tracer::selftest::helper::Role;

fn main() -> Result<()> {
    Role::Loopback.run(&std::env::args().skip(1).collect::<Vec<_>>())
}
