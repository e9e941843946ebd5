//! `kubectl tracer report`: makes the page of `tracer report` from the logs of the nodes.

use std::cell::RefCell;
use std::rc::Rc;

use super::api::Api;
use super::cli::Report;
use super::logs::{self, Read, Sink};
use super::problem::Problem;
use super::records::Head;
use tracer_report::Collector;
use tracer_terminal::error;

/// Adds the records of a node's log to the page.
impl Sink for Rc<RefCell<Collector>> {
    fn take(&mut self, _: &Head<'_>, line: &[u8]) -> bool {
        self.borrow_mut().push(line)
    }
}

/// Makes the page. Gives the exit code: 2 if a part of the logs is missing on the page.
pub(super) async fn report(api: Api, args: &Report) -> Result<u8, Problem> {
    let collector = Collector::new(args.output_file.as_deref())?;
    let collector = Rc::new(RefCell::new(collector));
    let take = |read: Read<_>| {
        let Read { daemon, reading, bytes, problem, .. } = read;
        let problem = problem.map(|problem| problem.to_string());
        let cut = (bytes >= args.logs.limit_bytes)
            .then(|| "its newest records are missing: shorten --since or raise --limit-bytes".to_owned());
        let unreadable = (reading.unreadable > 0).then(|| format!("{} lines could not be read", reading.unreadable));
        collector.borrow_mut().source(daemon.name(), problem.or(cut).or(unreadable));
        Ok(())
    };
    let without = logs::read_all(Rc::new(api), &args.daemonset, &args.logs, || Rc::clone(&collector), take).await?;
    let collector = Rc::into_inner(collector).map(RefCell::into_inner);
    let mut collector = collector.ok_or_else(|| Problem::Found("a log is still being read".into()))?;
    without.into_iter().for_each(|node| collector.source(node, Some("no tracer runs there".into())));
    let missing = collector.finish()?;
    if let Some(line) = &missing {
        error::warn(line);
    }
    Ok(if missing.is_some() { 2 } else { 0 })
}

#[cfg(test)]
mod tests {
    use crate::testing::*;
    use tracer_testing::Scratch;

    #[tokio::test]
    async fn the_page_is_made_of_all_logs() {
        let first = verdict(1, "n1", &now(), "cart-0", "connection_refused");
        let second = verdict(1, "n2", &now(), "cart-1", "loopback_down");
        let logs = [("n1", format!("tracer: warning: no record\n{first}")), ("n2", second)];
        let fake = Fake::serve(cluster(&[], &logs)).await;
        let scratch = Scratch::new();
        let ran = ran(&fake, &["report", "--output-file", &scratch.text("page")]).await;
        assert_eq!(ran.ended, Ok(0));
        let page = std::fs::read_to_string(scratch.path("page")).expect("a page");
        for part in ["shop/cart-0", "shop/cart-1", "connection_refused", "loopback_down", "tracer/tracer-n1 on n1"] {
            assert!(page.contains(part), "{part}");
        }
    }
}
