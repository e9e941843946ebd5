//! The last process that began or stopped to listen there before the refusal.

use super::*;
use tracer_case::kubectl::and_log;
use tracer_model::event::{Container, ProbeSpec, Runs};
use tracer_model::record::K8s;

const SECOND_NS: u64 = 1_000_000_000;

#[derive(Clone, Copy)]
pub(super) struct Former<'a> {
    pub(super) at: u64,
    listen: &'a Listen,
    /// How long before the refusal.
    before: u64,
    /// When the sockets of the namespace were read since then, and whether it still listened. A hook that sees only
    /// `close` misses the end of a listener by `shutdown`.
    read: Option<(u64, bool)>,
    owner: Owner<'a>,
}

/// The container of the process.
#[derive(Clone, Copy)]
pub(super) enum Owner<'a> {
    /// The probed one, as far as is known.
    Probed,
    /// This other one.
    Other(&'a str),
    /// Another one: the probed one has not listened yet.
    NotProbed,
    /// One of several that have a probe of that port.
    OneOf(usize),
}

impl<'a> Former<'a> {
    pub(super) fn new(case: &Case<'a>, netns: Netns, (at, listen, before): (u64, &'a Listen, u64)) -> Self {
        let read = if listen.begins { pod_sockets::still_listens(case, netns, at, listen.addr) } else { None };
        Self { at, listen, before, read, owner: Owner::of(case, listen) }
    }

    pub(super) const fn has_stopped(&self) -> bool {
        !self.listen.begins || matches!(self.read, Some((_, false)))
    }

    pub(super) fn evidence(&self) -> impl Iterator<Item = Evidence> {
        let Listen { addr, netns, .. } = self.listen;
        let read = self.read.map(|(time, _)| {
            let text = format!("no process listens on {addr} in that network namespace");
            evidence_of("sock_diag", time, text, json!({ "netns": netns }))
        });
        [of_listener(self.at, self.listen)].into_iter().chain(read)
    }

    fn name(&self) -> String {
        let of = match self.owner {
            Owner::Probed => String::new(),
            Owner::Other(name) => format!(" of container {name}"),
            Owner::NotProbed => " of another container (most likely an init container)".to_owned(),
            Owner::OneOf(count) => format!(" of one of the {count} containers with a probe of that port"),
        };
        format!("{}{of}", self.listen.actor)
    }

    fn ago(&self) -> String {
        if self.before < SECOND_NS { ms(self.before) } else { format!("{:.1} s", self.before as f64 / 1e9) }
    }

    /// For one that has stopped.
    pub(super) fn describe_stopped(&self, by_probe: Option<EndedByProbe>) -> String {
        let (name, ago) = (self.name(), self.ago());
        if self.listen.begins {
            return format!("; {name} began to listen there {ago} before, and has stopped since");
        }
        let why = by_probe.map(|EndedByProbe { probe_type, failures, cause, .. }| {
            format!("; the kubelet ended its container after {failures} failed attempts of its {probe_type} probe in a row (the last one: {cause})")
        });
        format!("; {name} stopped listening there {ago} before{}", why.unwrap_or_default())
    }

    pub(super) fn fix_stopped(&self, case: &Case<'_>, by_probe: Option<EndedByProbe>) -> Remediation {
        let text = match by_probe {
            Some(EndedByProbe { probe_type, cause, .. }) => format!(
                "Do what the verdict {cause} of its {probe_type} probe says: the kubelet ended the container for that"
            ),
            None if matches!(self.owner, Owner::NotProbed) => {
                return with_log(case, let_listen(case, Some(self.listen.netns), false));
            }
            None => {
                format!("Find why {} stopped: it crashed, was restarted, or closed its socket by itself", self.name())
            }
        };
        self.owner.with_logs(case, text.into())
    }

    /// The failures in a row of a probe had reached its threshold before the process stopped to listen, so the kubelet
    /// ended the container. If that process was gone before, it ended by itself.
    pub(super) fn ended_by_probe(&self, case: &Case<'_>) -> Option<EndedByProbe> {
        let may_be_probed = matches!(self.owner, Owner::Probed | Owner::OneOf(_));
        case.ended_by.filter(|by| may_be_probed && by.at < self.at && !by.cause.has(Trait::NoListener))
    }

    /// For one that was not seen to stop. `inet_lookup_listener` compares the device and the family, too, which the event
    /// of the listener does not show.
    pub(super) fn describe_passed_over(&self, dst: IpAddr) -> String {
        let Listen { addr, .. } = self.listen;
        let family = if addr.is_ipv6() && dst.is_ipv4() { ", or only for IPv6" } else { "" };
        format!(
            "; {} began to listen on {addr} {} before; it may have stopped since (tracer does not always see shutdown(2)), or it listens only over another device (SO_BINDTODEVICE){family}",
            self.name(),
            self.ago()
        )
    }

    pub(super) fn fix_passed_over(&self, case: &Case<'_>) -> Remediation {
        if self.read.is_some() {
            return with_log(case, let_listen(case, Some(self.listen.netns), true));
        }
        let Listen { actor, addr, netns, .. } = self.listen;
        let text = format!(
            "Find out whether {actor} still listens. If not, find in its log why it stopped. If it does, let it listen on all devices (without SO_BINDTODEVICE), and for IPv4 and IPv6"
        );
        let show = run_in(case, Some(*netns), format!("ss -ltnp 'sport = :{}'", addr.port()));
        self.owner.with_logs(case, Remediation::from(text).run([show]))
    }
}

