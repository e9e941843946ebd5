//! `kubectl tracer top`: counts causes by pods and nodes, with culprits, times and the first nodes.

mod page;
mod tally;
#[cfg(test)]
mod tests;

use std::io::Write;
use std::rc::Rc;

use super::api::Api;
use super::cli::{Format, Top};
use super::clock::skew;
use super::logs::{self, Read};
use super::problem::Problem;
pub(super) use page::{Answers, Page};
pub(super) use tally::{Causes, NodeTally};
use tracer_terminal::error;
use tracer_terminal::screen::Screen;

/// Reads all logs and prints the page. Gives the exit code: 2 if a part of a log is missing on the page.
pub(super) async fn top(api: Api, args: &Top, out: &mut dyn Write) -> Result<u8, Problem> {
    let api = Rc::new(api);
    let (mut causes, mut answers) = (Causes::default(), Answers::default());
    let take = |read: Read<NodeTally>| {
        let Read { daemon, sink, reading, bytes, problem } = read;
        let node = daemon.node().to_owned();
        if let Some(problem) = problem {
            answers.without.push((node.clone(), problem.to_string()));
        } else {
            answers.answered += 1;
            if reading.records == 0 {
                answers.without_records.push(node.clone());
            }
        }
        if let Some(why) = daemon.not_ready() {
            answers.not_ready.push((node.clone(), why));
        }
        if bytes >= args.logs.limit_bytes {
            answers.cut.push(node.clone());
        }
        answers.unreadable += reading.unreadable;
        if let Some(seconds) = skew(&daemon.pod, reading.newest(), api.now()) {
            answers.skewed.push((node.clone(), seconds));
        }
        causes.add(&node, sink.finish());
        Ok(())
    };
    let without = logs::read_all(Rc::clone(&api), &args.daemonset, &args.logs, NodeTally::default, take).await?;
    answers.without.extend(without.into_iter().map(|node| (node, "no tracer runs there".to_owned())));
    answers.without.sort();
    answers.cut.sort();
    answers.without_records.sort();
    answers.not_ready.sort();
    answers.skewed.sort();
    let page = Page::new(causes, answers, args.logs.since, api.now());
    let text = match args.output.unwrap_or_else(Format::of_stdout) {
        Format::Pretty => page.text(Screen::of_stdout()),
        Format::Json => page.json(),
    };
    error::print(out, text.as_bytes())?;
    page.warnings().iter().for_each(|warning| error::warn(warning));
    Ok(if page.is_whole() { 0 } else { 2 })
}
