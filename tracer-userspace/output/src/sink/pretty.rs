//! Records as text for people: each as it comes, and at the end a summary by cause.

mod about;
mod above;
pub mod findings;
mod summary;
mod tally;
#[cfg(test)]
mod tests;
mod verdict;

pub use verdict::{command_rows, doubts};

use std::time::Duration;

pub use self::about::{About, describe_culprit};
use self::above::Above;
use self::summary::{Summary, without_failure};
use crate::sink::filter::{Filter, FilterHits};
use crate::sink::plain;
use tracer_common::names::Hook;
use tracer_model::event::{Loss, Pod};
use tracer_model::plural::{counted, duration};
use tracer_model::record::{AttemptBody, Body, LossBody, NodeBody, Outcome, PortsBody, Record, StartBody, StopBody};
use tracer_terminal::screen::{Screen, Style, safe};

/// The records of one run as text.
#[derive(Debug, Default)]
pub struct Pretty {
    /// Which verdicts are printed.
    hits: FilterHits,
    /// Print the port usage of a healthy node, too.
    verbose: bool,
    /// Say on which node a command runs: the reader is not there.
    names_node: bool,
    summary: Summary,
    started_boot_ns: Option<u64>,
    above: Above,
    /// The day of the last line that has a time.
    day: String,
}

impl Pretty {
    pub fn new(filter: Filter, verbose: bool) -> Self {
        Self { hits: FilterHits::new(filter), verbose, ..Self::default() }
    }

    /// For a reader who is not on the node: says on which node a command runs.
    #[must_use]
    pub fn naming_nodes(self) -> Self {
        Self { names_node: true, ..self }
    }

    /// Takes a record, printed or not, so that the summary can say why no verdict was printed.
    pub fn count(&mut self, body: &Body) {
        self.hits.record(body);
    }

    /// Takes the pods of the node, for the same reason.
    pub fn count_pods(&mut self, pods: &[Pod]) {
        pods.iter().for_each(|pod| self.hits.pod(pod));
    }

    /// How many failures passed the filter, and why none did; absent without a filter.
    pub fn shown(&self, shown: u64, failures: u64) -> Option<String> {
        self.hits.shown(shown, failures)
    }

    /// One record, its newlines included. `failed`: attempts so far.
    pub fn text(&mut self, record: &Record, failed: u64, screen: Screen) -> String {
        let mut out = String::new();
        match &record.body {
            Body::Start(body) => {
                self.started_boot_ns = Some(record.time_boot_ns);
                plain::date(&record.time).clone_into(&mut self.day);
                start(&mut out, record, body, screen);
            }
            Body::Stop(body) => {
                self.stop(&mut out, record, body, screen);
                self.end(&mut out, Some(body), failed, screen);
            }
            Body::Verdict(body) => {
                self.summary.take(record, body);
                verdict::block(&mut out, record, body, self.above.before(body), self.names_node, screen);
                self.above.remember(record.seq, body);
            }
            Body::Attempt(body) => attempt(&mut out, record, body, screen),
            Body::Node(body) if !self.verbose && body.ports.as_ref().is_some_and(PortsBody::is_healthy) => {}
            Body::Node(body) => node(&mut out, record, body, screen),
            Body::Loss(body) => loss(&mut out, record, body, screen),
            Body::Finding(body) => findings::block(&mut out, body, screen),
        }
        if !out.is_empty() && !matches!(record.body, Body::Start(_) | Body::Stop(_) | Body::Finding(_)) {
            self.put_day(&mut out, plain::date(&record.time), screen);
        }
        out
    }

    /// A line before the first one of each day, since the other lines have only the time of day.
    fn put_day(&mut self, out: &mut String, day: &str, screen: Screen) {
        if self.day == day {
            return;
        }
        day.clone_into(&mut self.day);
        let mut line = String::new();
        screen.head(&mut line, &screen.paint(Style::Mild, &format!("{} UTC", safe(day))));
        out.insert_str(0, &line);
    }

    /// The verdicts so far by cause, for records that end without a `stop`. `failed`: attempts so far.
    pub fn summary(&self, failed: u64, screen: Screen) -> String {
        let mut out = String::new();
        self.end(&mut out, None, failed, screen);
        out
    }

    /// A block for each cause, and how many failures the filter hid; or at a `stop`, a line that nothing failed.
    fn end(&self, out: &mut String, stop: Option<&StopBody>, failed: u64, screen: Screen) {
        self.summary.blocks(out, screen);
        let failures = self.summary.failures();
        let shown = self.shown(failures, failed);
        if let Some(stop) = stop.filter(|_| failures == 0 && (failed == 0 || shown.is_none())) {
            let (style, text) = without_failure(stop, failed);
            screen.head(out, &screen.paint(style, &text));
        }
        if let Some(shown) = shown {
            screen.head(out, &screen.paint(Style::Mild, &shown));
        }
    }

    fn stop(&self, out: &mut String, record: &Record, body: &StopBody, screen: Screen) {
        let after = self.started_boot_ns.map(|start| record.time_boot_ns.saturating_sub(start));
        let after = after.map(|ns| format!(" after {}", duration(Duration::from_nanos(ns)))).unwrap_or_default();
        let filtered = if body.filtered > 0 { format!(" (and {} filtered)", body.filtered) } else { String::new() };
        let text = format!(
            "{} ({}){after}: {}{filtered}, {}, {} still open, {} read, {} lost",
            screen.paint(Style::Strong, "ended"),
            body.reason.replace('_', " "),
            counted(body.verdicts.values().sum(), "verdict"),
            counted(body.attempts, "attempt"),
            body.open_attempts,
            counted(body.events, "event"),
            body.lost_events,
        );
        out.push('\n');
        screen.head(out, &text);
    }
}

