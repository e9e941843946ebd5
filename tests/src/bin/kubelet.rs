//! The prober: see [`tracer::selftest::prober::serve`].

use anyhow::Result;
use tracer::selftest::helper::Role;

fn main() -> Result<()> {
    Role::Kubelet.run(&std::env::args().skip(1).collect::<Vec<_>>())
}
