//! The target that the variable `TARGET` names: one program for all, since linking one takes longer than a run.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use tracer::fuzzing::{TARGETS, Target};

static TARGET: LazyLock<Target> = LazyLock::new(|| {
    let name = std::env::var("TARGET").unwrap_or_default();
    let found = TARGETS.iter().find(|target| target.name == name);
    *found.unwrap_or_else(|| panic!("TARGET is none of {:?}", TARGETS.iter().map(|it| it.name).collect::<Vec<_>>()))
});

fuzz_target!(|bytes: &[u8]| (TARGET.run)(bytes));
