//! The second part of the pure core gives an attempt its cause: ordered rules look at it and at what is known of the
//! node, the nearest cause first. A rule is a function from a [`Case`] to a [`Finding`], in its own file, with its tests
//! below it. ARCHITECTURE.md says how to add one. The bans of `core/clippy.toml` hold here, too.

mod acceptor;
mod allow;
mod blame;
mod blocked;
mod case;
mod command_fix;
mod culprit;
pub mod evidence;
pub mod finding;
mod flooded;
pub mod flushed;
mod giving_up;
mod held_answer;
mod history;
mod killed;
mod kubectl;
pub mod kubelet;
mod lifecycle;
pub mod limits;
mod netfilter;
pub mod not_connected;
pub mod not_run;
mod not_started;
mod other_connects;
mod other_host;
pub mod owner;
mod phrases;
mod pod_sockets;
pub mod programs;
mod queue;
mod reject_answer;
mod rules;
pub mod sandbox;
mod services;
mod serving;
mod shared_address;
mod sidecar;
pub mod startup_probe;
mod translated;
mod unread_server;
mod waits;
mod wrong_field;

pub use case::{Case, EndedByProbe, Failing, Streak};
pub use culprit::{BY_KERNEL, culprit_of, is_elsewhere, is_plugin};
use finding::{Finding, Progress};
pub use pod_sockets::{FRESH_NS, REDIRECT_NS};
pub use rules::target_frozen::is_halted;
pub use rules::target_starved::is_blocked;
use tracer_model::record::{Cause, Confidence};

/// How long to wait for the companions of an ambiguous event. The kernel makes them in the same softirq run,
/// microseconds apart; at worst a preempted CPU separates them.
pub const SETTLE_NS: u64 = 2_000_000;

/// The cause of an attempt, as far as it is decided, and the other causes that hold on evidence of their own.
pub fn classify(case: &Case<'_>) -> Option<(Finding, Vec<Cause>)> {
    let mut findings: Vec<Finding> = Cause::ALL.iter().filter_map(|cause| rules::rule_of(*cause)?(case)).collect();
    // A finding that is only possible, or void, comes after one that something ties to this attempt.
    let is_tied = |f: &Finding| f.confidence > Confidence::Possible;
    let tied = findings.iter().position(|f| is_tied(f) && !f.is_void(case));
    let tied = tied.or_else(|| findings.iter().position(is_tied)).unwrap_or_default();
    let mut first = (tied < findings.len()).then(|| findings.remove(tied))?.weakened(case);
    rules::refusal::add_lost_reset(case, &mut first);
    first.progress = Progress::of(case, &first);
    findings.retain(|f| f.cause != Cause::Unexplained && f.adds_to(&first));
    if acceptor::add(case, &mut first) {
        findings.retain(|f| !f.rests_on_acceptor());
    } else {
        killed::add(case, &mut first);
        let budget = rules::startup_budget_exceeded::while_answering(case, &first);
        findings.extend(budget.into_iter().filter(|f| f.adds_to(&first)));
    }
    let also = findings.iter().filter(|f| is_tied(f)).map(|f| f.cause).collect();
    history::add(case, &mut first);
    history::add_deletion(case, &mut first);
    flushed::add(case, &mut first);
    shared_address::add(case, &mut first);
    lifecycle::add(case, &mut first);
    other_connects::add(case, &mut first);
    other_host::add(case, &mut first);
    services::add(case, &mut first);
    translated::add(case, &mut first);
    kubelet::add_ignored(case, &mut first);
    findings.into_iter().for_each(|other| first.join(other));
    Some((first, also))
}
