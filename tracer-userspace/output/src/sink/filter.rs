//! `-n`, `-p`, `-c` and `--cause`: which verdicts and attempts are printed, and the message if none is.

mod pod;

pub use self::pod::PodFilter;
use tracer_model::event::Pod;
use tracer_model::plural::counted;
use tracer_model::record::{Body, Cause, K8s};
use tracer_terminal::screen::safe;

/// The filter flags. Absent or empty: everything passes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    pub namespace: Option<String>,
    pub pod: Option<PodFilter>,
    pub container: Option<String>,
    pub causes: Vec<Cause>,
}

impl Filter {
    /// Whether a record is printed. Records that are not about an attempt always are.
    pub fn passes(&self, body: &Body) -> bool {
        filtered_fields(body).is_none_or(|(k8s, cause, also)| self.fits_pod(k8s) && self.fits_cause(cause, also))
    }

    /// Whether a flag was given.
    pub fn is_set(&self) -> bool {
        self.needs_pods() || !self.causes.is_empty()
    }

    /// Whether a flag names a pod, so that a list of pods is needed.
    pub const fn needs_pods(&self) -> bool {
        self.namespace.is_some() || self.pod.is_some() || self.container.is_some()
    }

    fn fits_cause(&self, cause: Option<Cause>, also: &[Cause]) -> bool {
        self.causes.is_empty() || cause.iter().chain(also).any(|cause| self.causes.contains(cause))
    }

    fn fits_pod(&self, k8s: Option<&K8s>) -> bool {
        let same = |wanted: &Option<String>, get: fn(&K8s) -> &Option<String>| {
            wanted.is_none() || k8s.is_some_and(|k8s| get(k8s) == wanted)
        };
        let pod =
            |wanted: &PodFilter| k8s.is_some_and(|k8s| wanted.fits(k8s.pod_name.as_deref(), k8s.workload.as_ref()));
        same(&self.namespace, |k| &k.namespace)
            && self.pod.as_ref().is_none_or(pod)
            && same(&self.container, |k| &k.container_name)
    }

    /// Whether a pod of the node, or one of its containers, matches the flags.
    pub fn fits_known(&self, pod: &Pod) -> bool {
        let k8s = |container_name| k8s_of(pod, container_name);
        match &self.container {
            None => self.fits_pod(Some(&k8s(None))),
            Some(_) => pod.containers.iter().any(|container| self.fits_pod(Some(&k8s(container.name.clone())))),
        }
    }

    /// The message that no known pod matches, with a hint. Absent if one matches, or no pod is known by name.
    pub fn unmatched(&self, pods: &[&Pod]) -> Option<String> {
        let named = pods.iter().filter(|pod| pod.name.is_some()).count() as u64;
        if !self.needs_pods() || named == 0 || pods.iter().any(|pod| self.fits_known(pod)) {
            return None;
        }
        let named = counted(named, "pod");
        let hint = pods.iter().find_map(|pod| self.hint_of_known(pod)).unwrap_or_default();
        Some(format!("none of the {named} known by name matches `{}`{hint}", self.pod_flags()))
    }

    fn hint_of_known(&self, pod: &Pod) -> Option<String> {
        let containers: Vec<_> = pod.containers.iter().filter_map(|it| it.name.as_deref()).collect();
        self.hint_of(&k8s_of(pod, None), &containers)
    }

    /// What the user probably meant, if only one of the flags excludes this pod.
    fn hint_of(&self, k8s: &K8s, containers: &[&str]) -> Option<String> {
        let (wanted, name) = (self.pod.as_ref()?, k8s.pod_name.as_deref()?);
        let namespace = self.namespace.is_none() || self.namespace == k8s.namespace;
        let pod = wanted.fits(Some(name), k8s.workload.as_ref());
        let container = self.container.as_deref().is_none_or(|it| containers.contains(&it));
        match (namespace, pod, container) {
            (true, false, true) => wanted.hint(name, k8s.workload.as_ref()),
            (false, true, true) => {
                Some(format!("; {} is in namespace {}", safe(name), safe(k8s.namespace.as_deref()?)))
            }
            (true, true, false) if !containers.is_empty() => {
                Some(format!("; the containers of {}: {}", safe(name), safe(&containers.join(", "))))
            }
            _ => None,
        }
    }

    /// `-n shop -p 'cart-*'`
    fn pod_flags(&self) -> String {
        let flag = |flag: &str, value: Option<String>| value.map(|value| format!("{flag} {value}"));
        let flags = [
            flag("-n", self.namespace.clone()),
            flag("-p", self.pod.as_ref().map(ToString::to_string)),
            flag("-c", self.container.clone()),
        ];
        flags.into_iter().flatten().collect::<Vec<_>>().join(" ")
    }

