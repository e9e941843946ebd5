//! Records for people: the answer first, then why, what was seen, who did it, what mends it.

use std::fmt::Write as _;

use crate::record::{
    AttemptBody, Body, Culprit, Endpoint, K8s, LossBody, NodeBody, Outcome, Probe, Process, Record, StartBody,
    StopBody, Subject, VerdictBody,
};
use crate::sink::findings;
use crate::sink::plain;
use crate::sink::plain::{Paint, Style};

/// One record, its newlines included.
#[must_use]
pub fn text(record: &Record, colour: bool) -> String {
    let paint = Paint { colour };
    let mut out = String::new();
    match &record.body {
        Body::Start(body) => start(&mut out, record, body, paint),
        Body::Stop(body) => stop(&mut out, body, paint),
        Body::Verdict(body) => verdict(&mut out, record, body, paint),
        Body::Attempt(body) => attempt(&mut out, record, body, paint),
        Body::Node(body) => node(&mut out, record, body, paint),
        Body::Loss(body) => loss(&mut out, record, body, paint),
        Body::Finding(body) => findings::block(&mut out, body, findings::WIDTH, paint),
    }
    out
}

fn start(out: &mut String, record: &Record, body: &StartBody, paint: Paint) {
    let pids: Vec<_> = body.prober_pids.iter().map(u32::to_string).collect();
    let prober = match pids.as_slice() {
        [] => "no prober running yet".to_owned(),
        [pid] => format!("prober pid {pid}"),
        pids => format!("prober pids {}", pids.join(" ")),
    };
    let _ = writeln!(
        out,
        "{} on {}, kernel {}: {} hooks in force, {} missing, {prober}, {} pods known",
        paint.text(Style::Strong, &format!("tracer {}", plain::safe(&body.version))),
        plain::safe(&record.node_name),
        plain::safe(&body.kernel),
        body.hooks.len(),
        body.missing_hooks.len(),
        body.pods,
    );
    for missing in &body.missing_hooks {
        row(out, paint, "without", &format!("{}: {} ({})", missing.hook, missing.lost, missing.reason));
    }
}

fn stop(out: &mut String, body: &StopBody, paint: Paint) {
    let total: u64 = body.verdicts.values().sum();
    let _ = writeln!(
        out,
        "{} ({}): {total} verdicts, {} attempts, {} still open, {} events read, {} lost",
        paint.text(Style::Strong, "ended"),
        body.reason.replace('_', " "),
        body.attempts,
        body.open_attempts,
        body.events,
        body.lost_events,
    );
    for (label, count) in &body.verdicts {
        row(out, paint, &count.to_string(), label);
    }
}

fn verdict(out: &mut String, record: &Record, body: &VerdictBody, paint: Paint) {
    let verdict = &body.verdict;
    let style = if verdict.outcome == Outcome::Failure { Style::Bad } else { Style::Mild };
    let about = About::of(body);
    let revised = body.revises.map(|seq| format!(", replaces #{seq}")).unwrap_or_default();
    let _ = writeln!(
        out,
        "{}  {}  {}  ({}{revised})  #{}",
        clock(&record.time),
        paint.text(style, verdict.label.name()),
        paint.text(Style::Strong, &about.text()),
        plain::confidence(verdict.confidence),
        record.seq,
    );
    row(out, paint, "why", &verdict.summary);
    for (i, seen) in verdict.evidence.iter().enumerate() {
        let at = plain::relative_ms(seen.time_boot_ns, record.time_boot_ns);
        row(out, paint, if i == 0 { "seen" } else { "" }, &format!("{at}  {}: {}", seen.hook, seen.says));
    }
    if let Some(said) = body.kubelet.as_ref().and_then(|it| it.output.as_ref()) {
        row(out, paint, "kubelet", said);
    }
    if let Some(culprit) = &body.culprit {
        row(out, paint, "who", &who(culprit));
    }
    if !verdict.remediation.is_empty() {
        row(out, paint, "mend", &verdict.remediation);
    }
    if !verdict.also.is_empty() {
        let also: Vec<_> = verdict.also.iter().map(|label| label.name()).collect();
        row(out, paint, "also", &also.join(", "));
    }
    doubts(out, verdict.lost_events, &verdict.missing_hooks, paint);
}

