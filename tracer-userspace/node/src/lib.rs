//! Reads the state of this node: links, addresses, namespaces, processes, cgroups, settings, the state of a target.
//!
//! The sources are netlink, `/proc` and `/sys`. Each read has a limit and reports what it could not read.

pub mod addresses;
pub mod cgroup;
pub mod cgroups;
pub mod clock;
pub mod enter;
pub mod flushes;
pub mod inspect;
pub mod limits;
pub mod links;
pub mod listening;
pub mod namespaces;
pub mod netlink;
pub mod pod_sockets;
pub mod pods;
mod policy;
pub mod port_holders;
pub mod ports;
pub mod procfs;
pub mod programs;
mod qdiscs;
pub mod removers;
pub mod room;
pub mod servers;
pub mod settings;
pub mod sock_diag;
pub mod target_queue;
pub mod throttle;
