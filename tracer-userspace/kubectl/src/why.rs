//! `kubectl tracer why`: prints the answer, then the pod's verdicts as `attach` does.

mod answer;
mod collected;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io::Write;

use super::api::{Api, LogOptions};
use super::cli::{Format, Why};
use super::daemon::{self, Daemon};
use super::objects::Pod;
use super::problem::Problem;
use super::records::each_line;
use super::target::{PODS, Target};
use collected::OfPod;
pub(super) use collected::{Collected, Effect};
use tracer_model::record::Command;
use tracer_output::sink::ndjson;
use tracer_output::sink::pretty::{Pretty, command_rows};
use tracer_terminal::error;
use tracer_terminal::screen::Screen;

/// Pods of a workload that are explained. The others are only named.
const EXPLAINED: usize = 10;

/// Explains each pod. Gives the exit code.
pub(super) async fn why(api: &Api, args: &Why, out: &mut dyn Write) -> Result<u8, Problem> {
    let namespace = args.namespace.as_ref().unwrap_or(&api.namespace);
    let mut pods = pods(api, namespace, &args.target).await?;
    if let Some(container) = &args.container {
        keep_those_with(container, &mut pods)?;
    }
    let mut nodes: BTreeMap<&str, Vec<Pod>> = BTreeMap::new();
    for pod in &pods {
        nodes.entry(&pod.spec.node_name).or_default().push(pod.clone());
    }
    let mut failed = None;
    for (node, pods) in nodes {
        match of_node(api, args, node, pods, out).await {
            Ok(()) => {}
            // The missing right is needed for every node.
            Err(problem @ (Problem::Forbidden(_) | Problem::Unauthenticated)) => return Err(problem),
            Err(problem) => {
                if let Some(before) = failed.replace(problem) {
                    error::warn(&before);
                }
            }
        }
    }
    failed.map_or(Ok(0), Err)
}

async fn of_node(api: &Api, args: &Why, node: &str, pods: Vec<Pod>, out: &mut dyn Write) -> Result<(), Problem> {
    let daemon = daemon::of_node(api, &args.daemonset, node).await?;
    if let Some(warning) = daemon.warning() {
        error::warn(&warning);
    }
    let mut collected = Collected::new(pods, args.container.clone(), args.tail as usize);
    let cut = read(api, args, &daemon, &mut collected).await?;
    if let Some(warning) = daemon.down(&collected.reading, api.now()) {
        error::warn(&warning);
    }
    error::print(out, &text(api, args, &daemon, &collected))?;
    cut.map_or(Ok(()), Err)
}

/// Reads the log. Gives why it ended early, if it did: the part that was read can still have the answer.
async fn read(api: &Api, args: &Why, daemon: &Daemon, collected: &mut Collected) -> Result<Option<Problem>, Problem> {
    let options = LogOptions { since: args.since, ..LogOptions::default() };
    let log_of = |problem| match problem {
        Problem::Late(_) | Problem::Refused { .. } => {
            Problem::Found(format!("the log of {}: {problem}", daemon.name()))
        }
        problem => problem,
    };
    let mut log = api.log(&daemon.pod, &daemon.container, &options).await.map_err(log_of)?;
    let read = each_line(&mut log, &mut 0, |line| collected.take(line)).await;
    match collected.reading.problem(&format!("the log of {}", daemon.name())) {
        Some(problem) => Err(problem),
        None => {
            Ok(read.err().map(|problem| Problem::Found(format!("the log of {} ended early: {problem}", daemon.name()))))
        }
    }
}

