//! Network namespaces: who entered, made or ended which.

use crate::{
    actor::{ANCESTORS, Actor, Ancestor},
    header::Header,
    header::Kind,
    wire_event,
};

numbered! {
    /// What was done.
    pub enum Op {
        /// `setns(2)`.
        Setns = 1,
        /// `unshare(2)`.
        Unshare = 2,
        /// `clone(2)` or `clone3(2)` with CLONE_NEWNET.
        Clone = 3,
        /// The last reference to a namespace is gone.
        End = 4,
        /// The task's namespace changed; the hook cannot tell setns from unshare.
        Switch = 5,
    }
}

/// A task entered or made a namespace, or one ended.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct NetnsOp {
    /// See [`Header`].
    pub header: Header,
    /// Who did it; `actor.netns` is the namespace it was in before, where known.
    pub actor: Actor,
    /// Its ancestors.
    pub ancestors: [Ancestor; ANCESTORS],
    /// Namespace entered, made or ended.
    pub netns: u32,
    /// An [`Op`].
    pub op: u16,
    /// Always 0.
    pub reserved: u16,
}
wire_event!(NetnsOp, Kind::NetnsOp, 200);

/// Longest namespace path that is carried.
pub const PATH_LEN: usize = 96;

/// A task opened a file that names a network namespace (`/proc/PID/ns/net`, `/run/netns/NAME`).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct NetnsOpen {
    /// See [`Header`].
    pub header: Header,
    /// Who opens it.
    pub actor: Actor,
    /// The path as it was given, NUL padded.
    pub path: [u8; PATH_LEN],
}
wire_event!(NetnsOpen, Kind::NetnsOpen, 168);
