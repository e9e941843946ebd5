//! Network namespaces: who entered, made or ended which.

use crate::{
    actor::{ANCESTORS, Actor, Ancestor},
    header::Header,
};

numbered! {
    pub enum Op {
        Setns = 1,
        Unshare = 2,
        /// `clone(2)` or `clone3(2)` with CLONE_NEWNET.
        Clone = 3,
        /// The last reference to a namespace is gone.
        End = 4,
        /// The task's namespace changed; the hook cannot distinguish setns and unshare.
        Switch = 5,
    }
}

/// A task entered or made a namespace, or one ended.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct NetnsOp {
    pub header: Header,
    /// Who did it; `actor.netns` is the namespace it was in before, where known.
    pub actor: Actor,
    pub ancestors: [Ancestor; ANCESTORS],
    /// Namespace entered, made or ended.
    pub netns: u32,
    /// An [`Op`].
    pub op: u16,
    pub reserved: u16,
}

pub const PATH_LEN: usize = 96;

/// A task opened a file that names a network namespace (`/proc/PID/ns/net`, `/run/netns/NAME`).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct NetnsOpen {
    pub header: Header,
    pub actor: Actor,
    /// The path as it was given, NUL padded.
    pub path: [u8; PATH_LEN],
}

/// Whether a path may name a network namespace, by its first eight bytes, read as a number in network order.
#[inline(always)]
pub const fn may_name(head: u64) -> bool {
    const PROC: u64 = u64::from_be_bytes(*b"\0\0/proc/");
    const RUN: u64 = u64::from_be_bytes(*b"\0\0\0/run/");
    const VAR_RUN: u64 = u64::from_be_bytes(*b"/var/run");
    head >> 16 == PROC || head >> 24 == RUN || head == VAR_RUN
}

/// Whether a path ends in `/ns/net` or contains `/netns/`. The loop keeps the last eight bytes in a register.
#[inline(always)]
pub fn names(path: &[u8; PATH_LEN]) -> bool {
    const FILE: u64 = u64::from_be_bytes(*b"/ns/net\0");
    const FOLDER: u64 = u64::from_be_bytes(*b"\0/netns/");
    let mut window = 0u64;
    for byte in path {
        window = (window << 8) | u64::from(*byte);
        if window == FILE || window & (u64::MAX >> 8) == FOLDER {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::{format, string::String};

    use super::*;

    /// A path as `bpf_probe_read_user_str` writes it: cut, with a NUL at its end.
    fn path(text: &str) -> [u8; PATH_LEN] {
        let mut path = [0; PATH_LEN];
        for (to, from) in path.iter_mut().zip(text.bytes().take(PATH_LEN - 1)) {
            *to = from;
        }
        path
    }

    fn is_reported(text: &str) -> bool {
        let path = path(text);
        may_name(u64::from_be_bytes(*path.first_chunk().expect("longer"))) && names(&path)
    }

    #[test]
    fn paths_of_namespaces_that_runtimes_use_are_found() {
        for text in [
            "/proc/1/ns/net",
            "/proc/4194304/task/4194304/ns/net",
            "/proc/self/ns/net",
            "/run/netns/cni-0a1b",
            "/var/run/netns/blue",
            "/run/docker/netns/default",
        ] {
            assert!(is_reported(text), "{text}");
        }
    }

    #[test]
    fn other_files_are_not_reported() {
        for text in [
            "",
            "/proc/1/ns/mnt",
            "/proc/1/ns/net_other",
            "/proc/net/tcp",
            "/run/netns",
            "/run/x",
            "/home/me/run/netns/blue",
            "run/netns/blue",
            "/procx/1/ns/net",
        ] {
            assert!(!is_reported(text), "{text}");
        }
    }

    #[test]
    fn a_cut_path_is_found_if_the_name_was_read() {
        let long = |name: &str, length: usize| format!("/run/{}{name}", "x".repeat(length - 5 - name.len()));
        let fits: String = long("/ns/net", PATH_LEN - 1);
        assert!(is_reported(&fits), "the path ends at the last byte before the NUL");
        assert!(!is_reported(&long("/ns/net", PATH_LEN)), "the last byte of the path is cut off");
        assert!(is_reported(&long("/netns/", PATH_LEN - 1)));
    }
}
