//! From an attempt and what is known of the node to a cause: ordered rules, nearest cause first.
//!
//! A rule is a function from a [`Case`] to a [`Finding`], in its own file, with its tests below it.
//! To add a cause: a row in `record/cause.rs`, a file in `rules/`, its line in [`rule`], a scenario.

mod allow;
mod answer;
mod blame;
mod case;
mod culprit;
pub mod evidence;
pub mod finding;
pub(crate) mod flushed;
mod giving_up;
mod history;
mod kubectl;
pub mod kubelet;
mod lifecycle;
mod netfilter;
pub mod not_connected;
pub mod not_run;
mod not_started;
mod other_connects;
pub mod owner;
mod phrases;
mod pod_sockets;
mod rules;
pub mod sandbox;
mod serving;
mod shared_address;
mod sidecar;
pub(crate) mod startup_probe;
mod stopped;
mod translated;
mod wrong_field;

pub use case::{Case, Streak};
pub use culprit::{culprit_of, is_elsewhere};
use finding::Finding;
pub(crate) use pod_sockets::REDIRECT_NS;
use tracer_model::record::{Cause, Confidence};

/// How long the companions of an ambiguous event may take. They are made in the same softirq run,
/// microseconds apart; what separates them at worst is a preempted CPU.
pub(crate) const SETTLE_NS: u64 = 2_000_000;

type Rule = fn(&Case<'_>) -> Option<Finding>;

/// The rule of a cause; none: it comes without an attempt (`kubelet.rs`, `sandbox.rs`, `not_run.rs`).
const fn rule(cause: Cause) -> Option<Rule> {
    Some(match cause {
        Cause::NodeportEphemeralCollision => rules::nodeport_ephemeral_collision::find,
        Cause::LoopbackDown => rules::loopback_down::find,
        Cause::PodLinkDown => rules::pod_link_down::find,
        Cause::ServiceNoEndpoints => rules::service_no_endpoints::find,
        Cause::ConntrackTableFull => rules::conntrack_table_full::find,
        Cause::ConntrackInvalid => rules::conntrack_invalid::find,
        Cause::NetworkPolicyDrop => rules::network_policy_drop::find,
        Cause::FirewallReject => rules::firewall_reject::find,
        Cause::FirewallDrop => rules::firewall_drop::find,
        Cause::MissingNodePrerequisite => rules::missing_node_prerequisite::find,
        Cause::RpFilterDrop => rules::rp_filter_drop::find,
        Cause::HostIsolatedLink => rules::host_isolated_link::find,
        Cause::AsymmetricRoute => rules::asymmetric_route::find,
        Cause::NeighbourFailure => rules::neighbour_failure::find,
        Cause::RouteUnreachable => rules::route_unreachable::find,
        Cause::EphemeralPortsExhausted => rules::ephemeral_ports_exhausted::find,
        Cause::TargetFrozen => rules::target_frozen::find,
        Cause::AcceptQueueOverflow => rules::accept_queue_overflow::find,
        Cause::SynBacklogOverflow => rules::syn_backlog_overflow::find,
        Cause::PortTaken => rules::port_taken::find,
        Cause::StartupBudgetExceeded => rules::startup_budget_exceeded::find,
        Cause::NotListeningYet => rules::not_listening_yet::find,
        Cause::ProbeMisconfigured => rules::probe_misconfigured::find,
        Cause::ConnectionRefused => rules::connection_refused::find,
        Cause::MeshRedirect => rules::mesh_redirect::find,
        Cause::HandshakeRst => rules::handshake_rst::find,
        Cause::MidStreamRst => rules::mid_stream_rst::find,
        Cause::MtuBlackhole => rules::mtu_blackhole::find,
        Cause::KubeletDelayed => rules::kubelet_delayed::find,
        Cause::TlsHandshakeSlow => rules::tls_handshake_slow::find,
        Cause::SlowResponse => rules::slow_response::find,
        Cause::TargetStarved => rules::target_starved::find,
        Cause::CpuThrottled => rules::cpu_throttled::find,
        Cause::ClosedWithoutAnswer => rules::closed_without_answer::find,
        Cause::AppStatusFailure => rules::app_status_failure::find,
        Cause::DependencyUnreachable => rules::dependency_unreachable::find,
        Cause::ProbeProvesNothing => rules::probe_proves_nothing::find,
        Cause::TlsEofNoise => rules::tls_eof_noise::find,
        Cause::Unexplained => rules::unexplained::find,
        Cause::ExecTimeout
        | Cause::ExecNotRun
        | Cause::ExecFailed
        | Cause::KubeletClientError
        | Cause::ProbeNotRun
        | Cause::CniNotReady => return None,
    })
}

/// The cause of an attempt, as far as it is decided, and the other causes that hold on evidence of their own.
pub fn classify(case: &Case<'_>) -> Option<(Finding, Vec<Cause>)> {
    let mut findings: Vec<Finding> = Cause::ALL.iter().filter_map(|cause| rule(*cause)?(case)).collect();
    // What nothing ties to the attempt does not go before what something does.
    let tied = findings.iter().position(|f| f.confidence > Confidence::Possible).unwrap_or_default();
    let mut first = (tied < findings.len()).then(|| findings.remove(tied))?.weakened(case);
    findings.retain(|f| f.cause != Cause::Unexplained && f.adds_to(&first));
    let also = findings.iter().map(|f| f.cause).collect();
    history::add(case, &mut first);
    history::add_end(case, &mut first);
    flushed::add(case, &mut first);
    shared_address::add(case, &mut first);
    lifecycle::add(case, &mut first);
    other_connects::add(case, &mut first);
    translated::add(case, &mut first);
    kubelet::add_ignored(case, &mut first);
    findings.into_iter().for_each(|other| first.join(other));
    Some((first, also))
}
