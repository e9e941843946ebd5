//! What this node's kernel tells: links, addresses, namespaces, processes, cgroups, settings, the state of a target. Read by
//! netlink, from `/proc` and from `/sys`. Each reading is bounded and says what could not be read.

pub mod addresses;
pub mod cgroup;
pub mod cgroups;
pub mod clock;
pub mod enter;
pub mod flushes;
pub mod inspect;
pub mod links;
pub mod namespaces;
pub mod netlink;
pub mod pod_sockets;
pub mod pods;
mod policy;
pub mod port_holders;
pub mod ports;
pub mod procfs;
pub mod removers;
pub mod room;
pub mod servers;
pub mod settings;
pub mod throttle;
pub mod turns;
