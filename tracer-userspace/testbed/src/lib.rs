//! A node made of network namespaces, the scenarios that fail on it, and the verdicts that tracer must emit.
//! `tracer selftest` runs one scenario of each cause; the tests in `tests/` run all of them.
//!
//! ```text
//! command   `tracer selftest`: runs scenarios, prints rows, returns the exit code
//! allowed   checks that this kernel and these privileges allow a selftest
//! guard     the parent process: it removes what a selftest leaves behind
//! shown     chooses the scenario that shows a cause
//! report    the rows of a selftest
//! options   the settings of a run: timeouts, names, how helpers are started
//! net       network namespaces
//! proc      child processes
//! pods      the list of pods for `--pods`
//! node      a node namespace with a bridge and pods; everything is removed on drop
//! helper    the processes of a node: prober, pods, container runtime, CNI plugin, untracked client
//! probe     one probe attempt, made as the kubelet makes it
//! prober    the process that makes attempts, and how scenarios talk to it
//! server    what a pod does: answers, hangs, resets, speaks TLS, acts as a middlebox
//! program   a BPF program that drops TCP
//! plugin    the CNI plugin `loopback` and the container runtime that runs it
//! ip        links, addresses, routes and rules, over netlink
//! load      the untracked client
//! scenario  each failure and near miss: setup, fault and expectation
//! cgroup    the cgroups of probers and pods
//! check     compares records with the expectations
//! api       a cluster API on loopback, for the tracer under test
//! wait      waits for a state of the kernel
//! watcher   the tracer under test and its records
//! runner    runs scenarios
//! row       the result of a scenario
//! ```

mod allowed;
pub mod api;
pub mod cgroup;
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
mod program;
mod report;
pub mod row;
pub mod runner;
pub mod scenario;
pub mod server;
mod shown;
mod wait;
pub mod watcher;

use anyhow::Result;
use clap::Parser as _;

use helper::Role;
use load::Load;

impl Role {
    /// Runs until the process is ended.
    pub fn run(self, args: &[String]) -> Result<()> {
        match self {
            Self::Kubelet => prober::serve(),
            // Whoever starts a pod reads its stdout.
            Self::Pod => server::run(args).inspect_err(|error| println!("{error:#}")),
            Self::Crio => plugin::runtime(),
            Self::Loopback => plugin::run(args.first().map(String::as_str)),
            Self::Load => {
                load::run(&Load::try_parse_from(std::iter::once("load").chain(args.iter().map(String::as_str)))?)
            }
        }
    }
}