fn start(out: &mut String, record: &Record, body: &StartBody, screen: Screen) {
    let pids: Vec<_> = body.prober_pids.iter().map(u32::to_string).collect();
    let prober = match pids.as_slice() {
        [] => "no prober running yet".to_owned(),
        [pid] => format!("prober pid {pid}"),
        pids => format!("prober pids {}", pids.join(" ")),
    };
    let text = format!(
        "{} on {}, {}, times in UTC, kernel {}: {} hooks attached, {prober}, {} known",
        screen.paint(Style::Strong, &format!("tracer {}", safe(&body.version))),
        safe(&record.node_name),
        plain::date(&record.time),
        safe(&body.kernel),
        body.hooks.len(),
        counted(body.pods as u64, "pod"),
    );
    screen.head(out, &text);
    if !body.missing_hooks.is_empty() {
        screen.head(out, &missing_hooks(body));
    }
}

/// Kinds of causes, and the hooks that prove them.
const PROOFS: &[(&str, &[Hook])] = &[
    ("IPVS", &[Hook::IpvsNatXmit, Hook::IpvsNatXmitV6, Hook::IpvsLeave]),
    ("accept-queue", &[Hook::TcpConnRequest]),
    ("ICMP", &[Hook::IcmpSend]),
    ("ICMPv6", &[Hook::Icmp6Send]),
    ("RST", &[Hook::TcpSendReset, Hook::TcpV4SendReset, Hook::TcpV6SendReset, Hook::TcpReceiveReset]),
    ("drop", &[Hook::KfreeSkb]),
    ("connect-error", &[Hook::SysConnect]),
    ("HTTP-status", &[Hook::CgroupAnswer]),
    ("TLS", &[Hook::CgroupSkb]),
];

/// `7 of 26 hooks missing: cannot prove IPVS and ICMPv6 causes; details: tracer doctor`.
fn missing_hooks(body: &StartBody) -> String {
    let missing = &body.missing_hooks;
    let is_missing = |hook: &Hook| missing.iter().any(|it| it.hook == hook.name());
    let causes: Vec<_> =
        PROOFS.iter().filter(|(_, hooks)| hooks.iter().any(is_missing)).map(|(name, _)| *name).collect();
    let causes = match causes.as_slice() {
        [] => String::new(),
        [one] => format!(": cannot prove {one} causes"),
        [more @ .., last] => format!(": cannot prove {} and {last} causes", more.join(", ")),
    };
    let all = body.hooks.len() + missing.len();
    format!("{} of {} missing{causes}; details: tracer doctor", missing.len(), counted(all as u64, "hook"))
}

fn attempt(out: &mut String, record: &Record, body: &AttemptBody, screen: Screen) {
    let (word, style) = match body.outcome {
        Some(Outcome::Success) => ("ok", Style::Good),
        Some(Outcome::Noise) => ("noise", Style::Mild),
        Some(Outcome::Open) => ("open", Style::Mild),
        Some(Outcome::Failure) => ("failed", Style::Bad),
        None => ("unknown", Style::Mild),
    };
    let phases = body.phases_ms;
    let named =
        [("connect", phases.connect), ("tls", phases.tls), ("first byte", phases.first_byte), ("total", phases.total)];
    let times: Vec<_> = named.iter().filter_map(|(name, ms)| ms.map(|ms| format!("{name} {ms:.1} ms"))).collect();
    let (time, about) = (plain::clock(&record.time), About::from(body).text());
    screen.head(out, &format!("{time}  {}  {about}  {}", screen.paint(style, word), times.join(", ")));
}

fn node(out: &mut String, record: &Record, body: &NodeBody, screen: Screen) {
    let event = screen.paint(Style::Mild, &safe(&body.event));
    screen.head(out, &format!("{}  {event}  {}", plain::clock(&record.time), safe(&body.summary)));
    if let Some(culprit) = &body.culprit {
        screen.row(out, "culprit", &describe_culprit(culprit));
    }
}

fn loss(out: &mut String, record: &Record, body: &LossBody, screen: Screen) {
    let what = screen.paint(Style::Mild, &format!("{} lost", body.count));
    let from = plain::relative_ms(body.from_boot_ns, record.time_boot_ns);
    let (time, place, means) = (plain::clock(&record.time), safe(&body.where_), means(&body.where_));
    screen.head(out, &format!("{time}  {what}  ({place}) since {from}: {means}"));
}

fn means(place: &str) -> &'static str {
    match place {
        Loss::LISTEN => "a cgroup opens listeners too often to report each; that nothing listens is less sure",
        Loss::NAMESPACE => {
            "some processes that entered a namespace are not reported; the confidence of verdicts is not affected"
        }
        Loss::PROBER => "a cgroup renames processes to a prober too often; a new prober is followed some seconds late",
        Loss::LINK => "a cgroup sets links up and down too often; who set a link is less often known",
        Loss::CONNECTION => {
            "a connection has too many drops, retransmissions or RSTs to report each; the first ones are"
        }
        Loss::ATTEMPTS => "too many connections are open at once: no verdict on the oldest can come",
        Loss::OUTCOMES => {
            "failures that only the kubelet reported have no verdict: its lines came late, or too many at once"
        }
        "output" => "records of that time are missing here: the reader was too slow, or the disk was full",
        "events" => "Events on pods lack failures of that time; verdicts are not affected",
        "otlp" => "the OTLP endpoint lacks records of that time; verdicts are not affected",
        _ => "verdicts of that time are less sure",
    }
}
