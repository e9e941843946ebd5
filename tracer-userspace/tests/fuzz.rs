//! Runs each fuzz target on its seeds, on the fixtures, and on mutations of them. Each run has the same mutations.
#![allow(clippy::unwrap_used, reason = "a test ends at the line that failed")]

mod fuzz {
    pub(crate) mod mutate;
}

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use tracer::fuzzing::TARGETS;
use tracer_bpf::decode::decode;
use tracer_common::events::{KernelEvent, Kind, WIRE_VERSION};

use fuzz::mutate::Mutator;

/// An input that takes more processor time than this hangs the event loop.
const MAX_CPU_MS: u128 = 5_000;
/// The bytes that a target may allocate for any input.
const MAX_BYTES: usize = 24 << 20;
const MAX_BYTES_PER_INPUT_BYTE: usize = 256;

/// Defines a test for each target: the number of mutations (`FUZZ_COUNT` overrides it), and folders of seeds other than
/// `fuzz/seeds`.
macro_rules! targets {
    ($($name:ident $count:literal [$($place:literal)*],)*) => {
        $(#[test] fn $name() { fuzz(stringify!($name), $count, &[$($place),*]); })*

        #[test]
        fn every_target_has_a_test() {
            assert_eq!(TARGETS.iter().map(|target| target.name).collect::<Vec<_>>(), [$(stringify!($name)),*]);
        }
    };
}

targets! {
    apiserver 500 ["testdata/kubelet-pods.json" "testdata/kubelet-events.jsonl"],
    files 5000 ["testdata/kubelet-pods.json"],
    journal 10000 ["testdata/journal"],
    klog 2000 [],
    nftables 3000 [],
    podlist 2000 ["testdata/kubelet-pods.pb"],
    podlog 2000 [],
    proc 5000 ["testdata/fib_trie.txt" "testdata/ip_vs.txt"],
    recording 300 ["../tests/fixtures"],
    ring 10000 [],
    xtables 10000 [],
}

fn fuzz(name: &str, count: usize, places: &[&str]) {
    let base = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    for place in places.iter().map(|place| base.join(place)).chain([base.join("fuzz/seeds").join(name)]) {
        find(&place, &mut files);
    }
    files.sort();
    assert!(!files.is_empty(), "no seeds of {name}");
    let mut seeds: Vec<Vec<u8>> = files.iter().map(|file| fs::read(file).unwrap()).collect();
    let run = TARGETS.iter().find(|target| target.name == name).unwrap().run;
    for (seed, file) in seeds.iter().zip(&files) {
        check(name, run, seed, &file.display().to_string());
    }
    if name == "ring" {
        seeds.push(one_of_each_kind());
    }
    let count = std::env::var("FUZZ_COUNT").map_or(count, |count| count.parse().unwrap());
    let mut mutator = Mutator::new(&seeds);
    for n in 0..count {
        check(name, run, &mutator.next(), &format!("mutation {n}"));
    }
}

/// A record of each kind with the length that it has today. Records in files are refused once their kind gets a field.
fn one_of_each_kind() -> Vec<u8> {
    let record = |(kind, len): &(Kind, usize)| {
        let mut record = vec![0; *len];
        record[8..10].copy_from_slice(&WIRE_VERSION.to_ne_bytes());
        record[10..12].copy_from_slice(&(*kind as u16).to_ne_bytes());
        assert!(decode(&record).is_ok(), "{kind:?}");
        [&(*len as u32).to_le_bytes(), record.as_slice()].concat()
    };
    KernelEvent::SIZES.iter().flat_map(record).collect()
}

fn find(place: &Path, files: &mut Vec<PathBuf>) {
    match fs::read_dir(place) {
        Ok(entries) => entries.for_each(|entry| find(&entry.unwrap().path(), files)),
        Err(_) if place.is_file() && !place.ends_with("verdicts.ndjson") => files.push(place.to_owned()),
        Err(_) => {}
    }
}

/// Keeps an input that fails as a file, so that it can become a seed.
fn check(name: &str, run: fn(&[u8]), input: &[u8], what: &str) {
    let bounded = || {
        let (began, bytes) = (cpu_time(), allocation_counter::measure(|| run(input)).bytes_max as usize);
        let cpu = cpu_time() - began;
        assert!(cpu.as_millis() < MAX_CPU_MS, "{cpu:?} for {} bytes", input.len());
        assert!(
            bytes < MAX_BYTES + MAX_BYTES_PER_INPUT_BYTE * input.len(),
            "{bytes} allocated for {} bytes",
            input.len()
        );
    };
    if let Err(panic) = catch_unwind(AssertUnwindSafe(bounded)) {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fuzz-{name}"));
        fs::write(&path, input).unwrap();
        eprintln!("{name} fails on {what}: see {}", path.display());
        resume_unwind(panic);
    }
}

fn cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("a clock of every kernel").into()
}
