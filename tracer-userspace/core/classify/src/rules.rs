//! The rules: one file for each cause that an attempt can have. `rule_of` maps a cause to its rule.

mod accept_queue_overflow;
mod app_status_failure;
pub(super) mod asymmetric_route;
mod closed_without_answer;
mod connection_refused;
mod conntrack_invalid;
mod conntrack_table_full;
mod cpu_throttled;
mod dependency_unreachable;
mod ephemeral_ports_exhausted;
mod firewall_drop;
mod firewall_reject;
mod handshake_rst;
mod host_isolated_link;
mod kubelet_delayed;
mod loopback_down;
mod mesh_redirect;
mod mid_stream_rst;
mod missing_node_prerequisite;
mod mtu_blackhole;
mod neighbour_failure;
mod network_policy_drop;
mod nodeport_ephemeral_collision;
mod not_listening_yet;
mod pod_link_down;
mod port_taken;
mod probe_misconfigured;
mod probe_proves_nothing;
mod redirected;
mod route_unreachable;
mod rp_filter_drop;
mod service_no_endpoints;
mod slow_response;
pub(super) mod startup_budget_exceeded;
mod syn_backlog_overflow;
mod target_frozen;
mod target_starved;
mod tcp_probe_noise;
mod tls_eof_noise;
mod tls_handshake_slow;
mod unexplained;

// Shared by all rules: each file begins with `use super::*`.
use serde_json::json;

use tracer_attempts::correlate::attempt::{Attempt, End};
use tracer_case::blocked::{Blame, Blocked};
use tracer_case::case::{
    ANSWER_NS, Case, ICMP_HOOKS, REFUSAL_HOOKS, drops, earlier_drop_is_gone, has_handshake, in_handshake, in_time,
    inspected, inspections, is_at_other_link, is_deferred, is_of_handshake, is_second_syn, is_sent_elsewhere,
    is_unanswered, outbound, runs, shares_node, silent,
};
use tracer_case::drop_reason::{dropped_in, is_at_socket, is_netfilter, netfilter_hook};
use tracer_case::evidence::{
    errno_text, evidence_of, of_drop, of_icmp, of_ipvs, of_listener, of_outcome, of_reset_received, of_reset_sent,
    of_state,
};
use tracer_case::finding::Finding;
use tracer_case::giving_up::{gave_up_early, sent_request_late, taken_and_silent};
use tracer_case::kubectl::{self, with_log, with_logs};
use tracer_case::phrases::{by_subject, client_name, in_namespace, ms, of_namespace, run_in};
use tracer_common::names::Hook;
use tracer_model::plural::counted;
use tracer_model::record::{Cause, Command, Confidence, Culprit, Evidence, Outcome, Remediation};
use tracer_model::shell;

type Rule = fn(&Case<'_>) -> Option<Finding>;

/// The rule of a cause. Absent for a cause that is found without an attempt (`kubelet` in `tracer-core`).
pub(super) const fn rule_of(cause: Cause) -> Option<Rule> {
    Some(match cause {
        Cause::NodeportEphemeralCollision => nodeport_ephemeral_collision::find,
        Cause::LoopbackDown => loopback_down::find,
        Cause::PodLinkDown => pod_link_down::find,
        Cause::ServiceNoEndpoints => service_no_endpoints::find,
        Cause::ConntrackTableFull => conntrack_table_full::find,
        Cause::ConntrackInvalid => conntrack_invalid::find,
        Cause::NetworkPolicyDrop => network_policy_drop::find,
        Cause::FirewallReject => firewall_reject::find,
        Cause::FirewallDrop => firewall_drop::find,
        Cause::MissingNodePrerequisite => missing_node_prerequisite::find,
        Cause::RpFilterDrop => rp_filter_drop::find,
        Cause::HostIsolatedLink => host_isolated_link::find,
        Cause::AsymmetricRoute => asymmetric_route::find,
        Cause::NeighbourFailure => neighbour_failure::find,
        Cause::RouteUnreachable => route_unreachable::find,
        Cause::EphemeralPortsExhausted => ephemeral_ports_exhausted::find,
        Cause::TargetFrozen => target_frozen::find,
        Cause::AcceptQueueOverflow => accept_queue_overflow::find,
        Cause::SynBacklogOverflow => syn_backlog_overflow::find,
        Cause::PortTaken => port_taken::find,
        Cause::StartupBudgetExceeded => startup_budget_exceeded::find,
        Cause::NotListeningYet => not_listening_yet::find,
        Cause::ProbeMisconfigured => probe_misconfigured::find,
        Cause::ConnectionRefused => connection_refused::find,
        Cause::MeshRedirect => mesh_redirect::find,
        Cause::HandshakeRst => handshake_rst::find,
        Cause::MidStreamRst => mid_stream_rst::find,
        Cause::MtuBlackhole => mtu_blackhole::find,
        Cause::KubeletDelayed => kubelet_delayed::find,
        Cause::TlsHandshakeSlow => tls_handshake_slow::find,
        Cause::SlowResponse => slow_response::find,
        Cause::TargetStarved => target_starved::find,
        Cause::CpuThrottled => cpu_throttled::find,
        Cause::ClosedWithoutAnswer => closed_without_answer::find,
        Cause::AppStatusFailure => app_status_failure::find,
        Cause::DependencyUnreachable => dependency_unreachable::find,
        Cause::ProbeProvesNothing => probe_proves_nothing::find,
        Cause::TlsEofNoise => tls_eof_noise::find,
        Cause::TcpProbeNoise => tcp_probe_noise::find,
        Cause::Unexplained => unexplained::find,
        Cause::ExecTimeout
        | Cause::ExecNotRun
        | Cause::ExecFailed
        | Cause::KubeletClientError
        | Cause::ProbeNotRun
        | Cause::CniNotReady => return None,
    })
}
