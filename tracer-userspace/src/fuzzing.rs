//! Fuzz targets: each passes arbitrary bytes to a parser of external input.
//!
//! A target asserts what must hold for any input: no panic, bounded sizes, and a recording that keeps what was read.
//! `cargo test --test fuzz` runs all of them briefly on the seeds and the fixtures. A long run needs a nightly toolchain and
//! cargo-fuzz, in `tracer-userspace/`:
//!
//! ```text
//! mkdir -p fuzz/corpus/klog
//! TARGET=klog cargo +nightly fuzz run target fuzz/corpus/klog fuzz/seeds/klog -- -max_total_time=600
//! ```
//!
//! An input that fails becomes a file in `fuzz/seeds/TARGET/`, named after the problem.

use tracer_bpf::decode::decode;
use tracer_bpf::ebpf::KernelNames;
use tracer_bpf::observe::observe;
use tracer_model::fuzzing::check_recorded;

pub use crate::replay::fuzzing::recording;
pub use tracer_kubectl::fuzzing::podlog;
pub use tracer_sources::fuzzing::{apiserver, files, journal, klog, nftables, podlist, proc, xtables};

/// A named parser.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The name of the target and of the folder with its seeds.
    pub name: &'static str,
    /// Panics if the parser does something wrong.
    pub run: fn(&[u8]),
}

pub const TARGETS: &[Target] = &[
    Target { name: "apiserver", run: apiserver },
    Target { name: "files", run: files },
    Target { name: "journal", run: journal },
    Target { name: "klog", run: klog },
    Target { name: "nftables", run: nftables },
    Target { name: "podlist", run: podlist },
    Target { name: "podlog", run: podlog },
    Target { name: "proc", run: proc },
    Target { name: "recording", run: recording },
    Target { name: "ring", run: ring },
    Target { name: "xtables", run: xtables },
];

/// Parses records of the ring, one after another, each after its length (four bytes, little-endian).
fn ring(mut bytes: &[u8]) {
    let (mut names, probers) = (KernelNames::default(), ["kubelet".to_owned()]);
    while let Some((length, rest)) = bytes.split_first_chunk() {
        let (record, rest) = rest.split_at(rest.len().min(u32::from_le_bytes(*length) as usize));
        if let Ok(event) = decode(record)
            && let Some(observation) = observe(&event, &mut names, &probers)
        {
            check_recorded(observation.kind);
        }
        bytes = rest;
    }
}