/// The answer of each pod, then its newest verdicts.
fn text(api: &Api, args: &Why, daemon: &Daemon, collected: &Collected) -> Vec<u8> {
    let screen = Screen::of_stdout();
    let format = args.output.unwrap_or_else(Format::of_stdout);
    let mut out = Vec::new();
    for of_pod in &collected.pods {
        let (answer, commands) = answer::text(of_pod, collected, daemon, api.now());
        if format == Format::Json {
            error::report_line("why", &answer);
            for Command { place, run } in commands {
                error::report_line("why", &format!("{} {run}", place.instruction(Some(daemon.node()))));
            }
            of_pod.kept.iter().for_each(|record| out.extend(ndjson::line(record)));
            continue;
        }
        let mut text = String::new();
        screen.lines(&mut text, "", "  ", &answer);
        command_rows(&mut text, commands, Some(daemon.node()), screen);
        let mut pretty = Pretty::default().naming_nodes();
        if let Some(earlier) = of_pod.earlier() {
            screen.head(&mut text, &earlier);
        }
        for record in &of_pod.kept {
            text.push_str(&pretty.text(record, 0, screen));
        }
        text.push('\n');
        out.extend(text.into_bytes());
    }
    if format == Format::Pretty && !collected.pods.iter().all(OfPod::is_known) {
        out.extend(answer::describe_log(collected, daemon, screen).into_bytes());
    }
    out
}

/// Only the pods that have this container. The others are named.
///
/// # Errors
/// No pod has it.
fn keep_those_with(container: &str, pods: &mut Vec<Pod>) -> Result<(), Problem> {
    let (with, without): (Vec<_>, Vec<_>) = pods.drain(..).partition(|pod| pod.containers().contains(&container));
    let lacks = |pod: &Pod| {
        let has = pod.containers().join(", ");
        Problem::Found(format!("{} has no container {container}; it has: {has}", pod.full_name()))
    };
    if with.is_empty() {
        return without.first().map_or(Ok(()), |pod| Err(lacks(pod)));
    }
    without.iter().for_each(|pod| error::warn(&lacks(pod)));
    *pods = with;
    Ok(())
}

/// The pods of the target that are on a node.
async fn pods(api: &Api, namespace: &str, target: &Target) -> Result<Vec<Pod>, Problem> {
    let Target { resource, name } = target;
    if *resource == PODS {
        let pod = api.pod(namespace, name).await?;
        return if pod.spec.node_name.is_empty() { Err(not_scheduled(&pod)) } else { Ok(vec![pod]) };
    }
    let mut pods = api.pods_of(resource, namespace, name).await?;
    let what = format!("{} {namespace}/{name}", resource.trim_end_matches('s'));
    pods.retain(|pod| !matches!(pod.status.phase.as_str(), "Succeeded" | "Failed"));
    if pods.is_empty() {
        return Err(Problem::Found(format!(
            "{what} has no pod: look at `kubectl describe {resource}/{name} -n {namespace}`"
        )));
    }
    // Pods that are not ready come first.
    pods.sort_by_key(|pod| (pod.is_ready(), pod.metadata.creation_timestamp));
    let (mut on_node, waiting): (Vec<_>, Vec<_>) = pods.into_iter().partition(|pod| !pod.spec.node_name.is_empty());
    if on_node.is_empty() {
        return waiting.first().map_or(Ok(Vec::new()), |pod| Err(not_scheduled(pod)));
    }
    waiting.iter().for_each(|pod| error::warn(&not_scheduled(pod)));
    let ready = on_node.iter().filter(|pod| pod.is_ready()).count();
    if ready < on_node.len() {
        on_node.truncate(on_node.len() - ready);
    }
    if on_node.len() > EXPLAINED {
        let more: Vec<_> = on_node.drain(EXPLAINED..).map(|pod| pod.metadata.name).collect();
        error::warn(&format!(
            "{what}: {EXPLAINED} pods are explained, {} more are not: {}",
            more.len(),
            more.join(", ")
        ));
    }
    Ok(on_node)
}

fn not_scheduled(pod: &Pod) -> Problem {
    let why = pod.condition("PodScheduled").map(|it| it.message.as_str()).filter(|it| !it.is_empty());
    let why = why.map(|why| format!(": {why}")).unwrap_or_default();
    Problem::Found(format!("{} is not scheduled, so no node probes it{why}", pod.full_name()))
}
