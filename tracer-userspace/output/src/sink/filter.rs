//! `-n`, `-p`, `-c` and `--cause`: which verdicts and attempts are printed, and the message if none is.

mod pod;

pub use self::pod::PodFilter;
use tracer_model::event::Pod;
use tracer_model::plural::counted;
use tracer_model::record::{Body, Cause, K8s};

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
        match body {
            Body::Verdict(v) => self.fits(v.k8s.as_ref(), Some(v.verdict.cause)),
            Body::Attempt(a) => self.fits(a.k8s.as_ref(), a.cause),
            Body::Start(_) | Body::Stop(_) | Body::Node(_) | Body::Loss(_) | Body::Finding(_) => true,
        }
    }

    /// Whether a flag was given.
    pub fn is_set(&self) -> bool {
        self.needs_pods() || !self.causes.is_empty()
    }

    /// Whether a flag names a pod, so that a list of pods is needed.
    pub const fn needs_pods(&self) -> bool {
        self.namespace.is_some() || self.pod.is_some() || self.container.is_some()
    }

    /// Whether an attempt of this pod with this cause passes.
    pub fn fits(&self, k8s: Option<&K8s>, cause: Option<Cause>) -> bool {
        self.fits_pod(k8s) && self.fits_cause(cause)
    }

    fn fits_cause(&self, cause: Option<Cause>) -> bool {
        self.causes.is_empty() || cause.is_some_and(|cause| self.causes.contains(&cause))
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
        let k8s = |container_name| K8s {
            namespace: pod.namespace.clone(),
            pod_name: pod.name.clone(),
            pod_uid: None,
            container_name,
            workload: pod.workload.clone(),
        };
        match &self.container {
            None => self.fits_pod(Some(&k8s(None))),
            Some(_) => pod.containers.iter().any(|container| self.fits_pod(Some(&k8s(container.name.clone())))),
        }
    }

    /// The message that no known pod matches, with a hint. Absent if one matches, or no pod is known by name.
    pub fn unmatched(&self, pods: &[&Pod]) -> Option<String> {
        let named = pods.iter().filter(|pod| pod.name.is_some()).count();
        if !self.needs_pods() || named == 0 || pods.iter().any(|pod| self.fits_known(pod)) {
            return None;
        }
        let is_prefix = pods.iter().any(|pod| self.is_prefix_of(pod.name.as_deref()));
        Some(format!("none of the {named} known pods matches `{}`{}", self.pod_flags(), self.hint(is_prefix)))
    }

    /// Whether the value of `-p` is only the beginning of this name.
    fn is_prefix_of(&self, name: Option<&str>) -> bool {
        let prefix = self.pod.as_ref().and_then(PodFilter::as_prefix);
        prefix.is_some_and(|prefix| prefix.fits(name, None))
    }

    /// What the user probably meant.
    fn hint(&self, is_prefix: bool) -> String {
        let prefix = self.pod.as_ref().and_then(PodFilter::as_prefix).filter(|_| is_prefix);
        prefix.map(|prefix| format!("; did you mean `-p '{prefix}'`?")).unwrap_or_default()
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

/// Which parts of the filter matched a pod or an attempt so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct FilterHits {
    pod: bool,
    /// The value of `-p` is the beginning of a pod's name.
    prefix: bool,
    cause: bool,
}

impl FilterHits {
    /// Takes a pod of the node.
    pub fn pod(&mut self, filter: &Filter, pod: &Pod) {
        self.pod = self.pod || filter.fits_known(pod);
        self.prefix = self.prefix || filter.is_prefix_of(pod.name.as_deref());
    }

    /// Takes a verdict or an attempt, printed or not.
    pub fn attempt(&mut self, filter: &Filter, k8s: Option<&K8s>, cause: Option<Cause>) {
        self.pod = self.pod || filter.fits_pod(k8s);
        self.prefix = self.prefix || filter.is_prefix_of(k8s.and_then(|k8s| k8s.pod_name.as_deref()));
        self.cause = self.cause || filter.fits_cause(cause);
    }

    /// Takes any record.
    pub fn record(&mut self, filter: &Filter, body: &Body) {
        match body {
            Body::Verdict(body) => self.attempt(filter, body.k8s.as_ref(), Some(body.verdict.cause)),
            Body::Attempt(body) => self.attempt(filter, body.k8s.as_ref(), body.cause),
            _ => {}
        }
    }

