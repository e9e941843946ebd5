//! Connects of pods that failed. They are reported while the pod's probe fails.

use std::net::SocketAddr;

use tracer_model::event::{Netns, PodConnectFailed};
use tracer_model::recent::Recent;

const MAX_DESTINATIONS: usize = 1024;
/// Failures further apart do not belong together.
const APART_NS: u64 = 60_000_000_000;

/// The failed connects of each pod, by destination.
#[derive(Debug, Default)]
pub struct PodConnects(Recent<(Netns, SocketAddr), FailedConnects, MAX_DESTINATIONS>);

/// The failed connects of a pod to one destination.
#[derive(Clone, Copy, Debug)]
pub struct FailedConnects {
    pub dst: SocketAddr,
    /// UDP, else TCP.
    pub udp: bool,
    /// The error of the last one.
    pub errno: i32,
    /// How many were reported. There may be more: the kernel's program reports 16 at once, then four a second.
    pub count: u32,
    /// When the last one failed.
    pub last: u64,
}

impl PodConnects {
    pub(super) fn observe(&mut self, time: u64, failed: &PodConnectFailed) {
        let key = (failed.netns, failed.dst);
        let before = self.0.get(&key).filter(|it| it.last.saturating_add(APART_NS) >= time);
        let count = before.map_or(0, |it| it.count).saturating_add(1);
        let (dst, udp, errno) = (failed.dst, failed.udp, failed.errno);
        self.0.insert(key, FailedConnects { dst, udp, errno, count, last: time });
    }

    /// Another namespace has this number now.
    pub(super) fn forget(&mut self, netns: Netns) {
        self.0.retain(|(of, _), _| *of != netns);
    }

    /// The destinations to which connects of a pod have failed since then.
    pub fn failed_since(&self, netns: Netns, since: u64) -> impl Iterator<Item = &FailedConnects> {
        self.0.range(..).filter(move |((of, _), it)| *of == netns && it.last >= since).map(|(_, it)| it)
    }
}
