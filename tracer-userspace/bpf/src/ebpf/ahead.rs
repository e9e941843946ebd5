//! Loads the programs that will most likely be attached on several CPUs, because the verifier takes half of the start. The kernel
//! verifies programs of privileged users in parallel (since 5.2 `bpf_check` takes `bpf_verifier_lock` only for others).

use std::num::NonZero;
use std::sync::Mutex;
use std::thread;

use aya::{
    Btf, Ebpf,
    programs::{Program, ProgramError},
};

use super::program::load;

/// More threads cost more memory than they save time.
const THREADS: usize = 4;

/// A program, and what it will be attached to.
pub(super) type Planned = (&'static str, &'static str);

/// Loads these programs and returns those that are loaded. A refused program is tried again when it is attached, to get the reason.
pub(super) fn load_all(ebpf: &mut Ebpf, planned: &[Planned], btf: Option<&Btf>) -> Vec<&'static str> {
    let find = |name: &str| planned.iter().find(|(planned, _)| *planned == name);
    let programs: Vec<(Planned, &mut Program)> =
        ebpf.programs_mut().filter_map(|(name, program)| Some((*find(name)?, program))).collect();
    let helpers = thread::available_parallelism().map_or(1, NonZero::get).min(THREADS) - 1;
    let queue = Mutex::new(in_order(programs, planned).into_iter());
    thread::scope(|scope| {
        // If no thread can be started, this one loads all programs.
        let helper = |_| thread::Builder::new().spawn_scoped(scope, || load_each(&queue, btf)).ok();
        let others: Vec<_> = (0..helpers).filter_map(helper).collect();
        let own = load_each(&queue, btf);
        own.into_iter().chain(others.into_iter().flat_map(|other| other.join().unwrap_or_default())).collect()
    })
}

/// The program with the most instructions, by far. It must not be loaded last, while the other threads have nothing to do.
const LARGEST: &str = "cgroup_answer";

/// Otherwise keeps the order of the table.
fn in_order<'a>(mut programs: Vec<(Planned, &'a mut Program)>, planned: &[Planned]) -> Vec<(Planned, &'a mut Program)> {
    programs.sort_by_key(|(program, _)| (program.0 != LARGEST, planned.iter().position(|it| it == program)));
    programs
}

fn load_each<'a>(
    queue: &Mutex<impl Iterator<Item = (Planned, &'a mut Program)>>,
    btf: Option<&Btf>,
) -> Vec<&'static str> {
    let next = || queue.lock().ok()?.next();
    std::iter::from_fn(next)
        .filter_map(|((name, target), program)| {
            load(program, target, || btf.ok_or(ProgramError::NotLoaded)).ok().map(|()| name)
        })
        .collect()
}
