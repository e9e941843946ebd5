//! A node made of network namespaces to fail in: each failure of the cause table, made there, and what the tracer must
//! say of it. `tracer selftest` plays one of each cause; the tests (`tests/`) play all of them.
//!
//! ```text
//! command   `tracer selftest`: plays, prints, gives the exit code
//! allowed   whether this kernel and these privileges allow it
//! guard     the process that outlives it and takes away what it made
//! shown     which scenario shows a cause, and what cannot be shown
//! report    its rows
//! world     a node namespace with a bridge, pods on it, everything removed on drop
//! helper    its processes: the prober, the pods, the runtime and its plugin, a foreign client
//! roles     what each of these does
//! dial      one probe attempt as the kubelet makes it; the prober runs it
//! prober    talks to that process
//! server    what a pod does: healthy, hanging, resetting, TLS, a middlebox
//! plugin    what the CNI plugin `loopback` does: it enters a namespace by path
//! ip        what the program `ip` does, without it
//! load      what the foreign client does
//! scenario  each failure and near miss: how it is provoked, and what the tracer must say
//! watcher   the tracer under test and its records
//! runner    runs scenarios
//! row       how each went, and what was reported of its attempts
//! ```

mod allowed;
pub mod check;
pub mod command;
mod guard;
pub mod helper;
pub mod ip;
pub mod load;
pub mod net;
pub mod node;
pub mod options;
pub mod plugin;
pub mod pods;
pub mod probe;
pub mod prober;
pub mod proc;
mod report;
mod roles;
pub mod row;
pub mod runner;
pub mod scenario;
pub mod server;
mod shown;
pub mod watcher;