    /// `0 of 62 failures shown: no pod matches` with the flags. Absent without a filter, or if it hides no failure.
    pub fn shown(self, filter: &Filter, shown: u64, failures: u64) -> Option<String> {
        if !filter.is_set() {
            return None;
        }
        let (pods, causes) = (filter.pod_flags(), filter.cause_flags());
        let hint = filter.hint(self.prefix);
        let unmatched = (filter.needs_pods() && !self.pod).then(|| format!("no pod matches `{pods}`{hint}"));
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
    use crate::sink::tests::verdict;

    #[test]
    fn every_condition_must_hold() {
        let body = verdict(Cause::ConnectionRefused);
        let mut filter = Filter::default();
        assert!(filter.passes(&body));
        filter.namespace = Some("shop".into());
        filter.causes = vec![Cause::LoopbackDown, Cause::ConnectionRefused];
        assert!(filter.passes(&body));
        filter.container = Some("other".into());
        assert!(!filter.passes(&body));
    }

    fn of_pod(typed: &str) -> Filter {
        Filter { namespace: Some("shop".into()), pod: Some(typed.parse().expect("a pod")), ..Filter::default() }
    }

    #[test]
    fn an_unknown_pod_does_not_match_a_name() {
        let Body::Verdict(mut verdict) = verdict(Cause::Unexplained) else { return };
        verdict.k8s = None;
        assert!(!of_pod("cart").passes(&Body::Verdict(verdict)));
    }

    #[test]
    fn a_filter_that_matches_no_known_pod_is_reported_with_a_hint() {
        let pod = |name: &str| Pod {
            namespace: Some("shop".into()),
            name: Some(name.into()),
            containers: vec![tracer_model::event::Container { name: Some("web".into()), ..Default::default() }],
            ..Pod::default()
        };
        let (cart, db) = (pod("cart-7d9f-x2x4z"), pod("db-0"));
        let unmatched = |filter: &Filter| filter.unmatched(&[&cart, &db]);
        assert_eq!(
            unmatched(&of_pod("cart-7d9")).as_deref(),
            Some("none of the 2 known pods matches `-n shop -p cart-7d9`; did you mean `-p 'cart-7d9*'`?")
        );
        assert_eq!(
            unmatched(&of_pod("nosuch")).as_deref(),
            Some("none of the 2 known pods matches `-n shop -p nosuch`")
        );
        assert_eq!(unmatched(&of_pod("cart-*")), None);
        assert_eq!(unmatched(&Filter::default()), None);
        assert_eq!(of_pod("nosuch").unmatched(&[&Pod::default()]), None, "only names can be compared");
        let container = |name: &str| Filter { container: Some(name.into()), ..Filter::default() };
        assert_eq!(unmatched(&container("web")), None);
        assert_eq!(unmatched(&container("we")).as_deref(), Some("none of the 2 known pods matches `-c we`"));
    }

    #[test]
    fn a_summary_says_why_nothing_is_shown() {
        let shown = |filter: &Filter, shown| {
            let mut hits = FilterHits::default();
            hits.record(filter, &verdict(Cause::ConnectionRefused));
            hits.shown(filter, shown, 62)
        };
        let nosuch = Filter { namespace: Some("nosuch".into()), ..Filter::default() };
        assert_eq!(shown(&nosuch, 0).as_deref(), Some("0 of 62 failures shown: no pod matches `-n nosuch`"));
        let part = "0 of 62 failures shown: no pod matches `-n shop -p car`; did you mean `-p 'car*'`?";
        assert_eq!(shown(&of_pod("car"), 0).as_deref(), Some(part));
        let cause = Filter { causes: vec![Cause::LoopbackDown], ..Filter::default() };
        assert_eq!(shown(&cause, 0).as_deref(), Some("0 of 62 failures shown: none has `--cause loopback_down`"));
        let refused = Filter { causes: vec![Cause::ConnectionRefused], ..Filter::default() };
        let some = Some("3 of 62 failures shown: those that match `--cause connection_refused`");
        assert_eq!(shown(&refused, 3).as_deref(), some);
        assert_eq!(shown(&Filter::default(), 62), None);
    }
}
