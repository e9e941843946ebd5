//! Phrases that the summaries, evidence and fixes of several rules share.

use serde_json::json;

use crate::case::{Case, holds_target};
use crate::evidence::evidence_of;
use tracer_attempts::correlate::attempt::Attempt;
use tracer_attempts::enrich;
use tracer_model::event::{Container, Netns};
use tracer_model::record::{Command, Evidence, Subject};

/// " on the node", " in pod default/web", " in network namespace 4026532000".
pub fn in_namespace(case: &Case<'_>, netns: Option<Netns>) -> String {
    let Some(inum) = netns else { return String::new() };
    match owner(case, inum).as_deref() {
        Some("host") => " on the node".to_owned(),
        Some(pod) => format!(" in pod {pod}"),
        None => format!(" in network namespace {}", inum.0),
    }
}

/// "host", or the name of a pod.
fn owner(case: &Case<'_>, inum: Netns) -> Option<String> {
    let name = enrich::netns_ref(inum, case.node).name;
    name.or_else(|| target(case, inum).filter(|_| holds_target(case, inum) || held_target(case, inum)))
}

/// The target's pod was found in this namespace, until its address went.
fn held_target(case: &Case<'_>, inum: Netns) -> bool {
    let pods = &case.node.pods;
    pods.only_at(case.attempt.flow.dst.ip()).is_some_and(|pod| pods.last_netns(pod) == Some(inum))
}

/// The name of the pod that has the target's address, unless it is known to be in another namespace.
fn target(case: &Case<'_>, inum: Netns) -> Option<String> {
    let pod = case.node.pods.only_at(case.attempt.flow.dst.ip())?;
    let elsewhere = pod.netns.is_some_and(|own| own != inum && !case.node.has_ended(own));
    pod.full_name().filter(|_| !elsewhere)
}

/// A namespace was made, as evidence.
pub fn of_namespace(case: &Case<'_>, netns: Netns, made: u64) -> Evidence {
    let of = enrich::describe_netns(netns, owner(case, netns).as_deref());
    evidence_of("netns", made, format!("{of} was made"), json!({ "netns": netns }))
}

/// Chooses the fix. For a probe it can be a change of the spec; for another connection it names the process.
pub fn by_subject<T: From<String>>(case: &Case<'_>, probe: impl Into<T>, connection: impl FnOnce(&str) -> String) -> T {
    match case.matched.name().subject {
        Subject::Probe => probe.into(),
        Subject::Connection => connection(&case.attempt.actor.comm).into(),
    }
}

/// The client of the attempt, as the subject of a sentence.
pub const fn client_name(attempt: &Attempt) -> &'static str {
    if attempt.prober { "the prober" } else { "the client" }
}

/// A command for this network namespace, run on the node. It looks for the namespace when it runs, by the name that the
/// container runtime bound, or by a process: one that was seen before may be gone, and its number may belong to another.
/// `find` takes the inode of an entry of a folder from the folder, which is not that of what is bound there.
pub fn run_in(case: &Case<'_>, netns: Option<Netns>, command: impl std::fmt::Display) -> Command {
    let elsewhere = netns.filter(|inum| case.node.netns() != Some(*inum));
    let command = of_family(case, command.to_string());
    Command::on_node(match elsewhere {
        Some(inum) => {
            format!("nsenter --net=$(find -L /run/netns/* /proc/*/ns/net -inum {} -print -quit) {command}", inum.0)
        }
        None => command,
    })
}

/// The command for the address family of this attempt: without it, these programs show IPv4 only.
pub fn of_family(case: &Case<'_>, command: String) -> String {
    let six = |(four, six): &(&str, &str)| Some(format!("{six}{}", command.strip_prefix(four)?));
    let is_six = case.attempt.flow.dst.is_ipv6();
    IN_IPV6.iter().filter(|_| is_six).find_map(six).unwrap_or(command)
}

/// How commands for IPv4 begin, and how those for IPv6 do.
const IN_IPV6: [(&str, &str); 4] = [
    ("ip rule", "ip -6 rule"),
    ("ip route show", "ip -6 route show"),
    ("iptables-save", "ip6tables-save"),
    ("conntrack -L -p tcp", "conntrack -L -f ipv6 -p tcp"),
];

/// Milliseconds with one decimal.
pub fn ms(ns: u64) -> String {
    format!("{:.1} ms", ns as f64 / 1e6)
}

/// "container app"
pub fn name_of(container: &Container) -> String {
    container.name.as_ref().map_or_else(|| "the container".into(), |name| format!("container {name}"))
}
