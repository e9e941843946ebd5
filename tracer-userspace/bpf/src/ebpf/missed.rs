//! Counts program runs that the kernel skipped: a program does not run on a CPU on which it is already running
//! (`bpf_prog_info.recursion_misses`, 5.12). The event is lost.
//!
//! If the kernel skips the most important program, a second program with the same body gets the skipped events. Otherwise a loss in
//! each second would make verdicts impossible that depend on the absence of an event.

use std::ffi::CStr;
use std::os::fd::{AsFd as _, AsRawFd as _};

use aya::{Ebpf, programs::Program};
use tracer_common::names::Hook;

use super::runs::hook_of;
use super::switches::Switch;
use tracer_model::event::Loss;

const FIRST: &str = "inet_sock_set_state";
/// [`hook_of`] expects this suffix.
const SECOND: &str = "inet_sock_set_state_again";

/// Hooks that show who entered or made a namespace, and how. They have no events of an attempt. The end of a namespace is not
/// listed: the kernel may give its number to another namespace at once.
const OF_NAMESPACES: [Hook; 6] = [
    Hook::SysOpenat,
    Hook::SwitchTaskNamespaces,
    Hook::SysSetns,
    Hook::SysUnshare,
    Hook::SchedProcessFork,
    Hook::SchedProcessExec,
];

#[derive(Debug, Default)]
pub(super) struct Missed {
    second: SecondProgram,
    silent: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SecondProgram {
    #[default]
    NotNeeded,
    /// Skipped runs of the first program before this one was attached. Later ones do not count: this program gets their events.
    Attached(u64),
    Refused,
}

impl Missed {
    /// Skipped runs since the programs were loaded: those of programs for attempts and links, and those of programs for namespaces;
    /// 0 if the kernel does not count them. `silenced`: the setting because of which the kernel now calls no program on functions.
    pub(super) fn count(&mut self, ebpf: &mut Ebpf, silenced: Option<&Switch>) -> [(&'static str, u64); 2] {
        let is_attached = ebpf.program(FIRST).is_some_and(|first| first.fd().is_ok());
        if self.second == SecondProgram::NotNeeded
            && is_attached
            && (skipped_runs_of(ebpf, FIRST) > 0 || is_preempted(rustix::system::uname().release()))
        {
            self.second = attach_second(ebpf);
        }
        if let Some(switch) = silenced {
            self.count_silenced(switch);
        }
        let (mut attempts, mut namespaces) = (0, 0);
        for (name, program) in ebpf.programs() {
            match hook_of(name) {
                Some(hook) if OF_NAMESPACES.contains(&hook) => namespaces += skipped_runs(program),
                _ if name == FIRST && matches!(self.second, SecondProgram::Attached(_)) => {}
                _ => attempts += skipped_runs(program),
            }
        }
        let before = if let SecondProgram::Attached(before) = self.second { before } else { 0 };
        [(Loss::PROGRAM, before + attempts + self.silent), (Loss::NAMESPACE, namespaces + self.silent)]
    }

    fn count_silenced(&mut self, switch: &Switch) {
        if self.silent == 0 {
            let (name, fix) = (switch.name, switch.fix);
            tracing::warn!("{name} was set to 0: the kernel calls no program that is attached to a function ({fix})");
        }
        self.silent += 1;
    }
}

/// Whether another task may preempt a program on this kernel. Under a flood of listeners, 7.2 (emulated) skipped up to 41 runs of
/// the first program in four seconds, and 6.18 none.
fn is_preempted(release: &CStr) -> bool {
    let major = release.to_str().ok().and_then(|release| release.split('.').next()?.parse::<u32>().ok());
    major.is_some_and(|major| major >= 7)
}

fn attach_second(ebpf: &mut Ebpf) -> SecondProgram {
    let Some(program) = ebpf.program_mut(SECOND) else { return SecondProgram::Refused };
    let Program::RawTracePoint(second) = program else { return SecondProgram::Refused };
    match second.load().and_then(|()| second.attach(FIRST)) {
        Ok(_) => {
            tracing::debug!("attached a second program at {FIRST}, for runs that the kernel skips");
            SecondProgram::Attached(skipped_runs_of(ebpf, FIRST))
        }
        Err(error) => {
            tracing::warn!(%error, "no second program could be attached at {FIRST}: if the kernel skips a run of the first one, its event is lost");
            SecondProgram::Refused
        }
    }
}

fn skipped_runs_of(ebpf: &Ebpf, name: &str) -> u64 {
    ebpf.program(name).map_or(0, skipped_runs)
}

fn skipped_runs(program: &Program) -> u64 {
    let Ok(fd) = program.fd() else { return 0 };
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_fd().as_raw_fd()));
    parse(&info.unwrap_or_default()).unwrap_or_default()
}

fn parse(info: &str) -> Option<u64> {
    info.lines().find_map(|line| line.strip_prefix("recursion_misses:"))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recursion_misses_are_parsed() {
        let info =
            "pos:\t0\nflags:\t02000002\nprog_type:\t17\nrun_cnt:\t0\nrecursion_misses:\t42\nverified_insns:\t9\n";
        assert_eq!(parse(info), Some(42));
        assert_eq!(parse("prog_type:\t17\n"), None);
    }

    #[test]
    fn kernels_from_7_on_are_preempted() {
        let cases = [(c"7.2.13+deb14-amd64", true), (c"6.18.44-fc-v595", false), (c"10.0-rc1", true), (c"?", false)];
        assert!(cases.into_iter().all(|(release, expected)| is_preempted(release) == expected));
    }

    #[test]
    fn the_second_program_is_of_the_same_hook() {
        assert_eq!(hook_of(SECOND), Some(Hook::InetSockSetState));
    }
}
