//! The subject of a record, and its culprit, as text.

use crate::sink::plain;
use tracer_model::record::{AttemptBody, Culprit, Endpoint, K8s, Probe, Process, Subject, VerdictBody};
use tracer_terminal::screen::safe;

/// What a verdict or an attempt is about.
pub struct About<'a> {
    subject: Subject,
    k8s: Option<&'a K8s>,
    probe: Option<&'a Probe>,
    process: Option<&'a Process>,
    src: Option<Endpoint>,
    dst: Option<Endpoint>,
}

impl<'a> From<&'a VerdictBody> for About<'a> {
    fn from(body: &'a VerdictBody) -> Self {
        Self {
            subject: body.subject,
            k8s: body.k8s.as_ref(),
            probe: body.probe.as_ref(),
            process: body.process.as_ref(),
            src: body.src,
            dst: body.dst,
        }
    }
}

impl<'a> From<&'a AttemptBody> for About<'a> {
    fn from(body: &'a AttemptBody) -> Self {
        Self {
            subject: body.subject,
            k8s: body.k8s.as_ref(),
            probe: body.probe.as_ref(),
            process: Some(&body.process),
            src: body.src,
            dst: Some(body.dst),
        }
    }
}

impl About<'_> {
    /// `shop/cart web readiness http probe :80/ 10.0.0.1:36704 -> 10.0.0.9:80`, as far as it is known.
    pub fn text(&self) -> String {
        let mut parts: Vec<String> = self.pod().into_iter().collect();
        parts.extend(self.k8s.and_then(|k8s| k8s.container_name.as_deref()).map(safe));
        match (self.probe, self.subject) {
            (Some(probe), _) => parts.push(probe_text(probe)),
            (None, Subject::Probe) => parts.push("probe".into()),
            (None, Subject::Connection) => {
                parts.extend(self.process.map(|it| format!("connection of {} (pid {})", safe(&it.comm), it.pid)))
            }
        }
        let src = self.src.map(plain::endpoint);
        let way = |dst| src.map_or_else(|| format!("to {dst}"), |src| format!("{src} -> {dst}"));
        parts.extend(self.dst.map(plain::endpoint).map(way));
        parts.join(" ")
    }

    /// What failed: the pod, else the target address, with the process if that is not the prober.
    pub(super) fn target(&self) -> String {
        let target = || {
            let dst = self.dst.map_or_else(|| "a probe".to_owned(), plain::endpoint);
            match (self.subject, self.process) {
                (Subject::Connection, Some(process)) => format!("{} -> {dst}", safe(&process.comm)),
                _ => dst,
            }
        };
        self.pod().unwrap_or_else(target)
    }

    /// `shop/cart`, or the uid.
    fn pod(&self) -> Option<String> {
        let k8s = self.k8s?;
        let name = k8s.pod_name.as_ref().or(k8s.pod_uid.as_ref());
        let pod: Vec<_> = [k8s.namespace.as_ref(), name].into_iter().flatten().map(|s| safe(s)).collect();
        Some(pod.join("/")).filter(|pod| !pod.is_empty())
    }
}

/// `readiness http probe :80/healthz`, as far as it is known.
fn probe_text(probe: &Probe) -> String {
    let kind = probe.probe_type.map(|kind| kind.to_string()).unwrap_or_default();
    let handler = probe.handler.map(|handler| handler.to_string()).unwrap_or_default();
    let scheme = probe.scheme.as_deref().unwrap_or(&handler);
    let port = probe.port.map(|port| format!(":{port}")).unwrap_or_default();
    let path = probe.path.as_deref().map(safe).unwrap_or_default();
    let words = [kind, safe(scheme), "probe".to_owned(), format!("{port}{path}")];
    words.iter().filter(|word| !word.is_empty()).cloned().collect::<Vec<_>>().join(" ")
}

/// `loopback (pid 5029, /opt/cni/bin/loopback): link down, entered through /proc/5029/ns/net; child of crio (1)`.
pub fn describe_culprit(culprit: &Culprit) -> String {
    let exe = culprit.exe.as_ref().map(|exe| format!(", {exe}")).unwrap_or_default();
    let path = culprit.netns_path.as_ref().map(|path| format!(", entered through {path}")).unwrap_or_default();
    let ancestors: Vec<_> = culprit.ancestors.iter().map(|a| format!("{} ({})", a.comm, a.pid)).collect();
    let family = if ancestors.is_empty() { String::new() } else { format!("; child of {}", ancestors.join(" < ")) };
    format!("{} (pid {}{exe}): {}{path}{family}", culprit.comm, culprit.pid, culprit.op.replace('_', " "))
}