/// What makes a verdict less sure.
fn doubts(out: &mut String, lost: u64, missing: &[String], paint: Paint) {
    if lost > 0 {
        row(out, paint, "doubt", &format!("{lost} events were lost meanwhile"));
    }
    if !missing.is_empty() {
        row(out, paint, "doubt", &format!("not in force: {}", missing.join(", ")));
    }
}

fn attempt(out: &mut String, record: &Record, body: &AttemptBody, paint: Paint) {
    let (word, style) = match body.outcome {
        Outcome::Success => ("ok", Style::Good),
        Outcome::Noise => ("noise", Style::Mild),
        Outcome::Open => ("open", Style::Mild),
        Outcome::Failure => ("failed", Style::Bad),
    };
    let about = About {
        subject: body.subject,
        k8s: body.k8s.as_ref(),
        probe: body.probe.as_ref(),
        process: Some(&body.process),
        src: body.src,
        dst: Some(body.dst),
    };
    let phases = body.phases_ms;
    let named =
        [("connect", phases.connect), ("tls", phases.tls), ("first byte", phases.first_byte), ("total", phases.total)];
    let times: Vec<_> = named.iter().filter_map(|(name, ms)| ms.map(|ms| format!("{name} {ms:.1} ms"))).collect();
    let _ =
        writeln!(out, "{}  {}  {}  {}", clock(&record.time), paint.text(style, word), about.text(), times.join(", "),);
}

fn node(out: &mut String, record: &Record, body: &NodeBody, paint: Paint) {
    let event = paint.text(Style::Mild, &plain::safe(&body.event));
    let _ = writeln!(out, "{}  {event}  {}", clock(&record.time), plain::safe(&body.summary));
    if let Some(culprit) = &body.culprit {
        row(out, paint, "who", &who(culprit));
    }
}

fn loss(out: &mut String, record: &Record, body: &LossBody, paint: Paint) {
    let what = paint.text(Style::Mild, &format!("{} lost", body.count));
    let from = plain::relative_ms(body.from_boot_ns, record.time_boot_ns);
    let _ = writeln!(
        out,
        "{}  {what}  ({}) since {from}: verdicts of that time are less sure",
        clock(&record.time),
        body.where_
    );
}

/// What a verdict or an attempt is about.
pub(crate) struct About<'a> {
    subject: Subject,
    k8s: Option<&'a K8s>,
    probe: Option<&'a Probe>,
    process: Option<&'a Process>,
    src: Option<Endpoint>,
    dst: Option<Endpoint>,
}

impl<'a> About<'a> {
    /// What this verdict is about.
    pub(crate) fn of(body: &'a VerdictBody) -> Self {
        Self {
            subject: body.subject,
            k8s: body.k8s.as_ref(),
            probe: body.probe.as_ref(),
            process: body.process.as_ref(),
            src: body.src,
            dst: body.dst,
        }
    }

    /// `shop/cart web readiness http probe :80/ 10.0.0.1:36704 -> 10.0.0.9:80`, as far as it is known.
    pub(crate) fn text(&self) -> String {
        let mut parts = Vec::new();
        if let Some(k8s) = self.k8s {
            let name = k8s.pod_name.as_ref().or(k8s.pod_uid.as_ref());
            let pod: Vec<_> = [k8s.namespace.as_ref(), name].into_iter().flatten().map(|s| plain::safe(s)).collect();
            parts.extend(Some(pod.join("/")).filter(|pod| !pod.is_empty()));
            parts.extend(k8s.container_name.as_deref().map(plain::safe));
        }
        match (self.probe, self.subject) {
            (Some(probe), _) => parts.push(probe_text(probe)),
            (None, Subject::Probe) => parts.push("probe".into()),
            (None, Subject::Connection) => {
                parts.extend(self.process.map(|it| format!("connection of {} (pid {})", plain::safe(&it.comm), it.pid)))
            }
        }
        let src = self.src.map(plain::endpoint);
        let way = |dst| src.map_or_else(|| format!("to {dst}"), |src| format!("{src} -> {dst}"));
        parts.extend(self.dst.map(plain::endpoint).map(way));
        parts.join(" ")
    }
}

/// `readiness http :80/healthz`, as far as it is known.
fn probe_text(probe: &Probe) -> String {
    let kind = probe.probe_type.map(plain::probe_type).unwrap_or_default();
    let handler = probe.handler.map(plain::handler).unwrap_or_default();
    let scheme = probe.scheme.as_deref().unwrap_or(handler);
    let port = probe.port.map(|port| format!(":{port}")).unwrap_or_default();
    let path = probe.path.as_deref().map(plain::safe).unwrap_or_default();
    let words = [kind.to_owned(), plain::safe(scheme), "probe".to_owned(), format!("{port}{path}")];
    words.iter().filter(|word| !word.is_empty()).cloned().collect::<Vec<_>>().join(" ")
}