    fn cause_flags(&self) -> String {
        let flags: Vec<_> = self.causes.iter().map(|cause| format!("--cause {}", cause.name())).collect();
        flags.join(" ")
    }
}

/// The pod of an attempt or a verdict, its cause, and the causes beside it.
fn filtered_fields(body: &Body) -> Option<(Option<&K8s>, Option<Cause>, &[Cause])> {
    match body {
        Body::Verdict(body) => Some((body.k8s.as_ref(), Some(body.verdict.cause), &body.verdict.also)),
        Body::Attempt(body) => Some((body.k8s.as_ref(), body.cause, &[])),
        Body::Start(_) | Body::Stop(_) | Body::Node(_) | Body::Loss(_) | Body::Finding(_) => None,
    }
}

fn k8s_of(pod: &Pod, container_name: Option<String>) -> K8s {
    K8s {
        namespace: pod.namespace.clone(),
        pod_name: pod.name.clone(),
        pod_uid: None,
        container_name,
        workload: pod.workload.clone(),
    }
}

/// A filter, and which parts of it matched a pod or an attempt so far.
#[derive(Clone, Debug, Default)]
pub struct FilterHits {
    pub filter: Filter,
    pod: bool,
    /// What the user probably meant, by the first pod that tells.
    hint: Option<String>,
    cause: bool,
}

impl FilterHits {
    pub fn new(filter: Filter) -> Self {
        Self { filter, ..Self::default() }
    }

    /// Takes a pod of the node.
    pub fn pod(&mut self, pod: &Pod) {
        self.pod = self.pod || self.filter.fits_known(pod);
        if !self.pod && self.hint.is_none() {
            self.hint = self.filter.hint_of_known(pod);
        }
    }

    /// Takes a verdict or an attempt of this pod with this cause, and these beside it. Gives whether it passes.
    pub fn attempt(&mut self, k8s: Option<&K8s>, cause: Option<Cause>, also: &[Cause]) -> bool {
        let filter = &self.filter;
        let (fits_pod, fits_cause) = (filter.fits_pod(k8s), filter.fits_cause(cause, also));
        (self.pod, self.cause) = (self.pod || fits_pod, self.cause || fits_cause);
        // An attempt names one container of its pod only.
        let is_of_container = |k8s: &&K8s| filter.container.is_none() || filter.container == k8s.container_name;
        if let Some(k8s) = k8s.filter(|_| !self.pod && self.hint.is_none()).filter(is_of_container) {
            self.hint = filter.hint_of(k8s, k8s.container_name.as_deref().as_slice());
        }
        fits_pod && fits_cause
    }

    pub fn record(&mut self, body: &Body) {
        if let Some((k8s, cause, also)) = filtered_fields(body) {
            self.attempt(k8s, cause, also);
        }
    }