impl<'a> Owner<'a> {
    pub(super) fn of(case: &Case<'a>, listen: &Listen) -> Self {
        let Some((pod, probed)) = case.matched.probed_container() else { return Self::Probed };
        let is_of_port = |spec: &ProbeSpec| spec.port == listen.addr.port();
        match container_of(case, &pod.containers, listen.actor.pid) {
            Some(it) if std::ptr::eq(it, probed) => Self::Probed,
            Some(Container { name: Some(name), .. }) => Self::Other(name),
            _ if has_not_listened(case, probed, listen.netns) => Self::NotProbed,
            _ => match pod.containers.iter().filter(|it| it.probes.iter().any(is_of_port)).count() {
                0 | 1 => Self::Probed,
                several => Self::OneOf(several),
            },
        }
    }

    pub(super) const fn is_probed(self) -> bool {
        matches!(self, Self::Probed)
    }

    /// The fix with the log of that container, or of all.
    fn with_logs(self, case: &Case<'_>, fix: Remediation) -> Remediation {
        let container_name = match self {
            Self::Probed => return with_logs(case, fix),
            Self::Other(name) => Some(name.to_owned()),
            Self::NotProbed | Self::OneOf(_) => None,
        };
        match case.matched.name().k8s {
            Some(k8s) => and_log(&K8s { container_name, ..k8s }, true, fix),
            None => fix,
        }
    }
}

/// The container of a process, as tracer read it while the process served. Its id may be that of the run before.
fn container_of<'a>(case: &Case<'a>, containers: &'a [Container], pid: u32) -> Option<&'a Container> {
    let (from, dst) = (case.attempt.netns?, case.attempt.flow.dst);
    let servers = case.node.targets.servings(from, dst).flat_map(|(_, it)| &it.processes);
    let folder = servers.filter(|it| it.pid == pid).find_map(|it| it.cpu_cgroup.as_deref());
    let acceptor = case.node.pod_sockets(from, dst).and_then(|(_, it)| it.acceptor.as_ref());
    let accepting = || acceptor?.processes.iter().find(|it| it.server.pid == pid)?.container.as_deref();
    let id = folder.or_else(accepting)?;
    let last = |it: &'a Container| it.runs.as_ref()?.last.as_ref()?.id.as_ref();
    containers.iter().find(|it| it.id.as_ref().into_iter().chain(last(it)).any(|own| id.contains(own)))
}

/// The container has not run before, and nobody has begun to listen there since it runs.
fn has_not_listened(case: &Case<'_>, container: &Container, netns: Netns) -> bool {
    let Some(Runs { restarts: 0, last: None, started_boot_ns, waiting, .. }) = &container.runs else { return false };
    let dst = case.attempt.flow.dst;
    match started_boot_ns {
        Some(began) => *began >= case.node.since() && !case.node.listeners.begun_since(netns, dst, *began),
        None => waiting.is_some(),
    }
}

#[cfg(test)]
mod tests {
    use tracer_core::testing::*;

    #[test]
    fn a_process_that_stopped_listening_is_named() {
        let mut stream = Stream::new().http_readiness().listens(POD, 8080, true).wait_ms(50).clone();
        stream.listens(POD, 8080, false).wait_ms(400).connect().reset_sent(SYN, true, None);
        let verdict = stream.verdict();
        assert_eq!((verdict.cause, verdict.confidence), (Cause::ConnectionRefused, Confidence::Proven));
        assert_ends(&verdict.summary, " stopped listening there 400.0 ms before");
        assert_has(&verdict.evidence[0].text, &["stopped listening on port 8080"]);
        assert_has(&verdict.remediation, &["Find why ", "--since=5m", "--previous"]);
        assert_lacks(&verdict.remediation, &["startupProbe"]);
    }

