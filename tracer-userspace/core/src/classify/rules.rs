//! One file for each cause.

pub(super) mod accept_queue_overflow;
pub(super) mod app_status_failure;
pub(super) mod asymmetric_route;
pub(super) mod closed_without_answer;
pub(super) mod connection_refused;
pub(super) mod conntrack_invalid;
pub(super) mod conntrack_table_full;
pub(super) mod cpu_throttled;
pub(super) mod dependency_unreachable;
pub(super) mod ephemeral_ports_exhausted;
pub(super) mod firewall_drop;
pub(super) mod firewall_reject;
pub(super) mod handshake_rst;
pub(super) mod host_isolated_link;
pub(super) mod kubelet_delayed;
pub(super) mod loopback_down;
pub(super) mod mesh_redirect;
pub(super) mod mid_stream_rst;
pub(super) mod missing_node_prerequisite;
pub(super) mod mtu_blackhole;
pub(super) mod neighbour_failure;
pub(super) mod network_policy_drop;
pub(super) mod nodeport_ephemeral_collision;
pub(super) mod not_listening_yet;
pub(super) mod pod_link_down;
pub(super) mod port_taken;
pub(super) mod probe_misconfigured;
pub(super) mod probe_proves_nothing;
pub(super) mod route_unreachable;
pub(super) mod rp_filter_drop;
pub(super) mod service_no_endpoints;
pub(super) mod slow_response;
pub(super) mod startup_budget_exceeded;
pub(super) mod syn_backlog_overflow;
pub(super) mod target_frozen;
pub(super) mod target_starved;
pub(super) mod tls_eof_noise;
pub(super) mod tls_handshake_slow;
pub(super) mod unexplained;
mod wrong_link_address;

use super::case::{
    ANSWER_NS, Case, icmp_hook, in_handshake, inspected, is_of_handshake, is_unanswered, leads_out, outbound,
    refusal_hook, runs, shares_node, silent,
};
use super::finding::Finding;
use super::phrases::{by_subject, dialler, in_namespace, ms, of_namespace, run_in};
use tracer_model::record::{Cause, Command, Remediation};
