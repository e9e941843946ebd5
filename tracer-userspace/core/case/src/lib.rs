//! The second part of the pure core is what the rules ask about one attempt. A [`Case`] is the attempt with what is
//! known of its target and of the node. Each file is one subject:
//!
//! - the case and the result: `case`, `finding`, `progress`, `evidence`, `phrases`, `kubectl`
//! - a dropped packet: `drop_reason`, `flooded`, `programs`, `queue`
//! - netfilter: `netfilter`, `blocked`, `blame`, `owner`, `allow`, `reject_answer`, `translated`, `services`
//! - a refusal or a RST: `refusal`, `other_stack`, `reset`, `ended`
//! - links and routes: `links`, `culprit`, `neighbour`, `router`, `flushed`, `held_answer`, `hints`
//! - the server: `answer`, `serving`, `accept_queue`, `halt`, `stall`, `throttling`, `waits`, `slow_server`,
//!   `unread_server`, `killed`
//! - the pod: `pod_sockets`, `sidecar`, `shared_address`, `history`, `startup_probe`, `lifecycle`, `other_host`
//! - the prober: `giving_up`, `ignored`, `other_connects`, `wrong_field`
//!
//! A rule, in `tracer-classify`, combines them into a [`Finding`](finding::Finding). A function `add` notes its subject
//! in a finding that exists. The bans of `core/clippy.toml` hold here, too.

pub mod accept_queue;
pub mod allow;
pub mod answer;
pub mod blame;
pub mod blocked;
pub mod case;
pub mod culprit;
pub mod drop_reason;
pub mod ended;
pub mod evidence;
pub mod finding;
pub mod flooded;
pub mod flushed;
pub mod giving_up;
pub mod halt;
pub mod held_answer;
pub mod hints;
pub mod history;
pub mod ignored;
pub mod killed;
pub mod kubectl;
pub mod lifecycle;
pub mod links;
pub mod neighbour;
pub mod netfilter;
pub mod other_connects;
pub mod other_host;
pub mod other_stack;
pub mod owner;
pub mod phrases;
pub mod pod_sockets;
pub mod programs;
pub mod progress;
pub mod queue;
pub mod refusal;
pub mod reject_answer;
pub mod reset;
pub mod router;
pub mod services;
pub mod serving;
pub mod shared_address;
pub mod sidecar;
pub mod slow_server;
pub mod stall;
pub mod startup_probe;
pub mod throttling;
pub mod translated;
pub mod unread_server;
pub mod waits;
pub mod wrong_field;

pub use case::{Case, EndedByProbe, Failing, Streak};

/// How long to wait for the companions of an ambiguous event. The kernel makes them in the same softirq run,
/// microseconds apart; at worst a preempted CPU separates them.
pub const SETTLE_NS: u64 = 2_000_000;