    /// The liveness probe gets 404 until the kubelet ends the container. The readiness probe then finds it gone.
    #[test]
    fn a_process_that_the_kubelet_ended_has_not_crashed() {
        let stopped = |failures: u64| {
            let mut stream = Stream::new();
            stream.liveness(1, 3).readiness_too().pod_in(POD).listens(POD, 8080, true);
            for conn in 100..100 + failures {
                stream.again(conn).connect().established().answers(404).wait_ms(1);
                stream.kubelet_of(ProbeType::Liveness, ProbeOutput::Status(404)).wait_ms(1_000);
            }
            stream.listens(POD, 8080, false).wait_ms(10).again(200).connect().refused().last_verdict()
        };
        let ended = stopped(3);
        let words = "; the kubelet ended its container after 3 failed attempts of its liveness probe in a row (the last one: app_status_failure)";
        assert_ends(&ended.summary, words);
        assert_starts(&ended.remediation, "Do what the verdict app_status_failure of its liveness probe says");
        assert_has(&stopped(2).remediation, &["Find why ", "it crashed"]);
    }

    /// The process closes its port at SIGTERM and ends its work within the grace period.
    #[test]
    fn a_process_that_the_kubelet_ends_may_take_its_grace_period() {
        let summary = |grace_s: u32| {
            let mut stream = Stream::new();
            stream.liveness(1, 1).grace_s(grace_s).readiness_too().pod_in(POD).listens(POD, 8080, true);
            stream.again(100).connect().established().answers(404).wait_ms(1);
            stream.kubelet_of(ProbeType::Liveness, ProbeOutput::Status(404)).wait_ms(1_000);
            stream.listens(POD, 8080, false).wait_ms(60_000).again(200).connect().refused().last_verdict().summary
        };
        assert_has(&summary(120), &["the kubelet ended its container after 1 failed attempt"]);
        assert_lacks(&summary(30), &["the kubelet ended"]);
    }

    /// The kernel skips a listener that is bound to another device, or for IPv6 only. `shutdown` ends one without `close`.
    #[test]
    fn a_listener_that_was_not_seen_to_stop_is_read() {
        let listens = |bound: &str, read: Option<&[&str]>| {
            let mut stream = Stream::new().http_readiness().pod_in(POD).clone();
            stream.listens_on(POD, address(bound), true).wait_ms(2_000).connect().refused();
            let at = |addr: &&str| ListenerAt {
                addr: address(addr),
                device: None,
                server: Listener { pid: 99, comm: "app".into() },
                container: None,
            };
            match read {
                Some(addrs) => stream.wait_ms(10).pod_sockets(|it| it.elsewhere = addrs.iter().map(at).collect()),
                None => stream.unread().settles(),
            };
            stream.verdict()
        };
        let unknown = listens("[::]:8080", None);
        assert_starts(&unknown.summary, "no socket takes the SYN to 10.88.0.2:8080");
        let words = "; app (pid 99) began to listen on [::]:8080 2.0 s before; it may have stopped since";
        assert_has(&unknown.summary, &[words, "(SO_BINDTODEVICE), or only for IPv6"]);
        assert_starts(&unknown.remediation, "Find out whether app (pid 99) still listens");
        assert_has(&unknown.remediation, &["ss -ltnp 'sport = :8080'", "kubectl logs"]);
        let listening = listens("[::]:8080", Some(&["[::]:8080"]));
        assert_ends(&listening.summary, "; app (pid 99) listens on [::]:8080 for IPv6 only");
        assert_has(&listening.remediation, &["listen on 8080 on all devices (without SO_BINDTODEVICE)"]);
        let gone = listens("0.0.0.0:8080", Some(&["127.0.0.1:8080"]));
        assert_starts(&gone.summary, "nobody listens on 10.88.0.2:8080");
        assert_ends(&gone.summary, "; app (pid 99) began to listen there 2.0 s before, and has stopped since");
        assert_starts(&gone.remediation, "Find why app (pid 99) stopped");
        assert_lacks(&gone.remediation, &["SO_BINDTODEVICE"]);
        assert!(gone.evidence.iter().any(|it| it.text.contains("no process listens on 0.0.0.0:8080")));
    }

