//! Prints the rows of a selftest, as `finding` records or as lines for people.

use std::collections::BTreeMap;

use super::options::kernel;
use super::row::{Row, RowOutcome};
use super::shown::Item;
use tracer_model::record::{Body, Cause, FindingBody, Remediation, Status};
use tracer_node::clock;
use tracer_output::sink::output::Output;
use tracer_output::sink::{Format, SinkConfig, record, selftest};
use tracer_terminal::error::{self, Error};
use tracer_terminal::screen::Screen;

const WHY: &str = "Do not trust a verdict on a cause that this kernel does not prove.";

/// Prints rows, and keeps the status of each.
pub(super) struct Report {
    output: Output,
    format: Format,
    screen: Screen,
    node_name: String,
    seq: u64,
    results: BTreeMap<String, Status>,
}

impl Report {
    pub(super) fn open(config: &SinkConfig, node_name: &str) -> Result<Self, Error> {
        let output = Output::open(config.file.as_deref(), None, false)?;
        let screen = Screen { colour: config.colour, columns: output.columns().or(config.columns) };
        Ok(Self {
            output,
            format: config.format,
            screen,
            node_name: node_name.to_owned(),
            seq: 0,
            results: BTreeMap::new(),
        })
    }

    /// Prints the row of a scenario. Called again if a later record of the tracer makes it a failure.
    pub(super) fn print_row(&mut self, items: &[Item], row: &Row) {
        let of = |item: &&Item| item.how.as_ref().is_ok_and(|scenario| scenario.name == row.scenario);
        if let Some(item) = items.iter().find(of) {
            self.print(row_finding(item.cause, row));
        }
    }

    /// Prints the causes that cannot be shown here, and the counts. Returns the exit code.
    pub(super) fn finish(mut self, items: &[Item]) -> u8 {
        for item in items {
            if let Err(why) = &item.how {
                self.print(not_shown_finding(item.cause, why));
            }
        }
        self.output.finish();
        let count = |status| self.results.values().filter(|it| **it == status).count();
        let (shown, failed, cannot) = (count(Status::Ok), count(Status::Fail), count(Status::Unknown));
        error::report_line(
            "selftest",
            &format!("kernel {}: {shown} shown, {failed} failed, {cannot} not shown here", kernel()),
        );
        if self.output.has_failed() { 2 } else { u8::from(failed > 0) }
    }

    fn print(&mut self, finding: FindingBody) {
        self.results.insert(finding.check.clone(), finding.status);
        let bytes = match self.format {
            Format::Pretty => selftest::row(&finding, self.screen).into_bytes(),
            format => {
                let now = (clock::boot_ns(), clock::boot_to_wall_ns());
                self.seq += 1;
                format.line(&record(Body::Finding(Box::new(finding)), now, self.seq - 1, &self.node_name))
            }
        };
        self.output.put(&bytes);
        // The next row may take a while.
        self.output.flush();
    }
}

fn row_finding(cause: Option<Cause>, row: &Row) -> FindingBody {
    let mut finding = draft(cause);
    let mut field = |name: &str, value: serde_json::Value| finding.fields.insert(name.to_owned(), value);
    field("scenario", row.scenario.as_str().into());
    field("took_ms", row.ms.into());
    if let Some(proof) = row.proof.as_ref().filter(|_| main_cause(cause, row).is_none()) {
        field("hooks", proof.hooks.clone().into());
        field("confidence", proof.confidence.to_string().into());
    }
    match row.result {
        RowOutcome::Pass => FindingBody { status: Status::Ok, observed: describe_proof(cause, row), ..finding },
        _ => {
            let observed = row.reason.clone().unwrap_or_default();
            let remediation = match row.was_busy {
                true => "Run it again when the node is less busy".into(),
                false => Remediation::on_node("See which hooks are missing", "tracer doctor --check tracer_hooks"),
            };
            FindingBody { status: Status::Fail, observed, remediation: Some(remediation), ..finding }
        }
    }
}

