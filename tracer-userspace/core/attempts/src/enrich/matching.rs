//! Which probe of which container an attempt can be: by its target, by what it did, and by what the kubelet reported.

use super::Matched;
use super::targets::{Match, PodContainer, behaving};
use crate::correlate::attempt::Attempt;
use tracer_model::event::{Container, Handler, KubeletProbe, Pod, PodRef, ProbeSpec};

impl<'a> Matched<'a> {
    /// Several probes fit, for all that the kernel shows: of several kinds, or of several containers.
    pub fn is_one_of_several(&self) -> bool {
        let all = self.probes_on();
        let behaving = behaving(all, self.attempt);
        if behaving.is_empty() { all.len() > 1 } else { behaving.len() > 1 }
    }

    /// The probe specs that this attempt can be: same address and port; and, where the attempt is over,
    /// the kind that behaves like it.
    pub(super) fn find_probes(&self) -> Vec<Match<'a>> {
        if !self.attempt.prober {
            return Vec::new();
        }
        let all = self.probes_on();
        // The kubelet has reported which one it was.
        let noted =
            self.attempt.kubelet().and_then(|(_, reported)| all.iter().copied().find(|it| is_named_by(it, reported)));
        if let Some(noted) = noted {
            return vec![noted];
        }
        let behaving = behaving(all, self.attempt);
        if behaving.is_empty() && self.handlers_met().is_empty() { all.to_vec() } else { behaving }
    }

    /// The containers with a probe or lifecycle handler that it can be.
    pub(super) fn containers_of(&self) -> Vec<PodContainer<'a>> {
        let probes = self.matching_probes().iter().map(|(pod, container, _)| (*pod, *container));
        probes.chain(self.handlers_met().iter().map(|(pod, container, _)| (*pod, *container))).collect()
    }

    /// The attempt can be one of this probe: by its specs, or, where none are known, by the pod's address.
    pub fn is_probe_of(&self, probe: &KubeletProbe) -> bool {
        let matches = self.matching_probes();
        if !matches.is_empty() {
            return matches.iter().any(|it| is_named_by(it, probe));
        }
        if !self.handlers_met().is_empty() {
            return false;
        }
        // Without specs the address names the pod. Without a pod there that has a name, the kubelet must have named the target.
        self.named_pod().map_or(probe.dst == Some(self.attempt.flow.dst), |pod| is_pod(pod, &probe.pod))
    }

    /// The pod at the address, if it is known by name: of one that is not listed yet only its network namespace may be.
    pub fn named_pod(&self) -> Option<&'a Pod> {
        let pod = self.node.pods.only_at(self.attempt.flow.dst.ip());
        pod.filter(|pod| pod.uid.is_some() || pod.name.is_some())
    }

    /// Whoever dialled this loopback address may have dialled `localhost`, which has another one: no probe that fits names the address.
    pub fn may_be_localhost(&self) -> bool {
        let names = |(.., spec): &Match<'_>| spec.host.as_deref().is_some_and(|host| host != "localhost");
        let probes = self.matching_probes();
        let by_address = !probes.is_empty() && probes.iter().all(names);
        self.attempt.prober
            && self.attempt.established.is_none()
            && self.attempt.flow.dst.ip().is_loopback()
            && !by_address
    }

    /// The probe that dialled this by the kubelet's words and has another port: it was redirected. The kubelet follows on the same
    /// host only (`RedirectChecker`, pkg/probe/http).
    pub(super) fn redirected(&self) -> Option<Match<'a>> {
        let (_, reported) = self.attempt.kubelet().filter(|_| outcome_was_logged(self.attempt))?;
        let mut noted = self.target_specs().filter(|it| is_named_by(it, reported));
        // An Event may name none of two containers.
        let only = noted.next().filter(|_| noted.next().is_none());
        only.filter(|(.., spec)| spec.handler == Handler::Http && spec.port != self.attempt.flow.dst.port())
    }

    /// The probes that the redirect before this connection can have answered, if no probe or lifecycle handler asks its port itself.
    pub(super) fn followed(&self) -> Vec<Match<'a>> {
        let Some(first) = self.attempt.redirected.map(|it| it.first) else { return Vec::new() };
        if !self.probes_on().is_empty() || !self.handlers_met().is_empty() {
            return Vec::new();
        }
        let asks = |spec: &ProbeSpec| spec.handler == Handler::Http && spec.port == first.port();
        self.target_specs().filter(|(.., spec)| asks(spec)).collect()
    }

    /// The port of the probe that was redirected to this target, by the kubelet's words, or by its answer and what it dialled next.
    pub fn redirected_from(&self) -> Option<u16> {
        let named = self.redirected().map(|(.., spec)| spec.port);
        named.or_else(|| self.followed().first().map(|(.., spec)| spec.port))
    }

    /// The status of the redirect that this connection follows, if it stayed on the port and only one probe asks that: two are
    /// redirected in turn.
    pub fn redirected_within_port(&self) -> Option<u16> {
        let redirected = self.attempt.redirected.filter(|it| it.first == self.attempt.flow.dst)?;
        let only = self.probes_on().len() == 1 && self.handlers_met().is_empty();
        only.then_some(redirected.status)
    }

    /// The kubelet itself has named this target as the one where a probe of another port ended.
    pub fn is_named_redirect(&self) -> bool {
        self.redirected().is_some()
    }
}