    /// A process of another namespace holds the listener (ztunnel).
    #[test]
    fn a_listener_without_a_known_process_may_still_listen() {
        let summary = |incomplete: bool| {
            let mut stream = Stream::new().http_readiness().pod_in(POD).clone();
            stream.listens_on(POD, address("[::]:8080"), true).wait_ms(2_000).connect().refused();
            stream.wait_ms(10).pod_sockets(|it| it.incomplete = incomplete).settles();
            stream.last_verdict().summary.clone()
        };
        assert_has(&summary(false), &["and has stopped since"]);
        assert_has(&summary(true), &["it may have stopped since"]);
    }

    /// Seen on 6.18: a BPF program at sk_lookup refuses. In a VRF without tcp_l3mdev_accept it looks the same.
    #[test]
    fn a_listener_that_would_accept_has_not_stopped() {
        let refused = |seen: bool, accepts: bool, again: bool| {
            let mut stream = Stream::new().http_readiness().pod_in(POD).clone();
            if seen {
                stream.listens_on(POD, address("[::]:8080"), true);
            }
            stream.wait_ms(2_000);
            if !seen {
                stream.pod_sockets(|it| it.accepts = accepts.then(|| address("[::]:8080")));
            }
            stream.connect().refused().wait_ms(10);
            if again {
                stream.listens(POD, 8080, true).wait_ms(10);
            }
            stream.pod_sockets(|it| it.accepts = accepts.then(|| address("[::]:8080"))).settles().verdict()
        };
        for seen in [true, false] {
            let verdict = refused(seen, true, false);
            assert_eq!((verdict.cause, verdict.confidence), (Cause::ConnectionRefused, Confidence::Likely), "{seen}");
            assert_starts(&verdict.summary, "no socket takes the SYN to 10.88.0.2:8080");
            assert_has(
                &verdict.summary,
                &["; a process listens on [::]:8080 there, and", "tcp_l3mdev_accept=0", "sk_lookup"],
            );
            assert_lacks(&verdict.summary, &["stopped"]);
            assert_has(&verdict.remediation, &["ip -d link show type vrf", "bpftool link"]);
            assert!(!verdict.evidence.iter().any(|it| it.text.contains("no process listens")));
        }
        for (accepts, again) in [(false, false), (true, true)] {
            let verdict = refused(true, accepts, again);
            assert_lacks(&verdict.summary, &["sk_lookup"]);
        }
    }

    /// The readiness probe of a container asks the server of another one.
    #[test]
    fn a_former_listener_of_another_container_is_named_with_its_log() {
        let refused = |folder: Option<&str>| {
            let mut stream = Stream::new().http_readiness().container_id("own").pod_in(POD).clone();
            stream.probed_container_too("web").last_pods().pods[0].containers[1].id = Some("other".into());
            let server = ServerProcess { cpu_cgroup: folder.map(Into::into), ..server_process(99, 1) };
            stream.listens(POD, 8080, true).serving(Serving { processes: vec![server], ..Serving::default() });
            stream.wait_ms(100).listens(POD, 8080, false).wait_ms(100).connect().refused();
            stream.kubelet(ProbeOutput::Network).settles().last_verdict()
        };
        let other = refused(Some("/kubepods/pod1/other"));
        assert_ends(&other.summary, "; app (pid 99) of container web stopped listening there 100.0 ms before");
        assert_has(&other.remediation, &["Find why app (pid 99) of container web stopped", "-c web --previous"]);
        assert_lacks(&other.remediation, &["-c app"]);
        let own = refused(Some("/kubepods/pod1/own"));
        assert_ends(&own.summary, "; app (pid 99) stopped listening there 100.0 ms before");
        assert_has(&own.remediation, &["-c app --previous"]);
        let unknown = refused(None);
        assert_has(&unknown.summary, &["; app (pid 99) of one of the 2 containers with a probe of that port stopped"]);
        assert_has(&unknown.remediation, &["--all-containers --since=5m"]);
    }

    /// The list of pods is older than the start of the container.
    #[test]
    fn an_init_container_that_ended_has_not_crashed() {
        let mut stream = Stream::new().http_readiness().pod_in(POD).clone();
        let waiting = Some(Waiting { reason: "PodInitializing".into(), message: None });
        stream.runs(Runs { waiting, ..Runs::default() }).listens(POD, 8080, true).wait_ms(100);
        let verdict = stream.listens(POD, 8080, false).wait_ms(100).connect().refused().verdict();
        assert_has(&verdict.summary, &["; app (pid 99) of another container (most likely an init container) stopped"]);
        assert_starts(&verdict.remediation, "Let the process listen on 8080");
        assert_lacks(&verdict.remediation, &["crashed", "--previous"]);
    }
}
