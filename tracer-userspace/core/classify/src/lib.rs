//! The third part of the pure core gives an attempt its cause: ordered rules look at it and at what is known of the
//! node, the nearest cause first. A rule is a function from a [`Case`] to a [`Finding`], in its own file, with its tests
//! below it. What it asks of the case is in `tracer-case`. `acceptor` corrects the finding if another process accepted.
//! ARCHITECTURE.md says how to add a rule. The bans of `core/clippy.toml` hold here, too.

mod acceptor;
mod rules;

use tracer_case::finding::Finding;
use tracer_case::progress::progress;
use tracer_case::{
    Case, flushed, history, ignored, killed, lifecycle, other_connects, other_host, refusal, services, shared_address,
    translated,
};
use tracer_model::record::{Cause, Confidence};

/// The cause of an attempt, as far as it is decided, and the other causes that hold on evidence of their own.
pub fn classify(case: &Case<'_>) -> Option<(Finding, Vec<Cause>)> {
    let mut findings: Vec<Finding> = Cause::ALL.iter().filter_map(|cause| rules::rule_of(*cause)?(case)).collect();
    // A finding that is only possible, or void, comes after one that something ties to this attempt.
    let is_tied = |f: &Finding| f.confidence > Confidence::Possible;
    let tied = findings.iter().position(|f| is_tied(f) && !f.is_void(case));
    let tied = tied.or_else(|| findings.iter().position(is_tied)).unwrap_or_default();
    let mut first = (tied < findings.len()).then(|| findings.remove(tied))?.weakened(case);
    refusal::add_lost_reset(case, &mut first);
    first.progress = progress(case, &first);
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
    ignored::add_ignored(case, &mut first);
    findings.into_iter().for_each(|other| first.join(other));
    Some((first, also))
}
