//! Reads the logs of many nodes, several at once, each with its own limits. A node that does not answer delays no other.

use std::collections::VecDeque;
use std::rc::Rc;

use indicatif::{ProgressBar, ProgressStyle};
use tokio::task::JoinSet;

use super::api::{Api, LogOptions};
use super::cli::{DaemonSet, Logs};
use super::daemon::{self, Daemon};
use super::problem::Problem;
use super::records::{Head, Reading, each_line};
use tracer_terminal::error;

/// The progress bar, which is cut to the terminal's width.
const BAR: &str = "{pos}/{len} nodes [{wide_bar}] {eta}";

/// Takes the records of a node's log.
pub(super) trait Sink: 'static {
    /// Takes a record. Gives whether it could be read.
    fn take(&mut self, head: &Head<'_>, line: &[u8]) -> bool;
}

/// A log, as far as it was read.
pub(super) struct Read<S> {
    pub(super) daemon: Daemon,
    pub(super) sink: S,
    pub(super) reading: Reading,
    pub(super) bytes: u64,
    /// Why the log could not be read to its end, or has no record of our schema.
    pub(super) problem: Option<Problem>,
}

/// Reads the logs of the requested nodes, and calls `each` at the end of each. Gives the nodes that have no tracer.
///
/// # Errors
/// The nodes cannot be listed, or rights or credentials are missing. Then reading any other node would fail, too.
pub(super) async fn read_all<S: Sink>(
    api: Rc<Api>,
    daemonset: &DaemonSet,
    logs: &Logs,
    new: impl Fn() -> S,
    mut each: impl FnMut(Read<S>) -> Result<(), Problem>,
) -> Result<Vec<String>, Problem> {
    let (daemons, without) = daemon::of_nodes(&api, daemonset, &logs.nodes).await?;
    daemons.iter().filter_map(Daemon::warning).for_each(|warning| error::warn(&warning));
    let options = LogOptions { since: Some(logs.since), limit_bytes: Some(logs.limit_bytes), ..LogOptions::default() };
    let bar = bar(daemons.len());
    let (mut waiting, mut running) = (VecDeque::from(daemons), JoinSet::new());
    loop {
        while running.len() < logs.parallel as usize
            && let Some(daemon) = waiting.pop_front()
        {
            let (api, options, sink) = (Rc::clone(&api), options.clone(), new());
            running.spawn_local(async move { read(&api, daemon, &options, sink).await });
        }
        let Some(read) = running.join_next().await else { break };
        let read = read.map_err(|error| Problem::Found(error.to_string()))?;
        bar.inc(1);
        if let Some(problem @ (Problem::Forbidden(_) | Problem::Unauthenticated)) = read.problem {
            bar.finish_and_clear();
            return Err(problem);
        }
        each(read)?;
    }
    bar.finish_and_clear();
    Ok(without)
}

async fn read<S: Sink>(api: &Api, daemon: Daemon, options: &LogOptions, mut sink: S) -> Read<S> {
    let (mut bytes, mut reading) = (0, Reading::default());
    let take = |line: &[u8]| {
        let is_readable = reading.take(line).is_none_or(|head| sink.take(&head, line));
        reading.unreadable += u64::from(!is_readable);
    };
    let problem = match api.log(&daemon.pod, &daemon.container, options).await {
        Ok(mut log) => each_line(&mut log, &mut bytes, take).await.err(),
        Err(problem) => Some(problem),
    };
    let problem = problem.or_else(|| reading.problem("its log"));
    Read { daemon, sink, reading, bytes, problem }
}

/// A progress bar, on stderr if that is a terminal.
fn bar(nodes: usize) -> ProgressBar {
    let style = ProgressStyle::with_template(BAR).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(nodes as u64).with_style(style.progress_chars("=> "))
}
