//! Runs of programs that the kernel skipped: a program does not run on a CPU on which it runs already
//! (`bpf_prog_info.recursion_misses`, 5.12). An event was there and was not seen: a loss like any other.

use std::os::fd::{AsFd as _, AsRawFd as _};

use aya::{Ebpf, programs::Program};

/// Skipped runs of all programs since they were loaded; 0 where the kernel does not count them.
pub(super) fn runs(ebpf: &Ebpf) -> u64 {
    ebpf.programs().filter_map(|(_, program)| of(program)).sum()
}

fn of(program: &Program) -> Option<u64> {
    let fd = program.fd().ok()?.as_fd().as_raw_fd();
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).ok()?;
    parse(&info)
}

fn parse(info: &str) -> Option<u64> {
    info.lines().find_map(|line| line.strip_prefix("recursion_misses:"))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_kernel_s_own_form_is_read() {
        let info =
            "pos:\t0\nflags:\t02000002\nprog_type:\t17\nrun_cnt:\t0\nrecursion_misses:\t42\nverified_insns:\t9\n";
        assert_eq!(super::parse(info), Some(42));
        assert_eq!(super::parse("prog_type:\t17\n"), None);
    }
}
