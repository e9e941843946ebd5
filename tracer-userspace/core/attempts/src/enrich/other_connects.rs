//! Connects of the prober's process that may be no probes: by an API server in the process, or as the API server's
//! client.

use super::Matched;
use super::targets::{Match, behaving};
use crate::correlate::attempt::Attempt;
use tracer_model::event::{AnswerKind, Handler, WITH_API_SERVER};

const SECOND_NS: u64 = 1_000_000_000;
/// Ports that a kubelet, or a control plane in its process, uses on its own node as a client: API servers and their
/// load balancers (kubeadm, k3s, RKE2, k0s, Talos, MicroK8s), RKE2's supervisor, etcd, kubelets. Not 443 and 8443,
/// which any probe may use.
const CONTROL_PLANE: &[u16] = &[2379, 6443, 6444, 7443, 7445, 9345, 10250, 16443];
/// The kernel picks from these for a server that names no port (`ip_local_port_range`, its default).
/// Without specs a probe of such a port counts once the kubelet reports it.
const PICKED: std::ops::RangeInclusive<u16> = 32_768..=60_999;

impl<'a> Matched<'a> {
    /// Another reason for which the process may have connected to the target; `None` if the attempt is surely a probe,
    /// or only probes connect there.
    ///
    /// The API server connects to pods for its own clients (`kubectl get --raw /api/v1/namespaces/…/proxy`, webhooks,
    /// aggregated APIs). The kubelet connects to the API server of its own node as a client, which retries about once a
    /// second.
    pub fn other_reason(&self) -> Option<&'static str> {
        // A connection without data is a tcpSocket probe's, or a spare dial (`spare_reason`).
        let alike = || behaving(self.probes_on_target(), self.attempt);
        if self.attempt.carried_no_data() { None } else { self.reason_unless_due(&alike()) }
    }

    /// The same for a connection without a request. Go's client dials once for each request that waits. A dial that no
    /// request needs stays open unused until `IdleConnTimeout`, which is 90 s by default.
    pub(super) fn spare_reason(&self) -> Option<&'static str> {
        self.reason_unless_due(self.probes_on_target())
    }

    fn reason_unless_due(&self, probes: &[Match<'_>]) -> Option<&'static str> {
        // A kubelet outcome shows that the attempt was a probe.
        if self.matching_probes().is_empty() || self.attempt.kubelet().is_some() {
            return None;
        }
        let reason = self.client_reason()?;
        let due = probes.iter().any(|it| self.is_due(it, self.probes_on_target()));
        (!due).then_some(reason)
    }

    pub(super) fn may_be_spare(&self) -> bool {
        self.attempt.kubelet().is_none() && self.client_reason().is_some()
    }

    fn client_reason(&self) -> Option<&'static str> {
        if has_api_server(self.attempt) {
            Some("the API server in the same process connects to pods, too")
        } else if self.node.pods.is_api_server(self.attempt.flow.dst) {
            Some("the kubelet connects to it as a client, too")
        } else {
            None
        }
    }

    /// The prober connected to its own node, maybe as a client: no spec is known, and the kubelet has not reported the
    /// attempt. Either the port is a control plane's, which does not answer in plain HTTP. Or a server at a loopback
    /// address has a port that the kernel picks for it, or agreed to an upgrade: the container runtime's, for
    /// `kubectl exec`, `attach` and `port-forward` (`proxyStream`, pkg/kubelet/server/server.go).
    pub fn may_be_client(&self) -> bool {
        let dst = self.attempt.flow.dst;
        let to_node =
            self.attempt.netns.is_some_and(|netns| self.node.owns(netns, dst.ip())) && !self.node.has_pod(dst.ip());
        let answer = self.attempt.answer().map(|(_, answer)| answer);
        let is_plain = answer.is_some_and(|answer| answer.kind == AnswerKind::Http);
        let is_upgraded = answer.is_some_and(|answer| answer.status == Some(101));
        let to_runtime = dst.ip().is_loopback() && (is_upgraded || PICKED.contains(&dst.port()));
        let untold = !self.node.pods.have_specs() && self.attempt.kubelet().is_none();
        let may_be = to_runtime || CONTROL_PLANE.contains(&dst.port()) && !is_plain;
        self.attempt.prober && to_node && untold && may_be
    }

    /// The attempt came one period after another connect, with no more connects between them than probes make.
    fn is_due(&self, (.., spec): &Match<'_>, all: &[Match<'_>]) -> bool {
        let (connects, dst) = (&self.node.recent_connects, self.attempt.flow.dst);
        let period_ns = u64::from(spec.period_s) * SECOND_NS;
        let most: u32 =
            all.iter().map(|(.., other)| connects_per_period(other.period_s, other.handler, spec.period_s)).sum();
        connects.any_a_period_before(dst, self.attempt.started, period_ns)
            && connects.within(dst, self.attempt.started, period_ns) <= most as usize
    }
}