/// The confidence, and the hooks that proved the cause.
fn describe_proof(cause: Option<Cause>, row: &Row) -> String {
    if let Some(main) = main_cause(cause, row) {
        return format!("beside {main}");
    }
    match (cause, &row.proof) {
        (Some(_), Some(proof)) if proof.hooks.is_empty() => proof.confidence.to_string(),
        (Some(_), Some(proof)) => format!("{}: {}", proof.confidence, proof.hooks.join(", ")),
        _ => "no verdict".to_owned(),
    }
}

/// The cause of the verdict, if `cause` is only in its `also`. Then the evidence is that of the main cause.
fn main_cause(cause: Option<Cause>, row: &Row) -> Option<&'static str> {
    row.cause.filter(|main| cause.is_some_and(|cause| cause.name() != *main))
}

fn not_shown_finding(cause: Option<Cause>, why: &str) -> FindingBody {
    FindingBody { observed: why.to_owned(), ..draft(cause) }
}

/// A finding without a result.
fn draft(cause: Option<Cause>) -> FindingBody {
    let expected = cause.map_or_else(
        || "no verdict on a probe that succeeds".to_owned(),
        |cause| format!("the verdict `{cause}` where it was made to happen: {}", cause.title()),
    );
    let check = format!("{}{}", selftest::PREFIX, cause.map_or("healthy", Cause::name));
    FindingBody { expected, why: WHY.to_owned(), ..FindingBody::new(check, Status::Unknown) }
}

#[cfg(test)]
mod tests {
    use super::super::check::Proof;
    use super::super::scenario::all;
    use super::*;
    use tracer_model::record::Confidence;

    fn row(result: RowOutcome, reason: Option<&str>) -> Row {
        let scenario = all().into_iter().find(|s| s.name == "firewall_drop_pod_nft").expect("the scenario");
        let proof = Proof { confidence: Confidence::Proven, hooks: vec!["kfree_skb".into(), "nftables".into()] };
        Row { result, reason: reason.map(str::to_owned), proof: Some(proof), ms: 7, ..Row::new(&scenario) }
    }

    #[test]
    fn a_row_that_passed_names_the_hooks_that_proved_it() {
        let finding = row_finding(Some(Cause::FirewallDrop), &row(RowOutcome::Pass, None));
        assert_eq!((finding.check.as_str(), finding.status), ("selftest/firewall_drop", Status::Ok));
        assert_eq!(finding.observed, "proven: kfree_skb, nftables");
        assert_eq!(finding.fields["hooks"], serde_json::json!(["kfree_skb", "nftables"]));
        assert!(finding.expected.contains("`firewall_drop`") && finding.remediation.is_none());
    }

    #[test]
    fn a_cause_beside_the_main_cause_has_no_hooks() {
        let finding = row_finding(Some(Cause::CpuThrottled), &row(RowOutcome::Pass, None));
        assert_eq!(finding.observed, "beside firewall_drop");
        assert!(!finding.fields.contains_key("hooks") && !finding.fields.contains_key("confidence"));
    }

    #[test]
    fn a_row_that_failed_says_what_was_reported_instead() {
        let finding =
            row_finding(Some(Cause::FirewallDrop), &row(RowOutcome::Fail, Some("no verdict, expected firewall_drop")));
        assert_eq!(finding.status, Status::Fail);
        assert_eq!(finding.observed, "no verdict, expected firewall_drop");
        let fix = |was_busy| {
            let row = Row { was_busy, ..row(RowOutcome::Fail, None) };
            row_finding(Some(Cause::FirewallDrop), &row).remediation.expect("a fix").text
        };
        assert_eq!([false, true].map(fix), ["See which hooks are missing", "Run it again when the node is less busy"]);
    }

    #[test]
    fn a_cause_that_cannot_be_shown_is_unknown() {
        let finding = not_shown_finding(Some(Cause::ExecFailed), "needs a kubelet");
        assert_eq!((finding.status, finding.observed.as_str()), (Status::Unknown, "needs a kubelet"));
    }

    #[test]
    fn healthy_probes_get_no_verdict() {
        let mut healthy = row(RowOutcome::Pass, None);
        healthy.proof = None;
        let finding = row_finding(None, &healthy);
        assert_eq!((finding.check.as_str(), finding.observed.as_str()), ("selftest/healthy", "no verdict"));
    }
}
