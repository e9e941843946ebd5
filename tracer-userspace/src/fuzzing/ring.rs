//! Fuzz target for records of the ring.

use tracer_bpf::decode::decode;
use tracer_bpf::ebpf::KernelNames;
use tracer_bpf::observe::observe;
use tracer_model::fuzzing::check_recorded;

/// Parses records one after another, each after its length (four bytes, little-endian).
pub(super) fn ring(mut bytes: &[u8]) {
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
