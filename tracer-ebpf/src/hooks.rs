//! One file per hook family. `ports` has no program: `state` calls it.
//!
//! Each program is named after the kernel function that it is attached to. If there are several program types for one
//! hook, the name begins with the type, and they share one body.

mod answer;
mod bind;
mod connect;
mod drop;
mod icmp;
mod ipvs;
mod link;
mod netns;
mod open;
mod pod_connect;
mod ports;
mod prober;
mod queue;
mod reset;
mod state;
mod tls;