/// The prober's process may contain an API server.
pub fn has_api_server(attempt: &Attempt) -> bool {
    WITH_API_SERVER.contains(&attempt.actor.comm.as_str())
}

/// The most connects of a probe within one period of another probe. A redirect needs a second connect, and a gRPC probe
/// connects again until its timeout.
fn connects_per_period(own_s: u32, handler: Handler, period_s: u32) -> u32 {
    let again = if handler == Handler::Grpc { 4 } else { 2 };
    period_s.div_ceil(own_s.max(1)).saturating_mul(again)
}

#[cfg(test)]
mod tests {
    use tracer_core::testing::*;

    fn reported(stream: &Stream) -> Vec<(Confidence, Option<u32>)> {
        let count = |it: &VerdictBody| it.probe.as_ref().and_then(|probe| probe.consecutive_failures);
        stream.verdicts().iter().map(|it| (it.verdict.confidence, count(it))).collect()
    }

    fn refused_by(comm: &str, conn: u64, stream: &mut Stream) {
        stream.again(conn).connect().prober_named(comm).established().answers(404);
    }

    /// A user requests a page of the pod through the API server.
    #[test]
    fn a_failure_that_may_be_a_request_of_the_api_server_is_only_likely() {
        use Confidence::{Likely, Proven};
        let verdicts = |comm: &str| {
            let mut stream = Stream::new();
            refused_by(comm, 100, stream.http_readiness());
            refused_by(comm, 101, stream.wait_ms(3_000));
            refused_by(comm, 102, stream.wait_ms(7_000));
            refused_by(comm, 103, stream.wait_ms(9_999));
            reported(&stream)
        };
        let of_k3s = [(Likely, None), (Likely, None), (Proven, Some(1)), (Proven, Some(2))];
        assert_eq!(verdicts("k3s-server"), of_k3s);
        assert_eq!(verdicts("kubelet"), [1, 2, 3, 4].map(|count| (Proven, Some(count))));
    }

    /// The client connects each second, so some connects are one period apart.
    #[test]
    fn a_connect_of_the_api_server_that_may_be_the_kubelets_client_is_only_likely() {
        let connects_to = |container: &str| {
            let mut stream = Stream::to("10.0.0.1:6443").host_network_liveness(container, 10).clone();
            for conn in 100..115 {
                stream.again(conn).connect().refused().wait_ms(1_000);
            }
            stream
        };
        let own = connects_to("kube-apiserver");
        assert_eq!(reported(&own), [(Confidence::Likely, None); 15]);
        let words = &own.verdicts()[14].verdict.summary;
        assert_ends(&words, "; it may have been no probe: the kubelet connects to it as a client, too");
        assert_eq!(reported(&connects_to("proxy"))[2], (Confidence::Proven, Some(3)));
        let mut hosted = Stream::new().liveness(10, 3).named_container("kube-apiserver").clone();
        hosted.connect().reset_sent(SYN, true, None).reset_received(TcpState::SynSent, 0);
        assert_eq!(reported(&hosted), [(Confidence::Proven, Some(1))], "another cluster's, in a pod");
    }

