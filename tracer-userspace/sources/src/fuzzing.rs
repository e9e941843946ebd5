//! Fuzz targets of the sources.

pub use super::cluster::fuzzing::apiserver;
pub use super::files::fuzzing::files;
pub use super::kubelet::fuzzing::{journal, klog};
use super::kubelet_pods;
pub use tracer_netfilter::fuzzing::{nftables, xtables};
use tracer_node::cgroups::{Hierarchy, Mounts};
use tracer_node::{addresses, cgroup, inspect, ports, settings, throttle};

/// The kubelet's list of pods.
pub fn podlist(bytes: &[u8]) {
    kubelet_pods::fuzz(bytes);
}

/// Files of `/proc` and `/sys`: each of their parsers is given the same text.
pub fn proc(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let leaves = addresses::parse_fib_trie(bytes).count() + addresses::parse_if_inet6(bytes).count();
    assert!(leaves <= 2 * text.lines().count(), "an address for each line of either file at most");
    if let Some(pod) = cgroup::pod_process(&text) {
        assert!(cgroup::is_within(&text, &pod.uid), "{pod:?}");
    }
    let mounts = Mounts::of(&text);
    for hierarchy in [Hierarchy::Unified, Hierarchy::Cpu] {
        let _ = mounts.folder(&text, hierarchy);
    }
    tracer_netfilter::fuzzing::proc(bytes, &text);
    let _ =
        (inspect::counters(&text, "TcpExt:", &["ListenDrops"]), ports::sockstat(&text), throttle::parse(&text, "c"));
    let _ = (settings::parse_range(&text), settings::parse_ranges(&text));
}