/// `loopback (pid 5029, /opt/cni/bin/loopback): link_down, by /proc/5029/ns/net; started by crio (1)`.
pub(crate) fn who(culprit: &Culprit) -> String {
    let exe = culprit.exe.as_ref().map(|exe| format!(", {exe}")).unwrap_or_default();
    let path = culprit.netns_path.as_ref().map(|path| format!(", entered by {path}")).unwrap_or_default();
    let ancestors: Vec<_> = culprit.ancestors.iter().map(|a| format!("{} ({})", a.comm, a.pid)).collect();
    let family = if ancestors.is_empty() { String::new() } else { format!("; child of {}", ancestors.join(" < ")) };
    format!("{} (pid {}{exe}): {}{path}{family}", culprit.comm, culprit.pid, culprit.op.replace('_', " "))
}

/// A row of a block: a word in a narrow column, then the text.
fn row(out: &mut String, paint: Paint, word: &str, text: &str) {
    let _ = writeln!(out, "  {} {}", paint.text(Style::Dim, &format!("{word:<7}")), plain::safe(text));
}

/// The time of day, to the millisecond, of an RFC 3339 time.
fn clock(time: &str) -> &str {
    time.get(11..23).unwrap_or(time)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test ends at the line that failed")]
mod tests {
    use super::*;
    use crate::classify::label::Label;
    use crate::sink::tests::verdict;

    fn record(body: Body) -> Record {
        let time = "2026-01-02T03:04:05.678901234Z".into();
        Record { schema: "tracer/1".into(), body, time, time_boot_ns: 1_000_000_000, seq: 7, node_name: "n1".into() }
    }

    #[test]
    fn a_verdict_answers_first() {
        let expected = "\
03:04:05.678  connection_refused  shop/cart web readiness http probe :80/ to 10.0.0.9:80  (proven)  #7
  why     nobody listens on 10.0.0.9:80
  seen    -0.211 ms  tcp_connect: kubelet dials
  mend    check containerPort
";
        assert_eq!(text(&record(verdict(Label::ConnectionRefused)), false), expected);
    }

    #[test]
    fn who_did_it_and_what_is_in_doubt_are_said() {
        let Body::Verdict(mut body) = verdict(Label::LoopbackDown) else { return };
        body.culprit = Some(Culprit {
            pid: 5029,
            comm: "loopback".into(),
            exe: Some("/opt/cni/bin/loopback".into()),
            ancestors: vec![crate::event::Ancestor { pid: 1, comm: "crio".into() }],
            op: "link_down".into(),
            netns_path: Some("/proc/5029/ns/net".into()),
            netns: None,
            time_boot_ns: None,
        });
        body.src = Some(Endpoint { addr: "10.0.0.1".parse().unwrap(), port: Some(36704) });
        body.revises = Some(3);
        body.verdict.lost_events = 2;
        body.verdict.missing_hooks = vec!["kfree_skb".into()];
        let text = text(&record(Body::Verdict(body)), false);
        for line in [
            ":80/ 10.0.0.1:36704 -> 10.0.0.9:80  (proven, replaces #3)  #7\n",
            "  who     loopback (pid 5029, /opt/cni/bin/loopback): link down, entered by /proc/5029/ns/net; child of crio (1)\n",
            "  doubt   2 events were lost meanwhile\n  doubt   not in force: kfree_skb\n",
        ] {
            assert!(text.contains(line), "{line} is not in {text}");
        }
    }

    #[test]
    fn names_from_outside_cannot_steer_the_terminal() {
        let Body::Verdict(mut body) = verdict(Label::Unexplained) else { return };
        body.verdict.summary = "a\u{1b}[2Jb\nc".into();
        let text = text(&record(Body::Verdict(body)), false);
        assert!(text.contains("a\u{fffd}[2Jb\u{fffd}c"), "{text}");
    }

    #[test]
    fn colour_is_only_where_it_was_asked_for() {
        let record = record(verdict(Label::ConnectionRefused));
        assert!(!text(&record, false).contains('\u{1b}'));
        assert!(text(&record, true).contains("\u{1b}["));
    }
}