/// Of two pods on the host's network that are asked the same, it can be either.
pub(super) fn only_pod<'a>(containers_of: &[PodContainer<'a>]) -> Option<&'a Pod> {
    let (first, _) = containers_of.first()?;
    containers_of.iter().all(|(pod, _)| std::ptr::eq(*pod, *first)).then_some(*first)
}

pub(super) fn single_container<'a>(containers_of: &[PodContainer<'a>]) -> Option<&'a Container> {
    let (_, first) = containers_of.first()?;
    containers_of.iter().all(|(_, c)| c.name == first.name).then_some(*first)
}

/// The pod that a line of the kubelet names: by uid, if both have one. The next pod of a StatefulSet has the name of the last.
pub fn is_pod(pod: &Pod, named: &PodRef) -> bool {
    let same = |left: &Option<String>, right: &Option<String>| left.is_some() && left == right;
    match &named.uid {
        Some(uid) if pod.uid.is_some() => pod.has_uid(uid),
        _ => same(&pod.name, &named.name) && same(&pod.namespace, &named.namespace),
    }
}

/// The probe that the kubelet speaks of. An Event that it combined of several does not tell the container.
fn is_named_by((pod, container, spec): &Match<'_>, probe: &KubeletProbe) -> bool {
    let is_container = container.name == probe.container || probe.is_event() && probe.container.is_none();
    is_pod(pod, &probe.pod) && is_container && spec.probe_type == probe.probe_type
}

/// The kubelet has reported of this very target that its probe failed there.
pub(super) fn outcome_was_logged(attempt: &Attempt) -> bool {
    attempt.prober && attempt.kubelet().is_some_and(|(_, reported)| reported.dst == Some(attempt.flow.dst))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(uid: Option<&str>) -> PodRef {
        PodRef { namespace: Some("shop".into()), name: Some("db-0".into()), uid: uid.map(Into::into) }
    }

    #[test]
    fn the_next_pod_of_a_name_is_another_one() {
        let pod = |uid: Option<&str>, kubelet_uid: Option<&str>| {
            let PodRef { namespace, name, .. } = named(None);
            Pod {
                namespace,
                name,
                uid: uid.map(Into::into),
                kubelet_uid: kubelet_uid.map(Into::into),
                ..Pod::default()
            }
        };
        let (next, mirror) = (pod(Some("new"), None), pod(Some("of-the-api"), Some("hash")));
        assert!(is_pod(&next, &named(Some("new"))) && !is_pod(&next, &named(Some("old"))));
        assert!(is_pod(&mirror, &named(Some("hash"))) && is_pod(&mirror, &named(Some("of-the-api"))));
        assert!(is_pod(&next, &named(None)) && is_pod(&pod(None, None), &named(Some("old"))), "one uid is not known");
    }
}