    fn refused_at(port: u16) -> Stream {
        let mut stream = Stream::to(&format!("10.88.0.1:{port}")).links(true, &["10.88.0.1"]).connect().clone();
        stream.refused_in(NODE);
        stream
    }

    /// `attach` on a control plane while its API server is down.
    #[test]
    fn without_specs_a_connect_to_the_nodes_api_server_is_a_connection() {
        let down = refused_at(6443).verdicts().remove(0);
        let (words, fix) = (&down.verdict.summary, &down.verdict.remediation);
        assert_eq!((down.subject, down.verdict.confidence), (Subject::Connection, Confidence::Proven));
        assert_ends(&words, "this was a probe, or kubelet as a client of the control plane or the container runtime");
        assert_has(&fix, &["correct the port that kubelet connects to"]);
        assert_lacks(&fix, &["robe"]);
        assert_eq!(refused_at(8443).verdicts()[0].subject, Subject::Probe, "anybody may listen there");
        let probe = refused_at(10256).verdicts().remove(0);
        assert_eq!(probe.subject, Subject::Probe, "nothing but a probe connects to it");
        assert_lacks(&probe.verdict.summary, &["client"]);
        let noted = refused_at(6443).kubelet_at_target(ProbeOutput::Network).verdicts().remove(1);
        assert_eq!(noted.subject, Subject::Probe, "the kubelet says so");
        assert_lacks(&noted.verdict.summary, &["client"]);
    }

    /// The answer to the first connect is a 301 to a port without a listener.
    #[test]
    fn a_refused_redirect_is_a_failure_of_the_probe() {
        let mut stream = Stream::new().http_readiness().connect().established().answers(301).clone();
        stream.again_to(8, "10.88.0.2:8443").connect().refused().kubelet_at_target(ProbeOutput::Network);
        let verdicts = stream.verdicts();
        assert_eq!([verdicts[0].subject, verdicts[1].subject], [Subject::Probe, Subject::Probe]);
        let (probe, verdict) = (verdicts[1].probe.as_ref().expect("its probe"), &verdicts[1].verdict);
        assert_eq!((probe.port, probe.consecutive_failures), (Some(8080), None), "its failures are not counted");
        assert_eq!((verdict.cause.name(), verdict.confidence), ("probe_misconfigured", Confidence::Proven));
        assert_starts(&verdict.summary, "the probe asks port 8080");
        assert_has(&verdict.remediation, &["on port 8080 without a redirect"]);
    }

    /// A pod on the host's network that has the port of an API server.
    #[test]
    fn without_specs_an_answer_in_plain_http_shows_a_probe() {
        let mut stream = Stream::to("10.88.0.1:6443");
        stream.links(true, &["10.88.0.1"]).connect().established().answers(503);
        assert_eq!(stream.verdicts()[0].subject, Subject::Probe);
    }

    /// `kubectl exec`: the kubelet asks the container runtime's streaming server for an upgrade.
    #[test]
    fn without_specs_an_upgrade_on_loopback_is_no_probe() {
        let upgraded = |dst: &str, status: u16| {
            let mut stream = Stream::to(dst).links(true, &["10.88.0.1"]).connect().established().clone();
            stream.answer(AnswerKind::Http, Some(status)).wait_ms(400);
            stream.closes((100, 101, 200)).verdicts().pop().map(|it| (it.verdict.cause.name(), it.subject))
        };
        assert_eq!(upgraded("127.0.0.1:35000", 101), None);
        assert_eq!(upgraded("127.0.0.1:35000", 403), None, "kubectl then asks for the older kind");
        assert_eq!(upgraded("127.0.0.1:10256", 404), Some(("app_status_failure", Subject::Probe)));
        let mut reset = Stream::to("127.0.0.1:35000").connect().established().clone();
        reset.answer(AnswerKind::Http, Some(101)).reset_received(TcpState::Established, 60);
        reset.state(TcpState::Established, TcpState::Close, 104, (100, 101, 60)).settles();
        assert!(reset.verdicts().iter().all(|it| it.subject == Subject::Connection), "the command ended");
    }
}
