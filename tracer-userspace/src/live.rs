//! The kernel as a source of events, joined with the sources of facts.
//!
//! PLUG: the one place that knows `ebpf`, `decode`, `observe` and `sources`. `attach` loads and
//! attaches, takes the snapshot and starts the watchers; `Kernel` hands over what comes later:
//!
//! ```text
//! attach:   ebpf::load(&LoadOptions{probers, all_connections})         -> hooks, missing_hooks; EbpfError -> Error::Kernel
//!           sources::snapshot(&SourceConfig{probers, pods, services})  -> facts, node_netns, prober_pids, sources, problems;
//!                                                                         SourceError -> Error::Source
//!           tokio::spawn(sources::watch(.., snapshot, refresh, tx))    -> changes
//! Kernel:   readable     = ring.readable().await
//!           drain        = ring.drain(max, |bytes| decode(bytes) -> observer -> into.push);
//!                          refresh.notify_one() after a NetnsOp or a Listen
//!           lost         = loaded.lost()
//!           learn        = Fact::Pods: watch_tls(port) for every tcpSocket probe
//!           retry_hooks  = loaded.retry_module_hooks()
//!           detach       = drop the links, keep the ring
//! ```
//!
//! `attach` runs inside the tokio runtime (and a `LocalSet`): `AsyncFd` and `spawn_local` work there.

use std::io;

use crate::config;
use crate::error::Error;
use crate::event::{Fact, HookStatus, Observation};
use crate::pipeline::{Attached, EventSource};

/// The kernel's events.
#[derive(Debug)]
pub enum Kernel {}

/// Attaches to the kernel and looks around.
///
/// # Errors
/// The kernel or the privileges do not allow it (exit code 3), or a file of facts is wrong (2).
pub fn attach(config: &config::Live) -> Result<Attached<Kernel>, Error> {
    let _ = config;
    Err(Error::Kernel("this build has no kernel programs".into()))
}

impl EventSource for Kernel {
    async fn readable(&mut self) -> io::Result<()> {
        match *self {}
    }

    fn drain(&mut self, _max: usize, _into: &mut Vec<Observation>) -> usize {
        match *self {}
    }

    fn lost(&self) -> u64 {
        match *self {}
    }

    fn learn(&mut self, _fact: &Fact) {
        match *self {}
    }

    fn retry_hooks(&mut self) -> Vec<HookStatus> {
        match *self {}
    }

    fn detach(&mut self) {
        match *self {}
    }
}