    /// `0 of 62 failures shown: no pod matches` (or `no container`) with the flags. Absent without a filter, or if it hides
    /// no failure.
    pub fn shown(&self, shown: u64, failures: u64) -> Option<String> {
        let filter = &self.filter;
        if !filter.is_set() {
            return None;
        }
        let (pods, causes) = (filter.pod_flags(), filter.cause_flags());
        let hint = self.hint.as_deref().unwrap_or_default();
        let what = match (&filter.container, filter.pod.is_some() || filter.namespace.is_some()) {
            (None, _) => "pod",
            (Some(_), false) => "container",
            (Some(_), true) => "pod or container",
        };
        let unmatched = (filter.needs_pods() && !self.pod).then(|| format!("no {what} matches `{pods}`{hint}"));
        let reason = match (shown, unmatched) {
            (0, unmatched) if failures == 0 => return unmatched,
            (0, Some(unmatched)) => format!(": {unmatched}"),
            (0, None) if !filter.causes.is_empty() && !self.cause => format!(": none has `{causes}`"),
            (0, None) => format!(": none matches `{}`", [pods, causes].join(" ").trim()),
            _ => format!(": those that match `{}`", [pods, causes].join(" ").trim()),
        };
        // The kubelet also reports failures of attempts that tracer did not see.
        let failures = counted(failures.max(shown), "failure");
        Some(format!("{shown} of {failures} shown{reason}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::tests::{verdict, verdict_body};
    use tracer_model::record::{VerdictBody, Workload};

    #[test]
    fn every_condition_must_hold() {
        let body = verdict(Cause::ConnectionRefused);
        let causes = vec![Cause::LoopbackDown, Cause::ConnectionRefused];
        let named = Filter { causes, ..of_pod("cart") };
        assert!(Filter::default().passes(&body) && named.passes(&body));
        assert!(!Filter { container: Some("other".into()), ..named }.passes(&body));
        let of_no_pod = VerdictBody { k8s: None, ..verdict_body(Cause::ConnectionRefused) };
        assert!(!of_pod("cart").passes(&Body::Verdict(of_no_pod.into())), "an unknown pod does not match a name");
    }

    #[test]
    fn a_cause_beside_another_passes() {
        let filter = Filter { causes: vec![Cause::CpuThrottled], ..Filter::default() };
        assert!(!filter.passes(&verdict(Cause::SlowResponse)));
        let mut body = verdict_body(Cause::SlowResponse);
        body.verdict.also.push(Cause::CpuThrottled);
        let body = Body::Verdict(body.into());
        assert!(filter.passes(&body));
        let mut hits = FilterHits::new(filter);
        hits.record(&body);
        let message = "1 of 1 failure shown: those that match `--cause cpu_throttled`";
        assert_eq!(hits.shown(1, 1).as_deref(), Some(message));
    }

    fn of_pod(typed: &str) -> Filter {
        Filter { namespace: Some("shop".into()), pod: Some(typed.parse().expect("a pod")), ..Filter::default() }
    }

    #[test]
    fn a_filter_that_matches_no_known_pod_is_reported_with_a_hint() {
        let pod = |name: &str| Pod {
            namespace: Some("shop".into()),
            name: Some(name.into()),
            workload: name.strip_suffix("-0").map(|name| Workload { kind: "StatefulSet".into(), name: name.into() }),
            containers: vec![tracer_model::event::Container { name: Some("web".into()), ..Default::default() }],
            ..Pod::default()
        };
        let (cart, db) = (pod("cart-7d9f-x2x4z"), pod("db-0"));
        let container = |name: &str| Filter { container: Some(name.into()), ..Filter::default() };
        for matching in [of_pod("cart-*"), Filter::default(), container("web")] {
            assert_eq!(matching.unmatched(&[&cart, &db]), None);
        }
        assert_eq!(of_pod("nosuch").unmatched(&[&Pod::default()]), None, "only names can be compared");
        let named = |namespace: &str, pod: &str, container: Option<&str>| Filter {
            namespace: Some(namespace.into()),
            container: container.map(Into::into),
            ..of_pod(pod)
        };
        for (filter, message) in [
            (of_pod("cart-7d9"), "`-n shop -p cart-7d9`; did you mean `-p 'cart-7d9*'`?"),
            (of_pod("nosuch"), "`-n shop -p nosuch`"),
            (named("Shop", "db-0", None), "`-n Shop -p db-0`; db-0 is in namespace shop"),
            (named("Shop", "cart-7d9", None), "`-n Shop -p cart-7d9`"),
            (named("shop", "db-0", Some("wbe")), "`-n shop -p db-0 -c wbe`; the containers of db-0: web"),
            (of_pod("deploy/db"), "`-n shop -p deploy/db`; db is a StatefulSet: `-p statefulset/db`"),
            (named("Shop", "deploy/db", None), "`-n Shop -p deploy/db`"),
            (container("we"), "`-c we`"),
        ] {
            let expected = format!("none of the 2 pods known by name matches {message}");
            assert_eq!(filter.unmatched(&[&cart, &db]), Some(expected));
        }
    }

    #[test]
    fn a_summary_says_why_nothing_is_shown() {
        let message = |filter, shown| {
            let mut hits = FilterHits::new(filter);
            hits.record(&verdict(Cause::ConnectionRefused));
            hits.shown(shown, 62)
        };
        let cause = |cause| Filter { causes: vec![cause], ..Filter::default() };
        for (filter, shown, reason) in [
            (Filter { namespace: Some("nosuch".into()), ..Filter::default() }, 0, "no pod matches `-n nosuch`"),
            (Filter { container: Some("wbe".into()), ..Filter::default() }, 0, "no container matches `-c wbe`"),
            (of_pod("car"), 0, "no pod matches `-n shop -p car`; did you mean `-p 'car*'`?"),
            (cause(Cause::LoopbackDown), 0, "none has `--cause loopback_down`"),
            (cause(Cause::ConnectionRefused), 3, "those that match `--cause connection_refused`"),
        ] {
            assert_eq!(message(filter, shown), Some(format!("{shown} of 62 failures shown: {reason}")));
        }
        assert_eq!(message(Filter::default(), 62), None);
    }
}
