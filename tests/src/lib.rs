//! A node made of network namespaces to fail in, and the tests that need it.
//!
//! ```text
//! world     a node namespace with a bridge, pods on it, everything removed on drop
//! demo      a node whose pods fail in different ways, to be looked at
//! dial      one probe attempt as the kubelet makes it; the `kubelet` program runs it
//! prober    talks to that program
//! server    what the `pod` program does: healthy, hanging, resetting, TLS, a middlebox
//! plugin    what the `loopback` program does: a CNI plugin that enters a namespace by path
//! scenario  each failure and near miss: how it is provoked, and what the tracer must say
//! watcher   the tracer under test and its records
//! runner    runs scenarios
//! row       how each went, and what was said of its attempts
//! ```

pub mod check;
pub mod demo;
pub mod dial;
pub mod net;
pub mod options;
pub mod plugin;
pub mod pods;
pub mod prober;
pub mod proc;
pub mod row;
pub mod runner;
pub mod scenario;
pub mod server;
pub mod watcher;
pub mod world;
