//! The prober: see [`tracer_testbed::prober::serve`].

use anyhow::Result;
use tracer_testbed::helper::Role;

fn main() -> Result<()> {
    Role::Kubelet.run(&std::env::args().skip(1).collect::<Vec<_>>())
}
